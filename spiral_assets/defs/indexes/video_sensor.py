"""Index the videos of new and changed storage shards as soon as they are registered."""

import dagster as dg

from spiral_assets.cache_rebuilds import EVERY_S
from spiral_assets.defs.indexes.video import video_index
from spiral_assets.partitions import VIDEO_SHARDS
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource

index_video = dg.define_asset_job(
    "index_video",
    dg.AssetSelection.assets(video_index),
    partitions_def=VIDEO_SHARDS,
    description="Index the videos of some storage shards.",
    tags={"spiral/cache": "video_index"},
)


@dg.sensor(job=index_video, minimum_interval_seconds=EVERY_S)
def changed_video_shards(context: dg.SensorEvaluationContext, catalog: CatalogResource) -> dg.SensorResult:
    """Request one run per new or changed storage shard. The run key is the shard and the version of its data."""
    opened = catalog.open()
    if plans.RELATION not in opened.tables():
        return dg.SensorResult(skip_reason=f"{plans.RELATION} is not registered yet")
    manifest = opened.entry(plans.RELATION).manifest()
    shards = dict(zip(manifest.shard_names.to_pylist(), manifest.content_keys.to_pylist(), strict=True))
    known = context.instance.get_dynamic_partitions(str(VIDEO_SHARDS.name))
    unknown = [shard for shard in shards if shard not in known]
    return dg.SensorResult(
        run_requests=[
            dg.RunRequest(run_key=f"{shard}:{version}", partition_key=shard) for shard, version in shards.items()
        ],
        dynamic_partitions_requests=[VIDEO_SHARDS.build_add_request(unknown)] if unknown else [],
    )

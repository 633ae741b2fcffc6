"""The video relations of the catalog: segments of videos, and their labels."""

import dagster as dg

from spiral_assets.partitions import VIDEO_SHARDS, update
from spiral_assets.plans import video as plans
from spiral_assets.registration import register
from spiral_assets.resources import CatalogResource, VideosResource


@dg.asset(
    key=["catalog", "video", "training_segments"],
    group_name="catalog",
    kinds={"parquet"},
    owners=["team:data"],
    tags={"domain": "video"},
)
def training_segments(
    context: dg.AssetExecutionContext, catalog: CatalogResource, videos: VideosResource
) -> dg.MaterializeResult[None]:
    """Segments of H.264 videos, by time range. Their storage shards become the partitions of the video index."""
    import spiral_stream as spiral

    opened, drawn = catalog.open(), videos.drawn()
    source = spiral.Parquet(drawn.segments_path, base=drawn.root)
    result = register(opened, plans.RELATION, source, plans.DESCRIPTIONS, semantic={plans.COLUMN: plans.H264})
    update(context.instance, VIDEO_SHARDS, opened.entry(plans.RELATION).manifest().shard_names.to_pylist())
    return result


@dg.asset(
    key=["catalog", "video", "segment_labels"],
    group_name="catalog",
    kinds={"parquet"},
    owners=["team:data"],
    tags={"domain": "video"},
)
def segment_labels(catalog: CatalogResource, videos: VideosResource) -> dg.MaterializeResult[None]:
    """Label, caption and confidence of the annotator, one row per segment."""
    import spiral_stream as spiral

    return register(catalog.open(), plans.LABELS, spiral.Parquet(videos.drawn().labels_path), plans.DESCRIPTIONS)

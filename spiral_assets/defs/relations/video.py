"""The video relations of the catalog: segments of videos, and what people said of them."""

import dagster as dg

from spiral_assets.partitions import VIDEO_SHARDS, keep_up
from spiral_assets.plans import video as plans
from spiral_assets.registration import registered
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
    """Segments of H.264 files, by time; their storage shards become the partitions of the video index."""
    import spiral_stream as spiral

    opened, drawn = catalog.open(), videos.drawn()
    source = spiral.Parquet(drawn.segments_path, base=drawn.root)
    result = registered(opened, plans.RELATION, source, plans.DESCRIPTIONS, semantic={plans.COLUMN: plans.H264})
    keep_up(context.instance, VIDEO_SHARDS, opened.entry(plans.RELATION).manifest().shard_names.to_pylist())
    return result


@dg.asset(
    key=["catalog", "video", "segment_labels"],
    group_name="catalog",
    kinds={"parquet"},
    owners=["team:data"],
    tags={"domain": "video"},
)
def segment_labels(catalog: CatalogResource, videos: VideosResource) -> dg.MaterializeResult[None]:
    """A label, a caption and how sure the annotator was, by segment."""
    import spiral_stream as spiral

    return registered(catalog.open(), plans.LABELS, spiral.Parquet(videos.drawn().labels_path), plans.DESCRIPTIONS)

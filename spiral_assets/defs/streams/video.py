"""The named video streams, which a training job opens by name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spiral_assets.assets import SavedStream, stream_asset
from spiral_assets.defs.caches.video import video_clips
from spiral_assets.defs.relations.video import segment_labels
from spiral_assets.defs.statistics.video import clip_stats, shard_stats
from spiral_assets.plans import video as plans

if TYPE_CHECKING:
    import spiral_stream as spiral


def _samples(train: "spiral.PreparedStream", validation: "spiral.PreparedStream") -> Mapping[str, Any]:
    return {"samples_per_epoch": train.rows, "validation_samples": validation.rows}


video_stream = stream_asset(
    "video",
    domain="video",
    streams=[SavedStream(plans.TRAIN, plans.training), SavedStream(plans.VALIDATION, plans.validation, prefetch=2)],
    deps=[video_clips, segment_labels, clip_stats, shard_stats],
    description="The training and validation streams, saved by name, with EXPLAIN of the training stream.",
    metadata=_samples,
)

"""The named image streams, which a training job opens by name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spiral_assets.assets import SavedStream, stream_asset
from spiral_assets.defs.caches.images import imagenet_decoded
from spiral_assets.defs.statistics.images import shard_stats
from spiral_assets.plans import images as plans

if TYPE_CHECKING:
    import spiral_stream as spiral


def _steps(train: "spiral.PreparedStream", validation: "spiral.PreparedStream") -> Mapping[str, Any]:
    return {"steps_per_epoch": len(train), "validation_steps": len(validation)}


images_stream = stream_asset(
    "images",
    domain="images",
    streams=[SavedStream(plans.TRAIN, plans.training), SavedStream(plans.VALIDATION, plans.validation, prefetch=2)],
    deps=[imagenet_decoded, shard_stats],
    description="The training and validation streams, saved by name, with EXPLAIN of the training stream.",
    metadata=_steps,
)

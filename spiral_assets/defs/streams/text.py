"""The named text stream, which a training job opens by name."""

from spiral_assets.assets import SavedStream, stream_asset
from spiral_assets.defs.caches.text import CACHES
from spiral_assets.defs.statistics.text import token_lengths
from spiral_assets.plans import text as plans

text_stream = stream_asset(
    plans.TRAIN,
    domain="text",
    streams=[SavedStream(plans.TRAIN, plans.training)],
    deps=[*CACHES.values(), token_lengths],
    description="The mixture of the three relations, saved by name, with its EXPLAIN.",
    metadata=lambda _: {"samples_per_epoch": plans.EPOCH_SIZE},
)

"""What the statistics warn of; nothing stops at it."""

from typing import Final

import dagster as dg

from spiral_assets.defs.statistics.images import shard_stats
from spiral_assets.plans import images as plans
from spiral_assets.resources import CatalogResource

SKEWED: Final = 0.5  # total variation of a shard's labels to the whole; above it a shuffle block must hold many shards


@dg.asset_check(asset=shard_stats)
def labels_are_mixed(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Each storage shard has labels much like the whole, so that shuffling blocks of a few shards is enough."""
    skew = catalog.open().skew(plans.RELATION, plans.LABEL)
    if skew is None:
        return dg.AssetCheckResult(passed=False, description="nobody measured it; materialize shard_stats")
    (name, worst), *_ = skew.worst(1)
    return dg.AssetCheckResult(
        passed=worst < SKEWED,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"labels of {name} are {worst:.2f} from the whole (0 alike, 1 nothing in common)",
        metadata={"worst": round(worst, 4), "limit": SKEWED},
    )

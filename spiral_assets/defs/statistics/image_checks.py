"""Warnings about image statistics. None of them blocks."""

from typing import Final

import dagster as dg

from spiral_assets.defs.statistics.images import shard_stats
from spiral_assets.plans import images as plans
from spiral_assets.resources import CatalogResource

SKEWED: Final = (
    0.5  # total variation between a shard's labels and all labels; above it a shuffle block needs many shards
)


@dg.asset_check(asset=shard_stats)
def labels_are_mixed(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Each storage shard has a label mix similar to the whole, so shuffling blocks of a few shards is enough."""
    skew = catalog.open().skew(plans.RELATION, plans.LABEL)
    if skew is None:
        return dg.AssetCheckResult(passed=False, description="no statistics yet; materialize shard_stats")
    (name, worst), *_ = skew.worst(1)
    return dg.AssetCheckResult(
        passed=worst < SKEWED,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"label distance of {name} is {worst:.2f} (0: same mix as the whole relation, 1: nothing in common)",
        metadata={"worst": round(worst, 4), "limit": SKEWED},
    )

"""Warnings about clip statistics. None of them blocks."""

from typing import Final

import dagster as dg

from spiral_assets.defs.statistics.video import clip_stats, shard_stats
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource

MOST: Final = 0.5  # share of the segments by one creator: above it a model learns that creator
SHORT: Final = 0.1  # share of the segments that are shorter than the plan's clips


@dg.asset_check(asset=shard_stats)
def no_creator_has_most(catalog: CatalogResource) -> dg.AssetCheckResult:
    """No creator made more than half of the segments."""
    grouped = catalog.open().table(plans.RELATION).group_by("creator_id").aggregate(segments=("sample_id", "count"))
    made = {row["creator_id"]: row["segments"] for row in grouped.to_arrow().to_pylist()}
    most = max(made, key=lambda name: (made[name], name or ""))
    share = made[most] / sum(made.values())
    return dg.AssetCheckResult(
        passed=share < MOST,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{most} made {share:.1%} of the segments",
        metadata={"largest": round(share, 4), "limit": MOST},
    )


@dg.asset_check(asset=clip_stats)
def few_clips_are_short(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Few segments have fewer frames than a clip. Short clips repeat their last frame."""
    frames = catalog.open().table(plans.RELATION).project("frame_count").to_arrow()["frame_count"].to_numpy()
    short = int((frames < plans.FRAMES).sum())
    return dg.AssetCheckResult(
        passed=short <= SHORT * len(frames),
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{short:,} of {len(frames):,} segments have fewer than {plans.FRAMES} frames",
        metadata={"short": short, "limit": SHORT},
    )

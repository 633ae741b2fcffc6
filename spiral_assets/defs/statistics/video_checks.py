"""What the statistics of clips warn of; nothing stops at it."""

from typing import Final

import dagster as dg

from spiral_assets.defs.statistics.video import clip_stats, skew
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource
from spiral_assets.shares import Shares

MOST: Final = 0.5  # of the segments, by one creator: what is learned is then that creator
SHORT: Final = 0.1  # of the segments, shorter than the clips that the plan makes of them


@dg.asset_check(asset=skew)
def no_creator_has_most(catalog: CatalogResource) -> dg.AssetCheckResult:
    """No creator made most of the segments."""
    shares = Shares.of(catalog.open().table(plans.RELATION).project("creator_id").to_arrow()["creator_id"])
    return dg.AssetCheckResult(
        passed=shares.largest < MOST,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{shares.names[0] if shares.names else 'nobody'} made {shares.largest:.1%} of the segments",
        metadata={"largest": round(shares.largest, 4), "limit": MOST},
    )


@dg.asset_check(asset=clip_stats)
def few_clips_are_short(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Few segments have less frames than a clip is made of; those repeat their last one."""
    frames = catalog.open().table(plans.RELATION).project("frame_count").to_arrow()["frame_count"].to_numpy()
    short = int((frames < plans.FRAMES).sum())
    return dg.AssetCheckResult(
        passed=short <= SHORT * len(frames),
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{short:,} of {len(frames):,} segments have less than {plans.FRAMES} frames",
        metadata={"short": short, "limit": SHORT},
    )

"""The clip cache: the frames that the plan takes, decoded and small; built shard by shard, rebuilt where data changed."""

import dagster as dg

from spiral_assets.caching import built, complete
from spiral_assets.defs.indexes.video import index
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource


@dg.asset(
    key=["caches", "video_clips"],
    group_name="caches",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "video"},
    code_version=plans.cache_code_version(),
    deps=[index],
    pool="decode",
)
def video_clips(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Decoded frames of every segment that may be trained or validated on, at a bounded side."""
    with plans.cache_plan(catalog.open()).to_numpy() as stream:
        return built(context, stream, {"profile": str(plans.profile()), "frames_of_a_clip": plans.FRAMES})


@dg.asset_check(asset=video_clips, blocking=True)
def cache_is_complete(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every row of the relation, as it is now, is in the cache."""
    with plans.cache_plan(catalog.open()).to_numpy() as stream:
        return complete(stream)

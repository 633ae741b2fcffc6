"""What must hold of a cache before a stream counts on its speed."""

import dagster as dg

from spiral_assets.caching import complete
from spiral_assets.defs.caches.images import imagenet_decoded
from spiral_assets.plans import images as plans
from spiral_assets.resources import CatalogResource


@dg.asset_check(asset=imagenet_decoded, blocking=True)
def cache_is_complete(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every row of the relation, as it is now, is in the cache."""
    with plans.cache_plan(catalog.open()).to_numpy() as stream:
        return complete(stream)

"""What must hold of a cache before a stream counts on its speed."""

import dagster as dg

from spiral_assets import plans
from spiral_assets.defs.caches.assets import imagenet_decoded
from spiral_assets.resources import CatalogResource


@dg.asset_check(asset=imagenet_decoded, blocking=True)
def cache_is_complete(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every row of the relation, as it is now, is in the cache."""
    with plans.payload(catalog.open()).to_numpy() as stream:
        covered = stream.stages.images[0].store.covered()
        keys = stream.stages.base.manifest.content_keys.to_pylist()
        have, rows = sum(int(covered[key].sum()) for key in keys if key in covered), len(stream)
    return dg.AssetCheckResult(
        passed=have == rows,
        description=f"{have:,} of {rows:,} rows are cached",
        metadata={"cached": have, "rows": rows},
    )

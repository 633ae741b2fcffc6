"""The decoded cache: built shard by shard, gone on with after an interruption, rebuilt where the data changed."""

import dagster as dg

from spiral_assets.caching import built
from spiral_assets.defs.relations.images import imagenet_labels, imagenet_train
from spiral_assets.plans import images as plans
from spiral_assets.resources import CatalogResource


@dg.asset(
    key=["caches", "imagenet_decoded"],
    group_name="caches",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "images"},
    code_version=plans.cache_code_version(),
    deps=[imagenet_train, imagenet_labels],
    pool="decode",
)
def imagenet_decoded(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Decoded images at a bounded side, for every row that may be trained or validated on."""
    with plans.cache_plan(catalog.open()).to_numpy() as stream:
        return built(context, stream, {"profile": str(plans.profile())})

"""Check factories: what must hold of a relation or a cache before anything is built on it. All of them block."""

from collections.abc import Mapping

import dagster as dg

from spiral_assets.caching import complete
from spiral_assets.named import Plan
from spiral_assets.registration import as_declared, unique
from spiral_assets.resources import CatalogResource


def identity_check(
    asset: dg.AssetsDefinition,
    relation: str,
    *,
    name: str = "identity_is_unique",
    description: str = "Every identity occurs once. A sample stored in two rows could not be found again.",
) -> dg.AssetChecksDefinition:
    """Return a check that no identity of a registered relation repeats; the result names those that do.

    Args:
        asset: the asset that registers the relation.
        relation: its name in the catalog.
        name: of the check.
        description: shown in the UI.
    """

    @dg.asset_check(asset=asset, name=name, blocking=True, description=description)
    def identity_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
        return unique(catalog.open(), relation)

    return identity_is_unique


def schema_check(asset: dg.AssetsDefinition, relation: str, declared: Mapping[str, str]) -> dg.AssetChecksDefinition:
    """Return a check that a registered relation has the columns that plans were written for.

    Args:
        asset: the asset that registers the relation.
        relation: its name in the catalog.
        declared: column -> type, as the UI shows it: ``string``, ``int64``, ``image/jpeg-ref``.
    """

    @dg.asset_check(
        asset=asset, blocking=True, description="The columns have the types that the plans were written for."
    )
    def schema_is_as_declared(catalog: CatalogResource) -> dg.AssetCheckResult:
        return as_declared(catalog.open(), relation, declared)

    return schema_is_as_declared


def cache_check(asset: dg.AssetsDefinition, plan: Plan) -> dg.AssetChecksDefinition:
    """Return a check that a cache holds every row of its relation.

    Args:
        asset: from `spiral_assets.assets.cache_asset`.
        plan: the plan of that asset.
    """

    @dg.asset_check(
        asset=asset, blocking=True, description="The cache holds every row of the relation as it is registered now."
    )
    def cache_is_complete(catalog: CatalogResource) -> dg.AssetCheckResult:
        with plan(catalog.open()).to_numpy() as stream:
            return complete(stream)

    return cache_is_complete

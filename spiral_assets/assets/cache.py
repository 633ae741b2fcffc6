"""The asset of caches, which is built when its plan or its data is new."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from spiral_assets import automation, conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks
from spiral_assets.caching import EXECUTORS, build
from spiral_assets.checks import cache_check
from spiral_assets.code_versions import code_version_of
from spiral_assets.conventions import DATA_TEAM, Deps
from spiral_assets.named import Plan
from spiral_assets.reading.code_references import with_code
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral


def cache_asset(
    name: str,
    *,
    plan: Plan,
    deps: Deps,
    description: str,
    domain: str = "",
    code_version: str | None = None,
    metadata: Callable[["spiral.results.CacheStatus"], Mapping[str, Any]] = lambda _: {},
    owners: Sequence[str] = DATA_TEAM,
    executor: str = "threads",
    workers: int | None = None,
    fresh_within_h: float | None = None,
    automated: bool = True,
    hooks: Hooks = PLAIN,
) -> dg.AssetsDefinition:
    """Return the asset ``caches/<name>``, which builds the caches of one plan shard by shard.

    A run builds what is missing, so a retry continues after the last whole shard. The data version consists of the caches'
    fingerprints and the relations' data versions: an identical rebuild leaves everything downstream in sync. The asset has a
    pool of its own, so that one run at a time builds it, whoever asks for it.

    Args:
        name: last part of the asset key.
        plan: reads every row that the caches should hold: a function, a `Named` one, or a `SavedPlan`.
        deps: the relation, and everything else that must be registered or checked first.
        description: shown in the UI.
        domain: tag by which jobs select the asset.
        code_version: changes when settings or library code change the stored bytes; by default
            `spiral_assets.code_versions.code_version_of` of the plan.
        metadata: returns more metadata of a built cache.
        owners: of the asset.
        executor: where it is built: ``threads``, ``processes`` or ``ray``.
        workers: how many work at a time.
        fresh_within_h: hours within which it must have been built; None for no policy.
        automated: whether it is rebuilt when its plan or its data is new.
        hooks: what a component changes of the asset.

    Raises:
        DagsterInvalidDefinitionError: the executor is unknown, or the plan's function is not found.

    Examples:
        >>> from spiral_assets.assets import Named, cache_asset
        >>> plan = Named("spiral_assets.plans.standard:decoded_images", {"relation": "shop.photos", "cached_side": 32})
        >>> asset = cache_asset("photos", plan=plan, deps=["catalog/shop/photos"], description="Decoded photos.")
        >>> run(asset)["rows_built"]
        24
    """
    if executor not in EXECUTORS:
        msg = f"cache {name!r}: executor {executor!r} is unknown. Give one of {', '.join(EXECUTORS)}"
        raise dg.DagsterInvalidDefinitionError(msg)

    spec = dg.AssetSpec(
        key=conventions.cache_key(name),
        group_name=conventions.CACHES,
        kinds={"lance"},
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description,
        code_version=code_version_of(plan) if code_version is None else code_version,
        deps=conventions.keys(deps),
        automation_condition=automation.rebuild() if automated else None,
        freshness_policy=automation.freshness(fresh_within_h),
    )

    def cache(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        opened = catalog.open()
        with plan(opened).to_numpy() as stream:
            return build(context, opened, stream, metadata, executor=executor, workers=workers)

    about = {"name": name, "domain": domain, "executor": executor, "deps": [*map(str, deps)]}
    return hooks.asset(AssetProps("cache", about, with_code(spec, [plan])), cache, pool=conventions.pool_of(name))


def cache_assets(name: str, *, plan: Plan, **options: Any) -> dg.Definitions:
    """Return `cache_asset` and the check that the caches are complete.

    Args:
        name: last part of the asset key.
        plan: of the asset.
        **options: as `cache_asset` takes them.

    Examples:
        >>> from spiral_assets.assets import Named, cache_assets
        >>> plan = Named("spiral_assets.plans.standard:decoded_images", {"relation": "shop.photos"})
        >>> made = cache_assets("photos", plan=plan, deps=["catalog/shop/photos"], description="Decoded photos.")
        >>> [key.name for each in made.asset_checks for key in each.check_keys]
        ['cache_is_complete']
    """
    asset = cache_asset(name, plan=plan, **options)
    return dg.Definitions(assets=[asset], asset_checks=[cache_check(asset, plan)])

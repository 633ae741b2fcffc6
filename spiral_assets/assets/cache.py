"""The asset of caches, which is built when its plan or its data is new."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from spiral_assets import automation, conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks
from spiral_assets.caching import EXECUTORS, BuildFigures, build, built
from spiral_assets.checks import cache_check
from spiral_assets.code_versions import code_version_of
from spiral_assets.conventions import DATA_TEAM, Deps
from spiral_assets.launching.building import work_of
from spiral_assets.launching.fields import chosen, config_with_launcher, launcher_of, split_config
from spiral_assets.launching.following import claimed, follow
from spiral_assets.launching.records import digest_of
from spiral_assets.named import Named, Plan, SavedPlan
from spiral_assets.reading.code_references import with_code
from spiral_assets.resources import CatalogResource, RunsResource

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
    launcher: Mapping[str, Any] | None = None,
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
        launcher: where it is built, apart from the run: ``{"kind": "ray"}`` and fields of that kind. It needs a plan that is
            named, and the resource ``runs``. None builds it in the step.
        hooks: what a component changes of the asset.

    Raises:
        DagsterInvalidDefinitionError: the executor is unknown, the plan's function is not found, or the launcher is wrong.

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
    _need_launchable(name, plan, launcher)

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

    def launched(
        context: dg.AssetExecutionContext,
        config: config_with_launcher(name, {}),  # type: ignore[valid-type]  # Dagster reads the class when the asset is defined
        catalog: CatalogResource,
        runs: RunsResource,
    ) -> dg.MaterializeResult[None]:
        said, _ = split_config(config, has_choice=True)
        where = chosen(launcher, said)
        assert where is not None
        work = work_of(catalog.uri, plan, executor, workers)
        digest = digest_of({"catalog": catalog.uri, "code": spec.code_version})
        job = claimed(context, where, Path(runs.root), digest, runs.folder(context))
        command = [job.launcher.interpreter, "-m", "spiral_assets.launching.building", json.dumps(work)]
        done = follow(context, job, command, {}).get_materialize_result()
        figures = _figures(done.metadata or {})
        opened = catalog.open()
        with plan(opened).to_numpy() as stream:
            made = built(context, opened, stream, metadata, figures, executor)
        return made._replace(metadata={**(made.metadata or {}), **job.facts})

    about = {"name": name, "domain": domain, "executor": executor, "deps": [*map(str, deps)]}
    body = cache if launcher is None else launched
    return hooks.asset(AssetProps("cache", about, with_code(spec, [plan])), body, pool=conventions.pool_of(name))


def _figures(reported: Mapping[str, Any]) -> BuildFigures:
    """Return what the job reported of its build."""
    return BuildFigures(**{each.name: getattr(reported[each.name], "value", 0) for each in fields(BuildFigures)})


def _need_launchable(name: str, plan: Plan, launcher: Mapping[str, Any] | None) -> None:
    """Refuse a launcher that is wrong, and a plan that another process cannot look up.

    Raises:
        DagsterInvalidDefinitionError: says what would be right.
    """
    if launcher is None:
        return
    launcher_of(launcher)
    if not isinstance(plan, Named | SavedPlan):
        msg = (
            f"cache {name!r}: a launcher builds it in another process, which looks its plan up by name, and {plan!r} has none. "
            'Give Named("module:function"), or SavedPlan of a stream'
        )
        raise dg.DagsterInvalidDefinitionError(msg)


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

"""The asset of numbers of your own: a function that returns metadata, and checks of what it measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import dagster as dg

from spiral_assets import automation, conventions, pages
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks
from spiral_assets.code_versions import code_version_of
from spiral_assets.conventions import DATA_TEAM, Deps
from spiral_assets.facts.rules import Rule
from spiral_assets.reading.code_references import with_code
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral

Measure = Callable[["spiral.Catalog"], tuple[str, Mapping[str, Any]]]


@final
@dataclass(frozen=True)
class Check:
    """A check of your own.

    Attributes:
        name: of the check.
        function: gets the catalog and returns a `dagster.AssetCheckResult`.
        description: shown in the UI.
        blocking: whether nothing is built on the asset while it fails.
        deps: other assets that the function reads.

    Examples:
        >>> from spiral_assets.assets import Check, relation_assets
        >>> def has_rows(catalog):
        ...     return dg.AssetCheckResult(passed=catalog.table("shop.texts").count() > 0)
        >>> source, check = {"kind": "parquet", "path": "texts.parquet"}, Check("has_rows", has_rows)
        >>> made = relation_assets("shop.texts", source, checks=[check])
        >>> [key.name for each in made.asset_checks for key in each.check_keys]
        ['identity_is_unique', 'has_rows']
    """

    name: str
    function: Callable[["spiral.Catalog"], dg.AssetCheckResult]
    description: str = ""
    blocking: bool = True
    deps: Deps = ()


def own_rule(check: Check) -> Rule:
    """Return a check of your own as a rule.

    Args:
        check: what it does.
    """
    return Rule(check.name, check.description, check.function, blocking=check.blocking, deps=check.deps)


def measure_assets(
    key: str,
    measure: Measure,
    *,
    deps: Deps,
    description: str,
    domain: str = "",
    checks: Sequence[Check] = (),
    owners: Sequence[str] = DATA_TEAM,
    automated: bool = True,
    hooks: Hooks = PLAIN,
) -> dg.Definitions:
    """Return the asset ``stats/<key>``, whose metadata a function of yours measures, and its checks.

    Args:
        key: after ``stats/``, such as ``text/token_lengths``.
        measure: gets the catalog; returns the data version of what it read, and the metadata, which may have a
            `spiral_stream.report.Picture` as a value.
        deps: what it reads.
        description: shown in the UI.
        domain: tag by which jobs select the asset.
        checks: of your own.
        owners: of the asset.
        automated: whether it is measured again when its code or its data is new.
        hooks: what a component changes of the asset.

    Examples:
        >>> from spiral_assets.assets import Named, measure_assets
        >>> measure = Named("spiral_assets.plans.text_facts:token_lengths")
        >>> made = measure_assets("shop/lengths", measure, deps=["catalog/shop/texts"], description="Lengths.")
        >>> [asset.key.to_user_string() for asset in made.assets]
        ['stats/shop/lengths']
    """
    spec = dg.AssetSpec(
        key=[conventions.STATS, *key.split("/")],
        group_name=conventions.STATS,
        kinds={"arrow"},
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description,
        code_version=code_version_of(measure),
        deps=conventions.keys(deps),
        automation_condition=automation.rebuild() if automated else None,
    )

    def measured(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        version, metadata = measure(catalog.open())
        return dg.MaterializeResult(
            data_version=dg.DataVersion(version), metadata=pages.with_pictures(context, key, metadata)
        )

    about = {"name": key, "namespace": key.rpartition("/")[0], "domain": domain, "deps": [*map(str, deps)]}
    asset = hooks.asset(
        AssetProps("measure", about, with_code(spec, [measure, *(each.function for each in checks)])), measured
    )
    return dg.Definitions(assets=[asset], asset_checks=[own_rule(each).check(asset) for each in checks])

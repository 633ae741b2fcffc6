"""Check factories: what must hold of a relation, a cache or a stream.

Identities, declared columns and complete caches block what is built on them. The others warn.
"""

import re
import warnings
from collections.abc import Mapping, Sequence

import dagster as dg

from spiral_assets import conventions
from spiral_assets.caching import complete
from spiral_assets.conventions import in_catalog_of
from spiral_assets.facts import rules
from spiral_assets.facts.findings import warned
from spiral_assets.facts.seen_rows import unseen
from spiral_assets.named import Plan
from spiral_assets.relations.registration import OCCURS_ONCE, UNIQUE, declared_columns, identities
from spiral_assets.resources import CatalogResource


def identity_check(
    asset: dg.AssetsDefinition,
    relation: str,
    *,
    name: str = UNIQUE,
    description: str = OCCURS_ONCE,
) -> dg.AssetChecksDefinition:
    """Return a check that no identity of a registered relation repeats; the result names those that do.

    Args:
        asset: the asset that registers the relation.
        relation: its name in the catalog.
        name: of the check.
        description: shown in the UI.

    Examples:
        >>> from spiral_assets.checks import identity_check
        >>> identity_check(photos, "shop.photos")(resources["catalog"]).passed
        True
    """
    return identities(relation, name, description).check(asset)


def schema_check(asset: dg.AssetsDefinition, relation: str, declared: Mapping[str, str]) -> dg.AssetChecksDefinition:
    """Return a check that a registered relation has the columns that plans were written for.

    Args:
        asset: the asset that registers the relation.
        relation: its name in the catalog.
        declared: column -> type, as the UI shows it: ``string``, ``int64``, ``image/jpeg-ref``.

    Examples:
        >>> from spiral_assets.checks import schema_check
        >>> schema_check(photos, "shop.photos", {"label_id": "string"})(resources["catalog"]).passed
        False
    """
    return declared_columns(relation, declared).check(asset)


def cache_check(asset: dg.AssetsDefinition, plan: Plan) -> dg.AssetChecksDefinition:
    """Return a check that a cache holds every row of its relation.

    Args:
        asset: from `spiral_assets.assets.cache_asset`.
        plan: the plan of that asset.

    Examples:
        >>> from spiral_assets.assets import Named
        >>> from spiral_assets.checks import cache_check
        >>> plan = Named("spiral_assets.plans.standard:decoded_images", {"relation": "shop.photos", "cached_side": 48})
        >>> cache_check(photos, plan)(resources["catalog"]).passed  # nobody has built it
        False
    """

    @dg.asset_check(
        asset=asset, blocking=True, description="The cache holds every row of the relation as it is registered now."
    )
    @in_catalog_of(asset)
    def cache_is_complete(catalog: CatalogResource) -> dg.AssetCheckResult:
        with plan(catalog.open()).to_numpy() as stream:
            return complete(stream)

    return cache_is_complete


def row_count_check(
    asset: dg.AssetsDefinition, *, most_change: float = 0.5, name: str = rules.NEAR
) -> dg.AssetChecksDefinition:
    """Return a check that a relation has about as many rows as the last time it was materialized. It warns.

    Args:
        asset: an asset that reports ``dagster/row_count``.
        most_change: largest allowed change, as a share of the earlier rows.
        name: of the check.

    Examples:
        >>> from spiral_assets.checks import row_count_check
        >>> row_count_check(photos, most_change=0.2)(dg.build_asset_check_context()).description
        'there is no earlier number of rows to compare with'
    """
    return rules.row_count(most_change, name).check(asset)


def schema_change_check(asset: dg.AssetsDefinition | dg.AssetKey) -> dg.AssetChecksDefinition:
    """Return Dagster's own check that the columns are those of the last materialization. It warns.

    Args:
        asset: an asset that reports ``dagster/column_schema``, or its key.

    Examples:
        >>> from spiral_assets.checks import schema_change_check
        >>> [key.name for key in schema_change_check(photos).check_keys]
        ['...column_schema_change...']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        (check,) = dg.build_column_schema_change_checks(assets=[asset], severity=dg.AssetCheckSeverity.WARN)
    return check


def missing_values_check(
    asset: dg.AssetsDefinition,
    relation: str,
    *,
    limit: float = 0.1,
    limits: Mapping[str, float] | None = None,
    name: str = rules.FEW_MISSING,
) -> dg.AssetChecksDefinition:
    """Return a check that few values of each column are null or NaN. It warns.

    Args:
        asset: the asset that measures the relation.
        relation: its name in the catalog.
        limit: largest allowed share of nulls and of NaN in any column.
        limits: column -> its own limit.
        name: of the check.

    Examples:
        >>> from spiral_assets.checks import missing_values_check
        >>> missing_values_check(photos, "shop.photos", limit=0.05)(resources["catalog"]).passed
        True
    """
    return rules.missing_values(relation, limit, limits or {}, name).check(asset)


def skew_check(
    asset: dg.AssetsDefinition, relation: str, column: str, *, limit: float = 0.5, name: str | None = None
) -> dg.AssetChecksDefinition:
    """Return a check that each storage shard has a mix of values similar to the whole. It warns, and says what to do.

    Args:
        asset: the asset that measures the relation.
        relation: its name in the catalog.
        column: of labels or origins.
        limit: largest allowed distance, from 0 (the same mix) to 1 (nothing in common).
        name: of the check.

    Examples:
        >>> from spiral_assets.checks import skew_check
        >>> skew_check(photos, "shop.photos", "label_id")(resources["catalog"]).passed
        True
    """
    return rules.mixed_shards(relation, column, limit, name or f"{column}_is_mixed").check(asset)


def import_check(
    asset: dg.AssetsDefinition, relation: str, *, limit: float = 0.0, name: str = rules.FEW_REFUSED
) -> dg.AssetChecksDefinition:
    """Return a check that an import could read nearly all rows of its source. It warns; other sources pass.

    Args:
        asset: the asset that registers the relation.
        relation: its name in the catalog.
        limit: largest allowed share of rows that could not be read.
        name: of the check.

    Examples:
        >>> from spiral_assets.checks import import_check
        >>> import_check(photos, "shop.photos")(resources["catalog"]).passed
        True
    """
    return rules.refused_rows(relation, limit, name).check(asset)


def unseen_check(
    asset: dg.AssetsDefinition,
    relation: str,
    *,
    run: str | None = None,
    trust: Sequence[str] = (),
    name: str | None = None,
    blocking: bool = True,
) -> dg.AssetChecksDefinition:
    """Return a check that a trained model saw no row of a relation, by identity: an evaluation set, rows of a removed person.

    The history of the run says which batches were delivered, over all retries, whether their losses were recorded or not. The
    relation has the identity columns of the rows that the model is trained on; one that lacks some matches by the others.

    Args:
        asset: the training asset.
        relation: of the rows that it must not have seen.
        run: the recorded run; None takes that of the asset.
        trust: modules whose functions the saved stream's plan may name.
        name: of the check.
        blocking: whether nothing is built on the model while the check fails.

    Examples:
        >>> from spiral_assets.assets import training_asset
        >>> from spiral_assets.checks import unseen_check
        >>> asset = training_asset("photos_cnn", "shop", {"epochs": 8}, deps=["streams/photos"], description="Classes of photos.")
        >>> [key.name for key in unseen_check(asset, "shop.photos").check_keys]
        ['no_row_of_shop_photos_was_seen']
    """
    recorded = run or conventions.run_name(asset.key)

    @dg.asset_check(
        asset=asset,
        name=name or f"no_row_of_{re.sub(r'[^A-Za-z0-9_]', '_', relation)}_was_seen",
        blocking=blocking,
        description=f"The model was trained on no row of {relation}, by identity.",
    )
    @in_catalog_of(asset)
    def no_row_was_seen(catalog: CatalogResource) -> dg.AssetCheckResult:
        return unseen(catalog.open(), recorded, relation, trust)

    return no_row_was_seen


def explain_check(
    asset: dg.AssetsDefinition,
    plans: Mapping[str, Plan],
    *,
    most: int = 0,
    name: str = "explains_without_a_warning",
) -> dg.AssetChecksDefinition:
    """Return a check that EXPLAIN DATA of streams has no warning. It warns, with the remedies.

    Args:
        asset: the asset that saves the streams.
        plans: name of a stream -> its plan; `SavedPlan` is the plan of a stream that others saved.
        most: how many warnings are allowed.
        name: of the check.

    Examples:
        >>> from spiral_assets.checks import explain_check
        >>> explain_check(photos, {"shop-labels": labels})(resources["catalog"]).description
        'no warning'
    """

    @dg.asset_check(asset=asset, name=name, description="EXPLAIN DATA of the streams has no warning.")
    @in_catalog_of(asset)
    def explains_without_a_warning(catalog: CatalogResource) -> dg.AssetCheckResult:
        opened, lines = catalog.open(), []
        for each, plan in plans.items():
            with plan(opened).to_torch() as stream:
                numbered = stream.explain().to_dict()["warnings"]
            lines += [f"{each}: {line.partition(' ')[2]}" for line in numbered]
        return warned(
            passed=len(lines) <= most,
            description="; ".join(lines) or "no warning",
            metadata={"warnings": len(lines), "limit": most},
        )

    return explains_without_a_warning

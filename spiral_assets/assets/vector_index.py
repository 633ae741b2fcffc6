"""The asset of an index of vectors: it grows with its data, and its recall is measured each time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets import automation, conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks, namespace
from spiral_assets.code_versions import code_version_of
from spiral_assets.conventions import DATA_TEAM, Deps
from spiral_assets.facts import lineage, reports
from spiral_assets.facts.findings import warned
from spiral_assets.named import Plan
from spiral_assets.reading.code_references import with_code
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral

METRICS: Final = ("cosine", "l2", "dot")
RECALL: Final = "recall_at_10"
_NEAREST: Final = 10
_QUERIES: Final = 200
_DIGITS: Final = 16  # of a fingerprint in a data version


def vector_index_asset(
    relation: str,
    column: str = "embedding",
    *,
    plan: Plan | None = None,
    metric: str = "cosine",
    deps: Deps = (),
    description: str = "",
    domain: str = "",
    owners: Sequence[str] = DATA_TEAM,
    fresh_within_h: float | None = None,
    automated: bool = True,
    hooks: Hooks = PLAIN,
) -> dg.AssetsDefinition:
    """Return the asset ``indexes/<relation>/<column>``, by which ``relation.nearest`` finds rows like others.

    A run writes the rows that are new, have changed or are gone. Its metadata has ``recall_at_10``: the share of the 10 truly
    nearest rows that a search finds, by brute force over 200 drawn rows. Its data version consists of plan, data version and
    metric, so an identical run leaves everything downstream in sync.

    Args:
        relation: its name in the catalog.
        column: of vectors: a stored one, or one that the plan computes.
        plan: returns rows, or samples, with that column; None for the relation as it is.
        metric: by which rows are near: ``cosine``, ``l2`` or ``dot``.
        deps: what the plan reads, in addition to the relation.
        description: shown in the UI.
        domain: tag by which jobs select the asset.
        owners: of the asset.
        fresh_within_h: hours within which it must have been built; None for no policy.
        automated: whether it is built again when its plan or its data is new.
        hooks: what a component changes of the asset.

    Raises:
        DagsterInvalidDefinitionError: the metric is unknown, or the plan's function is not found.

    Examples:
        >>> from spiral_assets.assets import vector_index_asset
        >>> vectors = pa.table({"sample_id": range(9), "embedding": pa.array([[k, 1.0] for k in range(9)])})
        >>> entry = spiral.connect("faces").register("shop.faces", spiral.Arrow(vectors))
        >>> asset = vector_index_asset("shop.faces", "embedding")
        >>> found = run(asset, catalog="faces")
        >>> found["written"], found["recall_at_10"]
        (9, 1.0)
    """
    if metric not in METRICS:
        msg = f"vector index of {relation!r}: metric {metric!r} is unknown. Give one of {', '.join(METRICS)}"
        raise dg.DagsterInvalidDefinitionError(msg)
    spec = dg.AssetSpec(
        key=conventions.index_key(relation, column),
        group_name=conventions.INDEXES,
        kinds={"lancedb"},
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description or f"Rows of {relation} like others, by {column}.",
        code_version=None if plan is None else code_version_of(plan),
        deps=[conventions.relation_key(relation), *conventions.keys(deps)],
        automation_condition=automation.rebuild() if automated else None,
        freshness_policy=automation.freshness(fresh_within_h),
    )

    def indexed(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        opened = catalog.open()
        rows: Any = opened.table(relation) if plan is None else plan(opened)
        index = rows.index(column, metric=metric)
        recall = index.recall(_NEAREST, queries=_QUERIES)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"{index.plan[:_DIGITS]}:{index.data_version}:{metric}"),
            metadata={**_metadata(opened.uri, index, recall), **(_columns(context, index) if plan is None else {})},
        )

    about = {
        "name": relation,
        "namespace": namespace(relation),
        "column": column,
        "domain": domain,
        "deps": [*map(str, deps)],
    }
    return hooks.asset(
        AssetProps("vectors", about, spec if plan is None else with_code(spec, [plan])),
        indexed,
        pool=conventions.pool_of("_".join(spec.key.path)),
    )


def _metadata(catalog: str, index: "spiral.results.VectorIndex", recall: float) -> dict[str, Any]:
    code = f'rows = catalog.table("{index.relation}")\nlike_it = rows.nearest(identity, "{index.column}")'
    return {
        "dagster/row_count": index.rows,
        "dagster/table_name": f"{index.relation}.{index.column}",
        "dagster/uri": str(index.path),
        **reports.size_of(index.path),
        RECALL: recall,
        "written": index.written,
        "removed": index.removed,
        "dimensions": index.dimensions,
        "metric": index.metric,
        "search": "by partitions" if index.approximate else "exact",
        "open_it": reports.opens(catalog, code),
    }


def _columns(context: dg.AssetExecutionContext, index: "spiral.results.VectorIndex") -> dict[str, Any]:
    """Return column and lineage of an index of a stored column; which columns a plan computes one from, it does not say."""
    column = dg.TableColumn(index.column, f"{index.dimensions} numbers")
    found = lineage.of_columns(context, {index.column: ((index.relation, index.column),)})
    return {"dagster/column_schema": dg.TableSchema([column]), **found}


def recall_check(asset: dg.AssetsDefinition, least: float) -> dg.AssetChecksDefinition:
    """Warn if the last index of a column finds too few of the nearest rows.

    Args:
        asset: of the index.
        least: share of them, from 0 to 1.

    Examples:
        >>> from spiral_assets.assets import recall_check, vector_index_asset
        >>> recall_check(vector_index_asset("shop.photos"), 0.95).check_key.name
        'recall_at_10'
    """

    @dg.asset_check(asset=asset, name=RECALL, description="A search finds the nearest rows.")
    def checked(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        event = context.instance.get_latest_materialization_event(asset.key)
        made = None if event is None else event.asset_materialization
        found = None if made is None else made.metadata.get(RECALL)
        if not isinstance(found, dg.FloatMetadataValue) or found.value is None:
            return warned(passed=False, description="no recall yet; materialize the index")
        said = f"a search finds {found.value:.1%} of the {_NEAREST} nearest rows of drawn ones (limit {least:.1%})"
        return warned(passed=found.value >= least, description=said, metadata={"recall": found.value})

    return checked


def vector_index_assets(
    relation: str, column: str = "embedding", *, least_recall: float | None = 0.9, **options: Any
) -> dg.Definitions:
    """Return `vector_index_asset` and the check of its recall.

    Args:
        relation: its name in the catalog.
        column: of vectors.
        least_recall: the check ``recall_at_10`` warns below it; None for no check.
        **options: as `vector_index_asset` takes them.

    Examples:
        >>> from spiral_assets.assets import vector_index_assets
        >>> made = vector_index_assets("shop.photos", least_recall=0.95)
        >>> [key.name for each in made.asset_checks for key in each.check_keys]
        ['recall_at_10']
    """
    asset = vector_index_asset(relation, column, **options)
    checks = [] if least_recall is None else [recall_check(asset, least_recall)]
    return dg.Definitions(assets=[asset], asset_checks=checks)

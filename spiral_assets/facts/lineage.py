"""Which columns of which assets a stream or a cache is computed from, as Dagster draws it."""

from typing import TYPE_CHECKING, Any

import dagster as dg

from spiral_assets import conventions

if TYPE_CHECKING:
    import spiral_stream as spiral


def of_stream(context: dg.AssetExecutionContext, stream: "spiral.PreparedStream") -> dict[str, Any]:
    """Return columns and lineage of a stream: each field, what it is computed from, and by which functions.

    Args:
        context: of the asset that saves it.
        stream: the stream.
    """
    sources, specs = stream.column_sources(), stream.spec()
    columns = [
        dg.TableColumn(name, specs[name].dtype or "list", description=_functions(found) or None)
        for name, found in sources.items()
        if name in specs
    ]
    return {
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": _lineage(context, {name: found.columns for name, found in sources.items()}),
    }


def of_caches(context: dg.AssetExecutionContext, stream: "spiral.PreparedStream") -> dict[str, Any]:
    """Return columns and lineage of the caches of a stream.

    Args:
        context: of the asset that builds them.
        stream: that reads them.
    """
    caches = stream.caches()
    columns = {each.column: dg.TableColumn(each.column, each.form) for each in caches}
    return {
        "dagster/column_schema": dg.TableSchema(list(columns.values())),
        "dagster/column_lineage": _lineage(context, {each.column: ((each.relation, each.column),) for each in caches}),
    }


def _lineage(
    context: dg.AssetExecutionContext, columns: dict[str, tuple[tuple[str, str], ...]]
) -> dg.TableColumnLineage:
    keys = _assets(context)
    return dg.TableColumnLineage(
        {
            name: [
                dg.TableColumnDep(keys.get(relation) or conventions.relation_key(relation), column)
                for relation, column in sources
            ]
            for name, sources in columns.items()
        }
    )


def _assets(context: dg.AssetExecutionContext) -> dict[str, dg.AssetKey]:
    """Return the asset of each relation of the location, by the relation's name: translations may have changed its key."""
    nodes = context.job_def.asset_layer.asset_graph.asset_nodes if context.has_assets_def else ()
    return {
        str(node.metadata["dagster/table_name"]): node.key for node in nodes if "dagster/table_name" in node.metadata
    }


def _functions(found: "spiral.results.ColumnSources") -> str:
    """Name the functions on the way to a field, with file and line."""
    return "; ".join(f"{name} ({file}:{line})" if file else name for name, file, line in found.functions)

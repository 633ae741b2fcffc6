"""Which columns of which assets a stream, a cache, an index or a relation is computed from, as Dagster draws it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from dagster_shared.check import CheckError

from spiral_assets import conventions

if TYPE_CHECKING:
    import spiral_stream as spiral

Pairs = tuple[tuple[str, str], ...]  # relations and their columns
SHARD: Final = "storage_shard"  # which Spiral names, not the function
STREAM: Final = "spiral stream"  # storage kind of saved streams, whose names may be those of relations


def of_streams(context: dg.AssetExecutionContext, streams: "Mapping[str, spiral.PreparedStream]") -> dict[str, Any]:
    """Return columns and lineage of streams: each field, what it is computed from, and by which functions.

    Fields of the first stream have their names, those of the others the name of their stream before them: ``val.image``.

    Args:
        context: of the asset that saves them.
        streams: by name.
    """
    columns: list[dg.TableColumn] = []
    found: dict[str, Pairs] = {}
    for at, (stream, prepared) in enumerate(streams.items()):
        specs = prepared.spec()
        for field, sources in prepared.column_sources().items():
            name = f"{stream}.{field}" if at else field
            found[name] = sources.columns
            if field in specs:
                kind = specs[field].dtype or "list"
                columns.append(dg.TableColumn(name, kind, description=_functions(sources) or None))
    return {"dagster/column_schema": dg.TableSchema(columns), **of_columns(context, found)}


def of_caches(context: dg.AssetExecutionContext, stream: "spiral.PreparedStream") -> dict[str, Any]:
    """Return columns and lineage of the caches of a stream.

    Args:
        context: of the asset that builds them.
        stream: that reads them.
    """
    caches, sources = stream.caches(), stream.column_sources()
    columns = {each.column: dg.TableColumn(each.column, each.form) for each in caches}
    found: dict[str, Pairs] = {}
    for each in caches:
        of_field = sources.get(each.field)
        pairs = () if of_field is None else of_field.columns
        stored = (each.relation, each.column)
        found[each.column] = pairs if pairs and stored not in pairs else (stored,)  # a union is no relation of its own
    return {"dagster/column_schema": dg.TableSchema(list(columns.values())), **of_columns(context, found)}


def of_names(
    context: dg.AssetExecutionContext, catalog: "spiral.Catalog", relation: str, needed: Iterable[dg.AssetKey]
) -> dict[str, Any]:
    """Return the lineage of a relation that a function made: a column comes from the columns of its name in what it needs.

    Args:
        context: of the asset that registers it.
        catalog: that has the relations.
        relation: that was registered.
        needed: assets that the function reads.
    """
    by_key = {key: name for name, key in _assets(context).items()}
    there = set(catalog.tables())
    names = {by_key.get(key) or ".".join(key.path[1:]) for key in needed}
    have = {each: catalog.table(each).columns for each in sorted(names & there - {relation})}
    if not have:
        return {}
    columns = {
        column: tuple((each, column) for each, of_it in have.items() if column in of_it)
        for column in catalog.table(relation).columns
        if column != SHARD
    }
    return of_columns(context, {column: found for column, found in columns.items() if found})


def of_columns(context: dg.AssetExecutionContext, columns: Mapping[str, Pairs]) -> dict[str, Any]:
    """Return the lineage of columns.

    Args:
        context: of the asset that has them.
        columns: name -> relations and columns that it is computed from.
    """
    keys = _assets(context)
    lineage = dg.TableColumnLineage(
        {
            name: [
                dg.TableColumnDep(keys.get(relation) or conventions.relation_key(relation), column)
                for relation, column in sources
            ]
            for name, sources in columns.items()
        }
    )
    return {"dagster/column_lineage": lineage}


def _assets(context: dg.AssetExecutionContext) -> dict[str, dg.AssetKey]:
    """Return the asset of each relation of the location, by the relation's name: translations may have changed its key."""
    try:
        nodes: Any = (
            context.repository_def.asset_graph.asset_nodes
        )  # a run of one asset has a graph of that asset alone
    except (dg.DagsterInvariantViolationError, CheckError):  # a run in this process has no repository
        nodes = context.job_def.asset_layer.asset_graph.asset_nodes if context.has_assets_def else ()
    return {
        str(node.metadata["dagster/table_name"]): node.key
        for node in nodes
        if "dagster/table_name" in node.metadata and node.metadata.get("dagster/storage_kind") != STREAM
    }


def _functions(found: "spiral.results.ColumnSources") -> str:
    """Name the functions on the way to a field, with file and line."""
    return "; ".join(f"{name} ({file}:{line})" if file else name for name, file, line in found.functions)

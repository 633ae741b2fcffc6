"""Register a relation as it is now, and check what must hold before anything is built on it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import dagster as dg

from spiral_assets import reports

if TYPE_CHECKING:
    import spiral_stream as spiral

SHOWN: Final = 5  # examples in a description


def register(
    catalog: "spiral.Catalog",
    name: str,
    source: "spiral.Source",
    descriptions: Mapping[str, str],
    identity: "str | Sequence[str] | spiral.RowIdentity" = "sample_id",
    semantic: dict[str, str] | None = None,
) -> dg.MaterializeResult[None]:
    """Register the data as it is now. The asset's checks decide whether it may be used.

    Args:
        catalog: where to register it.
        name: of the relation.
        source: where its rows are stored.
        descriptions: column -> description, shown in the UI.
        identity: the column or columns that identify a row; `RowIdentity` gives each row an identity of its own.
        semantic: column -> semantic type, such as ``image/jpeg-ref``.
    """
    entry = catalog.register(name, source, identity=identity, semantic=semantic, unique=False, replace=True)
    manifest = entry.manifest()
    return dg.MaterializeResult(
        data_version=dg.DataVersion(entry.data_version),
        metadata={
            "dagster/row_count": manifest.total,
            "dagster/column_schema": reports.column_schema(entry.schema, entry.identity, descriptions),
            "dagster/table_name": name,
            "dagster/uri": reports.place(entry.source),
            "dagster/storage_kind": entry.source.KIND,
            "storage_shards": len(manifest.shard_names),
            "rows_by_shard": reports.bars(manifest.shard_rows.tolist()),
        },
    )


def unique(catalog: "spiral.Catalog", relation: str) -> dg.AssetCheckResult:
    """Check that no identity of a registered relation repeats; name examples of those that do."""
    entry = catalog.entry(relation)
    if entry.identity_unique:
        return dg.AssetCheckResult(passed=True, description=f"{entry.manifest().total:,} different identities")
    columns = ", ".join(f'"{name}"' for name in entry.identity)
    query = f'select {columns}, count(*) as rows from "{relation}" group by {columns} having count(*) > 1 order by {columns}'  # noqa: S608  names of our own catalog
    repeated = catalog.sql(query).to_arrow().to_pylist()
    examples = ", ".join(" ".join(str(row[name]) for name in entry.identity) for row in repeated[:SHOWN])
    return dg.AssetCheckResult(
        passed=False,
        description=f"{len(repeated):,} identities repeat: {examples}",
        metadata={"repeated": reports.table(repeated)},
    )


def as_declared(catalog: "spiral.Catalog", relation: str, declared: Mapping[str, str]) -> dg.AssetCheckResult:
    """Check that the columns of a registered relation have the declared types."""
    found = dict(reports.column_types(catalog.entry(relation).schema))
    wrong = [
        {"column": name, "declared": kind, "found": found.get(name, "missing")}
        for name, kind in declared.items()
        if found.get(name) != kind
    ]
    problems = [f"{row['column']} is {row['found']}, declared {row['declared']}" for row in wrong]
    return dg.AssetCheckResult(
        passed=not wrong,
        description="; ".join(problems[:SHOWN]) or f"{len(declared)} columns as declared",
        metadata={"wrong": reports.table(wrong)},
    )

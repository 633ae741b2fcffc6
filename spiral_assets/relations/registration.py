"""Register a relation as it is now, and check what must hold before anything is built on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import dagster as dg

from spiral_assets import pages
from spiral_assets.facts import reports
from spiral_assets.facts.rules import Rule
from spiral_assets.relations.sources import Declared, made

if TYPE_CHECKING:
    import spiral_stream as spiral

UNIQUE: Final = "identity_is_unique"  # name of a check
OCCURS_ONCE: Final = "Every identity occurs once. A sample stored in two rows could not be found again."
SHOWN: Final = 5  # examples in a description


@final
@dataclass(frozen=True)
class Registration:
    """What a definition says of a relation; where its rows lie is its source.

    Attributes:
        name: of the relation.
        identity: the column (or columns) whose value identifies a row.
        shard: the column that names the storage shards; None takes ``storage_shard``, if there is one.
        semantic: column -> semantic type, such as ``image/jpeg-ref``.
        descriptions: column -> its meaning, shown in the UI.
        compare_bytes: whether files whose size or time changed are compared by their bytes.
    """

    name: str
    identity: "str | Sequence[str] | spiral.RowIdentity" = "sample_id"
    shard: str | None = None
    semantic: Mapping[str, str] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    compare_bytes: bool = True


def register(catalog: "spiral.Catalog", registration: Registration, source: Declared) -> Any:
    """Register the data as it is now, and return its entry. The asset's checks decide whether it may be used.

    Args:
        catalog: where to register it.
        registration: what is said of it.
        source: where its rows are stored.
    """
    more: dict[str, Any] = {} if registration.shard is None else {"shard": registration.shard}
    return catalog.register(
        registration.name,
        made(source, catalog),
        identity=registration.identity,
        semantic=registration.semantic,
        unique=False,
        replace=True,
        same_bytes=registration.compare_bytes,
        **more,
    )


def page(
    context: dg.AssetExecutionContext,
    catalog: "spiral.Catalog",
    name: str,
    descriptions: Mapping[str, str],
    more: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.MaterializeResult[None]:
    """Return what the page of a registered relation shows. Its data version is the relation's.

    Args:
        context: of the run that shows it.
        catalog: that has the relation.
        name: of the relation.
        descriptions: column -> its meaning.
        more: is shown too.
        tags: that the registration records for programs.
    """
    import spiral_stream as spiral

    report = spiral.report.report_relation(catalog, name, labels=(), origins=(), along="")
    metadata = pages.relation_page(context, report, descriptions, more)
    version = dg.DataVersion(catalog.entry(name).data_version)
    return dg.MaterializeResult(data_version=version, metadata=metadata, tags=tags)


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


def identities(relation: str, name: str = UNIQUE, description: str = OCCURS_ONCE) -> Rule:
    """Return the rule that no identity of a registered relation repeats. It blocks."""
    return Rule(name, description, lambda catalog: unique(catalog, relation), blocking=True)


def declared_columns(relation: str, declared: Mapping[str, str]) -> Rule:
    """Return the rule that a registered relation has the columns that plans were written for. It blocks."""
    words = "The columns have the types that the plans were written for."
    return Rule("schema_is_as_declared", words, lambda catalog: as_declared(catalog, relation, declared), blocking=True)

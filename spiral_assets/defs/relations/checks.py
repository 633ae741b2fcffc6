"""What must hold of a registered relation before anything is built on it."""

from typing import Final

import dagster as dg

from spiral_assets import plans, reports
from spiral_assets.defs.relations.assets import imagenet_labels, imagenet_train
from spiral_assets.resources import CatalogResource

SAMPLED: Final = 64  # references that are fetched and decoded; 4 ms each
SHOWN: Final = 5  # offenders in a description


@dg.asset_check(asset=imagenet_train, blocking=True)
def identity_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every identity stands once: a sample that is two rows could not be found again."""
    return _unique(catalog, plans.RELATION)


@dg.asset_check(asset=imagenet_labels, blocking=True)
def label_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
    """Every label has one name: a join with two would multiply samples."""
    return _unique(catalog, plans.LABELS)


@dg.asset_check(asset=imagenet_train, blocking=True)
def references_resolve(catalog: CatalogResource) -> dg.AssetCheckResult:
    """A sample of references, spread over the relation, leads to images that can be decoded."""
    import spiral_stream as spiral

    field = spiral.Stack(plans.COLUMN, decode="jpeg", transforms=[spiral.Resize((16, 16))])
    one_by_one = (
        catalog.open()
        .table(plans.RELATION)
        .sample(order=spiral.GlobalShuffle(seed=0))
        .collate(batch_size=1, last=spiral.KeepPartial, fields={"image": field})
    )
    refused = []
    try:
        with one_by_one.to_numpy() as stream:
            sampled = min(SAMPLED, len(stream))
            for number in range(sampled):
                try:
                    stream.batch(number)
                except (spiral.DataError, spiral.SourceError) as error:
                    refused.append({"sample": stream.ledger(number)[0], "reason": str(error)})
    except spiral.SourceError as error:  # the relation as a whole
        return dg.AssetCheckResult(passed=False, description=str(error))
    return dg.AssetCheckResult(
        passed=not refused,
        description=f"{len(refused)} of {sampled} sampled references lead to no image: {refused[0]['reason']}"
        if refused
        else f"{sampled} sampled references lead to images",
        metadata={"sampled": sampled, "refused": reports.table(refused)},
    )


@dg.asset_check(asset=imagenet_train, blocking=True)
def schema_is_as_declared(catalog: CatalogResource) -> dg.AssetCheckResult:
    """The columns have the types that the plans were written for."""
    entry = catalog.open().entry(plans.RELATION)
    declared, found = plans.DECLARED[entry.source.KIND], dict(reports.column_types(entry.schema))
    wrong = [
        {"column": name, "declared": kind, "found": found.get(name, "missing")}
        for name, kind in declared.items()
        if found.get(name) != kind
    ]
    told = [f"{row['column']} is {row['found']}, declared {row['declared']}" for row in wrong]
    return dg.AssetCheckResult(
        passed=not wrong,
        description="; ".join(told[:SHOWN]) or f"{len(declared)} columns as declared",
        metadata={"wrong": reports.table(wrong)},
    )


def _unique(catalog: CatalogResource, relation: str) -> dg.AssetCheckResult:
    """What registration found; where an identity repeats, which."""
    opened = catalog.open()
    entry = opened.entry(relation)
    if entry.identity_unique:
        return dg.AssetCheckResult(passed=True, description=f"{entry.manifest().total:,} different identities")
    columns = ", ".join(f'"{name}"' for name in entry.identity)
    query = f'select {columns}, count(*) as rows from "{relation}" group by {columns} having count(*) > 1 order by {columns}'  # noqa: S608  names of our own catalog
    repeated = opened.sql(query).to_arrow().to_pylist()
    examples = ", ".join(" ".join(str(row[name]) for name in entry.identity) for row in repeated[:SHOWN])
    return dg.AssetCheckResult(
        passed=False,
        description=f"{len(repeated):,} identities repeat: {examples}",
        metadata={"repeated": reports.table(repeated)},
    )

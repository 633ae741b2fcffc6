"""Whether a run saw rows of a relation, by identity."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets.facts import reports

if TYPE_CHECKING:
    import pyarrow as pa

    import spiral_stream as spiral

_EXAMPLES: Final = 20
_NAMED: Final = 3  # in the description


def unseen(catalog: "spiral.Catalog", run: str, relation: str, trust: Sequence[str] = ()) -> dg.AssetCheckResult:
    """Compare the identities of a relation with those that a run saw. Memory: the identities of all rows that it saw.

    Raises:
        Failure: the relation has none of the identity columns of the run's rows.
    """
    import spiral_stream as spiral

    try:
        seen = catalog.seen(catalog.run(run, trust=trust).legs(), trust=trust)
    except spiral.errors.RunError as error:
        return dg.AssetCheckResult(passed=False, description=f"{error}. Train it, with record: true")
    if seen.not_recorded:
        return dg.AssetCheckResult(passed=False, description=f"not all is known: {'; '.join(seen.not_recorded)}")
    rows = seen.identities()
    identity = [name for name in rows.column_names if name not in ("relation", "times")]
    forbidden = catalog.table(relation)
    keys = [name for name in identity if name in forbidden.columns]
    if not keys:
        msg = (
            f"{relation} has columns {', '.join(forbidden.columns)}; the rows of run {run} are known by {', '.join(identity)}. "
            "Give the relation that column, by a rename or a join"
        )
        raise dg.Failure(msg, allow_retries=False)
    met = _met(rows, forbidden.project(*keys).distinct().to_arrow(), keys)
    text = f"{len(met):,} of {len(rows):,} rows that {run} saw are rows of {relation}"
    if len(met):
        some = [", ".join(str(row[name]) for name in keys) for row in met.select(keys).slice(0, _NAMED).to_pylist()]
        text = f"{text}: {'; '.join(some)}{' ...' if len(met) > _NAMED else ''}. Leave them out of the stream, and train anew"
    listed = [
        {name: value for name, value in row.items() if value is not None} for row in met.slice(0, _EXAMPLES).to_pylist()
    ]
    return dg.AssetCheckResult(
        passed=not len(met),
        description=text,
        metadata={"seen": len(met), "of": len(rows), "matched_by": ", ".join(keys), "examples": reports.table(listed)},
    )


def _met(rows: "pa.Table", forbidden: "pa.Table", keys: Sequence[str]) -> Any:
    """The rows whose keys the other table has too."""
    import pyarrow as pa

    kinds = {name: rows.schema.field(name).type for name in keys}
    try:
        columns = {name: forbidden[name].cast(kind) for name, kind in kinds.items()}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # a value that the other type does not have
        columns = {name: forbidden[name].cast(pa.utf8()) for name in keys}
        for name in keys:
            rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.utf8()))
    met = rows.join(pa.table(columns), list(keys), join_type="left semi")
    return met.sort_by([(name, "ascending") for name in keys])

"""What the statistics of a relation show: facts of its columns, its shards, and how labels and origins are spread."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from spiral_assets import reports

if TYPE_CHECKING:
    import spiral_stream as spiral


def measured(
    catalog: "spiral.Catalog", relation: str, columns: Sequence[str], along: str | None
) -> dg.MaterializeResult[None]:
    """Measure a registered relation; reads no payload. Its data version is the relation's.

    Args:
        catalog: that has the relation.
        relation: its name.
        columns: labels and origins, whose spread over shards is shown; the first decides the order of shards.
        along: a column, such as the time of ingest, along which they may drift.
    """
    entry, found = catalog.entry(relation), catalog.measure(relation)
    skews = {column: skew for column in columns if (skew := catalog.skew(relation, column)) is not None}
    first = next(iter(skews.values()), None)
    distance = {} if first is None else dict(zip(first.shard_names, first.distance.tolist(), strict=True))
    effective = {} if first is None else dict(zip(first.shard_names, first.effective.tolist(), strict=True))
    metadata: dict[str, Any] = {
        "dagster/row_count": entry.manifest().total,
        "columns": reports.table(reports.column_rows(found.shards, entry.schema)),
        "shards": reports.table(reports.shard_rows(found.shards, distance, effective)),
        "storage_shards": len(entry.manifest().shard_names),
    }
    for column, skew in skews.items():
        metadata |= _spread(catalog, relation, column, skew)
        if along is not None:
            moved = catalog.drift(relation, column, along)
            metadata[f"{column}_explained_by_{along}"] = round(moved.explained, 4)
    return dg.MaterializeResult(data_version=dg.DataVersion(entry.data_version), metadata=metadata)


def _spread(catalog: "spiral.Catalog", relation: str, column: str, skew: Any) -> Mapping[str, Any]:
    """Return shares and skew of one column."""
    spread = catalog.concentration(relation, column)
    identity = catalog.entry(relation).identity[0]
    counted = catalog.table(relation).group_by(column).aggregate(rows=(identity, "count")).to_arrow().to_pylist()
    rows = sorted(counted, key=lambda row: (-row["rows"], str(row[column])))
    shares = [{column: row[column], "rows": row["rows"], "share": f"{row['rows'] / spread.rows:.1%}"} for row in rows]
    (worst, most), *_ = skew.worst(1)
    return {
        f"{column}_shares": reports.table(shares),
        f"rows_by_{column}": reports.bars([row["rows"] for row in rows]),
        f"{column}_distance_by_shard": reports.bars(skew.distance.tolist()),
        f"{column}_distance_worst": round(float(most), 4),
        f"{column}_distance_mean": round(skew.mean, 4),
        f"{column}_worst_shard": f"{worst}: distance {most:.2f} (0: same mix as the whole relation, 1: nothing in common)",
        f"{column}_largest_share": round(spread.largest_rows / spread.rows, 4),
        f"{column}_effective": round(spread.effective, 2),
    }

"""Statistics of clips: lengths, sizes, frame rates, sources and creators."""

from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.indexes.video import index
from spiral_assets.defs.relations.video import training_segments
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BIN_MS: Final = 500
LONGEST_MS: Final = 10_000  # the last bar counts segments of this length and longer
SKEWED: Final = ("source", "creator_id")
HOUR_MS: Final = 3_600_000


@dg.asset(
    key=["stats", "video", "training_segments", "clip_stats"],
    group_name="stats",
    kinds={"arrow"},
    owners=["team:data"],
    tags={"domain": "video"},
    deps=[index],
)
def clip_stats(catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Lengths, sizes, frame rates and key-frame distances, from the relation and its index. Reads no video."""
    import numpy as np

    opened = catalog.open()
    segments = opened.table(plans.RELATION).project("duration_ms", "frame_count").to_arrow()
    files = opened.table(plans.INDEX).to_arrow()
    usable = files.filter(files["error"].is_null())
    lengths, frames = (segments[name].to_numpy() for name in ("duration_ms", "frame_count"))
    rates, distances = (usable[name].to_numpy() for name in ("fps", "key_distance"))
    by_length = np.bincount(np.minimum(lengths, LONGEST_MS) // BIN_MS, minlength=LONGEST_MS // BIN_MS + 1)
    sizes = [
        f"{width} x {height}"
        for width, height in zip(*(usable[n].to_pylist() for n in ("width", "height")), strict=True)
    ]
    versions = [opened.entry(name).data_version for name in (plans.RELATION, plans.INDEX)]
    return dg.MaterializeResult(
        data_version=dg.DataVersion(":".join(versions)),
        metadata={
            "dagster/row_count": len(segments),
            "hours": round(int(lengths.sum()) / HOUR_MS, 3),
            "files": len(files),
            "refused": len(files) - len(usable),
            "turned": int((usable["rotation"].to_numpy() != 0).sum()),
            "short_clips": int((frames < plans.FRAMES).sum()),
            "quantiles": reports.table(
                _quantiles(
                    {
                        "segment, ms": lengths,
                        "segment, frames": frames,
                        "frames per second": rates,
                        "key distance": distances,
                    }
                )
            ),
            "segments_by_length": reports.bars(by_length.tolist()),
            "bars": f"segments by length, {BIN_MS} ms per bar; files by value, in the order of the tables",
            **_counted("sizes", sizes),
            **_counted("frame_rates", np.round(rates, 2).tolist()),
            **_counted("key_distances", distances.tolist()),
        },
    )


@dg.asset(
    key=["stats", "video", "training_segments", "shard_stats"],
    group_name="stats",
    kinds={"arrow"},
    owners=["team:data"],
    tags={"domain": "video"},
    deps=[training_segments],
)
def shard_stats(catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Shares of sources and creators, how much they differ between shards, and how far upload time explains them."""
    opened = catalog.open()
    entry = opened.entry(plans.RELATION)
    opened.measure(plans.RELATION)  # facts of the columns, for EXPLAIN
    metadata: dict[str, Any] = {"dagster/row_count": entry.manifest().total}
    for column in SKEWED:
        metadata |= _shares(opened, column)
    return dg.MaterializeResult(data_version=dg.DataVersion(entry.data_version), metadata=metadata)


def _shares(opened: Any, column: str) -> dict[str, Any]:
    """Return shares, skew and drift of one column of origins."""
    found = opened.skew(plans.RELATION, column)
    assert found is not None, "origins have few values, so they have a histogram"
    spread, moved = opened.concentration(plans.RELATION, column), opened.drift(plans.RELATION, column, "upload_ts")
    grouped = opened.table(plans.RELATION).group_by(column)
    counted = grouped.aggregate(segments=("sample_id", "count"), lasts_ms=("duration_ms", "sum")).to_arrow()
    rows = sorted(counted.to_pylist(), key=lambda row: (-row["segments"], row[column] or ""))
    table = [
        {
            column: row[column],
            "segments": row["segments"],
            "share": f"{row['segments'] / spread.rows:.1%}",
            "hours": row["lasts_ms"] / HOUR_MS,
        }
        for row in rows
    ]
    (worst, distance), *_ = found.worst(1)
    return {
        f"{column}_shares": reports.table(table),
        f"segments_by_{column}": reports.bars([row["segments"] for row in rows]),
        f"{column}_distance_by_shard": reports.bars(found.distance.tolist()),
        f"{column}_largest_share": round(spread.largest_rows / spread.rows, 4),
        f"{column}_effective": round(spread.effective, 2),
        f"{column}_worst_shard": f"{worst}: distance {distance:.2f} (0: same mix as the whole relation, 1: nothing in common)",
        f"{column}_explained_by_upload": round(moved.explained, 4),
    }


def _quantiles(values: "dict[str, NDArray[np.number[Any]]]") -> list[dict[str, Any]]:
    import numpy as np

    levels = {"least": 0.0, "median": 0.5, "90 %": 0.9, "most": 1.0}
    return [
        {"of": name, **{level: float(np.quantile(found, share)) for level, share in levels.items()}}
        for name, found in values.items()
        if len(found)
    ]


def _counted(name: str, values: list[Any]) -> dict[str, Any]:
    """Count files by a value: a table and a bar chart, in the order of the values."""
    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    rows = [{name: value, "files": counts[value]} for value in sorted(counts)]
    return {name: reports.table(rows), f"files_by_{name}": reports.bars([row["files"] for row in rows])}

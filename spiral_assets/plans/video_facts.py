"""Statistics of clips: lengths, sizes, frame rates and key frames."""

from typing import TYPE_CHECKING, Any, Final

from spiral_assets import pages
from spiral_assets.facts import reports
from spiral_assets.plans import video as plans

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    import spiral_stream as spiral

BIN_MS: Final = 500
LONGEST_MS: Final = 10_000  # the last bar counts segments of this length and longer
HOUR_MS: Final = 3_600_000


def clip_stats(catalog: "spiral.Catalog") -> tuple[str, dict[str, Any]]:
    """Return the data version of segments and index, and lengths, sizes, frame rates and key-frame distances."""
    import numpy as np

    segments = catalog.table(plans.RELATION).project("duration_ms", "frame_count").to_arrow()
    files = catalog.table(plans.INDEX).to_arrow()
    usable = files.filter(files["error"].is_null())
    lengths, frames = (segments[name].to_numpy() for name in ("duration_ms", "frame_count"))
    rates, distances = (usable[name].to_numpy() for name in ("fps", "key_distance"))
    by_length = np.bincount(np.minimum(lengths, LONGEST_MS) // BIN_MS, minlength=LONGEST_MS // BIN_MS + 1)
    sides = zip(*(usable[name].to_pylist() for name in ("width", "height")), strict=True)
    measured = {
        "segment, ms": lengths,
        "segment, frames": frames,
        "frames per second": rates,
        "key distance": distances,
    }
    versions = [catalog.entry(name).data_version for name in (plans.RELATION, plans.INDEX)]
    return ":".join(versions), {
        "dagster/row_count": len(segments),
        "hours": round(int(lengths.sum()) / HOUR_MS, 3),
        "files": len(files),
        "refused": len(files) - len(usable),
        "turned": int((usable["rotation"].to_numpy() != 0).sum()),
        "short_clips": int((frames < plans.FRAMES).sum()),
        "quantiles": reports.table(_quantiles(measured)),
        "segments_by_length": _lengths(by_length.tolist()),
        **_counted("sizes", [f"{width} x {height}" for width, height in sides]),
        **_counted("frame_rates", np.round(rates, 2).tolist()),
        **_counted("key_distances", distances.tolist()),
    }


def _quantiles(values: "dict[str, NDArray[np.number[Any]]]") -> list[dict[str, Any]]:
    import numpy as np

    levels = {"least": 0.0, "median": 0.5, "90 %": 0.9, "most": 1.0}
    return [
        {"of": name, **{level: float(np.quantile(found, share)) for level, share in levels.items()}}
        for name, found in values.items()
        if len(found)
    ]


def _lengths(counts: list[int]) -> "spiral.report.Picture":
    import spiral_stream as spiral

    names = [f"{at * BIN_MS / 1_000:g}" for at in range(len(counts) - 1)] + [f"{LONGEST_MS / 1_000:g} +"]
    return spiral.report.draw_bars(
        "segments_by_length",
        f"{sum(counts):,} segments by length",
        list(zip(names, counts, strict=True)),
        across="seconds, from this number to the next",
        up="segments",
        width=pages.SMALL,
    )


def _counted(name: str, values: list[Any]) -> dict[str, Any]:
    """Count files by a value: a table and a bar chart, in the order of the values."""
    import spiral_stream as spiral

    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    rows = [{name: value, "files": counts[value]} for value in sorted(counts)]
    words = name.replace("_", " ")
    picture = spiral.report.draw_bars(
        f"files_by_{name}",
        f"{len(values):,} files by {words}",
        [(str(row[name]), row["files"]) for row in rows],
        across=words,
        up="files",
        width=pages.LARGE,
    )
    return {name: reports.table(rows), f"files_by_{name}": picture}

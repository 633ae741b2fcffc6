"""The video index for people: one row per file instead of one row per segment."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def by_file(rows: "pa.Table") -> "pa.Table":
    """Return one row per distinct file, in the order in which segments first refer to it.

    Args:
        rows: the result of `spiral_stream.index_videos`, one row per segment.

    Returns:
        ``file`` (path, or path[offset+length]), ``uri``, ``offset``, ``length``, ``segments`` (rows that refer to it),
        ``frames``, ``duration_ms``, ``width``, ``height``, ``fps``, ``rotation``, ``key_distance``, ``error``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    reference = ["uri", "offset", "length"]
    facts = ["frames", "duration_ms", "width", "height", "milli_fps", "rotation", "key_distance", "error"]
    inline = pc.if_else(
        rows["uri"].is_null(), rows["row"], pa.scalar(-1, pa.int64())
    )  # inline bytes: every row is a file of its own
    grouped = rows.append_column("inline", inline).group_by([*reference, "inline"], use_threads=False)
    files = grouped.aggregate(
        [("row", "count"), *((name, "first") for name in facts)]
    )  # the first value that is not null
    usable = files["frames_first"].is_valid()  # a row refused for its segment does not make the file unusable
    errors = pc.if_else(usable, pa.scalar(None, pa.string()), files["error_first"])
    return pa.table(
        {
            "file": pa.array(map(_name, *(files[name].to_pylist() for name in (*reference, "inline"))), pa.string()),
            **{name: files[name] for name in reference},
            "segments": files["row_count"],
            **{name: files[f"{name}_first"] for name in facts if name not in ("milli_fps", "error")},
            "error": errors,
            "fps": pc.divide(files["milli_fps_first"].cast(pa.float64()), 1_000.0),
        }
    )


def _name(uri: str | None, offset: int | None, length: int | None, row: int) -> str:
    if uri is None:
        return f"row {row}"
    return uri if offset is None else f"{uri}[{offset}+{length}]"

"""The video program with parts to vary: over made-up references, which cost nothing, or over real files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.measure import measure, save_statistics
from tests.fixtures import clips, relations

KEYS = ("frame_count", "width * height")


def measured(catalog: sp.Catalog) -> sp.Catalog:
    """With statistics of the segments."""
    entry = catalog.entry(clips.SEGMENTS)
    with OpenRelation(entry) as relation:
        save_statistics(entry, measure(relation))
    return catalog


def made_up(folder: Path, rows: int = 300, change: Callable[[pa.Table], pa.Table] = lambda t: t) -> sp.Catalog:
    """Segments of the example's schema whose bytes are no videos."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = sp.connect(str(folder / "catalog"))
    clips.register(catalog, change(relations.training_segments(folder, rows)), relations.segment_labels(rows))
    return catalog


def frames(**changes: Any) -> sp.Stack:
    given: dict[str, Any] = {"sequence_length": 16, "resize_shorter": 64, "crop": 56, "dtype": "float16"}
    return sp.Stack("clip_ref", decode="h264", **{**given, "layout": "ntchw", **changes})


def program(
    catalog: sp.Catalog,
    *,
    formation: Any = "seed",
    window_size: int = 2_048,
    keys: Any = KEYS,
    max_frames: int | None = 32 * 16,
    max_bytes: int | None = 8_000_000_000,
    batch_size: int | None = 32,
    order: Any = None,
    profile: Any = None,
    last: Any = sp.KeepPartial,
    fields: dict[str, Any] | None = None,
    least_ms: int = 2_000,
    **clip: Any,
) -> sp.PreparedStream:
    segments = catalog.table(clips.SEGMENTS)
    if profile is not None:
        segments = segments.cache(clip_ref=profile)
    if formation == "seed":
        budget = None
        if max_frames or max_bytes:
            budget = sp.BatchBudget(max_frames=max_frames, max_bytes=max_bytes)
        formation = sp.WindowedBucket(window_size, [sp.BucketKey(key) for key in keys], budget)
    shuffle = sp.HashBucketed(seed=123456, bucket_count=8192, bucket_order=sp.ShuffleBuckets(seed=123456))
    given = {"frames": frames(**clip), "label": sp.Stack("label_id"), "sample_id": sp.List("sample_id")}
    return (
        segments.join(catalog.table(clips.LABELS), on="sample_id")
        .filter((sp.col("duration_ms") >= least_ms) & (sp.col("confidence") >= 0.7))
        .sample(identity="sample_id", order=order or shuffle)
        .collate(batch_size=batch_size, formation=formation, last=last, fields=given if fields is None else fields)
        .to_numpy()
    )


def samples(stream: sp.PreparedStream) -> list[list[str]]:
    """Who is in each batch of the epoch; nothing is decoded."""
    return [stream.ledger(number) for number in range(stream.count())]


def column(catalog: sp.Catalog, name: str) -> dict[str, Any]:
    """Values of the segments by identity."""
    table = catalog.table(clips.SEGMENTS).project("sample_id", name).to_arrow()
    return dict(zip(table["sample_id"].to_pylist(), table[name].to_pylist(), strict=True))

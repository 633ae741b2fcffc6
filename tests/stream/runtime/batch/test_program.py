"""Batches that need nothing but copies hold what they hold on the long way, and errors come from there."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.runtime.batch import builder
from spiral_stream.runtime.batch.program import BatchProgram
from spiral_stream.testing import same

ROWS = 210
LENGTHS = [row % 13 + 1 for row in range(ROWS)]
TABLE = pa.table(
    {
        "id": range(ROWS),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 3, dtype=np.float32)), 3),
        "text": pa.array([f"äöü {row}"[: row % 9] for row in range(ROWS)]),
        "tokens": pa.array([[row + at for at in range(n)] for row, n in enumerate(LENGTHS)], pa.list_(pa.int32())),
        "trained": pa.array([[at % 2 for at in range(n)] for n in LENGTHS], pa.list_(pa.int32())),
    }
)
NARROW = {"id": sp.Stack("id"), "vector": sp.Stack("vector"), "text": sp.List("text")}
PADDED = {
    "ids": sp.Pad("tokens", pad_to_multiple_of=4),
    "mask": sp.PadMask("tokens", dtype="bool"),
    "labels": sp.fields.ShiftedLabels("tokens", mask="trained"),
}
PACKED = {
    "ids": sp.Pad("tokens"),
    "segments": sp.fields.Segments("tokens"),
    "positions": sp.fields.Positions("tokens"),
    "labels": sp.fields.Labels("tokens"),
    "borders": sp.fields.CuSeqlens("tokens"),
}
BUDGET = sp.BatchBudget(max_tokens=64)
WAYS: dict[str, dict[str, Any]] = {
    "narrow": {"fields": NARROW, "batch_size": 16},
    "the last one is short": {"fields": NARROW, "batch_size": 16, "last": sp.KeepPartial},
    "skipping": {"fields": NARROW | PADDED, "batch_size": 16, "on_error": "skip"},
    "padded": {"fields": NARROW | PADDED, "batch_size": 16},
    "of one width": {"fields": {"ids": sp.Pad("tokens", length=16)}, "batch_size": 16},
    "windows": {
        "fields": NARROW | PADDED,
        "batch_size": None,
        "formation": sp.WindowedBucket(50, [sp.BucketKey("len(tokens)")], BUDGET),
    },
    "packed": {"fields": PACKED, "batch_size": 2, "formation": sp.batching.Packed(max_tokens=32, window_size=50)},
}


def registered(folder: Path, table: pa.Table) -> sp.Relation:
    lance.write_dataset(table, str(folder / "rows.lance"), max_rows_per_file=60)
    catalog = sp.connect(folder / "catalog")
    catalog.register("rows", sp.Lance(str(folder / "rows.lance")), identity="id")
    return catalog.table("rows")


@pytest.mark.crossed
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("merge", [1, 2])
def test_batches_are_those_of_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, merge: int
) -> None:
    relation = registered(tmp_path, TABLE).sample(order=sp.GlobalShuffle(seed=2)).collate(**WAYS[way])
    ran, run = [], BatchProgram.run
    monkeypatch.setattr(BatchProgram, "run", lambda program, found: (ran.append(run(program, found)), ran[-1])[1])

    def read() -> tuple[list[Any], dict[str, Any]]:
        with relation.to_numpy(prefetch=2).bind(merge=merge) as stream:
            return list(stream), stream.metrics()

    found, counted = read()
    assert sum(each is not None for each in ran) >= len(found) - 1 > 2
    monkeypatch.setattr(builder, "copies_only", lambda _: False)
    wanted, expected = read()

    assert len(found) == len(wanted)
    for batch, other in zip(found, wanted, strict=True):
        assert list(batch) == list(other)
        assert same(batch, other)
        assert [getattr(batch[name], "dtype", None) for name in batch] == [
            getattr(other[name], "dtype", None) for name in batch
        ]
    same_counts = ("samples", "batches", "table_bytes", "peak_batch_bytes", "source_rows", "refused")
    assert [counted[name] for name in same_counts] == [expected[name] for name in same_counts]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_token_that_does_not_fit_is_told_with_its_sample(tmp_path: Path, on_error: str) -> None:
    bad = pa.table({"id": range(64), "tokens": pa.array([[1, 1 << 40] if row == 21 else [1, 2] for row in range(64)])})
    collated = registered(tmp_path, bad).sample(order=sp.Sequential())
    fields = {"id": sp.Stack("id"), "ids": sp.Pad("tokens", dtype="int32")}
    with collated.collate(batch_size=16, fields=fields, on_error=on_error).to_numpy() as stream:
        if on_error == "raise":
            with pytest.raises(sp.errors.DataError, match=r"id=21.*does not fit dtype int32"):
                list(stream)
            assert stream.state_dict()["batch"] == 1
            return
        assert [len(batch["id"]) for batch in stream] == [16, 15, 16, 16]
        assert stream.metrics()["table_rows"] > 0


def test_a_large_batch_is_spread_over_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = pa.table({"id": range(4), "tokens": pa.array([[7] * 100_000] * 4, pa.list_(pa.int32()))})
    ran, run = [], BatchProgram.run
    monkeypatch.setattr(BatchProgram, "run", lambda program, found: (ran.append(run(program, found)), ran[-1])[1])
    collated = registered(tmp_path, long).sample(order=sp.Sequential())
    with collated.collate(batch_size=4, fields={"ids": sp.Pad("tokens")}).to_numpy() as stream:
        (batch,) = stream

    assert ran == [None]
    assert (batch["ids"] == 7).all()
    assert batch["ids"].shape == (4, 100_000)

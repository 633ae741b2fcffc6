"""Batches that need nothing but copies hold what they hold on the long way, and errors come from there."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.runtime.batch import builder
from spiral_stream.runtime.batch.program import BatchProgram
from spiral_stream.testing import same
from tests.fixtures.examples import few

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


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> sp.Relation:
    return registered(tmp_path_factory.mktemp("drawn"), TABLE)


ORDERS = [
    sp.GlobalShuffle(seed=3),
    sp.GlobalShuffle(seed=3, clump_size=4),
    sp.orders.WindowShuffle(seed=3, window=16),
    sp.Sequential(),
]
DRAWN: dict[str, Any] = {
    **NARROW,
    "again": sp.Stack("vector"),
    "wide": sp.Pad("tokens", pad_value=-7),
    "half": sp.Pad("tokens", dtype="int32", pad_to_multiple_of=8),
    "mask": sp.PadMask("tokens", dtype="bool"),
    "ones": sp.PadMask("tokens"),
    "labels": sp.fields.ShiftedLabels("tokens", mask="trained"),
}


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """How batches are formed, and some fields that such batches may have."""
    kind = draw(st.sampled_from(["fixed", "windows", "packed"]))
    known = PACKED if kind == "packed" else DRAWN
    names = draw(st.lists(st.sampled_from(list(known)), min_size=1, unique=True))
    if kind == "fixed":
        last = draw(st.sampled_from([sp.batching.KeepPartial, sp.batching.DropPartial, sp.batching.PadPartial]))
        return {"fields": {name: known[name] for name in names}, "batch_size": draw(st.integers(5, 24)), "last": last}
    fields = {"tokens": sp.Pad("tokens"), **{name: known[name] for name in names}}
    if kind == "packed":
        packed = sp.batching.Packed(max_tokens=32, window_size=50)
        return {"fields": fields, "batch_size": draw(st.integers(1, 3)), "formation": packed}
    keys = draw(st.sampled_from([[], [sp.BucketKey("len(tokens)")], [sp.BucketKey("id"), sp.BucketKey("len(tokens)")]]))
    return {"fields": fields, "batch_size": None, "formation": sp.WindowedBucket(50, keys, BUDGET)}


@few(30, 400)
@given(
    rule=rules(),
    order=st.sampled_from(ORDERS),
    streams=st.integers(1, 3),
    merge=st.integers(1, 2),
    skipped=st.lists(st.integers(0, ROWS - 1), max_size=12, unique=True),
    stop=st.integers(0, 5),
)
def test_batches_of_drawn_plans_are_those_of_the_long_way(
    rows: sp.Relation, rule: dict[str, Any], order: Any, streams: int, merge: int, skipped: list[int], stop: int
) -> None:
    parts = [rows.filter(sp.col("id") % streams == at) for at in range(streams)]
    mixed = sp.mix([sp.Stream(str(at), each, proportion=1 / streams) for at, each in enumerate(parts)])
    if streams > 1 and isinstance(order, sp.Sequential):  # which a mixture does not take
        order = ORDERS[0]
    plan = (rows if streams == 1 else mixed).sample(order=order).collate(**rule)

    def read() -> list[Any]:
        """Two epochs, gone on from a state of the first, without some samples."""
        with plan.to_numpy(prefetch=2).bind(merge=merge) as stream:
            if skipped:
                stream.skip(identities=[each if streams == 1 else (str(each % streams), each) for each in skipped])
            begun = [batch for batch, _ in zip(stream, range(stop), strict=False)]
            state = stream.state_dict()
        with plan.to_numpy(prefetch=2).bind(merge=merge) as stream:
            stream.load_state_dict(state)
            return begun + list(stream) + list(stream)

    found = read()
    with patch.object(builder, "copies_only", lambda _: False):
        wanted = read()

    assert len(found) == len(wanted) > 0
    for batch, other in zip(found, wanted, strict=True):
        assert list(batch) == list(other)
        assert same(batch, other)
        assert [getattr(each, "dtype", None) for each in batch.values()] == [
            getattr(each, "dtype", None) for each in other.values()
        ]


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

"""Facts of one column of a shard: what NumPy and Python count on the same values; the same bits however it is chunked."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.derived.derivation import Piece, ShardRows
from spiral_stream.derived.kinds.column_facts import FEW, MOST, REGISTERS, ColumnFacts, is_word, restored
from spiral_stream.derived.work.executors import Processes
from tests.fixtures.named_shards import Shards, content, one_thread, pieces_of

INTEGERS = st.none() | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.none() | st.floats(width=64)
TEXTS = st.none() | st.text(max_size=5)


def piece(values: list[Any], kind: pa.DataType, most: int = 10_000, chunks: int = 1) -> Piece:
    parts = np.array_split(np.arange(len(values)), chunks)
    column = pa.chunked_array([pa.array([values[k] for k in part], kind) for part in parts], kind)
    rows = np.arange(len(values), dtype=np.uint64)
    return ColumnFacts("v", kind, most).piece(ShardRows(len(values), rows, pa.table({"v": column})))


def values_of(found: Piece, kind: pa.DataType) -> list[Any]:
    if is_word(kind):
        return restored(np.asarray(found.arrays["values"]), kind).to_pylist()
    return texts_of(found)[2:]


def texts_of(found: Piece) -> list[str]:
    ends = np.cumsum(found.arrays["lengths"])
    data = np.asarray(found.arrays["text"]).tobytes()
    return [data[end - size : end].decode() for size, end in zip(found.arrays["lengths"], ends, strict=True)]


@given(values=st.lists(INTEGERS, max_size=60), chunks=st.integers(1, 4))
def test_integers_are_counted(values: list[int | None], chunks: int) -> None:
    found, real = piece(values, pa.int64(), chunks=chunks), [v for v in values if v is not None]
    counted = sorted(Counter(real).items())

    assert list(zip(values_of(found, pa.int64()), found.arrays["counts"].tolist(), strict=True)) == counted
    summary = dict(found.summary)
    total = float(np.int64(summary.pop("sum")).view(np.float64))
    assert total == pytest.approx(float(sum(real)), rel=1e-12, abs=64 * 60)  # of numbers up to 2**63
    assert summary == {
        "nulls": values.count(None),
        "nans": 0,
        "distinct": len(counted),
        "bytes": 8 * len(real),
        "whole": 1,
    }
    points = np.asarray(found.arrays["points"]).view(np.int64).tolist()
    assert points == sorted(points)
    assert points[:1] + points[-1:] == ([min(real), max(real)] if real else [])


@given(values=st.lists(FLOATS | st.just(math.nan), max_size=60), chunks=st.integers(1, 3))
def test_nan_is_counted_apart(values: list[float | None], chunks: int) -> None:
    found = piece(values, pa.float64(), 0, chunks)
    real = [v for v in values if v is not None and not math.isnan(v)]
    nans = sum(v is not None and math.isnan(v) for v in values)

    assert (found.summary["nulls"], found.summary["nans"]) == (values.count(None), nans)
    assert found.summary["distinct"] == len(set(real)) + (nans > 0)
    points = np.asarray(found.arrays["points"]).view(np.float64).tolist()
    assert points[:1] + points[-1:] == ([min(real), max(real)] if real else [])


@given(values=st.lists(TEXTS, max_size=60), chunks=st.integers(1, 4))
@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8()], ids=str)
def test_texts_are_counted(kind: pa.DataType, values: list[str | None], chunks: int) -> None:
    found, real = piece(values, kind, chunks=chunks), [v for v in values if v is not None]

    assert dict(zip(values_of(found, kind), found.arrays["counts"].tolist(), strict=True)) == Counter(real)
    assert texts_of(found)[:2] == ([min(real, key=str.encode), max(real, key=str.encode)] if real else ["", ""])
    assert found.summary["bytes"] == sum(len(v.encode()) for v in real)


def test_dictionaries_are_their_values() -> None:
    values = ["a", "b", None, "a"]
    encoded = pa.chunked_array([pa.array(values).dictionary_encode()])
    rows = ShardRows(4, np.arange(4, dtype=np.uint64), pa.table({"v": encoded}))
    found, plain = ColumnFacts("v", pa.utf8(), 9).piece(rows), piece(values, pa.utf8(), 9)

    assert found.summary == plain.summary
    assert {name: array.tolist() for name, array in found.arrays.items()} == {
        name: array.tolist() for name, array in plain.arrays.items()
    }


def test_of_many_values_those_with_most_rows_are_kept() -> None:
    often = {k: 40 - k for k in range(30)}
    values = [k for k, times in often.items() for _ in range(times)] + list(range(1_000, 2_000))
    for kind in (pa.int32(), pa.utf8()):
        given_values = [str(v) for v in values] if kind == pa.utf8() else values
        found = piece(given_values, kind, most=100)

        assert found.summary["whole"] == 0
        assert found.summary["distinct"] == 1_030
        kept = dict(zip(map(int, values_of(found, kind)), found.arrays["counts"].tolist(), strict=True))
        assert kept == {k: often[k] for k in range(MOST)}
        assert len(found.arrays["registers"]) == REGISTERS
        assert "hashes" not in found.arrays


def test_hashes_are_kept_of_few_values() -> None:
    assert len(piece(list(range(FEW)), pa.int16()).arrays["hashes"]) == FEW
    assert "registers" in piece(list(range(FEW + 1)), pa.int16()).arrays


def test_processes_make_the_same_facts(tmp_path: Path) -> None:
    table = pa.table({"v": [None if k % 5 == 0 else k % 7 for k in range(60)]})
    source, facts = Shards(table, (20, 0, 40)), ColumnFacts("v", pa.int64(), 5)

    one = content(pieces_of(source, facts, tmp_path / "a", one_thread))
    assert one == content(pieces_of(source, facts, tmp_path / "b", lambda: Processes(1)))

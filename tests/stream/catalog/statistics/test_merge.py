"""Facts of shards say, merged, what one shard with all rows says."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.catalog.statistics.merge import BINS, KNOWN, UNKNOWN, Merged, merged
from spiral_stream.derived.kinds.column_facts import ColumnFacts
from tests.fixtures.named_shards import Shards, pieces_of


class Table:
    """What merging needs of a manifest."""

    def __init__(self, names: list[str], rows: list[int]) -> None:
        self.shard_names, self.shard_rows = pa.array(names), np.array(rows, np.uint64)


def merge(folder: Path, table: pa.Table, sizes: list[int], most: int = 50, names: list[str] | None = None) -> Merged:
    source = Shards(table, tuple(sizes))
    facts = [ColumnFacts(each.name, each.type, most) for each in table.schema]
    pieces = [pieces_of(source, each, folder) for each in facts]
    shards = names or [f"s{k}" for k in range(len(sizes))]
    manifest: Any = Table(shards, sizes)
    keys = np.arange(2 * len(sizes), dtype=np.uint64).reshape(-1, 2)
    return merged(manifest, keys, list(zip(facts, pieces, strict=True)), table.column_names, most)


@settings(deadline=None)
@given(
    numbers=st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=80),
    cuts=st.lists(st.integers(0, 80), max_size=5),
)
def test_cutting_rows_into_shards_changes_nothing_that_is_known(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int | None], cuts: list[int]
) -> None:
    texts = [None if n is None else f"t{n}" for n in numbers]
    table = pa.table({"n": pa.array(numbers, pa.int64()), "t": pa.array(texts, pa.utf8())})
    ends = sorted({min(cut, len(numbers)) for cut in cuts} | {len(numbers)})
    sizes = np.diff([0, *ends]).tolist()
    one, cut = (merge(tmp_path_factory.mktemp("m"), table, some) for some in ([len(numbers)], sizes))

    for name in ("rows", "nulls", "nans", "distinct", "distinct_mark", "min", "max", "frequent", "frequent_mark"):
        assert cut.columns[name].to_pylist() == one.columns[name].to_pylist(), name
    assert cut.marks == one.marks == {"n": KNOWN, "t": KNOWN}
    assert int(cut.bytes.sum()) == int(one.bytes[0])


@pytest.mark.parametrize("most", [1000, 0])
def test_the_order_of_shards_changes_nothing(tmp_path: Path, most: int) -> None:
    random = np.random.default_rng(3)
    sizes = random.integers(1, 900, 150).tolist()
    total, starts = sum(sizes), np.cumsum([0, *sizes])
    texts = [f"t{each}" for each in random.integers(0, 3000, total).tolist()]
    numbers = pa.array(random.normal(size=total) * 10.0 ** random.integers(0, 12, total))  # sums depend on the order
    table, names = pa.table({"n": numbers, "t": texts}), [f"s{k:03}" for k in range(len(sizes))]
    wanted = merge(tmp_path / "sorted", table, sizes, most, names)

    order = random.permutation(len(sizes)).tolist()
    other = pa.concat_tables([table.slice(int(starts[k]), sizes[k]) for k in order])
    found = merge(tmp_path / "other", other, [sizes[k] for k in order], most, [names[k] for k in order])
    assert found.columns == wanted.columns
    assert found.shards == wanted.shards
    assert found.histograms.table == wanted.histograms.table


def test_shards_and_their_values_come_by_name(tmp_path: Path) -> None:
    table = pa.table({"t": ["b", "a", None, "c", "c", "a"]})
    found = merge(tmp_path, table, [3, 3], names=["z", "y"])

    assert [tuple(row.values()) for row in found.histograms.table.to_pylist()] == [
        ("y", "t", "a", 1),
        ("y", "t", "c", 2),
        ("z", "t", "a", 1),
        ("z", "t", "b", 1),
        ("z", "t", None, 1),
    ]
    (shards,) = found.shards
    assert [(row["shard"], row["min"], row["max"], row["nulls"]) for row in shards.to_pylist()] == [
        ("y", "a", "c", 0),
        ("z", "a", "b", 1),
    ]


def test_a_column_that_has_more_values_in_all_shards_than_in_each_has_no_histogram(tmp_path: Path) -> None:
    found = merge(tmp_path, pa.table({"n": list(range(10))}), [5, 5], most=7)

    assert found.marks == {"n": UNKNOWN}
    assert len(found.histograms.table) == 0
    assert found.columns["distinct"].to_pylist() == [10]


def test_a_column_of_nulls_alone_has_no_extremes(tmp_path: Path) -> None:
    table = pa.table({"n": pa.nulls(4, pa.int32()), "t": pa.nulls(4, pa.utf8())})
    for row in merge(tmp_path, table, [1, 3]).columns.to_pylist():
        assert (row["nulls"], row["distinct"], row["min"], row["max"], row["quartiles"]) == (4, 0, None, None, None)
        assert row["frequent"] == []
        assert (row["mean"], row["bins"]) == (None, None)


@settings(deadline=None, max_examples=30)
@given(
    numbers=st.lists(st.none() | st.floats(-1e9, 1e9) | st.just(float("nan")), min_size=1, max_size=300),
    most=st.sampled_from([1000, 0]),
)
def test_mean_and_bins_are_those_of_the_numbers(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float | None], most: int
) -> None:
    table, half = pa.table({"n": pa.array(numbers, pa.float64())}), len(numbers) // 2
    sizes = [half, len(numbers) - half] if half else [len(numbers)]
    (found,) = merge(tmp_path_factory.mktemp("m"), table, sizes, most).columns.to_pylist()
    real = np.array([n for n in numbers if n is not None and not math.isnan(n)])

    if not len(real):
        assert (found["mean"], found["bins"]) == (None, None)
        return
    assert float(found["mean"]) == pytest.approx(real.mean(), rel=1e-9, abs=1e-9)
    assert sum(found["bins"]) == len(real)
    if most:
        width = (real.max() - real.min()) / BINS
        at = np.minimum((real - real.min()) / (width or 1), BINS - 1).astype(int)
        near = np.abs(np.cumsum(found["bins"]) - np.cumsum(np.bincount(at, minlength=BINS)))
        assert found["bins_mark"] == KNOWN
        assert near.max() <= 1 + len(real) // 20  # a value at an edge may lie on either side


def test_infinities_and_moments_have_a_mean(tmp_path: Path) -> None:
    moments = pa.array([0, 2_000_000], pa.timestamp("us"))
    table = pa.table({"f": [float("inf"), 1.0], "t": moments, "d": moments.cast(pa.date32()), "b": [True, False]})
    found = {row["column"]: row for row in merge(tmp_path, table, [1, 1]).columns.to_pylist()}

    assert (found["f"]["mean"], sum(found["f"]["bins"])) == ("inf", 1)
    assert found["t"]["mean"].startswith("1970-01-01 00:00:01")
    assert (found["d"]["mean"], found["b"]["mean"]) == ("1970-01-01", "0.5")

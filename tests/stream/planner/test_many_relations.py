"""What a plan of many relations makes is made once for all of them, and batches are those of relations that came one by one."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.derived import unasked
from spiral_stream.orders import Order
from spiral_stream.planner.selection import narrow_columns as kept_columns
from spiral_stream.sources import Source

pytestmark = pytest.mark.usefixtures("no_threads_left")

FIELDS = {"id": sp.Stack("id"), "a": sp.Stack("a"), "text": sp.List("text")}
KINDS = ("parquet", "lance", "arrow")


def table(k: int, rows: int) -> pa.Table:
    """Rows of one relation; some relations allow nulls where others do not, and some have columns of their own."""
    numbers = np.arange(rows) + 10_000 * k
    fields = [("id", pa.int64()), ("a", pa.int32()), ("text", pa.utf8())]
    schema = pa.schema([pa.field(name, kind, nullable=k % 2 == 0) for name, kind in fields])
    made = pa.table([numbers, (numbers * 7919 % 100).astype(np.int32), [f"t{n}" for n in numbers]], schema=schema)
    return made.append_column("own", pa.array(numbers / 2)) if k % 3 == 0 else made


def source(kind: str, folder: Path, k: int, rows: int) -> Source:
    if kind == "arrow":
        return sp.Arrow(table(k, rows))
    if kind == "lance":
        lance.write_dataset(table(k, rows), str(folder / f"{k}.lance"), max_rows_per_file=max(1, rows // 2))
        return sp.Lance(str(folder / f"{k}.lance"))
    pq.write_table(table(k, rows), folder / f"{k}.parquet")
    return sp.Parquet(str(folder / f"{k}.parquet"))


@contextmanager
def registered(sizes: list[int], kinds: list[str]) -> Iterator[sp.Catalog]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        catalog = sp.connect(str(folder / "catalog"))
        for k, rows in enumerate(sizes):
            catalog.register(f"r{k}", source(kinds[k % len(kinds)], folder, k, rows), identity="id")
        yield catalog


def stream(
    catalog: sp.Catalog, which: range, least: int | None, order: Order | None = None, labels: str | None = None
) -> sp.PreparedStream:
    streams = []
    for k in which:
        rows = catalog.table(f"r{k}")
        rows = rows if least is None else rows.filter(sp.col("a") >= least)
        rows = rows if labels is None else rows.join(catalog.table(labels), on="a")
        streams.append(sp.Stream(f"s{k}", rows, repeat=1.0))
    drawn = sp.mix(streams).sample(identity="id", order=order or sp.GlobalShuffle(seed=3))
    made: sp.PreparedStream = drawn.collate(batch_size=8, fields=FIELDS).to_numpy()
    return made


def batches(made: sp.PreparedStream) -> list[dict[str, list[object]]]:
    with made:
        return [{name: list(values) for name, values in batch.items()} for batch in made]


def derived(catalog: sp.Catalog, kind: str) -> list[Path]:
    return sorted((Path(catalog.root) / "prepared" / "derived" / kind).glob("*/parts/[!.]*.piece"))


def forget(catalog: sp.Catalog) -> None:
    for kind in ("columns", "survivors", "matches"):
        shutil.rmtree(Path(catalog.root) / "prepared" / "derived" / kind, ignore_errors=True)


@settings(max_examples=8, deadline=None)
@given(
    sizes=st.lists(st.integers(20, 60), min_size=2, max_size=7),
    kinds=st.permutations(KINDS),
    least=st.sampled_from([None, 10, 45]),
    weighted=st.booleans(),
    before=st.integers(0, 3),
)
def test_relations_that_are_opened_together_give_the_batches_of_those_that_came_one_by_one(
    sizes: list[int], kinds: list[str], least: int | None, *, weighted: bool, before: int
) -> None:
    order = sp.orders.Weighted("a + 1", seed=5) if weighted else None
    every = range(len(sizes))
    with registered(sizes, kinds) as catalog:
        for k in every[:before]:  # some of them are kept already
            batches(stream(catalog, range(k, k + 1), least))
        together = batches(stream(catalog, every, least, order))
        again = batches(stream(catalog, every, least, order))
        forget(catalog)
        for k in every:
            batches(stream(catalog, range(k, k + 1), least, order))
        alone = batches(stream(catalog, every, least, order))
    assert together == again == alone


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_survivors_of_many_relations_are_committed_once(kind: str) -> None:
    with registered([12] * 30, [kind]) as catalog:
        batches(stream(catalog, range(30), 10))
        assert (
            len(derived(catalog, "columns")) == 3
        )  # a part for each column, where there was one for each relation too
        assert len(derived(catalog, "survivors")) == 1


def test_matches_of_many_relations_are_committed_once() -> None:
    with registered([12] * 10, ["arrow"]) as catalog:
        catalog.register(
            "labels", sp.Arrow(pa.table({"a": pa.array(range(100), pa.int32()), "w": range(100)})), identity="a"
        )
        batches(stream(catalog, range(10), None, labels="labels"))
        assert len(derived(catalog, "matches")) == 1


def test_a_fan_out_over_many_relations_is_told_as_over_one() -> None:
    with registered([12] * 4, ["arrow"]) as catalog:
        every = [*range(100), int(table(2, 12)["a"][5].as_py())]  # one row of each relation matches twice
        twice = pa.table({"a": pa.array(every, pa.int32()), "w": range(101)})
        catalog.register("labels", sp.Arrow(twice), identity="w")
        with pytest.raises(sp.errors.PlanError, match=r"Keep one right row per key with \.distinct\('a'\)"):
            batches(stream(catalog, range(4), None, labels="labels"))


def test_what_many_small_relations_take_together_is_told_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (unasked, kept_columns):
        monkeypatch.setattr(room, "LOOKED_AT_ROWS", 100)  # each relation has fewer
    with registered([30] * 5, ["parquet"]) as catalog:
        monkeypatch.setattr(unasked, "WARN_CPU_S", 0.0)
        with pytest.warns(
            sp.SpiralWarning, match="makes columns of a, id, text now, which later ones read: 150 rows"
        ) as told:
            first = batches(stream(catalog, range(5), None))
        assert len(told) == 1
        forget(catalog)
        monkeypatch.setattr(unasked, "MOST_BYTES", 150 * 8 + 1)  # room for the narrow one alone
        monkeypatch.setattr(unasked, "WARN_CPU_S", 1e9)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bounded = stream(catalog, range(5), None)
            assert batches(bounded) == first
        assert len(derived(catalog, "columns")) == 1

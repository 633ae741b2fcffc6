"""Statistics per shard: what NumPy counts on the same rows, and no payload read."""

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import Arrow, Parquet
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics import measure as room
from spiral_stream.catalog.statistics.measure import load_statistics, measure, save_statistics, shard_statistics
from spiral_stream.derived import build as builder
from spiral_stream.derived.work.executors import Executor, building_with
from spiral_stream.errors import CatalogError
from spiral_stream.results import Entry
from spiral_stream.sources.columnar.parquet import ParquetReader
from tests.fixtures.examples import few


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return connect(tmp_path_factory.mktemp("catalog"))


def register(catalog: Registry, **columns: object) -> Entry:
    rows = len(next(iter(columns.values())))
    table = pa.table({"sample_id": [f"s{i}" for i in range(rows)], **columns})
    return catalog.register("t", Arrow(table), replace=True)


@few(6, 15)
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-5, 5),
            st.none() | st.sampled_from([0.5, -1.0, math.nan]),
            st.none() | st.sampled_from(["", "a", "bb", "é"]),
        ),
        min_size=1,
        max_size=40,
    ),
    shards=st.integers(1, 4),
    chunk=st.sampled_from([1, 7, 1000]),
)
def test_every_count_is_what_its_rows_say(
    catalog: Registry, rows: list[tuple[object, object, object]], shards: int, chunk: int
) -> None:
    owner = [f"p{i * shards // len(rows)}" for i in range(len(rows))]
    n, f, t = (list(column) for column in zip(*rows, strict=True))
    entry = register(
        catalog,
        storage_shard=owner,
        n=pa.array(n, pa.int32()),
        f=pa.array(f, pa.float64()),
        t=pa.array(t, pa.utf8()).dictionary_encode(),
    )
    with pytest.MonkeyPatch.context() as patch, OpenRelation(entry) as relation:
        patch.setattr(builder, "CHUNK_ROWS", chunk)
        found = measure(relation)
    facts = {(row["shard"], row["column"]): row for row in found.shards.to_pylist()}

    assert len(facts) == len(found.shards) == len(set(owner)) * 5
    for shard in set(owner):
        for column, values, width in (
            ("n", n, lambda _: 4),
            ("f", f, lambda _: 8),
            ("t", t, lambda v: len(v.encode())),
        ):
            mine = [v for v, o in zip(values, owner, strict=True) if o == shard]
            present = [v for v in mine if v is not None]
            real = [v for v in present if v == v]  # noqa: PLR0124  NaN
            row = facts[shard, column]
            assert row["mark"] == "known"
            assert row["rows"] == len(mine)
            assert row["nulls"] == len(mine) - len(present)
            assert row["nans"] == len(present) - len(real)
            assert row["distinct"] == len(set(real)) + (len(present) > len(real))
            assert row["bytes"] == sum(width(v) for v in present)
            assert (row["min"] is None) == (not real)
            if real:
                as_value = {"n": int, "f": float, "t": str}[column]
                assert (as_value(row["min"]), as_value(row["max"])) == (min(real), max(real))
    counted = {(r["shard"], r["value"]): r["count"] for r in found.histograms.to_pylist() if r["column"] == "t"}
    assert counted == {(o, v): list(zip(owner, t, strict=True)).count((o, v)) for o, v in zip(owner, t, strict=True)}
    assert found.marks == {"n": "known", "t": "known", "storage_shard": "known"}


VALUES = {
    pa.int8(): [3, -4, 3, None, 0],
    pa.uint64(): [2**64 - 1, 0, 2**63, None, 5],
    pa.float32(): [0.1, math.nan, -2.5, None, math.inf],
    pa.bool_(): [True, False, None, True, True],
    pa.date32(): [dt.date(2026, 11, 22), None, dt.date(1969, 1, 1), dt.date(2026, 11, 22)],
    pa.timestamp("us", "UTC"): [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None],
    pa.time32("s"): [dt.time(1, 2, 3), dt.time(0, 0, 1), None],
    pa.decimal128(9, 2): [Decimal("10.25"), Decimal("-9.50"), Decimal("9.00"), None],
    pa.large_utf8(): ["b", None, "", "ä", "b"],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_of_every_type_are_shown_as_arrow_shows_them(catalog: Registry, kind: pa.DataType) -> None:
    values = pa.array(VALUES[kind], kind)
    half = len(values) // 2
    owner = ["p0"] * half + ["p1"] * (len(values) - half)
    entry = register(catalog, storage_shard=owner, v=values)
    with OpenRelation(entry) as relation:
        found = measure(relation, ["v"])
    real = values.filter(pc.invert(pc.is_nan(values))) if pa.types.is_floating(kind) else values
    ends = pc.min_max(real)
    (whole,) = found.columns.filter(pc.equal(found.columns["mark"], "known")).to_pylist()

    assert (whole["min"], whole["max"]) == tuple(ends[k].cast(pa.utf8()).as_py() for k in ("min", "max"))
    assert (whole["rows"], whole["nulls"], whole["distinct_mark"]) == (len(values), values.null_count, "known")
    assert whole["distinct"] == len(values.drop_null().unique())
    for row in found.shards.filter(pc.equal(found.shards["column"], "v")).to_pylist():
        own = real.filter(pa.array([each == row["shard"] for each in owner])[: len(real)]) if real is values else None
        if own is not None:
            least = pc.min_max(own)
            assert (row["min"], row["max"]) == tuple(least[k].cast(pa.utf8()).as_py() for k in ("min", "max"))


@few(6, 15)
@given(
    numbers=st.lists(st.integers(-40, 40), min_size=1, max_size=200),
    shards=st.integers(1, 5),
    most=st.sampled_from([3, 1_000]),
)
def test_the_whole_is_what_all_rows_say(catalog: Registry, numbers: list[int], shards: int, most: int) -> None:
    owner = [f"p{i * shards // len(numbers)}" for i in range(len(numbers))]
    texts = [str(n) for n in numbers]
    entry = register(catalog, storage_shard=owner, n=pa.array(numbers), t=texts)
    with pytest.MonkeyPatch.context() as patch, OpenRelation(entry) as relation:
        patch.setattr(room, "HISTOGRAM_VALUES", most)
        found = {row["column"]: row for row in measure(relation).columns.to_pylist()}
    counted = Counter(numbers)

    assert (found["n"]["min"], found["n"]["max"]) == (str(min(numbers)), str(max(numbers)))
    assert (found["t"]["min"], found["t"]["max"]) == (min(texts), max(texts))
    for name in "nt":
        row = found[name]
        exact = len(counted) <= most or row["distinct_mark"] == "known"
        assert row["distinct"] == len(counted) if exact else abs(row["distinct"] - len(counted)) <= 5
        for each in row["frequent"]:
            count = counted[int(each["value"])]
            assert each["count"] == count if row["frequent_mark"] == "known" else each["count"] <= count
    if found["n"]["frequent_mark"] == "known":
        assert [each["count"] for each in found["n"]["frequent"]] == [n for _, n in counted.most_common(8)]
    assert found["t"]["quartiles"] is None
    low, middle, high = map(int, found["n"]["quartiles"])
    assert min(numbers) <= low <= middle <= high <= max(numbers)
    assert found["n"]["quartiles_mark"] == "estimated"


def test_distinct_values_are_at_most_the_rows_and_those_of_a_unique_identity_are_counted(catalog: Registry) -> None:
    rows = 5_000
    owner = [f"p{i * 2 // rows}" for i in range(rows)]
    table = pa.table({"id": [f"s{i}" for i in range(rows)], "storage_shard": owner})
    for n in range(8):  # the estimate of some of them is above the rows
        table = table.append_column(f"n{n}", pa.array([f"{n}-{i}" for i in range(rows)]))
    alone = catalog.register("wide", Arrow(table), identity="id")
    pair = catalog.register("pairs", Arrow(table), identity=["id", "n0"])
    with OpenRelation(alone) as relation, pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "HISTOGRAM_VALUES", 100)
        found = {row["column"]: row for row in measure(relation).columns.to_pylist()}
    with OpenRelation(pair) as relation, pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "HISTOGRAM_VALUES", 100)
        of_pair = {row["column"]: row for row in measure(relation).columns.to_pylist()}

    assert (found["id"]["distinct"], found["id"]["distinct_mark"]) == (rows, "known")
    assert of_pair["id"]["distinct_mark"] == "estimated"
    estimates = [found[f"n{n}"] for n in range(8)]
    assert {row["distinct_mark"] for row in estimates} == {"estimated"}
    assert max(row["distinct"] for row in estimates) == rows


def read_shards(catalog: Registry, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are scanned from now on."""
    read: list[str] = []
    scan = ParquetReader.scan

    def recorded(self: ParquetReader, columns: list[str], predicate: object, units: list[int] | None) -> object:
        names = [unit.name for unit in self.units()]
        read.extend(names if units is None else [names[unit] for unit in units])
        return scan(self, columns, predicate, units)

    monkeypatch.setattr(ParquetReader, "scan", recorded)
    return read


def test_a_shard_that_did_not_change_is_never_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()

    def write(k: int, shift: int = 0) -> None:
        ids = [f"s{k}-{i}" for i in range(10)]
        pq.write_table(
            pa.table({"sample_id": ids, "n": [i % 4 + shift for i in range(10)]}), tmp_path / f"files/{k}.parquet"
        )

    for k in range(5):
        write(k)
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", Parquet(str(tmp_path / "files" / "*.parquet")))
    first = catalog.measure("t")
    read = read_shards(catalog, monkeypatch)
    again = catalog.measure("t")
    assert read == []
    write(2, shift=7)
    catalog.refresh("t")
    read.clear()
    changed = catalog.measure("t")
    assert read == ["2.parquet"]
    with OpenRelation(catalog.entry("t")) as relation:
        anew = "spiral_stream.catalog.registering.measure.writable_folder"
        monkeypatch.setattr(anew, lambda _: None)  # all counted anew
        fresh = measure(relation)

    assert (first.shards, first.histograms, first.columns) == (again.shards, again.histograms, again.columns)
    assert (changed.shards, changed.histograms, changed.columns) == (fresh.shards, fresh.histograms, fresh.columns)
    assert changed.shards != first.shards


def test_a_piece_that_is_damaged_is_counted_again(tmp_path: Path) -> None:
    catalog = connect(tmp_path)
    entry = register(catalog, n=[1, 2, 2], t=["a", "b", "b"])
    with OpenRelation(entry) as relation:
        found = measure(relation)
        for part in (tmp_path / "prepared" / "derived" / "facts").rglob("*.sums"):
            part.write_bytes(part.read_bytes()[:-1] + b"x")
        again = measure(relation)

    assert again.histograms == found.histograms


def test_statistics_that_are_damaged_are_merged_again(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    register(catalog, n=[1, 2, 2])
    found = catalog.measure("t")
    (file,) = (tmp_path / "catalog" / "statistics" / "t").glob("*.columns")
    file.write_bytes(file.read_bytes()[:-50])
    again = catalog.measure("t")

    assert again.columns == found.columns


def test_statistics_of_an_earlier_version_are_read_and_have_no_facts_of_the_whole(catalog: Registry) -> None:
    entry = register(catalog, n=[7, 8])
    with OpenRelation(entry) as relation:
        save_statistics(entry, measure(relation))
    for file in (entry.root / "statistics" / "t").glob(f"{entry.data_version}.columns"):
        file.unlink()
    loaded = load_statistics(entry)

    assert loaded is not None
    assert len(loaded.columns) == 0
    assert len(loaded.shards) == 2


def test_no_payload_is_read_and_its_bytes_are_estimated(
    catalog: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = [np.random.default_rng(i).bytes(1000) for i in range(20)]
    table = pa.table({"sample_id": [f"s{i}" for i in range(20)], "label": [i % 3 for i in range(20)], "image": payload})
    pq.write_table(table, tmp_path / "t.parquet", compression="none", use_dictionary=False, write_statistics=False)
    entry = catalog.register("t", Parquet(str(tmp_path)), replace=True)
    read: list[str] = []
    original = ParquetReader.scan

    def recorded(self: ParquetReader, columns: list[str], *rest: object) -> object:
        read.extend(columns)
        return original(self, columns, *rest)

    monkeypatch.setattr(ParquetReader, "scan", recorded)
    with OpenRelation(entry) as relation:
        found = shard_statistics(relation).to_pylist()

    assert sorted(read) == ["label", "sample_id"]
    assert [(row["column"], row["mark"], row["rows"]) for row in found] == [
        ("image", "estimated", 20),
        ("label", "known", 20),
        ("sample_id", "known", 20),
    ]
    assert 20_000 < found[0]["bytes"] < 23_000


def test_two_unread_columns_have_unknown_bytes(catalog: Registry) -> None:
    entry = register(catalog, a=[b"x"] * 3, b=[[1]] * 3)
    with OpenRelation(entry) as relation:
        found = {row["column"]: row for row in shard_statistics(relation).to_pylist()}

    assert found.keys() == {"sample_id", "a", "b"}
    assert (found["a"]["mark"], found["a"]["rows"], found["a"]["bytes"]) == ("unknown", 3, None)


def test_a_column_of_many_values_has_no_histogram(catalog: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "HISTOGRAM_VALUES", 5)
    entry = register(catalog, few=[i % 5 for i in range(20)], many=[i % 6 for i in range(20)])
    with OpenRelation(entry) as relation:
        found = measure(relation)

    assert found.marks == {"few": "known", "many": "unknown"}
    assert set(found.histograms["column"].to_pylist()) == {"few"}


@pytest.mark.parametrize(("each", "kept"), [(4_000, False), (40, True)])
def test_long_texts_are_measured_and_not_kept(tmp_path: Path, each: int, kept: bool) -> None:
    """79 MB of texts made 161 MB of statistics."""
    texts = [f"{row:05d}" + "long text " * (each // 10) for row in range(1_000)]
    table = pa.table({"sample_id": range(1_000), "text": texts, "lang": ["en", "de"] * 500})
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("texts", sp.Arrow(table), identity="sample_id")
    before = size_of(tmp_path)
    measured = catalog.measure("texts")
    columns = {row["column"]: row for row in measured.columns.to_pylist()}

    assert measured.marks == {"text": "known" if kept else "unknown", "lang": "known"}
    assert columns["text"]["nulls"] == 0
    assert size_of(tmp_path) - before < 500_000


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_statistics_are_kept_under_their_data_version(catalog: Registry) -> None:
    entry = register(catalog, n=[1, 2])
    assert load_statistics(entry) is None
    with OpenRelation(entry) as relation:
        found = measure(relation)
    save_statistics(entry, found)
    loaded = load_statistics(entry)

    assert loaded is not None
    assert (loaded.shards, loaded.histograms, loaded.marks) == (found.shards, found.histograms, found.marks)
    assert load_statistics(register(catalog, n=[1, 3])) is None


def test_columns_that_cannot_be_measured_are_refused(catalog: Registry) -> None:
    entry = register(catalog, image=[b"x"])
    with (
        OpenRelation(entry) as relation,
        pytest.raises(CatalogError, match="'image' cannot be measured; there are sample_id"),
    ):
        measure(relation, ["image"])


def test_statistics_of_an_earlier_version_are_counted_again(tmp_path: Path) -> None:
    home = sp.connect(tmp_path / "catalog")
    entry = home.register("t", Arrow(pa.table({"sample_id": ["a", "b"], "n": [1, 3]})))
    found = home.measure("t")
    save_statistics(
        entry,
        room.Statistics(
            found.shards, found.found, found.marks, found.columns.drop_columns(["mean", "bins", "bins_mark"])
        ),
    )

    kept = load_statistics(entry)
    assert kept is not None
    assert (len(kept.columns), kept.shards.equals(found.shards)) == (0, True)

    means = {row["column"]: row["mean"] for row in home.measure("t").columns.to_pylist()}
    assert means["n"] == "2.0"


def test_statistics_do_not_depend_on_threads_or_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    for k in range(12):
        texts = [f"t{each}" for each in random.integers(0, 2000, 700).tolist()]
        numbers = pa.array(random.normal(size=700))  # their sum depends on the order in which they are added
        ids = [f"{k}-{at}" for at in range(700)]
        rows = pa.table({"sample_id": ids, "n": numbers, "t": texts, "k": random.zipf(1.5, 700) % 99})
        pq.write_table(rows, tmp_path / f"{k:02}.parquet")
    monkeypatch.setattr(room, "HISTOGRAM_VALUES", 500)  # "n" and "t" are sketched, "k" is counted

    def measured(name: str, chunk: int, threads: int) -> list[pa.Table]:
        monkeypatch.setattr(builder, "CHUNK_SHARDS", chunk)
        catalog = sp.connect(tmp_path / name)
        catalog.register("t", sp.Parquet(str(tmp_path / "*.parquet")))
        with building_with(Executor("threads", threads)):
            found = catalog.measure("t")
        return [found.columns, found.shards, found.histograms]

    wanted = measured("one", 128, 1)
    assert set(wanted[0]["distinct_mark"].to_pylist()) == {"known", "estimated"}
    assert measured("two", 1, 4) == wanted
    assert measured("three", 5, 2) == wanted

"""Statistics per shard: what NumPy counts on the same rows, and no payload read."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.catalog import statistics as room
from spiral_stream.catalog.entry import Entry
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.statistics import load_statistics, measure, save_statistics, shard_statistics
from spiral_stream.errors import CatalogError
from spiral_stream.sources.arrow import Arrow
from spiral_stream.sources.parquet import Parquet, ParquetReader


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return connect(tmp_path_factory.mktemp("catalog"))


def register(catalog: Registry, **columns: object) -> Entry:
    rows = len(next(iter(columns.values())))
    table = pa.table({"sample_id": [f"s{i}" for i in range(rows)], **columns})
    return catalog.register("t", Arrow(table), replace=True)


@settings(max_examples=15)
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
    flush=st.sampled_from([1, 7, 1000]),
)
def test_every_count_is_what_its_rows_say(
    catalog: Registry, rows: list[tuple[object, object, object]], shards: int, flush: int
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
        patch.setattr(room, "_FLUSH_ROWS", flush)
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


def test_large_shards_have_no_distinct_count(catalog: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "DISTINCT_ROWS", 3)
    entry = register(catalog, n=[1, 2, 3, 4])
    with OpenRelation(entry) as relation:
        assert shard_statistics(relation, ["n"])["distinct"].to_pylist() == [None, None]


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

"""Rows without an identity get one each: of their file's content and their place in it."""

import json
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.relation.row_identity import ROW_ID, RowIds
from spiral_stream.errors import CatalogError
from spiral_stream.runtime.run import rebase as rows_left
from spiral_stream.seeding import combine, mix64, uncombine, unmix64

ROWS = 30  # of each file
ORDERS = [
    sp.Sequential(),
    sp.GlobalShuffle(seed=3),
    sp.ShardAwareShuffle(seed=3, shuffle_block_size=4),
    sp.HashBucketed(seed=3, bucket_count=4, bucket_order=sp.ShuffleBuckets(seed=3)),
]


def write(folder: Path, files: dict[str, range]) -> None:
    folder.mkdir(exist_ok=True)
    for name, numbers in files.items():
        rows = pa.table({"n": np.array(numbers), "even": [n % 2 == 0 for n in numbers]})
        pq.write_table(rows, folder / f"{name}.parquet", row_group_size=7)


FILES = {name: range(k * ROWS, (k + 1) * ROWS) for k, name in enumerate("abc")}


@pytest.fixture
def catalog(tmp_path: Path, caches: Path) -> sp.Catalog:
    write(tmp_path / "data", FILES)
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", sp.Parquet(str(tmp_path / "data")), identity=sp.RowIdentity())
    return catalog


def ids(catalog: sp.Catalog, name: str = "t") -> dict[int, str]:
    """Number of a row -> its identity."""
    rows = catalog.table(name).to_arrow()
    return dict(zip(rows["n"].to_pylist(), rows[ROW_ID].to_pylist(), strict=True))


def plan(catalog: sp.Catalog, order: Any, **named: Any) -> Any:
    fields = {"id": sp.List(ROW_ID), "n": sp.List("n")}
    return catalog.table("t").sample(order=order, **named).collate(batch_size=8, fields=fields, last=sp.KeepPartial)


@given(rows=st.lists(st.integers(0, 2**40), min_size=1, max_size=4), data=st.data())
def test_an_identity_depends_on_its_units_key_and_its_row_alone(rows: list[int], data: st.DataObject) -> None:
    keys = [f"{k:032x}" for k in range(len(rows))]
    counts = np.array([each + 1 for each in rows], np.uint64)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.uint64)
    order = data.draw(st.permutations(range(len(rows))))

    together = RowIds(keys, counts).of(starts + np.array(rows, np.uint64)).to_pylist()
    shuffled = np.concatenate([[0], np.cumsum(counts[order])[:-1]]).astype(np.uint64)
    apart = RowIds([keys[k] for k in order], counts[order]).of(shuffled + np.array(rows, np.uint64)[order]).to_pylist()

    assert len(set(together)) == len(rows)
    assert [together[k] for k in order] == apart
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in together)


def test_identities_stay_what_they_are_from_version_to_version() -> None:
    found = RowIds(["00" * 16, "0123456789abcdef" * 2], np.array([1, 2**40], np.uint64))

    assert found.of(np.array([0, 1, 2**40], np.uint64)).to_pylist() == [
        "937dbf63e43ce74405733dca07049d48",
        "e33b18983412d6ea9c9c2b2ff8e2c5e8",
        "02df870238d697d26b77fce3a8c8beca",
    ]


def test_many_rows_have_as_many_identities() -> None:
    found = RowIds(["ab" * 16, "cd" * 16], np.array([1 << 20, 1 << 20], np.uint64)).of(
        np.arange(1 << 21, dtype=np.uint64)
    )

    assert len(found) == found.combine_chunks().unique().__len__() == 1 << 21


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_samples_have_them_without_a_word_and_are_found_by_them(catalog: sp.Catalog, order: Any) -> None:
    whole = ids(catalog)
    with plan(catalog, order, epoch=0).to_numpy() as stream:
        batches = list(stream)
        for number, batch in enumerate(batches):
            assert batch["id"] == [whole[n] for n in batch["n"]]
            assert stream.ledger(number) == batch["id"]
            assert stream.locate(batch["id"][-1], epoch=0)["batch"] == number

    assert sorted(n for batch in batches for n in batch["n"]) == sorted(whole)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_identity_that_is_named_makes_the_same_plan(catalog: sp.Catalog, order: Any) -> None:
    named = [plan(catalog, order, identity=identity).to_numpy().fingerprint for identity in (ROW_ID, sp.RowIdentity())]

    assert {*named, plan(catalog, order).to_numpy().fingerprint} == {named[0]}


def test_a_moved_folder_and_another_catalog_give_the_same(catalog: sp.Catalog, tmp_path: Path) -> None:
    before = ids(catalog)
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere")  # keeps times
    (tmp_path / "elsewhere" / "a.parquet").rename(tmp_path / "elsewhere" / "z.parquet")  # listed last now
    other = sp.connect(str(tmp_path / "other"))
    other.register("t", sp.Parquet(str(tmp_path / "elsewhere")), identity=sp.RowIdentity())

    assert ids(other) == before


def test_a_refresh_keeps_those_of_unchanged_files(catalog: sp.Catalog, tmp_path: Path) -> None:
    before = ids(catalog)
    write(tmp_path / "data", {"b": range(1000, 1000 + ROWS), "0": range(2000, 2000 + ROWS)})
    os.utime(tmp_path / "data" / "c.parquet", ns=(1, 1))
    entry = catalog.refresh("t")
    after = ids(catalog)

    assert entry.identity_unique
    assert {n: after[n] for n in FILES["a"]} == {n: before[n] for n in FILES["a"]}
    assert not set(before.values()) & {after[n] for n in [*FILES["c"], *range(1000, 1000 + ROWS)]}
    assert len(set(after.values())) == 4 * ROWS


def test_a_refresh_refuses_a_source_that_has_such_a_column_now(catalog: sp.Catalog, tmp_path: Path) -> None:
    for name in FILES:
        pq.write_table(pa.table({"n": [1], ROW_ID: [name]}), tmp_path / "data" / f"{name}.parquet")

    with pytest.raises(CatalogError, match=f'Take the column itself: identity="{ROW_ID}"'):
        catalog.refresh("t")


def test_registering_again_reads_nothing_and_gives_the_same(catalog: sp.Catalog, tmp_path: Path) -> None:
    source = sp.Parquet(str(tmp_path / "data"))

    assert catalog.register("t", source, identity=sp.RowIdentity()) == catalog.entry("t")
    with pytest.raises(CatalogError, match="its identity is __row_id__, now n"):
        catalog.register("t", source, identity="n")


def test_the_same_file_twice_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "data", {"a": range(5)})
    shutil.copy2(tmp_path / "data" / "a.parquet", tmp_path / "data" / "b.parquet")
    catalog = sp.connect(str(tmp_path / "catalog"))
    source = sp.Parquet(str(tmp_path / "data"))

    with pytest.raises(CatalogError, match=r"'a.parquet' and 'b.parquet' are the same file twice.* Remove one"):
        catalog.register("t", source, identity=sp.RowIdentity())
    assert not catalog.register("t", source, identity=sp.RowIdentity(), unique=False).identity_unique


def test_no_row_is_read_and_nothing_is_stored_for_them(catalog: sp.Catalog, caches: Path, tmp_path: Path) -> None:
    stored = pq.read_schema(tmp_path / "data" / "a.parquet").names

    assert ROW_ID not in stored
    assert not [path for path in caches.rglob("*") if path.is_file() and "identities" in str(path)]


def test_rows_in_memory_have_the_same_in_every_catalog(tmp_path: Path) -> None:
    table = pa.table({"n": range(50)})
    found = []
    for name in ("one", "two"):
        catalog = sp.connect(str(tmp_path / name))
        for _ in range(2):
            catalog.register("t", sp.Arrow(table), identity=sp.RowIdentity())
        found.append(ids(catalog))

    assert found[0] == found[1]
    assert len(set(found[0].values())) == 50


def test_a_table_that_was_taken_out_keeps_them_as_a_column(catalog: sp.Catalog) -> None:
    catalog.register("copy", sp.Arrow(catalog.table("t").to_arrow()), identity=ROW_ID)

    assert ids(catalog, "copy") == ids(catalog)
    assert catalog.refresh("copy").identity == (ROW_ID,)


def test_a_source_with_such_a_column_is_refused(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))

    with pytest.raises(CatalogError, match=f'Take the column itself: identity="{ROW_ID}"'):
        catalog.register("t", sp.Arrow(pa.table({ROW_ID: ["a"]})), identity=sp.RowIdentity())


@pytest.mark.parametrize("identity", ["sample_id", ["n", "id"]])
def test_who_names_a_column_that_is_not_there_is_told(catalog: sp.Catalog, tmp_path: Path, identity: Any) -> None:
    with pytest.raises(CatalogError, match=r"is not a column; .* identity=spiral\.RowIdentity\(\)"):
        catalog.register("u", sp.Parquet(str(tmp_path / "data")), identity=identity)


def test_who_names_a_column_that_repeats_is_told(catalog: sp.Catalog) -> None:
    with pytest.raises(CatalogError, match=r"identity repeats: .*\(identity=spiral\.RowIdentity\(\)\)"):
        catalog.register("u", sp.Arrow(pa.table({"sample_id": ["a" * 9000] * 2})))  # the text is cut

    with pytest.raises(CatalogError) as refused:
        catalog.register("u", sp.Arrow(pa.table({"sample_id": ["a" * 9000] * 2})))
    assert len(str(refused.value)) < 700


def test_filters_and_joins_and_queries_read_them(catalog: sp.Catalog) -> None:
    whole = ids(catalog)
    wanted = [whole[n] for n in (0, 31, 89)]
    labels = pa.table({ROW_ID: wanted, "label": ["x", "y", "z"]})
    catalog.register("labels", sp.Arrow(labels), identity=ROW_ID)

    t = catalog.table("t")
    assert t.filter(sp.col(ROW_ID).is_in(wanted)).to_arrow()["n"].to_pylist() == [0, 31, 89]
    joined = t.join(catalog.table("labels"), on=ROW_ID).to_arrow().sort_by("n")
    assert joined.select(["n", "label"]).to_pylist() == [
        {"n": 0, "label": "x"},
        {"n": 31, "label": "y"},
        {"n": 89, "label": "z"},
    ]
    text = f"select n from t where \"{ROW_ID}\" = '{wanted[1]}'"
    assert catalog.sql(text).to_arrow()["n"].to_pylist() == [31]


def test_filtered_rows_are_samples_with_their_identities(catalog: sp.Catalog) -> None:
    whole = ids(catalog)
    first = sorted(whole.values())[:40]
    rows = catalog.table("t").filter(sp.col(ROW_ID).is_in(first) & sp.col("even"))
    fields = {"id": sp.List(ROW_ID), "n": sp.List("n")}
    with rows.sample(order=ORDERS[3]).collate(batch_size=4, fields=fields, last=sp.KeepPartial).to_numpy() as stream:
        found = {n: each for batch in stream for n, each in zip(batch["n"], batch["id"], strict=True)}

    assert found == {n: each for n, each in whole.items() if each in first and n % 2 == 0}


def test_samples_are_skipped_by_them(catalog: sp.Catalog) -> None:
    out = ids(catalog)[40]
    with plan(catalog, ORDERS[1]).to_numpy() as stream:
        stream.skip(identities=[out])
        state = json.dumps(stream.state_dict())
        left = [n for batch in stream for n in batch["n"]]
    with plan(catalog, ORDERS[1]).to_numpy() as stream:
        stream.load_state_dict(json.loads(state))
        again = [n for batch in stream for n in batch["n"]]

    assert sorted(left) == sorted(again) == [n for n in range(3 * ROWS) if n != 40]


def test_a_rebase_delivers_unchanged_files_once_and_touched_files_again(catalog: sp.Catalog, tmp_path: Path) -> None:
    with plan(catalog, ORDERS[1]).to_numpy() as stream:
        seen = [n for batch in islice(stream, 6) for n in batch["n"]]
        state = stream.state_dict()
    os.utime(tmp_path / "data" / "c.parquet", ns=(1, 1))
    catalog.refresh("t")
    with plan(catalog, ORDERS[1]).to_numpy() as stream:
        stream.rebase(state)
        rest = [n for batch in stream for n in batch["n"]]

    untouched = {n for n in seen if n not in FILES["c"]}
    assert sorted(rest) == sorted(set(range(3 * ROWS)) - untouched)


def _in_worker(folder: str, ordinals: list[int]) -> list[str]:
    with OpenRelation(sp.connect(folder).entry("t")) as relation:
        found: list[str] = relation.fetch(np.array(ordinals, np.uint64), [ROW_ID])[ROW_ID].to_pylist()
    return found


def test_another_process_computes_the_same(catalog: sp.Catalog) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(_in_worker, str(catalog.root), [5, 3, 77, 5]).result()

    assert there == _in_worker(str(catalog.root), [5, 3, 77, 5])


def test_a_changed_fragment_of_a_dataset_has_others(catalog: sp.Catalog, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"n": range(20)}), str(tmp_path / "t.lance"), max_rows_per_file=6)
    catalog.register("l", sp.Lance(str(tmp_path / "t.lance")), identity=sp.RowIdentity())
    before = ids(catalog, "l")
    lance.write_dataset(pa.table({"n": range(20, 25)}), str(tmp_path / "t.lance"), mode="append")
    catalog.refresh("l")
    lance.dataset(str(tmp_path / "t.lance")).delete("n = 0")
    catalog.refresh("l")
    after = ids(catalog, "l")

    assert {n: after[n] for n in range(6, 20)} == {n: before[n] for n in range(6, 20)}
    assert not {after[n] for n in range(1, 6)} & set(before.values())  # a deletion touches its fragment


@given(
    rows=st.lists(st.integers(1, 2**40), min_size=1, max_size=5),
    firsts=st.booleans(),
    at=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**40)), min_size=1, max_size=5),
    flipped=st.integers(0, 31),
)
def test_a_row_is_found_by_its_identity_by_arithmetic(
    rows: list[int], firsts: bool, at: list[tuple[int, int]], flipped: int
) -> None:
    counts = np.array(rows, np.uint64)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
    begins = np.arange(len(rows), dtype=np.uint64) * np.uint64(1_000) if firsts else None
    ids = RowIds([f"{k:032x}" for k in range(len(rows))], counts, begins)
    asked = [int(starts[unit % len(rows)]) + row % rows[unit % len(rows)] for unit, row in at]

    for physical, text in zip(asked, ids.of(np.array(asked, np.uint64)).to_pylist(), strict=True):
        assert ids.find(text).tolist() == [physical]
        other = text[:flipped] + ("0" if text[flipped] != "0" else "1") + text[flipped + 1 :]
        assert ids.find(other).tolist() == []
    for none in ("", "x" * 32, text[:-1], text.upper() + "0", "É" * 32):
        assert ids.find(none).tolist() == []


@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1), key=st.integers(0, 2**64 - 1))
def test_mixing_is_undone(words: list[int], key: int) -> None:
    values = np.array(words, np.uint64)

    assert unmix64(mix64(values)).tolist() == words
    assert mix64(unmix64(values)).tolist() == words
    assert uncombine(np.uint64(key), combine(np.uint64(key), values)).tolist() == words


def test_looking_rows_up_makes_and_reads_nothing(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over ten billion rows: units that the shard table claims, of which no file is read."""
    whole = ids(catalog)
    with plan(catalog, ORDERS[1]).to_numpy() as stream:
        batches = list(stream)
        stream.set_epoch(0)
        before = sorted(path for path in catalog.root.rglob("*") if "identities" in str(path))
        for name in ("fetch", "scan"):
            monkeypatch.setattr(OpenRelation, name, lambda *_: pytest.fail("rows are read"))
        assert stream.locate(batches[3]["id"][2], epoch=0)["batch"] == 3
        stream.skip(identities=[batches[5]["id"][0]], epoch=0)
        with pytest.raises(KeyError, match="no row that the plan keeps"):
            stream.locate("0" * 32)
        assert sorted(path for path in catalog.root.rglob("*") if "identities" in str(path)) == before == []
    assert len(whole) == len(FILES) * ROWS


def test_a_rebase_finds_the_rows_of_changed_shards_without_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that a column names lie in two files; one file is written again, so every shard changes."""
    folder = tmp_path / "data"
    folder.mkdir()

    def store(name: str, first: int) -> None:
        rows = pa.table({"n": np.arange(first, first + 40), "storage_shard": ["s0"] * 20 + ["s1"] * 20})
        pq.write_table(rows, folder / f"{name}.parquet")

    store("a", 0)
    store("b", 100)
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", sp.Parquet(str(folder)), identity=sp.RowIdentity(), shard="storage_shard")
    with plan(catalog, ORDERS[1]).to_numpy() as stream:
        came = [n for batch in islice(stream, 4) for n in batch["n"]]
        state = stream.state_dict()
    store("b", 200)
    catalog.refresh("t")
    monkeypatch.setattr(rows_left, "identity_pieces", lambda *_, **__: pytest.fail("identities are indexed"))
    with plan(catalog, ORDERS[1]).to_numpy() as stream:
        stream.rebase(state)
        rest = [n for batch in stream for n in batch["n"]]
    assert any(n < 40 for n in came)
    assert sorted([*(n for n in came if n < 40), *rest]) == [*range(40), *range(200, 240)]

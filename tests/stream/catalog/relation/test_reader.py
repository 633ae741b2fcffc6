"""A registered relation reads by logical ordinals, whatever its source and shards."""

import pickle
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import ImageFolder, Lance, Parquet, col
from spiral_stream.catalog.registry import connect
from spiral_stream.catalog.relation import reader as opened
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.dialects.numpy import passes
from spiral_stream.errors import SourceError
from spiral_stream.sources import ROW, Source
from tests.fixtures.examples import few


def table_of(shards: list[str] | None, rows: int) -> pa.Table:
    columns = {"sample_id": [f"s{i:03d}" for i in range(rows)], "n": np.arange(rows)}
    return pa.table({**columns, "storage_shard": shards} if shards else columns)


def stored(table: pa.Table, folder: Path, kind: str, piece: int) -> Source:
    if kind == "lance":
        lance.write_dataset(table, str(folder / "t.lance"), max_rows_per_file=piece)
        return Lance(str(folder / "t.lance"))
    for i in range(0, len(table), piece):
        pq.write_table(table.slice(i, piece), folder / f"{i:04d}.parquet", row_group_size=4)
    return Parquet(str(folder / "*.parquet"))


@few(8, 20)
@given(
    data=st.data(),
    kind=st.sampled_from(["lance", "parquet"]),
    own=st.booleans(),
    piece=st.integers(3, 30),
    large=st.booleans(),
)
def test_rows_come_by_logical_ordinal_and_pass_the_predicate(
    data: st.DataObject, kind: str, own: bool, piece: int, large: bool
) -> None:
    runs = data.draw(st.lists(st.tuples(st.sampled_from("cab"), st.integers(1, 8)), min_size=1, max_size=6))
    shards = [name for name, count in runs for _ in range(count)]
    table = table_of(shards if own else None, len(shards))
    with TemporaryDirectory() as folder:
        source = stored(table, Path(folder), kind, piece)
        entry = connect(Path(folder, "catalog")).register("t", source)
        with mock.patch.object(opened, "LARGE", 0 if large else 1_000), OpenRelation(entry) as relation:
            manifest = relation.manifest
            everything = np.arange(manifest.total, dtype=np.uint64)
            physical = pa.array(manifest.physical(everything))
            names = manifest.shard_names.take(pa.array(manifest.shard_of(everything)))
            logical = table.select(["sample_id", "n"]).take(physical).append_column("storage_shard", names)
            chosen = data.draw(st.none() | st.lists(st.integers(0, len(manifest.shard_names) - 1), unique=True))
            first = manifest.shard_names[0].as_py()
            predicate = data.draw(
                st.none() | st.sampled_from([col("n") >= 3, (col("storage_shard") == first) & (col("n") < 9)])
            )
            kept = np.ones(len(table), bool)
            if predicate is not None:
                kept = passes(predicate, {name: logical[name] for name in predicate.columns()})
            if chosen is not None:
                kept &= np.isin(manifest.shard_of(everything), chosen)
            asked = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=20))

            fetched = relation.fetch(np.array(asked, np.uint64), ["storage_shard", "n"])
            batches = list(relation.scan(["storage_shard", "sample_id"], predicate, chosen))
            found = pa.Table.from_batches(batches) if batches else None

    assert fetched.to_pylist() == logical.take(pa.array(asked, pa.int64())).select(["storage_shard", "n"]).to_pylist()
    if found is None:
        assert not kept.any()
    else:
        found = found.sort_by(ROW)
        assert found[ROW].to_pylist() == np.flatnonzero(kept).tolist()
        expected = logical.filter(pa.array(kept)).select(["storage_shard", "sample_id"])
        assert found.drop_columns([ROW]).to_pylist() == expected.to_pylist()


def test_a_changed_file_is_refused_with_the_shard_and_the_way_out(tmp_path: Path) -> None:
    source = stored(table_of(["b"] * 5 + ["a"] * 5, 10), tmp_path, "parquet", 5)
    catalog = connect(tmp_path / "catalog")
    entry = catalog.register("t", source)
    pq.write_table(table_of(["a"] * 6, 6), tmp_path / "0005.parquet")
    with pytest.raises(SourceError, match=r"'0005\.parquet' \(which holds a\) is changed .*catalog\.refresh\(\"t\"\)"):
        OpenRelation(entry)
    pq.write_table(table_of(["a"], 1), tmp_path / "0009.parquet")
    with pytest.raises(SourceError, match="and 1 more"):
        OpenRelation(entry)
    (tmp_path / "0000.parquet").unlink()
    with pytest.raises(SourceError, match=r"'0000\.parquet' \(which holds b\) is gone"):
        OpenRelation(entry)


def test_a_new_file_is_refused_until_refreshed(tmp_path: Path) -> None:
    catalog = connect(tmp_path / "catalog")
    entry = catalog.register("t", stored(table_of(None, 10), tmp_path, "parquet", 5))
    extra = pa.table({"sample_id": ["new"], "n": [0]})
    pq.write_table(extra, tmp_path / "0001.parquet")
    with pytest.raises(SourceError, match=r"'0001\.parquet' is new since registration"):
        OpenRelation(entry)
    with OpenRelation(catalog.refresh("t")) as relation:
        assert relation.manifest.total == 11


def test_a_dataset_rewritten_in_place_is_refused(tmp_path: Path) -> None:
    entry = connect(tmp_path / "catalog").register("t", stored(table_of(None, 10), tmp_path, "lance", 5))
    shutil.rmtree(tmp_path / "t.lance")
    stored(table_of(None, 10), tmp_path, "lance", 5)
    with pytest.raises(SourceError, match="fragment-00000000' is changed since registration, and 1 more"):
        OpenRelation(entry)


def test_an_unchanged_dataset_opens_at_its_pinned_version(tmp_path: Path) -> None:
    entry = connect(tmp_path / "catalog").register("t", stored(table_of(None, 10), tmp_path, "lance", 5))
    lance.dataset(str(tmp_path / "t.lance")).delete("n > 3")

    with OpenRelation(entry) as relation:
        assert relation.fetch(np.array([9], np.uint64), ["n"])["n"].to_pylist() == [9]


# ---- relations of so many units that these are looked at when they are first read


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "LARGE", 0)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["lance", "parquet"])
def test_a_large_relation_opens_without_a_look_at_its_files(tmp_path: Path, kind: str) -> None:
    entry = connect(tmp_path / "catalog").register("t", stored(table_of(None, 40), tmp_path, kind, 5))
    looked: list[str] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in {"open", "os.listdir", "os.scandir", "glob.glob"}:
            looked.append(str(arguments[0]))

    sys.addaudithook(hook)  # for the life of the process
    with OpenRelation(entry) as relation:
        files = [name for name in looked if name.endswith((".parquet", ".lance")) or name == str(tmp_path)]
        assert len(files) <= 1  # the first file tells the schema
        assert relation.fetch(np.array([33], np.uint64), ["n"])["n"].to_pylist() == [33]
        assert relation.manifest.total == 40


@pytest.mark.usefixtures("large")
def test_a_changed_file_of_a_large_relation_is_refused_when_it_is_read(tmp_path: Path) -> None:
    entry = connect(tmp_path / "catalog").register("t", stored(table_of(None, 15), tmp_path, "parquet", 5))
    pq.write_table(table_of(None, 6), tmp_path / "0005.parquet")
    (tmp_path / "0010.parquet").unlink()
    pq.write_table(table_of(None, 3), tmp_path / "0020.parquet")  # new: no part of what was registered
    with OpenRelation(entry) as relation:
        assert relation.fetch(np.array([4], np.uint64), ["n"])["n"].to_pylist() == [4]
        with pytest.raises(
            SourceError, match=r't: .*0005\.parquet changed since registration.*catalog\.refresh\("t"\)'
        ):
            relation.fetch(np.array([5], np.uint64), ["n"])
        with pytest.raises(SourceError, match=r"t: .*0010\.parquet No such file or directory. Restore the file"):
            relation.fetch(np.array([12], np.uint64), ["n"])
        with pytest.raises(SourceError, match=r"0005\.parquet changed since registration"):
            list(relation.scan(["n"]))
        with pytest.raises(SourceError, match=r"0005\.parquet changed since registration"):
            list(relation.by_shard().scan(["n"]))


@pytest.mark.usefixtures("large")
def test_a_large_dataset_rewritten_in_place_is_refused_when_it_is_read(tmp_path: Path) -> None:
    entry = connect(tmp_path / "catalog").register("t", stored(table_of(None, 10), tmp_path, "lance", 5))
    shutil.rmtree(tmp_path / "t.lance")
    stored(table_of(None, 10), tmp_path, "lance", 5)
    with OpenRelation(entry) as relation, pytest.raises(SourceError, match=r"was not among the files of t when"):
        relation.fetch(np.array([5], np.uint64), ["n"])
    shutil.rmtree(tmp_path / "t.lance")
    stored(table_of(None, 10), tmp_path, "lance", 3)
    with (
        OpenRelation(entry) as relation,
        pytest.raises(SourceError, match=r"it had 2 fragments when .* registered, now 4"),
    ):
        relation.fetch(np.array([5], np.uint64), ["n"])


def test_unknown_columns_and_rows_are_refused(tmp_path: Path) -> None:
    entry = connect(tmp_path / "catalog").register("t", stored(table_of(None, 10), tmp_path, "lance", 5))
    with OpenRelation(entry) as relation:
        with pytest.raises(SourceError, match=r"t: 'sampleid' is not a column; did you mean sample_id\?"):
            relation.fetch(np.array([0], np.uint64), ["sampleid"])
        with pytest.raises(SourceError, match="t: 'm' is not a column"):
            list(relation.scan(["n"], col("m") > 1))
        with pytest.raises(SourceError, match="t: row 10 was asked for, but it has 10 rows"):
            relation.fetch(np.array([10], np.uint64), ["n"])


def test_a_closed_relation_is_refused_and_a_pickled_one_opens_itself(tmp_path: Path) -> None:
    entry = connect(tmp_path / "catalog").register("t", stored(table_of(None, 10), tmp_path, "lance", 5))
    with OpenRelation(entry) as relation:
        other = pickle.loads(pickle.dumps(relation))
    with pytest.raises(SourceError, match=r"t: the relation is closed\. Open it again"):
        relation.fetch(np.array([7], np.uint64), ["n"])
    with other:
        assert other.fetch(np.array([7], np.uint64), ["n"])["n"].to_pylist() == [7]


def test_an_image_folder_is_read_through_its_references(tmp_path: Path) -> None:
    from spiral_stream.sources.references.resolve import resolve

    for name in ("b/1.jpg", "a/2.jpg"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(name.encode())
    with OpenRelation(connect(tmp_path / "catalog").register("t", ImageFolder(str(tmp_path / "images")))) as relation:
        table = relation.fetch(np.array([1, 0], np.uint64), ["image_ref", "storage_shard"])

        assert [bytes(v) for v in resolve(table["image_ref"], relation.base)] == [b"b/1.jpg", b"a/2.jpg"]
        assert table["storage_shard"].to_pylist() == ["b", "a"]


def test_semantic_types_travel_with_the_rows(tmp_path: Path) -> None:
    table = pa.table({"sample_id": ["a"], "image_ref": pa.array([b"x"], pa.large_binary())})
    source = stored(table, tmp_path, "lance", 5)
    entry = connect(tmp_path / "catalog").register("t", source, semantic={"image_ref": "image/jpeg-ref"})
    with OpenRelation(entry) as relation:
        (batch,) = relation.scan(["image_ref"])
        fetched = relation.fetch(np.array([0], np.uint64), ["image_ref"])

    assert fetched.schema.field("image_ref").metadata == {b"spiral:semantic": b"image/jpeg-ref"}
    assert batch.schema.field("image_ref").metadata == {b"spiral:semantic": b"image/jpeg-ref"}

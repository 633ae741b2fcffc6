"""Registering, refreshing, looking up and dropping relations."""

import json
import re
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_stream import Arrow, Lance, Parquet
from spiral_stream.catalog.database import Database
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import CatalogError, SourceError, SpiralError
from spiral_stream.semantic import JPEG_REF, semantic_of


@pytest.fixture
def catalog(tmp_path: Path) -> Registry:
    return connect(tmp_path / "catalog")


def labels(rows: int = 5) -> Arrow:
    return Arrow(pa.table({"label_id": range(rows), "class_name": [f"class {i}" for i in range(rows)]}))


def write_lance(path: Path, ids: list[object], **columns: object) -> Lance:
    lance.write_dataset(pa.table({"sample_id": ids, **columns}), str(path), mode="overwrite")
    return Lance(str(path))


def test_a_registered_relation_is_found_again_by_another_connection(catalog: Registry, tmp_path: Path) -> None:
    source = write_lance(tmp_path / "t.lance", ["a", "b"], image_ref=[b"1", b"2"])
    entry = catalog.register(
        "vision.train", source, semantic={"image_ref": JPEG_REF}, descriptions={"sample_id": "never reused"}
    )
    found = connect(tmp_path / "catalog").entry("vision.train")

    assert found == entry
    assert found.source == source.pinned()
    assert semantic_of(found.schema.field("image_ref")) == JPEG_REF
    assert found.schema.field("sample_id").metadata[b"description"] == b"never reused"
    assert (found.identity, found.identity_unique, found.shard) == (("sample_id",), True, None)
    assert found.schema.names == ["sample_id", "image_ref", "storage_shard"]
    assert catalog.tables() == ["vision.train"]


def test_an_entry_is_read_once_until_somebody_writes_to_the_catalog(catalog: Registry, tmp_path: Path) -> None:
    catalog.register("labels", labels(5), identity="label_id")
    first = catalog.entry("labels")
    assert catalog.entry("labels") is first

    connect(tmp_path / "catalog").register("labels", labels(6), identity="label_id", replace=True)

    assert first.manifest().total == 5
    assert catalog.entry("labels").manifest().total == 6


def test_rows_from_memory_are_copied_and_go_when_dropped(catalog: Registry) -> None:
    entry = catalog.register("vision.labels", labels(), identity="label_id")
    copy = Path(entry.source.uri)
    with OpenRelation(entry) as relation:
        assert relation.fetch(np.array([3], np.uint64), ["class_name"]).to_pylist() == [{"class_name": "class 3"}]
    assert copy.parent == catalog.root
    catalog.drop("vision.labels")

    assert not copy.exists()
    assert catalog.tables() == []


def test_equal_rows_from_memory_have_one_copy_and_one_data_version(catalog: Registry) -> None:
    one = catalog.register("one", labels(), identity="label_id")
    two = catalog.register("two", labels(), identity="label_id")
    catalog.drop("one")

    assert one.source == two.source
    assert one.data_version == two.data_version
    with OpenRelation(catalog.entry("two")) as relation:
        assert relation.manifest.total == 5


def test_a_moved_catalog_still_reads_its_own_rows(catalog: Registry, tmp_path: Path) -> None:
    catalog.register("labels", labels(), identity="label_id")
    catalog.root.rename(tmp_path / "elsewhere")

    with OpenRelation(connect(tmp_path / "elsewhere").entry("labels")) as relation:
        assert relation.manifest.total == 5


@pytest.mark.parametrize(
    ("source", "way_out"),
    [
        ("/data/rows.parquet", "Say what lies there: ImageFolder(path), Parquet(path)"),
        (pa.table({"label_id": [1]}), "Give it as a table: Arrow(pyarrow.table(data))"),
        (None, "Give one, such as Lance(uri), Parquet(path) or Arrow(table)"),
    ],
)
def test_what_is_no_source_is_refused_with_those_there_are(catalog: Registry, source: Any, way_out: str) -> None:
    with pytest.raises(CatalogError, match=r"register 'zz': .* not a source\. " + re.escape(way_out)) as caught:
        catalog.register("zz", source)
    assert len(str(caught.value)) < 250


def test_an_unknown_name_lists_near_ones(catalog: Registry) -> None:
    with pytest.raises(CatalogError, match=r"there are none\. Register it first$"):
        catalog.entry("vision.train")
    with pytest.raises(CatalogError, match=r"there are none\. Save it with save_stream first$"):
        catalog.saved.plan("train")
    catalog.register("vision.imagenet_train", labels(), identity="label_id")
    with pytest.raises(CatalogError, match=r"did you mean vision\.imagenet_train\?"):
        catalog.entry("vision.imagenet_trian")
    with pytest.raises(CatalogError, match=r"did you mean vision\.imagenet_train\?"):
        catalog.drop("vision.imagenet_tain")


def test_a_taken_name_is_refused_unless_replaced(catalog: Registry) -> None:
    catalog.register("labels", labels(5), identity="label_id")
    with pytest.raises(CatalogError, match="Pass replace=True, or drop it first"):
        catalog.register("labels", labels(6), identity="label_id")
    catalog.register("labels", labels(6), identity="label_id", replace=True)

    assert catalog.entry("labels").manifest().total == 6
    assert catalog.tables() == ["labels"]


def test_a_repeated_identity_is_refused_with_both_places(catalog: Registry, tmp_path: Path) -> None:
    source = write_lance(tmp_path / "t.lance", ["a", "b", "c", "b"], storage_shard=["p1", "p1", "p0", "p0"])
    with pytest.raises(
        CatalogError, match=r"sample_id = 'b' in shard 'p1' row 1 and shard 'p0' row 1.*Name a unique column"
    ):
        catalog.register("t", source)

    assert catalog.tables() == []


def test_a_relation_that_is_only_joined_may_repeat_identities(catalog: Registry, tmp_path: Path) -> None:
    source = write_lance(tmp_path / "t.lance", ["a", "b", "a"])
    assert not catalog.register("t", source, unique=False).identity_unique
    assert not catalog.entry("t").identity_unique
    assert catalog.register("u", write_lance(tmp_path / "u.lance", ["a"]), unique=False).identity_unique


def test_several_columns_may_identify_together(catalog: Registry, tmp_path: Path) -> None:
    source = write_lance(tmp_path / "t.lance", ["a", "a", "b"], part=[0, 1, 0])
    assert catalog.register("t", source, identity=["sample_id", "part"]).identity_unique
    source = write_lance(tmp_path / "t.lance", ["a", "a", "b"], part=[0, 0, 0])
    with pytest.raises(CatalogError, match="sample_id, part = 'a', 0 in"):
        catalog.register("t", source, identity=["sample_id", "part"], replace=True)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (["a", None], {}, r"identity 'sample_id' is null in shard 'fragment-00000000' row 1\. Fill it in"),
        ([0.5, 1.5], {}, "identity 'sample_id' is double; an identity is text"),
        (["a", "b"], {"identity": "sample"}, r"identity 'sample' is not a column; did you mean sample_id\?"),
        (["a", "b"], {"identity": []}, "identity names no column. Name one or several"),
        (["a", "b"], {"shard": "shards"}, "shard 'shards' is not a column; there are n, sample_id"),
        (["a", "b"], {"shard": "n"}, r"'n' is null at row 0\. Fill it in"),
        (["a", "b"], {"semantic": {"n": JPEG_REF}}, "'n' is int64, which cannot name bytes; a reference is binary"),
        (["a", "b"], {"semantic": {"sample_id": "image/webp-ref"}}, "'image/webp-ref' .* is unknown; known are"),
        (["a", "b"], {"semantic": {"image": JPEG_REF}}, "'image' is not a column; there are sample_id, n"),
        (["a", "b"], {"descriptions": {"sampleid": "x"}}, r"'sampleid' is not a column; did you mean sample_id\?"),
    ],
)
def test_wrong_registrations_are_refused_with_the_way_out(
    catalog: Registry, tmp_path: Path, ids: list[object], options: dict[str, object], message: str
) -> None:
    source = write_lance(tmp_path / "t.lance", ids, n=pa.nulls(2, pa.int64()))
    with pytest.raises(CatalogError, match=f"^register 't': .*{message}"):
        catalog.register("t", source, **options)

    assert catalog.tables() == []


def test_rows_from_memory_stay_as_long_as_a_relation_of_another_base_has_them(
    catalog: Registry, tmp_path: Path
) -> None:
    table = pa.table({"sample_id": ["a", "b"]})
    for name in ("first", "second"):
        catalog.register(name, Arrow(table, base=str(tmp_path / name)))

    catalog.drop("first")
    with OpenRelation(catalog.entry("second")) as reader:
        assert reader.fetch(np.arange(2, dtype=np.uint64), ["sample_id"])["sample_id"].to_pylist() == ["a", "b"]
    catalog.drop("second")
    assert not list(catalog.root.glob("rows-*"))


def test_a_column_whose_name_would_be_cut_when_it_is_kept_is_refused(catalog: Registry) -> None:
    with pytest.raises(CatalogError, match=r"column 'a\\x00b' holds a NUL character.* Rename it"):
        catalog.register("t", Arrow(pa.table({"sample_id": [1], "a\0b": [2]})))


@pytest.mark.parametrize(
    ("columns", "identity", "fault"),
    [
        ({"a": ["x", "x"]}, "a", "identity repeats"),
        ({"a": pa.array(["x", "x"]).dictionary_encode()}, "a", "identity repeats"),
        ({"a": pa.DictionaryArray.from_arrays([0, 1], ["x", "x"])}, "a", "identity repeats"),
        ({"a": ["x", "x", "y"], "b": [1, 1, 1]}, ["a", "b"], "identity repeats"),
        ({"a": ["x", None]}, "a", "is null"),
        ({"a": ["x", "x"], "b": [1, None]}, ["a", "b"], "is null"),
        ({"a": pa.array([], pa.utf8())}, "a", "no rows|empty"),
        ({"a": [1, 2], "storage_shard": [None, "s"]}, "a", "storage_shard"),
        ({"b": [1, 2]}, "a", "is not a column"),
    ],
)
def test_refused_rows_from_memory_are_not_copied(
    catalog: Registry, columns: dict[str, Any], identity: str | list[str], fault: str
) -> None:
    with pytest.raises(SpiralError, match=fault):
        catalog.register("t", Arrow(pa.table(columns)), identity=identity)

    assert not list(catalog.root.glob("*.lance"))


def test_rows_from_memory_whose_identities_are_pairs_are_registered(catalog: Registry) -> None:
    rows = pa.table({"a": ["x", "x", "y"], "b": [1, 2, 1]})
    assert catalog.register("t", Arrow(rows), identity=["a", "b"]).identity_unique


def test_the_name_of_row_ordinals_is_taken(catalog: Registry, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="Rename the column"):
        catalog.register("t", write_lance(tmp_path / "t.lance", ["a"], __row=[1]))


def test_a_missing_source_says_which_registration(catalog: Registry, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^register 't': Parquet: there is none at .*Correct the path"):
        catalog.register("t", Parquet(str(tmp_path / "none.parquet")))


def test_refresh_keeps_the_data_version_where_nothing_changed(catalog: Registry, tmp_path: Path) -> None:
    pq.write_table(pa.table({"sample_id": ["a", "b"]}), tmp_path / "t.parquet")
    entry = catalog.register("t", Parquet(str(tmp_path / "t.parquet")))

    assert catalog.refresh("t") == entry


def test_refresh_takes_new_rows_and_keeps_what_was_declared(catalog: Registry, tmp_path: Path) -> None:
    source = write_lance(tmp_path / "t.lance", ["a"], image_ref=[b"1"])
    before = catalog.register("t", source, semantic={"image_ref": JPEG_REF})
    lance.write_dataset(pa.table({"sample_id": ["b"], "image_ref": [b"2"]}), source.uri, mode="append")
    lance.dataset(source.uri).add_columns({"n": "1"})
    with OpenRelation(before) as relation:
        assert relation.manifest.total == 1
    after = catalog.refresh("t")

    assert after.data_version != before.data_version
    assert after.manifest().total == 2
    assert after.schema.names == ["sample_id", "image_ref", "n", "storage_shard"]
    assert semantic_of(after.schema.field("image_ref")) == JPEG_REF
    assert catalog.entry("t") == after


def test_refresh_refuses_rows_that_repeat_an_identity(catalog: Registry, tmp_path: Path) -> None:
    source = write_lance(tmp_path / "t.lance", ["a"])
    before = catalog.register("t", source)
    lance.write_dataset(pa.table({"sample_id": ["a"]}), source.uri, mode="append")
    with pytest.raises(CatalogError, match="register 't': identity repeats"):
        catalog.refresh("t")

    assert catalog.entry("t") == before


def test_what_is_stored_is_json_without_absolute_paths_of_the_catalog(catalog: Registry) -> None:
    import lancedb

    catalog.register("labels", labels(), identity="label_id")
    (row,) = lancedb.connect(str(catalog.root)).open_table("relations").to_arrow().to_pylist()

    assert json.loads(row["source"])["uri"].startswith("catalog:/rows-")
    assert (row["rows"], row["shards"]) == (5, 1)


def test_several_relations_are_looked_up_by_one_read(catalog: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["one", "two", "three"]
    for name in names:
        catalog.register(name, labels(), identity="label_id")
    reads: list[object] = []
    rows = Database.rows
    monkeypatch.setattr(Database, "rows", lambda self, kind: reads.append(kind) or rows(self, kind))
    found = catalog.relations.entries(names)

    assert len(reads) == 1
    assert found == {name: catalog.entry(name) for name in names}
    with pytest.raises(CatalogError, match="'four' is not in catalog"):
        catalog.relations.entries(["one", "four"])

"""What may tell rows apart, and what a catalog says of columns that cannot be kept or named."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import CatalogError

LONG = [5, 2**63 - 1, 2**63, 2**64 - 1, 0, 2**63 + 7]


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return sp.connect(str(tmp_path / "catalog"))


def parquet(tmp_path: Path, rows: pa.Table) -> sp.Parquet:
    pq.write_table(rows, tmp_path / "t.parquet")
    return sp.Parquet(str(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        (None, r'identity is None, a NoneType\. Name the column that tells its rows apart: identity="id"'),
        (7, r"identity is 7, a int\. Name the column"),
        ([None], r"identity is \[None\], a list\. Name the column"),
        (["sample_id", "sample_id"], "identity names 'sample_id' twice. Name each column once"),
        ([], "identity names no column. Name one or several"),
        ("id", r"identity 'id' is not a column; .* Name the column that tells its rows apart with identity="),
        (["x" * 5000], r"identity .x+\.\.\. \(5,000 characters\) is not a column"),
    ],
)
def test_an_identity_that_names_no_column_is_refused(catalog: sp.Catalog, identity: Any, found: str) -> None:
    with pytest.raises(CatalogError, match=f"^register 't': {found}") as refused:
        catalog.register("t", sp.Arrow(pa.table({"sample_id": ["a"]})), identity=identity)

    assert len(str(refused.value)) < 600


def test_a_repeated_identity_is_shown_cut(catalog: sp.Catalog) -> None:
    text = "word " * 1400
    with pytest.raises(CatalogError, match=r"identity repeats: .*word\.\.\. \(7,000 characters\) in shard") as refused:
        catalog.register("t", sp.Arrow(pa.table({"sample_id": [text, "b", text]})))

    assert len(str(refused.value)) < 600


ORDERS = [
    sp.Sequential(),
    sp.GlobalShuffle(seed=3),
    sp.ShardAwareShuffle(seed=3, shuffle_block_size=4),
    sp.HashBucketed(seed=3, bucket_count=4, bucket_order=sp.ShuffleBuckets(seed=3)),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_identities_of_all_64_bits_are_sampled_and_located(
    catalog: sp.Catalog, tmp_path: Path, order: Any, caches: Path
) -> None:
    rows = pa.table({"sample_id": pa.array(LONG, pa.uint64()), "x": np.arange(6.0)})
    catalog.register("t", parquet(tmp_path, rows))
    plan = catalog.table("t").sample(identity="sample_id", order=order, epoch=0)
    stream = plan.collate(batch_size=2, fields={"id": sp.List("sample_id"), "x": sp.Stack("x")}).to_numpy()
    batches = list(stream)

    assert sorted(x for batch in batches for x in batch["id"]) == sorted(LONG)
    for number, batch in enumerate(batches):
        assert stream.ledger(number) == batch["id"]
        for identity in batch["id"]:
            assert stream.locate(identity, epoch=0)["batch"] == number


def test_identities_of_all_64_bits_have_hashes_of_their_own() -> None:
    from spiral_stream.seeding import identity_hashes

    values = [*LONG, *(-x for x in LONG if 0 < x <= 2**63)]
    assert len({tuple(each) for each in identity_hashes("s", values).tolist()}) == len(values)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_views_are_read_as_the_values_that_they_are(catalog: sp.Catalog, tmp_path: Path, kind: str) -> None:
    rows = pa.table(
        {
            "sample_id": pa.array(["a", "b", "c"], pa.string_view()),
            "data": pa.array([b"1", None, b"3"], pa.binary_view()),
            "words": pa.array([["x", "y"], [], None], pa.list_(pa.string_view())),
        }
    )
    source = sp.Arrow(rows) if kind == "arrow" else parquet(tmp_path, rows)
    entry = catalog.register("t", source)
    table = catalog.table("t")

    assert entry.schema.field("sample_id").type == pa.string()
    assert table.filter(sp.col("sample_id") >= "b").to_arrow()["data"].to_pylist() == [None, b"3"]
    assert table.sort("sample_id", descending=True).to_arrow()["words"].to_pylist() == [None, [], ["x", "y"]]
    with OpenRelation(entry) as relation:
        found = relation.fetch(np.array([2, 0], np.uint64), ["sample_id", "data"])
    assert found.to_pydict() == {"sample_id": ["c", "a"], "data": [b"3", b"1"]}


def test_columns_without_names_of_their_own_are_refused(catalog: sp.Catalog, tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["sample_id", "x", "x"])
    with pytest.raises(CatalogError, match=r"the source has two columns 'x'\. Give each column a name of its own"):
        catalog.register("t", parquet(tmp_path, twice))
    with pytest.raises(CatalogError, match=r"the source has a column without a name\. Give each column a name"):
        catalog.register("t", sp.Arrow(pa.table({"sample_id": [1], "": [2]})))


@pytest.mark.parametrize("name", ["_rowid", "_rowaddr", "a.b", "a`b", "*"])
def test_columns_that_lance_cannot_keep_are_named(catalog: sp.Catalog, tmp_path: Path, name: str) -> None:
    rows = pa.table({"sample_id": [1, 2], name: ["x", "y"]})
    with pytest.raises(
        CatalogError, match=f"^register 't': Lance cannot keep these rows: .*{re.escape(name)}.*Rename or cast"
    ) as refused:
        catalog.register("t", sp.Arrow(rows))

    assert "space" not in str(refused.value)
    catalog.register("t", parquet(tmp_path, rows))  # Parquet can
    assert catalog.table("t").to_arrow()[name].to_pylist() == ["x", "y"]


@pytest.mark.parametrize("place", ["s3:/bucket/c", "foo+bar://x", "file://host/c", "", "a\0b", 7])
def test_what_is_no_folder_is_never_made_into_one(tmp_path: Path, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CatalogError, match=r"a catalog lies in a folder of this machine.*Give the path of a folder"):
        sp.connect(place)
    if isinstance(place, str) and place and "\0" not in place:
        monkeypatch.setenv("SPIRAL_CATALOG", place)
        with pytest.raises(CatalogError, match="a catalog lies in a folder of this machine"):
            sp.table("t")
        monkeypatch.setenv("SPIRAL_CACHE", place if not place.startswith(("s3://", "gs://")) else "s3:/bucket/c")
        catalog = sp.connect(str(tmp_path / "catalog"))
        catalog.register("t", sp.Arrow(pa.table({"sample_id": [1]})))
        plan = catalog.table("t").sample(identity="sample_id", order=sp.Sequential(), epoch=0)
        with pytest.raises(
            sp.errors.CacheError, match=r"^\$SPIRAL_CACHE=.*: caches lie in a local folder, or .*; this begins with"
        ):
            list(plan.collate(batch_size=1, fields={"id": sp.List("sample_id")}).to_numpy())

    assert {path.name for path in tmp_path.iterdir()} <= {"catalog"}


def test_a_folder_may_be_given_as_a_file_uri(tmp_path: Path) -> None:
    assert sp.connect(f"file://{tmp_path}/catalog").root == tmp_path / "catalog"

"""What is declared of a relation is applied to its source's columns, or refused with the way out."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow, Parquet
from spiral_stream.catalog.registering.declaration import AUTO, Declaration, complete, need_source, shard_column
from spiral_stream.catalog.relation.entry import DESCRIPTION, STORAGE_SHARD
from spiral_stream.errors import CatalogError
from spiral_stream.semantic import JPEG_REF, semantic_of
from spiral_stream.sources import ROW

TYPES = {"id": pa.int64(), "part": pa.string(), "image": pa.binary(), STORAGE_SHARD: pa.string()}
COLUMNS = st.lists(st.sampled_from(list(TYPES)), unique=True).map(lambda names: ["id", *(set(names) - {"id"})])


def schema(names: list[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in names], {b"made": b"by others"})


def declared(**changes: Any) -> Declaration:
    return Declaration(
        **{"identity": ("id",), "shard": AUTO, "semantic": {}, "descriptions": {}, "unique": True} | changes
    )


@given(names=COLUMNS, described=st.sets(st.sampled_from(["id", "part", "image"])), marked=st.booleans(), data=st.data())
def test_a_column_carries_what_is_declared_of_it_and_nothing_else(
    names: list[str], described: set[str], marked: bool, data: st.DataObject
) -> None:
    texts = {name: f"the {name} é" for name in described & set(names)}
    semantic = {"image": JPEG_REF} if marked and "image" in names else {}
    shard = data.draw(st.sampled_from([AUTO, None, *names]))
    found, chosen = declared(descriptions=texts, semantic=semantic, shard=shard).applied("r", schema(names))

    assert (found.names, found.types, found.metadata) == (names, schema(names).types, None)
    for field in found:
        assert (field.metadata or {}).get(DESCRIPTION, b"").decode() == texts.get(field.name, "")
        assert semantic_of(field) == semantic.get(field.name)
    assert chosen == shard_column(found, shard)
    assert complete(found).names == [*names, *([STORAGE_SHARD] if STORAGE_SHARD not in names else [])]


@given(COLUMNS)
def test_shards_are_the_sources_units_unless_a_column_names_them(names: list[str]) -> None:
    held = schema(names)

    assert shard_column(held, AUTO) == (STORAGE_SHARD if STORAGE_SHARD in names else None)
    assert shard_column(held, None) is None
    assert shard_column(held, "id") == "id"
    with pytest.raises(CatalogError, match=r"shard 'ids' is not a column; did you mean id"):
        shard_column(held, "ids")


@pytest.mark.parametrize(
    ("names", "way_out"),
    [
        (["id", "id"], "register 'r': the source has two columns 'id'. Give each column a name of its own"),
        (["id", ""], "register 'r': the source has a column without a name. Give each column a name of its own"),
        (["id", "a\0b"], "holds a NUL character, at which its name would be cut. Rename it"),
        (["id", ROW], "a name that is reserved for row ordinals. Rename the column"),
    ],
)
def test_columns_whose_names_cannot_be_kept_are_refused(names: list[str], way_out: str) -> None:
    with pytest.raises(CatalogError) as caught:
        declared().applied("r", pa.schema([(name, pa.int64()) for name in names]))
    assert str(caught.value).endswith(way_out)


def test_a_description_of_no_column_is_refused() -> None:
    with pytest.raises(CatalogError, match=r"descriptions: 'imag' is not a column; did you mean image\?"):
        declared(descriptions={"imag": "x"}).applied("r", schema(["id", "image"]))


@pytest.mark.parametrize(
    ("source", "way_out"),
    [
        ("data/*.parquet", r"Say what lies there: .*Jsonl\(path\)"),
        ({"a": [1]}, r"Give it as a table: Arrow\(pyarrow\.table\(data\)\)"),
        (None, "Give one, such as Lance"),
    ],
)
def test_what_is_no_source_is_refused_with_those_there_are(source: object, way_out: str) -> None:
    need_source("r", Arrow(pa.table({"id": [1]})))
    need_source("r", Parquet("a.parquet"))
    with pytest.raises(CatalogError, match=rf"register 'r': .*, not a source\. {way_out}"):
        need_source("r", source)

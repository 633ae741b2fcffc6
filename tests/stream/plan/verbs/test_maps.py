from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures.texts import TOKENIZER, make_catalog

TOKENS = sp.Tokenize("text", tokenizer=TOKENIZER) >> "tokens"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("maps"), {"a": 20})


@pytest.fixture(scope="module")
def sampled(catalog: sp.Catalog) -> sp.Relation:
    return catalog.table("a").project("sample_id", "text", "size").sample(order=sp.Sequential())


def one(text: str) -> str:
    return text


def some(text: str) -> list[str]:
    return text.split()


def types(relation: sp.Relation) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in relation.schema}


def test_maps_add_columns_of_stated_types(sampled: sp.Relation) -> None:
    before = types(sampled)

    assert types(sampled.map(TOKENS)) == before | {"tokens": pa.list_(pa.uint16())}
    assert types(sampled.with_columns(twice=sp.col("size") * 2)) == before | {"twice": pa.int64()}
    assert types(sampled.map(one, columns=["text"], name="lower", returns=pa.utf8())) == before | {"lower": pa.utf8()}
    assert types(sampled.filter(sp.col("size") > 3)) == before
    words = sampled.flat_map(some, name="text", columns=["text"], returns=pa.large_utf8(), fan_out=4)
    assert types(words) == before | {"text": pa.large_utf8(), "part": pa.int32()}
    assert words.schema.names == ["sample_id", "text", "size", "part"]


def test_a_map_may_replace_a_column_and_later_ones_see_it(sampled: sp.Relation) -> None:
    plan = sampled.with_columns(size=sp.col("size").cast("float32")).with_columns(half=sp.col("size") / 2)

    assert types(plan)["size"] == pa.float32()
    assert pa.types.is_floating(types(plan)["half"])


@pytest.mark.parametrize(
    ("verb", "arguments", "options", "message"),
    [
        ("map", (one,), {}, r"a function needs name= and returns="),
        ("map", (one,), {"name": "x", "returns": pa.utf8()}, r"Name the columns that the function takes"),
        ("map", (one,), {"name": "x", "returns": pa.utf8(), "columns": ["txt"]}, r"did you mean 'text'"),
        ("map", (one,), {"name": "x", "returns": "utf8", "columns": ["text"]}, r"Give the Arrow type"),
        ("map", (3,), {"name": "x", "returns": pa.utf8(), "columns": ["text"]}, r"is no function. Give a transform"),
        ("map", (sp.transforms.Resize(8) >> "x",), {}, r"transforms images. Give it to Stack"),
        ("filter", (sp.col("size"),), {}, r"the predicate is int64, not bool. Compare it"),
        ("filter", (one,), {"columns": ["txt"]}, r"did you mean 'text'"),
        ("with_columns", (), {"x": sp.col("sise") + 1}, r"sise"),
        ("flat_map", (some,), {"name": "x", "columns": ["text"], "returns": pa.utf8(), "fan_out": 0}, r"at least 1"),
    ],
)  # fmt: skip
def test_a_map_that_cannot_run_is_refused_at_once(
    sampled: sp.Relation, verb: str, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sp.errors.PlanError, match=message):
        getattr(sampled, verb)(*arguments, **options)


def test_maps_come_after_sample_and_before_collate(catalog: sp.Catalog, sampled: sp.Relation) -> None:
    collated = sampled.collate(batch_size=2, fields={"id": sp.List("sample_id")})
    for plan in (catalog.table("a"), collated):
        with pytest.raises(sp.errors.PlanError, match=r"it comes after .sample\(...\) and before .collate\(...\)"):
            plan.map(TOKENS)

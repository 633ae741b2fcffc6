"""A tokenizer whose ids uint16 does not hold is refused when the batch is planned, by its name and its largest id."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import spiral_stream as sp
from spiral_stream.errors import PlanError

SIZES = {"small": 300, "full": 2**16, "large": 2**16 + 10}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(str(tmp_path_factory.mktemp("narrow") / "catalog"))
    texts = {"name": ["a", "b"], "text": ["w1 w2", "w3"]}
    catalog.register("rows", sp.Arrow(pa.table(texts)), identity="name")
    for name, size in SIZES.items():
        made = Tokenizer(models.WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        catalog.register_tokenizer(name, made)
    return catalog


def collated(catalog: sp.Catalog, tokenizer: str, fields: Mapping[str, Any], late: Any = lambda rows: rows) -> Any:
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    return late(sampled.map(sp.Tokenize("text", tokenizer=tokenizer) >> "tokens")).collate(batch_size=1, fields=fields)


@pytest.mark.parametrize(
    "field",
    [
        sp.Pad("tokens", dtype="uint16"),
        sp.ShiftedLabels("tokens", dtype="uint16", ignore_index=65_535),
        sp.fields.Labels("tokens", dtype="uint16", ignore_index=65_535),
    ],
)
def test_larger_ids_are_refused_with_the_tokenizer_and_the_largest(shelf: sp.Catalog, field: Any) -> None:
    says = (
        rf"collate: field 'x': {type(field).__name__}\('tokens'\): dtype='uint16' holds ids up to 65,535, and tokenizer "
        r"'large', which makes the column, has ids up to 65,545\. Give dtype=\"int32\", or \"int64\""
    )
    with pytest.raises(PlanError, match=says):
        collated(shelf, "large", {"x": field})


@pytest.mark.parametrize("name", ["small", "full"])
def test_a_vocabulary_that_fits_is_taken(shelf: sp.Catalog, name: str) -> None:
    fields = {"ids": sp.Pad("tokens", dtype="uint16"), "at": sp.fields.Positions("tokens", dtype="uint16")}
    with collated(shelf, name, fields).to_numpy() as stream:
        assert [batch["ids"].tolist() for batch in stream] == [[[1, 2]], [[3]]]


@pytest.mark.parametrize(
    ("name", "ignore", "way_out"),
    [
        ("small", 299, "Give ignore_index=65_535, here and to the loss"),
        ("full", 65_535, 'Give dtype="int64"'),
    ],
)
def test_a_label_that_is_ignored_is_no_id(shelf: sp.Catalog, name: str, ignore: int, way_out: str) -> None:
    field = sp.ShiftedLabels("tokens", dtype="uint16", ignore_index=ignore)
    with pytest.raises(PlanError, match=rf"ignore_index={ignore}, .*the loss would ignore that token\. {way_out}"):
        collated(shelf, name, {"labels": field})
    assert collated(shelf, "small", {"labels": sp.ShiftedLabels("tokens", dtype="uint16", ignore_index=300)})


def test_ids_that_a_function_makes_of_the_tokens_are_its_own(shelf: sp.Catalog) -> None:
    def halved(tokens: pa.Array) -> pa.Array:
        return pa.array([[each // 2 for each in row] for row in tokens.to_pylist()], pa.list_(pa.int32()))

    def late(rows: Any) -> Any:
        return rows.map(halved, columns=["tokens"], name="tokens", returns=pa.list_(pa.int32()))

    with collated(shelf, "large", {"ids": sp.Pad("tokens", dtype="uint16")}, late).to_numpy() as stream:
        assert [batch["ids"].tolist() for batch in stream] == [[[0, 1]], [[1]]]

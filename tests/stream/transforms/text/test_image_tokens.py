"""Places of images in the text of conversations: how often a mark stands there, and what is refused."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from tests.fixtures import mixed_rows


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return mixed_rows.rows(12, most=3)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> sp.Catalog:
    return mixed_rows.make_catalog(tmp_path_factory.mktemp("mixed"), table)


def ids(samples: sp.Relation, **more: Any) -> list[list[int]]:
    fields = {"tokens": sp.List("tokens"), "mask": sp.List("loss_mask")}
    with samples.collate(batch_size=12, last=sp.KeepPartial, fields=fields, **more).to_numpy() as stream:
        batch = next(iter(stream))
    assert [len(each) for each in batch["mask"]] == [len(each) for each in batch["tokens"]]
    return [list(each) for each in batch["tokens"]]


@dataclass(frozen=True)
class ByArea(sp.fields.ImageLayout):
    """A layout of one's own: a token for each 1,000 pixels."""

    VERSION: ClassVar[int] = 1
    pixels: int = 1_000

    @property
    def patch_shape(self) -> tuple[int, ...]:
        return (3, 8, 8)

    def token_counts(self, sizes: np.ndarray) -> np.ndarray:
        return np.asarray(1 + sizes.prod(axis=1) // self.pixels)

    def grids(self, sizes: np.ndarray) -> np.ndarray:
        return np.ones((len(sizes), 3), np.int64)

    def views(self, height: int, width: int) -> tuple[sp.fields.ImageView, ...]:
        return (sp.fields.ImageView((8, 8), (8, 8), 1),)

    def cut(self, canvas: np.ndarray, out: np.ndarray) -> None:
        out[:, 0] = canvas


@pytest.mark.parametrize("layout", [ByArea(), sp.fields.FixedLayout((8, 8), 5), mixed_rows.PATCHES])
def test_a_mark_stands_as_often_as_its_image_has_tokens(catalog: sp.Catalog, table: pa.Table, layout: Any) -> None:
    once = ids(mixed_rows.tokens(catalog, sp.fields.FixedLayout((8, 8), 1)))
    mark = mixed_rows.mark_id()

    for row, short, found in zip(table.to_pylist(), once, ids(mixed_rows.tokens(catalog, layout)), strict=True):
        sizes = np.array([(each["height"], each["width"]) for each in row["sizes"]]).reshape(-1, 2)
        times = iter(layout.token_counts(sizes).tolist())
        want = [one for token in short for one in [token] * (next(times) if token == mark else 1)]
        assert found == want


def test_a_layout_of_ones_own_makes_pieces_too(catalog: sp.Catalog) -> None:
    fields = {
        "input_ids": sp.Pad("tokens"),
        "pixels": sp.fields.FlatImages("images", ByArea(), tokens="tokens", token_id=mixed_rows.mark_id()),
        "extents": sp.fields.ImageExtents("images"),
    }
    with mixed_rows.tokens(catalog, ByArea()).collate(batch_size=4, fields=fields).to_numpy() as stream:
        for batch in stream:
            assert batch["pixels"].shape == (len(batch["extents"]), 3, 8, 8)


def with_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, name, pa.array(values, table.schema.field(at).type))


@pytest.mark.parametrize(
    ("name", "sizes", "way_out"),
    [
        ("fewer", [{"height": 40, "width": 40}], "has 3 marks .* the sizes of 1. Write one mark per image"),
        ("null", None, r"has 3 marks .* the sizes of none: it is null\. Write one mark"),
        ("flat", [{"height": 9, "width": 3_000}] * 3, "PatchLayout does not take. Filter the row out"),
        ("nothing", [{"height": 0, "width": 40}] * 3, "PatchLayout does not take. Filter the row out"),
    ],
)
def test_rows_whose_sizes_do_not_fit_are_refused(
    catalog: sp.Catalog, table: pa.Table, name: str, sizes: Any, way_out: str
) -> None:
    rows = table["sizes"].to_pylist()
    at = next(at for at, each in enumerate(rows) if len(each) == 3)
    rows[at] = sizes
    mixed_rows.register(catalog, name, with_column(table, "sizes", rows))
    samples = mixed_rows.tokens(catalog, name=name)

    with pytest.raises(DataError, match=way_out):
        ids(samples)
    left = ids(samples, on_error="skip")

    whole = ids(mixed_rows.tokens(catalog))
    assert left == [*whole[:at], *whole[at + 1 :]]


def test_arguments_that_cannot_be_are_refused(catalog: sp.Catalog) -> None:
    images = sp.transforms.ImageTokens(mixed_rows.MARK, layout=mixed_rows.PATCHES)
    with pytest.raises(PlanError, match=r"layout is 'patches'\. Give an image layout"):
        sp.transforms.ImageTokens(mixed_rows.MARK, layout="patches")
    with pytest.raises(PlanError, match="Give truncate='refuse' too, or leave max_length out"):
        sp.transforms.ChatTemplate("messages", tokenizer="qwen", images=images, max_length=9)
    with pytest.raises(PlanError, match="Give the token that the template writes for an image"):
        mixed_rows.tokens(catalog, mark="<|nothing|>")
    chat = sp.transforms.ChatTemplate(
        "messages",
        tokenizer="qwen",
        images=sp.transforms.ImageTokens(mixed_rows.MARK, layout=mixed_rows.PATCHES, sizes="numbers"),
    )
    with pytest.raises(PlanError, match=r"ImageSizes\(\"images\"\) >> 'numbers'\) makes one"):
        catalog.table("mixed").sample(order=sp.Sequential()).map(chat >> "tokens")


def test_max_length_counts_the_places_of_images(catalog: sp.Catalog) -> None:
    whole = ids(mixed_rows.tokens(catalog))
    most = sorted(map(len, whole))[8]

    left = ids(mixed_rows.tokens(catalog, max_length=most, truncate="refuse"), on_error="skip", error_budget=0.9)

    assert left == [each for each in whole if len(each) <= most]


def test_another_layout_is_another_cache(catalog: sp.Catalog) -> None:
    forms = set()
    for layout in (mixed_rows.PATCHES, sp.fields.FixedLayout((8, 8), 5), sp.fields.FixedLayout((8, 8), 6)):
        plan = mixed_rows.tokens(catalog, layout).collate(batch_size=4, fields={"x": sp.Pad("tokens")})
        with plan.to_numpy() as stream:
            forms.add(stream.caches()[0].fingerprint)
    assert len(forms) == 3

"""What a plan warns of where its fields are legal, and probably not what was meant."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from tests.fixtures import streams

CROP, FLIP = sp.RandomResizedCrop(size=16), sp.RandomHorizontalFlip()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return streams.make_catalog(tmp_path_factory.mktemp("fields"))


def view(*transforms: Any, **options: Any) -> sp.Stack:
    return sp.Stack("image_ref", decode="jpeg", transforms=transforms, **options)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (view(CROP), view(CROP), "RandomResizedCrop"),
        (view(sp.transforms.Resize(16), FLIP), view(CROP, FLIP), "RandomHorizontalFlip"),
        (view(crop=16, random_crop=True), view(sp.transforms.RandomCrop(16)), "RandomCrop"),
    ],
)
def test_two_fields_of_one_column_that_draw_alike_are_warned_of(
    catalog: sp.Catalog, one: sp.Stack, other: sp.Stack, what: str
) -> None:
    says = rf"fields 'a' and 'b' decode 'image_ref' with an equal {what} and draw alike.*view=\"a\""
    sampled = catalog.table("lance").sample(order=sp.GlobalShuffle(seed=1))
    with pytest.warns(sp.SpiralWarning, match=says) as caught:
        sampled.collate(batch_size=4, fields={"a": one, "label": sp.Stack("label_id"), "b": other})

    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (view(CROP), view(sp.transforms.Resize(16))),
        (view(CROP), view(sp.RandomResizedCrop(size=12))),
        (
            view(sp.transforms.Resize(20), sp.transforms.CenterCrop(16)),
            view(sp.transforms.Resize(20), sp.transforms.CenterCrop(16)),
        ),
    ],
)
def test_fields_that_do_not_are_not(catalog: sp.Catalog, one: sp.Stack, other: sp.Stack) -> None:
    sampled = catalog.table("lance").sample(order=sp.GlobalShuffle(seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampled.collate(batch_size=4, fields={"a": one, "b": other})


def test_what_is_said_to_draw_alike_does_and_the_way_out_does_not(catalog: sp.Catalog) -> None:
    sampled = catalog.table("lance").sample(order=sp.GlobalShuffle(seed=1))
    with pytest.warns(sp.SpiralWarning, match="draw alike"):
        plan = sampled.collate(batch_size=8, fields={"a": view(CROP), "b": view(CROP), "id": sp.List("sample_id")})
    with plan.to_numpy() as stream, plan.to_numpy().bind(run_seed=99) as other:
        first, second = stream.batch(0), other.batch(0)
        assert first["id"] == second["id"]
        assert (first["a"] == first["b"]).all()
        assert (first["a"] != second["b"]).any()

"""What was cut out of an image is enough to cut the same pixels out of the original, and says what SDXL is told."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import spiral_stream as sp
from spiral_stream.errors import PlanError
from tests.fixtures import shapes
from tests.fixtures.examples import few

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return shapes.make_catalog(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def originals() -> dict[int, NDArray[np.uint8]]:
    table = shapes.rows()
    opened = (np.array(Image.open(BytesIO(data.as_py()))) for data in table["image"])
    return dict(zip(table["id"].to_pylist(), opened, strict=True))


def cut_again(original: NDArray[np.uint8], record: NDArray[Any], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The pixels that a record names, by torchvision: [3, H, W]."""
    top, left, height, width, resized_h, resized_w, window_top, window_left, mirrored = record.tolist()
    image = torch.from_numpy(original).permute(2, 0, 1)
    image = functional.resized_crop(image, top, left, height, width, [resized_h, resized_w], antialias=True)
    image = functional.crop(image, window_top, window_left, *size)
    return np.asarray(functional.horizontal_flip(image) if mirrored else image)


CHAINS = {
    "fit, random": [sp.transforms.FitToShape("random"), sp.RandomHorizontalFlip()],
    "fit, center": [sp.transforms.FitToShape(), sp.RandomHorizontalFlip()],
    "fit, none": [sp.transforms.FitToShape("none")],
    "random resized": [sp.RandomResizedCrop((20, 30)), sp.RandomHorizontalFlip()],
    "resize, crop": [sp.transforms.Resize(36), sp.RandomHorizontalFlip(), sp.transforms.RandomCrop(30)],
    "crop alone": [sp.transforms.RandomCrop(24)],
    "with colours": [sp.transforms.FitToShape("random"), sp.transforms.ColorJitter()],
}


@few(7)
@given(chain=st.sampled_from(sorted(CHAINS)), seed=st.integers(0, 9))
def test_the_record_names_the_pixels(
    catalog: sp.Catalog, originals: dict[int, NDArray[np.uint8]], chain: str, seed: int
) -> None:
    given_fields = shapes.fields() | {"image": sp.Stack("image", decode="image", transforms=CHAINS[chain])}
    order = sp.GlobalShuffle(seed=seed)
    if "fit" in chain or "colours" in chain:
        made = shapes.plan(catalog, order=order, given=given_fields)
    else:
        made = catalog.table("photos").sample(order=order, identity="id").collate(batch_size=8, fields=given_fields)
    with made.to_numpy() as stream:
        for batch in stream:
            size = batch["image"].shape[2:]
            for at, number in enumerate(batch["id"].tolist()):
                again = cut_again(originals[number], batch["crop"][at], size)
                assert np.array_equal(batch["image"][at], again)
                assert batch["original_size"][at].tolist() == [*originals[number].shape[:2]]


def test_crops_of_center_and_resize_are_those_of_torchvision_and_begin_where_it_says(catalog: sp.Catalog) -> None:
    """As diffusers' SDXL script does: resize the shorter side, crop the center, note where."""
    steps = [sp.transforms.Resize(40), sp.transforms.CenterCrop(32)]
    given_fields = shapes.fields() | {"image": sp.Stack("image", decode="image", transforms=steps)}
    table = shapes.rows()
    sampled = catalog.table("photos").sample(order=sp.Sequential(), identity="id")
    (batch,) = sampled.collate(batch_size=24, fields=given_fields).to_numpy().take(1)
    resize = v2.Resize(40, antialias=True)
    for at in range(24):
        image = resize(torch.from_numpy(np.array(Image.open(BytesIO(table["image"][at].as_py())))).permute(2, 0, 1))
        height, width = image.shape[1:]
        top, left = round((height - 32) / 2), round((width - 32) / 2)
        assert batch["crop_top_left"][at].tolist() == [top, left]
        assert np.array_equal(batch["image"][at], functional.crop(image, top, left, 32, 32).numpy())


def test_a_jpeg_read_in_parts_is_cut_where_the_record_says(tmp_path: Path) -> None:
    """Of a JPEG only the region of its crop is decoded; the numbers are of the whole picture."""
    catalog = shapes.make_catalog(tmp_path, "JPEG")
    by_number = dict(zip(shapes.rows("JPEG")["id"].to_pylist(), shapes.rows("JPEG")["image"].to_pylist(), strict=True))
    with shapes.plan(catalog, given=shapes.fields(decode="jpeg")).to_numpy() as stream:
        for batch in stream.take(3):
            for at, number in enumerate(batch["id"].tolist()):
                original = np.array(Image.open(BytesIO(by_number[number])))
                again = cut_again(original, batch["crop"][at], batch["image"].shape[2:]).astype(int)
                assert np.abs(again - batch["image"][at]).mean() < 1.5  # two decoders


def test_a_sample_that_is_left_out_leaves_its_record_out(tmp_path: Path) -> None:
    table = shapes.rows().slice(0, 16)
    broken = table.set_column(
        1, "image", [[*table["image"].to_pylist()[:5], b"no image", *table["image"].to_pylist()[6:]]]
    )
    catalog = sp.connect(str(tmp_path))
    catalog.register("photos", sp.Arrow(broken), identity="id", semantic={"image": "image/jpeg-ref"})
    sampled = catalog.table("photos").sample(order=sp.Sequential())
    steps = [sp.RandomResizedCrop(16)]
    given_fields = shapes.fields() | {"image": sp.Stack("image", decode="image", transforms=steps)}
    made = sampled.collate(batch_size=16, fields=given_fields, on_error="skip", error_budget=2)
    (batch,) = made.to_numpy()

    left = [at for at in range(16) if at != 5]
    assert batch["id"].tolist() == left
    sizes = list(zip(table["height"].to_pylist(), table["width"].to_pylist(), strict=True))
    assert list(map(tuple, batch["original_size"].tolist())) == [sizes[at] for at in left]


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        ({"image": sp.Stack("width")}, r"no field decodes it. Add Stack\('image', decode=...\)"),
        ({"other": sp.Stack("image", decode="image", view="b")}, r"several fields, which all decode .* of='image'"),
        ({"crop": sp.fields.CropRecord("image", of="id")}, r"of='id', which does not decode .* of='image'"),
        (
            {"image": sp.Stack("image", decode="image", transforms=[sp.transforms.RandomRotation(5)])},
            "RandomRotation moves pixels in another way .* Leave one of them out",
        ),
        (
            {"image": sp.Stack("image", decode="image", transforms=[len])},
            "function len, which may be one that moves pixels in another way",
        ),
    ],
)
def test_what_no_record_can_say_is_refused(catalog: sp.Catalog, change: dict[str, Any], way_out: str) -> None:
    sampled = catalog.table("photos").sample(order=sp.Sequential(), identity="id")
    image = {"image": sp.Stack("image", decode="image", transforms=[sp.RandomResizedCrop(16)])}
    with pytest.raises(PlanError, match=way_out):
        sampled.collate(batch_size=4, fields=shapes.fields() | image | change).to_numpy().take(1)


def test_a_cache_of_smaller_images_knows_no_original_size(catalog: sp.Catalog) -> None:
    small = catalog.table("photos").cache(image=sp.Raw(shorter_side=20)).sample(order=sp.Sequential(), identity="id")
    image = {"image": sp.Stack("image", decode="image", transforms=[sp.RandomResizedCrop(16)])}
    with pytest.raises(
        PlanError, match=r"holds images in another size than the originals. Cache it as profiles.Original"
    ):
        small.collate(batch_size=4, fields=shapes.fields() | image).to_numpy().take(1)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(PlanError, match="dtype='int8' is unknown; it is one of int64, int32, float32"):
        sp.fields.CropRecord("image", dtype="int8")

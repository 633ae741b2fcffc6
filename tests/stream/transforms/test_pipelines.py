"""Pipelines of other libraries, given as they are: of torchvision, of albumentations, and transformers' image processors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torchvision.models
import torchvision.transforms as v1
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification, SemanticSegmentation

import spiral_stream as sp
from tests.fixtures import pipelines
from tests.fixtures.pipelines import MEAN, PICTURES, SIZES, STD, plan, png, random_albumentations, random_version_one

albumentations = pytest.importorskip("albumentations")
sides = st.integers(24, 64)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalog")


@pytest.fixture(scope="module")
def pictures(place: Path) -> sp.Relation:
    return pipelines.pictures(place)


def batch(pictures: sp.Relation, **how: Any) -> Any:
    with plan(pictures, **how).to_torch() as stream:
        return next(iter(stream))["x"]


def chw(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        *((torch.float16, torch.float16), ("half", torch.float16), ("fp16", torch.float16), ("<f2", torch.float16)),
        *((np.float32, torch.float32), ("fp32", torch.float32), ("f4", torch.float32), ("bf16", torch.bfloat16)),
        *((np.dtype("uint8"), torch.uint8), ("u1", torch.uint8), (torch.bfloat16, torch.bfloat16)),
    ],
)
def test_a_dtype_is_taken_as_people_write_it(pictures: sp.Relation, given: Any, dtype: torch.dtype) -> None:
    assert batch(pictures, transforms=sp.transforms.Resize((16, 16)), dtype=given).dtype == dtype


def test_float_alone_is_two_things_and_is_refused(pictures: sp.Relation) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"dtype='float' is unknown; it is one of .*float32, float64"):
        batch(pictures, dtype="float")


def test_a_pipeline_of_torchvision_gives_its_own_pixels(pictures: sp.Relation) -> None:
    pipeline = v2.Compose(
        [
            *(v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), v2.Resize(64), v2.CenterCrop(48)),
            *(v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)),
        ]
    )
    found = batch(pictures, transforms=pipeline)

    # without AVX2 torch rounds some values of a resized image to the next of 255
    levels = 0 if torch.backends.cpu.get_cpu_capability() != "DEFAULT" else 1
    wanted = torch.stack([pipeline(chw(each)) for each in PICTURES])
    assert found.dtype == wanted.dtype
    assert (found - wanted).abs().max() <= levels / 255 / min(STD)


WEIGHTS = ("ResNet50", "ViT_B_16", "EfficientNet_B0", "Swin_T", "ConvNeXt_Tiny", "MobileNet_V3_Small")


@pytest.mark.parametrize("model", WEIGHTS)
def test_what_a_pretrained_model_of_torchvision_expects_is_given_within_one_level(
    pictures: sp.Relation, model: str
) -> None:
    """`weights.transforms()`, as each model's page gives it; nothing is downloaded."""
    preset = getattr(torchvision.models, f"{model}_Weights").DEFAULT.transforms()

    found = batch(pictures, transforms=preset)

    near_torchvision(found, torch.stack([preset(chw(each)) for each in PICTURES]), min(preset.std))


@given(
    crop=sides,
    more=st.integers(0, 20),
    interpolation=st.sampled_from(
        [v2.InterpolationMode.BILINEAR, v2.InterpolationMode.BICUBIC, v2.InterpolationMode.NEAREST]
    ),
)
def test_each_preset_of_torchvision_gives_its_pixels_within_one_level_and_those_of_v2(
    pictures: sp.Relation, crop: int, more: int, interpolation: Any
) -> None:
    preset = ImageClassification(crop_size=crop, resize_size=crop + more, interpolation=interpolation)

    found = batch(pictures, transforms=preset)

    near_torchvision(found, torch.stack([preset(chw(each)) for each in PICTURES]), min(preset.std))
    of_v2 = v2.Compose(
        [
            v2.Resize(crop + more, interpolation=interpolation),
            *(v2.CenterCrop(crop), v2.ToDtype(torch.float32, scale=True), v2.Normalize(preset.mean, preset.std)),
        ]
    )
    assert torch.equal(found, batch(pictures, transforms=of_v2))


def test_a_preset_without_a_crop_keeps_the_shape_of_each_picture(pictures: sp.Relation) -> None:
    preset = SemanticSegmentation(resize_size=40)

    with plan(pictures, batch_size=1, transforms=preset).to_torch() as stream:
        for found, picture in zip(stream, PICTURES, strict=True):
            near_torchvision(found["x"][0], preset(chw(picture)), min(preset.std))


def near_torchvision(found: torch.Tensor, wanted: torch.Tensor, std: float) -> None:
    """A preset resizes by torchvision's first version, in float, whose rounding differs from v2's on uint8 by one level."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert (found - wanted).abs().max() <= 1 / 255 / std + 1e-6


def test_a_pipeline_of_version_one_gives_its_pixels_within_two_levels(pictures: sp.Relation) -> None:
    pipeline = v1.Compose([v1.ToPILImage(), v1.Resize(64), v1.CenterCrop(48), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    found = batch(pictures, transforms=pipeline)

    wanted = torch.stack([pipeline(each) for each in PICTURES])
    assert found.dtype == wanted.dtype == torch.float32
    assert (found - wanted).abs().max() <= 2 / 255 / min(STD)


PROCESSORS = (
    "ViTImageProcessor",
    "CLIPImageProcessor",
    "SiglipImageProcessor",
    "DeiTImageProcessor",
    "BitImageProcessor",
)


@st.composite
def processors(draw: st.DrawFn) -> Any:
    kind = getattr(transformers, draw(st.sampled_from(PROCESSORS)))
    crop = draw(st.none() | st.tuples(sides, sides))
    least = max(crop) if crop else 24
    square = draw(st.booleans()) or crop is None
    how: dict[str, Any] = {
        "do_center_crop": crop is not None,
        "size": {"height": least + 3, "width": least + 8}
        if square
        else {"shortest_edge": least + draw(st.integers(0, 9))},
        "resample": draw(st.sampled_from([0, 1, 2, 3])),
        "do_normalize": draw(st.booleans()),
    }
    return kind(**how, **({"crop_size": {"height": crop[0], "width": crop[1]}} if crop else {}))


@given(processors())
@settings(max_examples=15, deadline=None)
def test_an_image_processor_gives_its_own_pixels(pictures: sp.Relation, processor: Any) -> None:
    found = batch(pictures, transforms=processor)

    wanted = processor(PICTURES, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    levels = 0 if torch.backends.cpu.get_cpu_capability() != "DEFAULT" else 1
    assert (found - wanted).abs().max() <= 1e-6 + levels / 255 / 0.2


def test_a_processor_is_taken_out_of_what_holds_it(pictures: sp.Relation) -> None:
    class Holder:
        image_processor = transformers.ViTImageProcessor(size={"height": 20, "width": 30})

    assert batch(pictures, transforms=Holder()).shape == (len(SIZES), 3, 20, 30)


def test_an_albumentations_pipeline_gives_its_own_pixels(pictures: sp.Relation) -> None:
    A = albumentations
    pipeline = A.Compose([A.SmallestMaxSize(64), A.CenterCrop(48, 48), A.Normalize(mean=MEAN, std=STD), A.ToTensorV2()])
    found = batch(pictures, transforms=pipeline)

    wanted = torch.stack([pipeline(image=each)["image"] for each in PICTURES])
    assert found.dtype == wanted.dtype
    assert (found - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize("make", [random_albumentations, random_version_one])
def test_random_pipelines_draw_anew_each_epoch_and_are_saved(
    pictures: sp.Relation, make: Callable[[], Any], place: Path
) -> None:
    drawn = plan(pictures, batch_size=2, transforms=make())
    with drawn.to_numpy() as stream:
        first, second = stream.batch(0, epoch=0)["x"], stream.batch(0, epoch=1)["x"]
        assert first.shape == (2, 3, 24, 32)
        assert not np.array_equal(first, second)  # epochs draw other numbers
    catalog = sp.connect(place)
    catalog.save_stream("random", drawn.to_numpy())
    with catalog.open_stream("random") as stream:
        assert np.array_equal(stream.batch(0, epoch=0)["x"], first)


def same_image(image: np.ndarray, **_: Any) -> np.ndarray:
    return image


class OwnCrop(v1.RandomCrop):
    pass


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda A: v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Resize(8)]),
            "Resize stands behind what turns pixels",
        ),
        (lambda A: v2.ToDtype(torch.float32), "not scaled.*ToDtype\\(torch.float32, scale=True\\)"),
        (lambda A: v1.ConvertImageDtype(torch.int32), "another type .int32.*Give the field dtype="),
        (lambda A: v1.Lambda(lambda x: x), "Give a function of a uint8"),
        (lambda A: OwnCrop(8), "OwnCrop.*Give a function of a uint8"),
        (lambda A: A.Compose([A.Lambda(image=same_image)]), "cannot be written down.*Give a function"),
        (lambda A: A.Compose([A.Resize(8, 8), A.Normalize(normalization="image")]), "Give normalization='standard'"),
        (lambda A: A.Compose([A.Resize(8, 8)], bbox_params=A.BboxParams("coco")), "Leave them out; boxes move with"),
        (lambda A: transformers.ConvNextImageProcessor(), "in its own way \\(.*Give the steps: transforms=\\[Resize"),
        (lambda A: transformers.ViTImageProcessor(rescale_factor=1 / 127), "Only 1/255 is known here"),
        (lambda A: transformers.ViTImageProcessor(do_rescale=False), "Set do_rescale=True, or give Normalize"),
        (
            lambda A: transformers.CLIPImageProcessor(size={"longest_edge": 40}),
            "Known are height and width, and shortest_edge",
        ),
    ],
)
def test_what_cannot_be_the_same_is_refused_by_name(
    pictures: sp.Relation, make: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(sp.errors.PlanError, match=says):
        plan(pictures, transforms=make(albumentations))


def test_a_mask_goes_through_a_pipeline_alike_and_keeps_its_labels(tmp_path: Path) -> None:
    A = albumentations
    labels = [(each[:, :, 0] > 127).astype(np.uint8) * 200 for each in PICTURES]  # what the image itself shows
    rows = pa.table(
        {
            "id": range(len(labels)),
            "image": [png(np.repeat(each[:, :, None], 3, axis=2)) for each in labels],
            "mask": [png(each) for each in labels],
        }
    )
    catalog = sp.connect(tmp_path)
    catalog.register(
        "masked", sp.Arrow(rows), identity="id", semantic=dict.fromkeys(("image", "mask"), "image/jpeg-ref")
    )
    steps = [A.Compose([A.HorizontalFlip(p=0.5), A.RandomCrop(24, 24), A.Normalize(mean=MEAN, std=STD)])]
    fields = {
        "image": sp.Stack("image", decode="image", transforms=steps, dtype="float32"),
        "mask": sp.Stack("mask", decode="image", mode="L", interpolation="nearest", transforms=steps),
    }
    drawn = catalog.table("masked").sample(order=sp.GlobalShuffle(seed=1)).collate(batch_size=3, fields=fields)
    with drawn.to_numpy() as stream:
        seen = list(stream)
    assert {each["mask"].dtype.name for each in seen} == {"uint8"}
    for each in seen:
        shown = np.rint((each["image"][:, 0] * STD[0] + MEAN[0]) * 255)
        assert np.array_equal(shown, each["mask"])
        assert set(np.unique(each["mask"])) <= {0, 200}


def test_boxes_do_not_follow_albumentations(tmp_path: Path) -> None:
    rows = pa.table({"id": [0], "image": [png(PICTURES[0])], "boxes": [[[1.0, 1.0, 9.0, 9.0]]]})
    catalog = sp.connect(tmp_path)
    catalog.register("boxed", sp.Arrow(rows), identity="id", semantic={"image": "image/jpeg-ref"})
    image = sp.Stack("image", decode="image", transforms=albumentations.HorizontalFlip())
    with pytest.raises(
        sp.errors.PlanError, match=r"where albumentations moves boxes.*Take a transform of spiral_stream"
    ):
        catalog.table("boxed").sample(order=sp.Sequential()).collate(
            batch_size=1, fields={"image": image, "boxes": sp.fields.Boxes("boxes", of="image")}
        )

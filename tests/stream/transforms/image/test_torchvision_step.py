"""Transforms of torchvision in a chain: keyed draws, no trace in torch's generator, and plans that make them again."""

import threading

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from spiral_stream.transforms.chain import as_steps
from spiral_stream.transforms.image.torchvision_step import Torchvision, installed_release
from tests.fixtures.scenes import smooth

PIXELS = smooth(70, 90)
RANDOM = [
    v2.RandomResizedCrop(48),
    v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    v2.RandomRotation(30, interpolation=InterpolationMode.BILINEAR, fill=3),
    v2.RandAugment(),
    v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10),
    v2.AugMix(),
    v2.ElasticTransform(),
    v2.RandomErasing(1.0, value="random"),
    v2.RandomChoice([v2.RandomRotation(30), v2.ColorJitter(0.5)], p=[0.5, 0.5]),
    v2.RandomOrder([v2.ColorJitter(0.5), v2.RandomAffine(20)]),
    v2.RandomApply([v2.GaussianBlur(5)], p=0.9),
    v2.RandomCrop(40, padding=4),
]


def step(transform) -> Torchvision:
    [made] = as_steps([transform])
    return made


@pytest.mark.parametrize("transform", RANDOM, ids=lambda each: type(each).__name__)
def test_pixels_follow_from_the_key_alone(transform):
    made = step(transform)
    outs = [made.apply(PIXELS.copy(), np.uint64(key)) for key in range(4)]
    before = torch.get_rng_state()
    torch.rand(5)
    torch.set_rng_state(before)

    assert all(np.array_equal(made.apply(PIXELS.copy(), np.uint64(key)), outs[key]) for key in range(4))
    assert len({out.tobytes() for out in outs}) > 1
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_draw_apart_from_each_other_and_from_the_users_generator():
    made = step(v2.Compose([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]))
    expected = [made.apply(PIXELS.copy(), np.uint64(key)) for key in range(24)]
    torch.manual_seed(5)
    alone = torch.rand(400)
    torch.manual_seed(5)
    found: dict[int, np.ndarray] = {}

    def work(first: int) -> None:
        for key in range(first, 24, 3):
            found[key] = made.apply(PIXELS.copy(), np.uint64(key))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for each in threads:
        each.start()
    mine = torch.cat([torch.rand(1) for _ in range(400)])
    for each in threads:
        each.join()

    assert torch.equal(mine, alone)
    assert all(np.array_equal(found[key], expected[key]) for key in range(24))


def test_torch_works_on_one_core_while_a_step_runs_and_then_on_as_many_as_before():
    made, seen, before = step(v2.ColorJitter(contrast=0.5)), [], torch.get_num_threads()
    torch.set_num_threads(2)

    try:
        made.call(
            lambda types: seen.append(torch.get_num_threads()) or types.Image(torch.zeros(3, 4, 4, dtype=torch.uint8)),
            np.uint64(1),
        )
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_step_is_its_class_and_parameters_and_the_version():
    made = step(v2.ColorJitter(0.4))

    assert made == step(v2.ColorJitter(brightness=0.4))
    assert made != step(v2.ColorJitter(0.5))
    assert made.release == installed_release()
    with pytest.raises(
        PlanError, match=r"ColorJitter: the plan was made with torchvision 0\.1, here is .*make the plan again"
    ):
        Torchvision(made.config, "0.1")


def test_a_compose_becomes_its_parts_and_types_are_left_to_the_field():
    found = as_steps(
        [
            v2.Compose(
                [
                    v2.ToImage(),
                    v2.Resize(50),
                    v2.Compose([v2.RandomVerticalFlip()]),
                    v2.Normalize([0.5] * 3, [0.25] * 3),
                ]
            )
        ]
    )

    assert [type(each).__name__ for each in found] == ["Torchvision", "Torchvision", "Normalize"]
    assert found[2] == sp.Normalize((0.5,) * 3, (0.25,) * 3)


class Mine(v2.Transform):
    def transform(self, inpt, params):
        return inpt


class Dropped(torch.nn.Module):
    def forward(self, image):
        return image


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (v2.MixUp(num_classes=3), "mixes the samples of a batch"),
        (v2.ToDtype(torch.float32), "Give the field dtype="),
        (v2.Lambda(lambda x: x), "holds <function .* Give a function of a uint8"),
        (v2.RandomIoUCrop(), "chooses its crop by the boxes.*RandomResizedCrop"),
        (Mine(), "is no transform of torchvision.transforms.v2"),
        (Dropped(), "0 parameters without a default|cannot be read"),
        (sp.RandomHorizontalFlip, r"is a class; a chain takes transforms. Give RandomHorizontalFlip\(\.\.\.\)"),
        ("flip", "is not an image transform. Give one of RandomResizedCrop.*ColorJitter"),
    ],
)
def test_what_cannot_stand_in_a_chain_is_refused(transform, says):
    from spiral_stream.transforms.chain import compile_chain

    with pytest.raises(PlanError, match=says):
        compile_chain(as_steps([transform]), dtype="uint8", layout="nchw")


@pytest.mark.parametrize(
    "text", ['{"class": "system", "of": {}}', '{"class": "InterpolationMode", "of": {}}', "[]", "{", '{"class": 3}']
)
def test_a_text_makes_transforms_of_torchvision_only(text):
    with pytest.raises(PlanError, match="is no transform of torchvision"):
        Torchvision(text, installed_release())


def test_a_transform_that_fails_or_returns_something_else_is_named():
    with pytest.raises(DataError, match=r"RandomCrop of torchvision failed: ValueError: Required crop size"):
        step(v2.RandomCrop(200)).apply(PIXELS.copy(), np.uint64(1))
    with pytest.raises(DataError, match=r"Grayscale of torchvision returned .*a uint8 image of three channels"):
        step(v2.Grayscale(1)).apply(PIXELS.copy(), np.uint64(1))


def test_a_random_operation_without_a_generator_is_refused():
    made = step(v2.RandomApply([v2.ColorJitter(0.4)], p=1.0))
    from spiral_stream.transforms.image.torchvision_step import drawing_mode

    with pytest.raises(RuntimeError, match="takes no generator"), drawing_mode()(torch.Generator()):
        torch.native_dropout(torch.ones(8), 0.5, True)
    assert made.apply(PIXELS.copy(), np.uint64(1)).shape == PIXELS.shape


def test_masks_go_through_the_same_geometry():
    mask = np.random.default_rng(0).integers(0, 5, (70, 90, 1), dtype=np.uint8)
    crop, jitter = step(v2.RandomResizedCrop(48)), step(v2.ColorJitter(0.4))
    image = np.repeat(mask, 3, axis=2) * 50

    assert set(np.unique(crop.apply_to_mask(mask, np.uint64(4)))) <= set(range(5))
    assert np.array_equal(jitter.apply_to_mask(mask.copy(), np.uint64(4)), mask)
    apart = np.abs(
        crop.apply(image, np.uint64(4))[:, :, :1].astype(int) - crop.apply_to_mask(mask, np.uint64(4)).astype(int) * 50
    )
    assert np.median(apart) < 60


def test_sizes_after_a_transform_are_found_by_trying():
    assert step(v2.RandomResizedCrop((32, 40))).size_after(None) == (32, 40)
    assert step(v2.ColorJitter(0.4)).size_after(None) is None
    assert step(v2.ColorJitter(0.4)).size_after((32, 40)) == (32, 40)
    assert step(v2.Pad(2)).size_after((32, 40)) == (36, 44)
    assert step(v2.RandomChoice([v2.Resize((8, 8)), v2.Resize((9, 9))])).size_after(None) is None

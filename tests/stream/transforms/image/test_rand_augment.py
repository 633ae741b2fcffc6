"""RandAugment: each operation next to torchvision's of the same magnitude."""

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

import spiral_stream as sp
from spiral_stream.errors import PlanError
from spiral_stream.transforms.image.rand_augment import OPERATIONS
from tests.fixtures.scenes import smooth

SIGNED = OPERATIONS[1:10]
STEP = sp.transforms.RandAugment(1, 9)


def key_of(name, sign):
    return next(np.uint64(k) for k in range(5_000) if STEP.operations(np.uint64(k)) == [(name, sign)])


def magnitude(name, sign, height, width):
    levels, signed = v2.RandAugment._AUGMENTATION_SPACE[name]
    found = levels(31, height, width)
    return 0.0 if found is None else float(found[9]) * (sign if signed else 1)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_an_operation_is_that_of_torchvision(name, sign):
    pixels = smooth(60, 84)
    out = STEP.apply(pixels.copy(), key_of(name, sign))
    other = v2.RandAugment()._apply_image_or_video_transform(
        torch.from_numpy(pixels).permute(2, 0, 1),
        *(name, magnitude(name, sign, 60, 84)),
        interpolation=InterpolationMode.NEAREST,
        fill={},
    )
    apart = np.abs(out.astype(int) - other.permute(1, 2, 0).numpy().astype(int)).max(axis=2)

    assert (apart > 1).mean() < 0.001


def test_masks_and_points_follow_what_moves_pixels():
    mask = np.random.default_rng(0).integers(1, 9, (60, 84, 1), dtype=np.uint8)
    for name in OPERATIONS:
        key = key_of(name, 1)
        moved = STEP.matrix(60, 84, key)
        assert (moved is None) == np.array_equal(STEP.apply_to_mask(mask, key), mask) == (name not in OPERATIONS[1:6])
    both = next(
        np.uint64(k)
        for k in range(5_000)
        if [n for n, _ in sp.transforms.RandAugment(2).operations(np.uint64(k))] == ["Rotate", "ShearX"]
    )
    assert sp.transforms.RandAugment(2).matrix(60, 84, both).shape == (2, 3)


def test_every_operation_is_drawn_about_equally_often():
    names = [name for key in range(1_000) for name, _ in sp.transforms.RandAugment(2).operations(np.uint64(key))]

    assert all(90 < names.count(each) < 200 for each in OPERATIONS)


@pytest.mark.parametrize(
    "options", [{"num_ops": -1}, {"magnitude": 31}, {"interpolation": "cubic"}, {"num_magnitude_bins": 1}]
)
def test_a_parameter_out_of_range_is_refused(options):
    with pytest.raises(PlanError, match=f"RandAugment: {next(iter(options))}"):
        sp.transforms.RandAugment(**options)

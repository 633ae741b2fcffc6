"""Rotation and affine maps next to torchvision's functions of the same parameters."""

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

import spiral_stream as sp
from spiral_stream.errors import PlanError
from spiral_stream.transforms.image.warp import affine, from_corner, warped
from tests.fixtures.scenes import smooth

CASES = [
    (0.0, (0.0, 0.0), 1.0, (0.0, 0.0)),
    (33.3, (0.0, 0.0), 1.0, (0.0, 0.0)),
    (-170.0, (5.0, -3.0), 0.8, (0.0, 0.0)),
    (12.0, (-4.0, 7.0), 1.3, (10.0, -8.0)),
]
FILL = (9, 80, 200)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_warp_is_that_of_torchvision(case, mode):
    pixels = smooth(61, 83)
    angle, shift, scale, shear = case
    out = warped(pixels, affine(*case), bytes(FILL), linear=mode == "bilinear")
    other = tv.affine(
        torch.from_numpy(pixels).permute(2, 0, 1),
        *(angle, [int(n) for n in shift], scale, list(shear)),
        interpolation=InterpolationMode(mode),
        fill=[float(n) for n in FILL],
    )
    apart = np.abs(out.astype(int) - other.permute(1, 2, 0).numpy()).max(axis=2)

    assert (apart > 1).mean() < 0.001
    assert mode == "nearest" or apart.max() <= 1


@pytest.mark.parametrize("case", CASES)
def test_points_go_where_the_points_of_torchvision_go(case):
    angle, shift, scale, shear = case
    points = np.array([[0.0, 0.0], [83.0, 61.0], [20.5, 7.0]])
    moved = from_corner(affine(*case), 61, 83)
    given = tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=(61, 83))
    other = tv.affine(given, angle, [int(n) for n in shift], scale, list(shear))

    assert np.abs(points @ moved[:, :2].T + moved[:, 2] - other.numpy()).max() < 1e-3


def test_a_rotation_turns_as_torchvision_does_and_masks_with_it():
    pixels = smooth(60, 60)
    step = sp.transforms.RandomRotation((90, 90))
    mask = np.arange(3600, dtype=np.uint16).reshape(60, 60, 1)

    assert np.array_equal(step.apply(pixels.copy(), np.uint64(1)), np.rot90(pixels))
    assert np.array_equal(step.apply_to_mask(mask, np.uint64(1)), np.rot90(mask))


def test_masks_are_filled_with_their_own_value_and_get_no_other():
    mask = np.full((40, 50, 1), 7, np.uint8)
    step = sp.transforms.RandomAffine(45, (0.2, 0.2), (0.5, 0.9), 20, interpolation="bilinear", mask_fill=255)

    assert {int(v) for key in range(20) for v in np.unique(step.apply_to_mask(mask, np.uint64(key)))} == {7, 255}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sp.transforms.RandomRotation(-1), r"degrees is -1\. Give a number from 0 on"),
        (lambda: sp.transforms.RandomRotation(10, interpolation="cubic"), r'Give "nearest" or "bilinear"'),
        (lambda: sp.transforms.RandomRotation(10, fill=300), r"fill is .*0 to 255"),
        (lambda: sp.transforms.RandomRotation(10, mask_fill=-1), "mask_fill is -1"),
        (lambda: sp.transforms.RandomAffine(10, translate=(2, 0)), "translate is .*fractions of width and height"),
        (lambda: sp.transforms.RandomAffine(10, scale=(0, 1)), "scale is"),
        (lambda: sp.transforms.RandomAffine(10, shear=90), "shear is"),
    ],
)
def test_a_parameter_out_of_range_is_refused(make, says):
    with pytest.raises(PlanError, match=says):
        make()

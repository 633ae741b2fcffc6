"""Colours and blur next to torchvision's functions of the same parameters."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as tv

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from spiral_stream.transforms import _augment
from spiral_stream.transforms.image.color import adjust, blurred
from tests.fixtures.scenes import smooth

NOISE = np.random.default_rng(1).integers(0, 256, (61, 77, 3), dtype=np.uint8)
REFERENCE = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
KEY = np.uint64(7)


def theirs(pixels):
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def apart(ours, other):
    return np.abs(ours.astype(int) - other.permute(1, 2, 0).numpy().astype(int))


@pytest.mark.parametrize("pixels", [smooth(), NOISE, np.full((5, 7, 3), 200, np.uint8)])
@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("factor", [0.0, 0.3, 0.5])
def test_an_adjustment_differs_from_torchvision_by_at_most_one(pixels, kind, factor):
    for value in (factor, -factor if kind == 3 else 2 - factor):
        out = pixels.copy()
        adjust(out, [(kind, value)])

        assert apart(out, REFERENCE[kind](theirs(pixels), value)).max() <= 1


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_four_adjustments_in_a_row_stay_close_to_torchvision(order):
    factors = (1.3, 0.6, 1.4, 0.1)
    for pixels in (smooth(), NOISE):
        out, other = pixels.copy(), theirs(pixels)
        adjust(out, [(kind, factors[kind]) for kind in order])
        for kind in order:
            other = REFERENCE[kind](other, factors[kind])
        difference = apart(out, other)

        assert difference.max() <= 4
        assert (difference > 2).mean() < 0.002


def test_gray_is_the_gray_of_torchvision():
    out = sp.transforms.Grayscale().apply(NOISE.copy(), KEY)

    assert apart(out, tv.rgb_to_grayscale(theirs(NOISE), 3)).max() == 0


@pytest.mark.parametrize(("down", "across", "sigma"), [(3, 3, 0.4), (9, 5, 1.0), (23, 23, 2.0)])
def test_blur_differs_from_torchvision_by_at_most_one(down, across, sigma):
    for pixels in (smooth(), NOISE):
        out = blurred(pixels, sigma, down, across)

        assert apart(out, tv.gaussian_blur(theirs(pixels), [across, down], [sigma, sigma])).max() <= 1


def test_a_jitter_draws_its_order_and_factors_from_the_key():
    jitter = sp.transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
    outs = [jitter.apply(NOISE.copy(), np.uint64(key)) for key in range(6)]

    assert all(np.array_equal(jitter.apply(NOISE.copy(), np.uint64(key)), outs[key]) for key in range(6))
    assert len({out.tobytes() for out in outs}) == 6
    assert np.array_equal(sp.transforms.ColorJitter(0.4, p=0.0).apply(NOISE.copy(), KEY), NOISE)
    assert np.array_equal(sp.transforms.ColorJitter().apply(NOISE.copy(), KEY), NOISE)


@pytest.mark.parametrize(
    "step",
    [sp.transforms.RandomGrayscale(0.3), sp.transforms.GaussianBlur(5, p=0.3), sp.transforms.ColorJitter(0.5, p=0.3)],
)
def test_a_probability_is_that_of_the_changed_images(step):
    changed = [
        not np.array_equal(step.apply(NOISE[:9, :9].copy(), np.uint64(key)), NOISE[:9, :9]) for key in range(400)
    ]

    assert 0.2 < np.mean(changed) < 0.4


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sp.transforms.ColorJitter(brightness=-1), r"brightness is -1\. Give a number from 0 on"),
        (lambda: sp.transforms.ColorJitter(hue=0.6), r"hue is .*from -0.5 to 0.5"),
        (lambda: sp.transforms.ColorJitter(contrast=(2, 1)), r"contrast is \(2, 1\)\. Give \(least, most\)"),
        (lambda: sp.transforms.ColorJitter(p=2), r"p is 2; it must be a number from 0 to 1"),
        (lambda: sp.transforms.GaussianBlur(4), r"kernel_size is 4\. Give an odd number"),
        (lambda: sp.transforms.GaussianBlur(3, sigma=0), r"sigma is \(0, 0\)"),
        (lambda: sp.transforms.RandomGrayscale(float("nan")), "p is nan"),
    ],
)
def test_a_parameter_out_of_range_is_refused(make, says):
    with pytest.raises(PlanError, match=says):
        make()


def test_an_image_smaller_than_the_kernel_is_named():
    with pytest.raises(
        DataError, match=r"the image is 9 x 9 there, too small for a kernel of 23 x 23.*smaller kernel_size"
    ):
        sp.transforms.GaussianBlur(23).apply(NOISE[:9, :9].copy(), KEY)


@pytest.mark.parametrize(
    "call",
    [
        lambda: _augment.adjust(np.zeros(4, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.float32)),
        lambda: _augment.adjust(np.zeros(3, np.uint8), np.array([9], np.int32), np.zeros(1, np.float32)),
        lambda: _augment.adjust(np.zeros(3, np.uint8), np.zeros(1, np.int32), np.array([np.nan], np.float32)),
        lambda: _augment.blur(bytes(27), bytearray(27), 3, 3, np.ones(9, np.float32), np.ones(1, np.float32)),
        lambda: _augment.blur(bytes(27), bytearray(26), 3, 3, np.ones(1, np.float32), np.ones(1, np.float32)),
        lambda: _augment.warp(bytes(27), bytearray(27), 3, 3, np.full(6, np.inf, np.float32), bytes(3), True),
        lambda: _augment.warp(bytes(9), bytearray(9), 3, 3, np.zeros(6, np.float32), bytes(1), True),
        lambda: _augment.look_up(bytearray(3), np.zeros((2, 256), np.uint8)),
        lambda: _augment.count(bytes(4), np.zeros((3, 256), np.int64)),
        lambda: _augment.sharpen(bytes(27), bytearray(27), 4, 3, 1.0),
    ],
)
def test_buffers_that_do_not_fit_are_refused(call):
    with pytest.raises(ValueError, match="give"):
        call()

import functools

import numpy as np
import pytest

from spiral_stream.errors import DataError, PlanError
from spiral_stream.transforms.function_step import call, wrapped

PIXELS = np.zeros((4, 5, 3), np.uint8)
KEY = np.uint64(9)


def noise(pixels, generator):
    return pixels + generator.integers(0, 9, pixels.shape, dtype=np.uint8)


def test_a_second_parameter_is_a_generator_of_the_sample():
    step = wrapped(noise)

    assert step.random
    assert np.array_equal(call(step, PIXELS, KEY), call(step, PIXELS, KEY))
    assert not np.array_equal(call(step, PIXELS, KEY), call(step, PIXELS, np.uint64(10)))
    assert not wrapped(lambda pixels, strength=2: pixels).random
    assert not wrapped(functools.partial(noise, generator=None)).random


@pytest.mark.parametrize("function", [lambda: 0, lambda a, b, c: a, lambda *all_: 0, max])
def test_other_parameters_are_refused(function):
    with pytest.raises(PlanError, match=r"Give a (Python )?function of a uint8 \[H, W, 3\] array"):
        wrapped(function)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda pixels: pixels / 2, r"returned float64 \(4, 5, 3\)\. Return an array uint8 \[H, W, 3\]"),
        (lambda pixels: pixels[:, :, 0], r"returned uint8 \(4, 5\)"),
        (lambda pixels: pixels[:0], r"returned uint8 \(0, 5, 3\)"),
        (lambda pixels: None, "returned NoneType"),
        (lambda pixels: 1 // 0, "failed: ZeroDivisionError"),
    ],
)
def test_what_a_function_does_wrong_is_named(function, says):
    with pytest.raises(DataError, match=says):
        call(wrapped(function), PIXELS, KEY)

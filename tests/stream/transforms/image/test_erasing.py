import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.errors import PlanError
from tests.fixtures.scenes import smooth


def test_erased_boxes_have_the_area_and_ratio_that_were_asked_for():
    step = sp.transforms.RandomErasing(0.75, scale=(0.1, 0.2), ratio=(0.5, 2.0))
    boxes = [step.box(200, 300, np.uint64(key)) for key in range(400)]
    found = [box for box in boxes if box is not None]

    assert 0.68 < len(found) / 400 < 0.82
    for top, left, h, w in found:
        assert 0 <= top <= 200 - h
        assert 0 <= left <= 300 - w
        assert 0.09 < h * w / 60_000 < 0.21
        assert 0.48 < h / w < 2.05


@pytest.mark.parametrize("value", [0, (124, 116, 104), "random"])
def test_only_the_box_changes(value):
    pixels = smooth()
    step = sp.transforms.RandomErasing(1.0, value=value)
    out = step.apply(pixels.copy(), np.uint64(3))
    top, left, h, w = step.box(*pixels.shape[:2], np.uint64(3))
    inside = np.zeros(pixels.shape[:2], bool)
    inside[top : top + h, left : left + w] = True

    assert np.array_equal(out[~inside], pixels[~inside])
    assert np.array_equal(out, step.apply(pixels.copy(), np.uint64(3)))
    if value == "random":
        assert 50 < out[inside].std() < 90
    else:
        assert (out[inside] == value).all()


@pytest.mark.parametrize(
    "options", [{"p": 2}, {"scale": (0.5, 2)}, {"ratio": (0, 1)}, {"value": "noise"}, {"value": 256}]
)
def test_a_parameter_out_of_range_is_refused(options):
    with pytest.raises(PlanError, match=f"RandomErasing: {next(iter(options))}"):
        sp.transforms.RandomErasing(**options)

"""Each step moves boxes: inside the image, to the size that it says beforehand. Pixels are compared in `test_image`."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Normalize, RandomHorizontalFlip, RandomResizedCrop
from spiral_stream.errors import DataError, PlanError
from spiral_stream.transforms import CenterCrop, ImageTransform, Placement, RandomCrop, Resize, Transform
from spiral_stream.transforms.image.crop_and_resize import TRANSFORMS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN = (RandomResizedCrop(32), RandomHorizontalFlip(), Normalize(MEAN, STD))
SIDES = st.integers(1, 60)
SIZES = SIDES | st.tuples(SIDES, SIDES)
RESIZES = st.builds(Resize, SIZES) | st.builds(RandomResizedCrop, SIZES)
CROPS = st.builds(CenterCrop, SIZES) | st.builds(RandomCrop, SIZES) | st.builds(RandomHorizontalFlip, st.floats(0, 1))
CHAINS = st.tuples(st.lists(CROPS, max_size=2), st.lists(RESIZES, max_size=1), st.lists(CROPS, max_size=2)).map(
    lambda parts: [step for part in parts for step in part]
)


def placed(steps: list[ImageTransform], height: int, width: int, images: int, seed: int) -> Placement:
    random = np.random.default_rng(seed)
    at = Placement.untouched(np.full(images, height, np.int32), np.full(images, width, np.int32))
    resized = False
    for step in steps:
        at = step.place(at, lambda n: random.random((images, n)), resized=resized)
        resized = resized or step.RESIZES
    return at


@given(steps=CHAINS, height=SIDES, width=SIDES, seed=st.integers(0, 99))
def test_a_chain_keeps_to_the_image_and_to_the_size_it_says(
    steps: list[ImageTransform], height: int, width: int, seed: int
) -> None:
    size: tuple[int, int] | None = (height, width)
    for step in steps:
        small = isinstance(step, CenterCrop | RandomCrop) and np.min(np.subtract(size, step.size)) < 0
        if small:
            with pytest.raises(DataError, match=r"smaller than .* asked for\. Put Resize\(") as caught:
                placed(steps, height, width, 5, seed)
            assert caught.value.row == 0
            return
        size = step.size_after(size)
    at = placed(steps, height, width, 5, seed)

    assert size is not None
    assert (set(at.window_h.tolist()), set(at.window_w.tolist())) == ({size[0]}, {size[1]})
    assert (at.top >= 0).all() and (at.top + at.height <= height).all() and (at.height > 0).all()  # noqa: PT018
    assert (at.left >= 0).all() and (at.left + at.width <= width).all() and (at.width > 0).all()  # noqa: PT018
    assert (at.window_top >= 0).all() and (at.window_top + at.window_h <= at.resized_h).all()  # noqa: PT018
    assert (at.window_left >= 0).all() and (at.window_left + at.window_w <= at.resized_w).all()  # noqa: PT018


@given(steps=CHAINS, height=SIDES, width=SIDES, seeds=st.tuples(st.integers(0, 9), st.integers(10, 19)))
def test_a_step_that_calls_itself_deterministic_does_not_look_at_what_is_drawn(
    steps: list[ImageTransform], height: int, width: int, seeds: tuple[int, int]
) -> None:
    sure = [step for step in steps if step.deterministic]
    try:
        one, other = (asdict(placed(sure, height, width, 3, seed)) for seed in seeds)
    except DataError:
        return
    assert {name: value.tolist() for name, value in one.items()} == {name: v.tolist() for name, v in other.items()}


@given(crop=SIDES, height=SIDES, width=SIDES)
def test_a_mirrored_window_lies_where_it_does_in_the_mirrored_image(crop: int, height: int, width: int) -> None:
    if crop > min(height, width):
        return
    plain, mirrored = (
        placed([*first, RandomCrop(crop)], height, width, 4, 3) for first in ([], [RandomHorizontalFlip(1.0)])
    )
    drawn = np.random.default_rng(3)
    drawn.random((4, 1))  # what the flip draws
    u = drawn.random((4, 2))

    top = np.floor(u[:, 0] * (height - crop + 1)).astype(np.int64)
    assert mirrored.top.tolist() == top.tolist()
    assert mirrored.flip.all()
    assert not plain.flip.any()
    left = np.floor(u[:, 1] * (width - crop + 1)).astype(np.int64)
    assert mirrored.left.tolist() == (width - crop - left).tolist()


@given(size=SIZES, data=st.data())
def test_boxes_have_the_area_and_ratio_that_were_asked_for(size: Any, data: st.DataObject) -> None:
    """In an image that is large enough for every box of these."""
    low = data.draw(st.floats(0.05, 0.2))
    high = data.draw(st.floats(low, 0.2))
    at = placed([RandomResizedCrop(size, scale=(low, high))], 400, 400, 50, data.draw(st.integers(0, 99)))
    slack = 0.5 / np.minimum(at.height, at.width)  # half a pixel of each side

    assert (at.height * at.width >= 400 * 400 * low * (1 - 3 * slack)).all()
    assert (at.height * at.width <= 400 * 400 * high * (1 + 3 * slack)).all()
    assert (at.width / at.height >= 3 / 4 * (1 - 3 * slack)).all()
    assert (at.width / at.height <= 4 / 3 * (1 + 3 * slack)).all()


@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (lambda: RandomResizedCrop(0), "Give a whole number of pixels"),
        (lambda: RandomResizedCrop(224.0), "Give a whole number of pixels"),
        (lambda: CenterCrop((1, 2, 3)), "Give a whole number of pixels"),
        (lambda: Resize("224"), "Give a whole number of pixels"),
        (lambda: Resize(True), "Give a whole number of pixels"),
        (lambda: RandomResizedCrop(4, scale=(0.5, 0.1)), "0 < low <= high"),
        (lambda: RandomResizedCrop(4, scale=(0.5, 1.5)), "its upper end is at most 1.0"),
        (lambda: RandomResizedCrop(4, ratio=(0, 1)), "0 < low <= high"),
        (lambda: RandomResizedCrop(4, ratio=1.0), "0 < low <= high"),
        (lambda: RandomHorizontalFlip(1.1), "a number from 0 to 1"),
        (lambda: Normalize([0.5], [0.5]), "Give three numbers"),
        (lambda: Normalize(MEAN, (1, 0, 1)), "every entry must be greater than 0"),
        (lambda: Normalize((float("nan"), 0, 0), STD), "Give three numbers"),
    ],
)
def test_bad_fields_are_refused_at_birth(make, way_out):
    with pytest.raises(PlanError, match=way_out):
        make()


def test_lists_become_tuples_and_fields_are_json_values():
    assert Normalize(list(MEAN), list(STD)) == Normalize(MEAN, STD)
    assert RandomResizedCrop([224], scale=[0.1, 1], ratio=[1, 2]) == RandomResizedCrop(224, (0.1, 1.0), (1.0, 2.0))
    assert asdict(Resize([8, 9])) == {"size": (8, 9), "interpolation": "bilinear"}
    assert hash(RandomResizedCrop(224)) == hash(RandomResizedCrop([224]))


def test_evaluation_replaces_what_draws():
    assert RandomResizedCrop(224).evaluation() == (Resize(256), CenterCrop(224))
    assert RandomResizedCrop((64, 96)).evaluation() == (Resize(110), CenterCrop((64, 96)))
    assert RandomHorizontalFlip().evaluation() == ()
    assert Normalize(MEAN, STD).evaluation() == (Normalize(MEAN, STD),)
    for step in TRAIN:
        assert all(part.deterministic for part in step.evaluation())


def test_names_are_registered():
    assert all(issubclass(kind, Transform) and name == kind.NAME for name, kind in TRANSFORMS.items())

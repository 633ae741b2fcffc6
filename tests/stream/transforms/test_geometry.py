"""Boxes and points move as their pixels do, and as torchvision moves them."""

import numpy as np
import pytest
from torchvision.transforms import v2

import spiral_stream as sp
from spiral_stream.seeding import sample_keys
from spiral_stream.transforms.chain import as_steps, compile_chain
from spiral_stream.transforms.geometry import move_boxes, move_points, why_not

KEYS = sample_keys(5, 0, np.arange(80, dtype=np.uint64).reshape(40, 2), np.uint64(0))
CHAINS = {
    "crop": [sp.RandomResizedCrop(60, scale=(0.4, 1.0)), sp.RandomHorizontalFlip()],
    "window": [sp.transforms.Resize((70, 90)), sp.RandomHorizontalFlip(), sp.transforms.RandomCrop(64)],
    "again": [
        sp.RandomResizedCrop(60),
        sp.transforms.ColorJitter(0.2),
        sp.RandomHorizontalFlip(1.0),
        sp.transforms.RandomCrop(50),
        sp.RandomHorizontalFlip(),
    ],
    "affine": [sp.transforms.RandomAffine(0, (0.2, 0.2), (0.8, 1.3)), sp.RandomResizedCrop(60)],
    "rotation": [sp.RandomResizedCrop(64, scale=(0.6, 1.0)), sp.transforms.RandomRotation(40)],
    "augment": [sp.RandomResizedCrop(64, scale=(0.6, 1.0)), sp.transforms.RandAugment(2, 9)],
    "torchvision": [
        v2.RandomResizedCrop(64),
        v2.RandomHorizontalFlip(),
        sp.RandomHorizontalFlip(),
        v2.RandomAffine(15),
    ],
}


def compiled(name):
    return compile_chain(as_steps(CHAINS[name]), dtype="uint8", layout="nhwc")


@pytest.mark.parametrize("name", CHAINS)
def test_a_box_encloses_the_pixels_that_were_in_it(name):
    program = compiled(name)
    image = np.full((80, 100, 3), 40, np.uint8)
    image[20:50, 30:70] = 255
    box = np.array([[30.0, 20.0, 70.0, 50.0]])
    out = np.empty((1, *program.output_shape), np.uint8)
    exact = "rotation" not in name and "augment" not in name
    seen = 0
    for key in KEYS[:20]:
        plain = [np.full_like(image, 40), image.copy()]
        shown = []
        for pixels in plain:
            program.run([pixels], np.array([key]), out)
            shown.append(out[0].astype(int).sum(axis=2).copy())
        rows, columns = np.nonzero(np.abs(shown[1] - shown[0]) > 200)
        boxes, left = move_boxes(program, box, (80, 100), key)
        if not len(rows) or name == "augment":  # an operation may hide the square
            continue
        seen += 1
        assert left.tolist() == [0]
        found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        assert (boxes[0, :2] <= found[:2] + 1.5).all()
        assert (boxes[0, 2:] >= found[2:] - 1.5).all()
        if exact and name != "torchvision":
            assert np.abs(boxes[0] - found).max() <= 1.6
    assert seen > 10 or name == "augment"


@pytest.mark.parametrize("name", CHAINS)
def test_points_are_the_corners_of_their_boxes_where_nothing_turns(name):
    program = compiled(name)
    points = np.array([[30.0, 20.0], [70.0, 50.0]])
    for key in KEYS[:10]:
        moved, size = move_points(program, points, (80, 100), key)
        boxes, left = move_boxes(program, points.reshape(1, 4), (80, 100), key)
        assert size == program.output_shape[:2]
        if name in ("rotation", "augment", "torchvision") or not len(left):
            continue
        low, high = moved.min(axis=0), moved.max(axis=0)
        limits = np.array([size[1], size[0]])
        assert (
            np.allclose(boxes[0], [*np.clip(low, 0, limits), *np.clip(high, 0, limits)], atol=1e-6) or name == "affine"
        )


def test_a_box_that_is_cut_away_stays_away():
    program = compile_chain(
        (sp.transforms.CenterCrop(20), sp.transforms.RandomRotation((45, 45))), dtype="uint8", layout="nhwc"
    )
    boxes, left = move_boxes(program, np.array([[0.0, 0, 30, 30], [45, 45, 55, 55]]), (100, 100), KEYS[0])

    assert left.tolist() == [1]
    assert (boxes[0] > 0).all()


def test_no_boxes_are_no_boxes():
    for name in CHAINS:
        assert move_boxes(compiled(name), np.empty((0, 4)), (80, 100), KEYS[0])[0].shape == (0, 4)


def test_steps_that_say_nothing_about_boxes_are_named():
    for step, name in ((lambda pixels: pixels, "function"), (v2.RandAugment(), "RandAugment of torchvision")):
        assert name in why_not(compile_chain(as_steps([step]), dtype="uint8", layout="nhwc"))
    assert why_not(compiled("torchvision")) is None

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.boxes import padded

FIXED, LOOSE = pa.list_(pa.list_(pa.float32(), 4)), pa.list_(pa.list_(pa.int64()))
BOXES = [[[1, 2, 11, 12], [0, 0, 5, 5]], [], [[3, 3, 4, 9]]]


@pytest.mark.parametrize("kind", [FIXED, LOOSE, pa.list_(pa.float64())])
def test_boxes_come_from_lists_of_every_kind(kind):
    flat = [[n for box in row for n in box] for row in BOXES]
    values = pa.array(flat if pa.types.is_floating(kind.value_type) else BOXES, kind)
    field = sp.fields.Boxes("b", of="image")
    field.spec(pa.field("b", kind))

    assert [field.rows(values.slice(1), at).tolist() for at in range(2)] == BOXES[1:]
    assert field.rows(values, 0).tolist() == BOXES[0]


@pytest.mark.parametrize(
    ("form", "box"), [("xyxy", [2, 4, 12, 10]), ("xywh", [2, 4, 10, 6]), ("cxcywh", [7, 7, 10, 6])]
)
def test_formats_come_in_and_go_out(form, box):
    field = sp.fields.Boxes("b", of="image", format=form)
    corners = field.corners(pa.array([[box]], FIXED), 0, 50, 60)

    assert corners.tolist() == [[2, 4, 12, 10]]
    assert field.formatted(corners).tolist() == [box]


def test_fractions_count_the_sides_of_the_image():
    field = sp.fields.Boxes("b", of="image", relative=True)

    assert field.corners(pa.array([[[0.1, 0.5, 0.2, 1.0]]], pa.list_(pa.list_(pa.float64()))), 0, 50, 60).tolist() == [
        [6, 25, 12, 50]
    ]


@pytest.mark.parametrize(
    ("box", "says"),
    [
        ([1, 1, float("nan"), 4], r"Boxes\('b'\): box 1 \(1, 1, nan, 4\) is NaN or infinite\. Filter it out"),
        ([5, 1, 3, 4], "box 1 .* has no area. Check that format='xyxy'"),
        ([50, 1, 70, 4], r"box 1 .* stands out of its image of 50 x 60 .*outside=\"clip\""),
        ([-9, 1, 3, 4], "stands out of its image"),
    ],
)
def test_a_bad_box_is_named(box, says):
    values = pa.array([[[0, 0, 1, 1], box]], FIXED)
    with pytest.raises(DataError, match=says):
        sp.fields.Boxes("b", of="image").corners(values, 0, 50, 60)


def test_a_box_may_stand_out_by_a_pixel_or_be_clipped():
    values = pa.array([[[-0.5, 0, 60.5, 50]]], FIXED)

    assert len(sp.fields.Boxes("b", of="image").corners(values, 0, 50, 60)) == 1
    assert (
        len(sp.fields.Boxes("b", of="image", outside="clip").corners(pa.array([[[50, 1, 70, 4]]], FIXED), 0, 50, 60))
        == 1
    )


@pytest.mark.parametrize("values", [[None], [[[1, 2, 3]]], [[[1, 2, 3, None]]], [[None]]])
def test_entries_that_are_not_four_numbers_are_named(values):
    with pytest.raises(DataError, match=r"Boxes\('b'\)"):
        sp.fields.Boxes("b", of="image").rows(pa.array(values, LOOSE), 0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sp.fields.Boxes("b", of="i", format="yxyx"), "format is one of xyxy, xywh, cxcywh"),
        (lambda: sp.fields.Boxes("b", of="i", min_side=0), "min_side is above 0"),
        (lambda: sp.fields.Boxes("b", of="i", relative=1), "Give True or False"),
        (lambda: sp.fields.KeyPoints("b", of="i", outside="drop"), 'outside is "keep" or "nan"'),
        (lambda: sp.fields.Boxes("b", of="").spec(pa.field("b", FIXED)), "Give the name of the field that it follows"),
        (
            lambda: sp.fields.Boxes("b", of="i").spec(pa.field("b", pa.list_(pa.utf8()))),
            "the column is list<.*string.* such as list<float",
        ),
        (lambda: sp.fields.BoxLabels("b", of="i").spec(pa.field("b", pa.int64())), "such as list<int>"),
    ],
)
def test_what_a_field_cannot_be_is_refused(make, says):
    with pytest.raises(PlanError, match=says):
        make()


def test_arrays_are_as_long_as_the_longest_and_padded():
    boxes = padded(sp.fields.Boxes("b", of="i"), [np.ones((2, 4)), None, np.ones((1, 4))], "float32")
    labels = padded(sp.fields.BoxLabels("b", of="i"), [np.array([5, 6]), None, np.array([7])], "int64")

    assert boxes.shape == (3, 2, 4)
    assert boxes.sum(axis=(1, 2)).tolist() == [8, 0, 4]
    assert labels.tolist() == [[5, 6], [-1, -1], [7, -1]]
    assert padded(sp.fields.KeyPoints("b", of="i"), [None], "float32").shape == (1, 0, 2)

"""How many patches an image has, how they are cut, and what is refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.fields import PatchGrid, PatchMask

SIDES = st.integers(1, 5_000)


@given(sizes=st.lists(st.tuples(SIDES, SIDES), max_size=8), side=st.integers(1, 40), most=st.integers(1, 2_000))
def test_an_image_gets_the_grid_that_transformers_gives_it(sizes: list[tuple[int, int]], side: int, most: int) -> None:
    module = pytest.importorskip("transformers.models.siglip2.image_processing_siglip2")
    grids = sp.fields.Patches("x", patch_size=side, max_patches=most).grids(np.array(sizes, np.int64).reshape(-1, 2))

    expected = [module.get_image_size_for_max_num_patches(*size, side, most) for size in sizes]
    assert (grids * side).tolist() == [list(each) for each in expected]


@given(sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8), most=st.integers(1, 2_000))
def test_no_image_has_more_patches_than_a_batch_has_room_for(sizes: list[tuple[int, int]], most: int) -> None:
    grids = sp.fields.Patches("x", max_patches=most).grids(np.array(sizes, np.int64))

    assert (grids >= 1).all()
    assert (grids.prod(axis=1) <= most).all()


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), side=st.integers(1, 5), count=st.integers(1, 3))
def test_patches_are_cut_row_by_row_and_put_together_again(rows: int, columns: int, side: int, count: int) -> None:
    field = sp.fields.Patches("x", patch_size=side)
    pixels = np.arange(count * rows * columns * side * side * 3).reshape(count, rows * side, columns * side, 3)
    out = np.zeros((count, rows * columns, side * side * 3), pixels.dtype)

    field.cut(pixels, out)

    for at in range(rows * columns):
        y, x = divmod(at, columns)
        expected = pixels[:, y * side : (y + 1) * side, x * side : (x + 1) * side]
        assert np.array_equal(out[:, at], expected.reshape(count, -1))
    assert np.array_equal(field.put_together(out[0], (rows, columns)), pixels[0])


@pytest.mark.parametrize(
    ("field", "way_out"),
    [
        (lambda: sp.fields.Patches("x", patch_size=0), "Give a whole number of at least 1"),
        (lambda: sp.fields.Patches("x", max_patches=-1), "Give a whole number of at least 1"),
        (lambda: sp.fields.Patches("x", decode="h264"), 'Give "jpeg", or "image"'),
        (lambda: sp.fields.Patches("x", dtype="int8"), "it is one of float32"),
        (lambda: PatchMask("x", dtype="float32"), "it is one of bool"),
        (lambda: PatchGrid("x", dtype="int8"), "it is one of int64"),
        (lambda: sp.fields.Patches("x").spec(pa.field("x", pa.int64())), "Give a column of images"),
    ],
)
def test_what_cannot_be_is_refused(field: Any, way_out: str) -> None:
    with pytest.raises(sp.errors.PlanError, match=way_out):
        field()

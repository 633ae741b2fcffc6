"""`Pad` of lists that are no tokens: every value at its place, padding elsewhere, and errors that name the row."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Pad, PadMask
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.pad import FLOATS
from spiral_stream.fields.sequence import WIDE

ITEMS = {
    "numbers": (pa.int16(), ()),
    "boxes": (pa.list_(pa.int16(), 3), (3,)),
    "tensors": (pa.fixed_shape_tensor(pa.int16(), [2, 3]), (2, 3)),
}

NUMPY_FLOATS = [dtype for dtype in FLOATS if dtype != "bfloat16"]  # which is in test_bfloat16


def filled(field: Pad | PadMask, values: pa.Array, width: int) -> np.ndarray:
    rows = field.rows(1, None)
    spec = rows.spec(pa.field("x", values.type))
    out = np.empty((len(values), width, *spec.shape[1:]), dtype=spec.dtype)
    assert rows.fill(values, out) is out
    return out


@st.composite
def drawn(draw: st.DrawFn) -> tuple[pa.Array, list[Any], tuple[int, ...]]:
    """Rows of values as Arrow has them, from the middle of an array, and as Python has them."""
    kind, shape = draw(st.sampled_from([ITEMS["boxes"], ITEMS["tensors"]]))
    count = int(np.prod(shape))
    item = st.lists(st.integers(-100, 100), min_size=count, max_size=count)
    rows = draw(st.lists(st.none() | st.lists(item, max_size=3), min_size=1, max_size=5))
    flat = pa.array([each for row in rows for each in row or []], pa.list_(pa.int16(), count))
    inner = pa.ExtensionArray.from_storage(kind, flat) if isinstance(kind, pa.BaseExtensionType) else flat
    ends = np.cumsum([0, *(len(row or []) for row in rows)])
    values = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inner, mask=pa.array([row is None for row in rows]))
    start = draw(st.integers(0, len(rows) - 1))
    return values.slice(start), rows[start:], shape


@given(drawn(), st.sampled_from([*WIDE, *NUMPY_FLOATS]), st.integers(-5, 5), st.integers(0, 2))
def test_values_lie_at_the_start_of_their_row_and_padding_after_them(
    case: tuple[pa.Array, list[Any], tuple[int, ...]], dtype: str, padding: int, more: int
) -> None:
    values, rows, shape = case
    width = max(len(row or []) for row in rows) + 1 + more
    found = filled(Pad("x", pad_value=padding, dtype=dtype), values, width)

    expected = np.full((len(rows), width, *shape), padding, dtype=dtype)
    for at, row in enumerate(rows):
        for place, item in enumerate(row or []):
            expected[at, place] = np.array(item).reshape(shape)
    assert found.dtype == dtype
    assert np.array_equal(found, expected)
    mask = filled(PadMask("x", dtype="bool"), values, width)
    assert mask.sum(axis=1).tolist() == [len(row or []) for row in rows]
    assert mask.tolist() == (np.arange(width) < mask.sum(axis=1)[:, None]).tolist()


@pytest.mark.parametrize("dtype", NUMPY_FLOATS)
def test_floats_keep_their_bits(dtype: str) -> None:
    values = pa.array([[1.5, -0.0, float("inf")], [], [float("nan")]], pa.large_list(pa.float32()))

    assert np.array_equal(
        filled(Pad("x", dtype=dtype, pad_value=-1), values, 4),
        np.array([[1.5, -0.0, np.inf, -1], [-1] * 4, [np.nan, -1, -1, -1]], dtype=dtype),
        equal_nan=True,
    )


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        (pa.array([[1.0], [2.0, None]]), "float32", "holds a null"),
        (pa.array([[[1, 2]], [[3, 4], None]], pa.list_(pa.list_(pa.int8(), 2))), "int64", "holds a null"),
        (pa.array([[[1, 2]], [[3, None]]], pa.list_(pa.list_(pa.int8(), 2))), "int64", "holds a null"),
        (pa.array([[1.0], [1e300]]), "float32", r"has 1e\+300, which does not fit dtype float32. Give a wider dtype"),
        (pa.array([[0.5], [1.0] * 9]), "float64", "has 9 values, above length=8. Raise it, or cut the row before"),
    ],
)
def test_a_row_that_cannot_be_padded_is_named(values: pa.Array, dtype: str, found: str) -> None:
    field = Pad("x", dtype=dtype).rows(1, 8)
    out = np.empty((2, 8, *field.spec(pa.field("x", values.type)).shape[1:]), dtype=dtype)
    with pytest.raises(DataError, match=rf"Pad\('x'\): the row {found}") as refused:
        field.fill(values, out)
    assert refused.value.row == 1


@pytest.mark.parametrize(
    ("field", "kind", "found"),
    [
        (Pad("x"), pa.list_(pa.float32()), r'dtype is int64. Say which floats: Pad\("x", dtype="float32"\)'),
        (Pad("x", dtype="float32"), pa.list_(pa.int32()), "the column holds integers. Give int64 or int32"),
        (Pad("x"), pa.list_(pa.utf8()), "not a list of integers"),
        (Pad("x"), pa.list_(pa.list_(pa.int64())), "not a list of integers"),
        (PadMask("x"), pa.list_(pa.timestamp("us")), "not a list of integers"),
        (Pad("x"), pa.list_(pa.float32(), 3), r'Values of equal length need no padding: use Stack\("x"\)'),
    ],
)
def test_columns_that_do_not_fit_are_refused(field: Pad, kind: pa.DataType, found: str) -> None:
    with pytest.raises(PlanError, match=found):
        field.spec(pa.field("x", kind))

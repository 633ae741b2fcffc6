"""`Stack`: the column's values exactly, in the dtype asked for, or an error that names the row."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Stack
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.stack import DTYPES
from spiral_stream.host_dtypes import numpy_dtype
from spiral_stream.semantic import with_semantic

NUMBERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
FLOATS = [pa.float32(), pa.float64()]


def fill(field: Stack, values: pa.Array) -> np.ndarray:
    spec = field.spec(pa.field(field.column, values.type))
    assert spec.dtype is not None
    out = np.empty((len(values), *(n for n in spec.shape if n is not None)), dtype=spec.dtype)
    result = field.fill(values, out)
    assert result is out
    return out


def outcome(field: Stack, values: pa.Array) -> tuple[np.ndarray, DataError | None]:
    try:
        return fill(field, values), None
    except DataError as error:
        return np.empty(0), error


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from([*NUMBERS, *FLOATS]))
    if kind in FLOATS:
        items: Any = st.floats(width=32, allow_nan=True, allow_infinity=True)
    else:
        info = np.iinfo(numpy_dtype(kind))
        items = st.integers(int(info.min), int(info.max))
    values = draw(st.lists(items, min_size=1, max_size=8))
    start = draw(st.integers(0, len(values) - 1))
    return pa.array(values, kind).slice(start)


@given(values=columns(), dtype=st.sampled_from([None, *DTYPES[:-1]]))
def test_values_are_kept_or_refused_never_changed(values: pa.Array, dtype: str | None) -> None:
    field = Stack("x", dtype=dtype)
    given_values = values.to_numpy(zero_copy_only=False)
    out, refused = outcome(field, values)
    if refused is not None:
        value = given_values[refused.row]
        with np.errstate(all="ignore"):
            cast = np.array([value]).astype(dtype)[0]
        assert cast != value or np.isinf(cast)
        assert f"the value {value} does not fit dtype {dtype}. Give a wider dtype" in str(refused)
        return
    assert out.dtype.name == (dtype or numpy_dtype(values.type).name)
    if out.dtype.kind in "biu":
        assert [int(v) for v in out] == [int(v) for v in values.to_pylist()]
    else:
        with np.errstate(over="ignore"):
            assert np.array_equal(out, given_values.astype(out.dtype), equal_nan=True)
        assert not (np.isinf(out) & np.isfinite(given_values)).any()


@given(st.lists(st.lists(st.integers(-100, 100), min_size=3, max_size=3), min_size=1), st.data())
def test_fixed_size_lists_stack_also_from_the_middle_of_an_array(rows: list[list[int]], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    values = pa.array(rows, pa.list_(pa.int16(), 3)).slice(start)

    assert fill(Stack("x", dtype="float16"), values).tolist() == rows[start:]


@pytest.mark.parametrize(
    ("values", "row", "found"),
    [
        (pa.array([1, 2, None, None]), 2, "the value is null. Filter it out before sample"),
        (pa.array([None, 2, 3, None]).slice(1), 2, "the value is null"),
        (pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2)), 1, "the value is null in part"),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), 1, r"the value is null\. Filter it out"),
        (pa.array([[1, None], [3, 4], [5, None]], pa.list_(pa.int64(), 2)).slice(1), 1, "null in part"),
    ],
)
def test_nulls_are_refused_at_their_row(values: pa.Array, row: int, found: str) -> None:
    with pytest.raises(DataError, match=found) as caught:
        fill(Stack("x"), values)

    assert caught.value.row == row


def test_booleans_and_timestamps_stack() -> None:
    assert fill(Stack("x"), pa.array([True, False])).tolist() == [True, False]
    assert fill(Stack("x", dtype="float32"), pa.array([True, False])).tolist() == [1.0, 0.0]
    times = pa.array([1, 2**60], pa.timestamp("ns"))
    assert fill(Stack("x"), times).tolist() == [1, 2**60]


TENSORS = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 1, 2]], [[3, 4, 5], [6, 7, 8]]]  # [3, 2, 3]


@pytest.mark.parametrize("dtype", [None, "int64", "float32"])
def test_lists_in_lists_and_tensors_stack_in_their_shape(dtype: str | None) -> None:
    nested = pa.array(TENSORS, pa.list_(pa.list_(pa.int16(), 3), 2)).slice(1)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(TENSORS, dtype=np.int16)).slice(1)
    kind = pa.fixed_shape_tensor(pa.int16(), [3, 2], permutation=[1, 0])  # stored the other way round
    turned = pa.ExtensionArray.from_storage(
        kind, pa.array([np.transpose(each).ravel() for each in TENSORS], pa.list_(pa.int16(), 6))
    ).slice(1)

    for values in (nested, tensors, turned):
        found = fill(Stack("x", dtype=dtype), values)
        assert found.tolist() == TENSORS[1:]
        assert found.dtype == (dtype or "int16")


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[[1, 2]], None, [[3, 4]]], "the value is null"),
        ([[[1, 2]], [[3, None]], [[5, 6]]], "the value is null in part"),
    ],
)
def test_a_null_in_a_nested_list_is_named_by_its_row(rows: list[Any], found: str) -> None:
    values = pa.array([[[0, 0]], *rows], pa.list_(pa.list_(pa.int16(), 2), 1)).slice(1)

    with pytest.raises(DataError, match=rf"{found}\. Filter it out") as refused:
        fill(Stack("x"), values)
    assert refused.value.row == 1


@pytest.mark.parametrize("kind", [*NUMBERS, *FLOATS, pa.bool_(), pa.list_(pa.float32(), 3), pa.timestamp("us")])
def test_numbers_are_copied_as_they_are_unless_another_dtype_is_asked_for(kind: pa.DataType) -> None:
    own = Stack("x").spec(pa.field("x", kind)).dtype

    assert Stack("x").copies(kind)
    assert [dtype for dtype in DTYPES if Stack("x", dtype=dtype).copies(kind)] == [own]


@pytest.mark.parametrize("kind", [pa.utf8(), pa.binary(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_what_does_not_stack_is_refused_with_the_way_out(kind: pa.DataType) -> None:
    with pytest.raises(PlanError, match=r"numbers, booleans, timestamps, fixed-size lists.*Use List\(\"x\"\)"):
        Stack("x").spec(pa.field("x", kind))


def test_a_column_of_references_needs_a_decoder() -> None:
    schema = with_semantic(pa.schema([("x", pa.binary())]), {"x": "image/jpeg-ref"})
    with pytest.raises(PlanError, match=r"is image/jpeg-ref, which names bytes. Say how to read them: decode=\"jpeg\""):
        Stack("x").spec(schema.field("x"))


@pytest.mark.parametrize("decode", [print, len, 3, b"jpeg", ["jpeg"]])
def test_a_decoder_is_named(decode: object) -> None:
    with pytest.raises(
        PlanError, match=r"Stack\('x'\): decode=.* is a \w+. Give the name of a decoder: decode=\"jpeg\""
    ):
        Stack("x", decode=decode)  # type: ignore[arg-type]  # what is refused


def test_transforms_are_frozen_into_a_tuple() -> None:
    field = Stack("x", decode="jpeg", transforms=[1, 2])

    assert field.transforms == (1, 2)
    assert hash(field) == hash(Stack("x", decode="jpeg", transforms=(1, 2)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decode": "jpeg", "interpolation": "nearest"}, "JPEG and video change labels. Store masks as PNG"),
        ({"decode": "image", "mode": "L"}, r"mode='L' is of masks. Add interpolation=\"nearest\""),
        ({"decode": "image", "mode": "HSV"}, "mode is one of RGB, L, I;16"),
        ({"decode": "image", "interpolation": "cubic"}, "interpolation is one of bilinear, nearest"),
        ({"decode": "image", "view": ""}, "view=''. Give a name"),
        ({"view": "a"}, "on a field with decode="),
    ],
)
def test_views_and_masks_are_of_decoded_fields(options, says):
    with pytest.raises(PlanError, match=says):
        Stack("x", **options)

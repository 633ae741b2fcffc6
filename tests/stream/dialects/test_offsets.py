"""Rows chosen of what `unsliced` returns are the rows: pyarrow alone chooses others of nested fixed-size lists."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.dialects.offsets import unsliced, unsliced_table


def boxes(count: int, *, skipped: int = 0) -> pa.Array:
    """Two lists of three numbers per row, at an offset in the memory of the inner lists."""
    numbers = pa.array(np.arange((skipped + count) * 6, dtype=np.float32))
    return pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(numbers, 3).slice(2 * skipped), 2)


def lists(items: pa.Array, each: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(0, len(items) + 1, each, dtype=np.int32)), items)


MADE: dict[str, Any] = {
    "boxes": boxes,
    "boxes at an offset": lambda n: boxes(n, skipped=3),
    "boxes of boxes": lambda n: pa.FixedSizeListArray.from_arrays(boxes(2 * n), 2),
    "struct of boxes": lambda n: pa.StructArray.from_arrays([boxes(n), pa.array(range(n))], ["a", "b"]),
    "struct of a slice": lambda n: pa.StructArray.from_arrays([boxes(n + 2).slice(2)], ["a"]),
    "boxes of structs": lambda n: pa.FixedSizeListArray.from_arrays(
        pa.StructArray.from_arrays([boxes(2 * n)], ["a"]), 2
    ),
    "lists of boxes": lambda n: lists(boxes(2 * n), 2),
    "nulls": lambda n: pa.array(
        [None if row % 3 else [[row], [None]] for row in range(n)], pa.list_(pa.list_(pa.int8(), 1), 2)
    ),
    "numbers": lambda n: pa.array(range(n)),
    "vectors": lambda n: pa.FixedSizeListArray.from_arrays(pa.array(range(2 * n)), 2),
}


@pytest.mark.parametrize("name", MADE)
@given(first=st.integers(0, 9), count=st.integers(0, 9), data=st.data())
def test_rows_of_any_slice_can_be_chosen(name: str, first: int, count: int, data: st.DataObject) -> None:
    column = MADE[name](20).slice(first, count)
    rows = data.draw(st.lists(st.integers(0, count - 1), max_size=5)) if count else []
    mask, wanted = [row in rows for row in range(count)], column.to_pylist()

    found = unsliced(column)
    found.validate(full=True)
    assert found.type == column.type
    assert found.to_pylist() == wanted
    assert found.take(pa.array(rows, pa.int64())).to_pylist() == [wanted[row] for row in rows]
    assert found.filter(pa.array(mask, pa.bool_())).to_pylist() == [wanted[row] for row in range(count) if mask[row]]

    table = unsliced_table(pa.table({"id": range(count), "x": column}))
    assert table.schema.field("x").type == column.type
    assert table.take(pa.array(rows, pa.int64()))["x"].to_pylist() == [wanted[row] for row in rows]


def test_what_pyarrow_chooses_rightly_is_not_copied() -> None:
    for name in ("numbers", "vectors"):
        column = MADE[name](5).slice(2)
        assert unsliced(column) is column


def test_chunks_become_one_where_fixed_size_lists_nest() -> None:
    table = pa.table({"x": pa.chunked_array([boxes(4).slice(1), boxes(3).slice(2)]), "n": range(4)})
    found = unsliced_table(table)

    assert found.column("x").num_chunks == 1
    assert found.to_pylist() == table.to_pylist()
    assert unsliced_table(table.slice(0, 0)).num_rows == 0

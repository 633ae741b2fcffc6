"""A table in memory is scanned and fetched like any source."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import col
from spiral_stream.errors import SourceError
from spiral_stream.sources import ROW, MemoryReader, Unit

TABLE = pa.table({"a": range(7), "b": [str(i) for i in range(7)]})
UNITS = [Unit("x", 3, 30, "k1", (3,)), Unit("y", 4, 40, "k2", (4,))]


def test_a_scan_of_some_units_numbers_rows_over_all() -> None:
    reader = MemoryReader(TABLE, UNITS, "")
    found = pa.Table.from_batches(list(reader.scan(["b"], col("a") > 3, [1])))

    assert found.to_pydict() == {"b": ["4", "5", "6"], ROW: [4, 5, 6]}
    assert sum(batch.num_rows for batch in reader.scan([])) == 7


@given(rows=st.lists(st.integers(0, 6), max_size=20))
def test_rows_come_in_the_order_asked(rows: list[int]) -> None:
    found = MemoryReader(TABLE, UNITS, "").fetch(np.array(rows, dtype=np.uint64), ["a"])

    assert found["a"].to_pylist() == rows
    assert len(MemoryReader(TABLE, UNITS, "").fetch(np.array(rows, dtype=np.uint64), [])) == len(rows)


def test_a_row_past_the_end_is_refused() -> None:
    with pytest.raises(SourceError, match="row 7 was asked for, but the table has 7 rows"):
        MemoryReader(TABLE, UNITS, "").fetch(np.array([7], dtype=np.uint64), ["a"])

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream import List


@pytest.mark.parametrize(
    "values",
    [["a", None, "c"], [1, None], [[1, 2], None, []], [{"a": 1}, None], [b"x", b""], [True, None], [1.5]],
)
def test_values_come_as_python_has_them_and_nulls_as_none(values: list[object]) -> None:
    field = List("x")
    column = pa.array(values)

    assert field.fill(column, None) == values
    assert field.spec(pa.field("x", column.type)).dtype is None


def test_nanoseconds_are_kept() -> None:
    values = pa.array([1_767_225_600_000_000_001, None], pa.timestamp("ns"))

    assert List("at").fill(values, None) == [np.datetime64(1_767_225_600_000_000_001, "ns"), None]


def test_only_texts_are_copied_as_they_are() -> None:
    kinds = [pa.utf8(), pa.large_utf8(), pa.binary(), pa.int64(), pa.timestamp("ns"), pa.list_(pa.utf8())]

    assert [kind for kind in kinds if List("x").copies(kind)] == [pa.utf8(), pa.large_utf8()]

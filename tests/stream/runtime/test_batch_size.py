from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.runtime.batch_size import OBJECT_BYTES, object_bytes


@given(
    values=st.lists(
        st.none()
        | st.lists(st.fixed_dictionaries({"a": st.binary(max_size=40), "b": st.none() | st.floats()}), max_size=5),
        max_size=20,
    ),
    start=st.integers(0, 20),
)
def test_bytes_of_objects_are_at_least_those_of_their_values(values: list[Any], start: int) -> None:
    kind = pa.list_(pa.struct([("a", pa.binary()), ("b", pa.float64())]))
    column = pa.array(values, kind).slice(start)
    inner = [each for value in values[start:] for each in value or ()]

    found = object_bytes(column)
    heads = len(column) + 3 * len(inner)
    assert found >= OBJECT_BYTES * heads + sum(len(each["a"]) for each in inner)
    assert found <= OBJECT_BYTES * heads + sum(len(each["a"]) for each in inner) + 32 * (len(inner) + 2)

import sys
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.runtime.fields.size import OBJECT_BYTES, object_bytes


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
    keys = sys.getsizeof({"a": b"", "b": None})
    held = sum(_held(each) for each in values[start:])
    assert found >= held - 49 * sum(each["a"] == b"" for each in inner)  # all empty bytes are one object
    assert found <= 80 * len(column) + (keys + OBJECT_BYTES + 40 + 32) * len(inner) + sum(
        len(each["a"]) for each in inner
    )


KINDS = {
    pa.int64(): st.integers(2**31, 2**59),
    pa.float64(): st.floats(allow_nan=False),
    pa.utf8(): st.text(st.characters(codec="ascii"), min_size=2, max_size=60),
    pa.list_(pa.float32()): st.lists(st.floats(width=32, allow_nan=False), max_size=6),
    pa.list_(pa.float32(), 3): st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3),
    pa.struct([("a", pa.float64()), ("b", pa.utf8())]): st.fixed_dictionaries(
        {"a": st.floats(allow_nan=False), "b": st.text(st.characters(codec="ascii"), min_size=2, max_size=9)}
    ),
    pa.timestamp("us"): st.datetimes(),
}


@given(data=st.data(), kind=st.sampled_from(list(KINDS)))
def test_bytes_of_objects_are_those_of_the_values_that_a_batch_holds(data: Any, kind: pa.DataType) -> None:
    values = pa.array(data.draw(st.lists(KINDS[kind], min_size=1, max_size=12)), kind)
    held = sum(map(_held, values.to_pylist()))

    assert held <= object_bytes(values) <= 1.25 * held + 80


def _held(value: Any) -> int:
    """What a value takes, with its place in a list."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    places = 8 * len(inner)
    return sys.getsizeof(value) + 8 + sum(_held(each) for each in inner) - (places if inner else 0)

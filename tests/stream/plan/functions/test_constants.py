"""Constants of different types or values have different forms; equal ones have one."""

import datetime as dt
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.plan.functions.constants import encode_constant


def form(value: Any) -> str:
    def inner(each: Any) -> Any:
        return encode_constant(each, inner) if not isinstance(each, type) else each.__name__

    return json.dumps(encode_constant(value, inner))


def test_types_and_values_are_told_apart() -> None:
    values = [1, 1.0, True, "1", b"1", (1,), [1], {1}, {1: 1}, None, np.float32(1), np.array([1]), pa.int8(), ...]

    assert len({form(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a", "b", "c"}, {"c", "b", "a"}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        (0.0, -0.0, False),
        (np.arange(3), np.arange(3), True),
        (np.arange(3), np.arange(3, dtype=np.int32), False),
        (1 << 20_000, (1 << 20_000) + 1, False),
    ],
    ids=range(6),
)
def test_order_counts_where_code_sees_it(one: Any, other: Any, same: bool) -> None:
    assert (form(one) == form(other)) is same


def test_what_is_no_constant_has_no_form() -> None:
    assert encode_constant(dt.datetime.now, lambda value: value) is None
    assert encode_constant(object(), lambda value: value) is None

"""Samples that cannot be read have no tokens and no values, and the others do not notice."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import DataError
from spiral_stream.runtime.unreadable import encoded, reasons, run_on_readable
from spiral_stream.transforms.python import Function
from tests.fixtures.kinds import ByteEncoder, text_column

ENCODER: Any = ByteEncoder()


def tripled(values: Any) -> Any:
    if (values.to_numpy() < 0).any():
        raise ValueError
    return values.to_numpy() * 3


FUNCTION = Function(tripled, ("x",), pa.int64())


@given(values=st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=20))
def test_readable_samples_get_their_values_and_the_others_null(values: list[tuple[int, bool]]) -> None:
    numbers = [-1 if bad else value for value, bad in values]  # the function would fail on these
    refused = np.array([bad for _, bad in values])
    found = run_on_readable(FUNCTION, pa.table({"x": numbers}), np.zeros(len(values), np.uint64), refused)

    assert found.to_pylist() == [None if bad else 3 * value for value, bad in values]
    assert found.type == pa.int64()


def test_the_row_of_an_error_counts_among_all_samples() -> None:
    table = pa.table({"x": [5, 5, 1, -1]})
    with pytest.raises(DataError, match="tripled") as caught:
        run_on_readable(FUNCTION, table, np.zeros(4, np.uint64), np.array([True, False, False, False]))

    assert caught.value.row == 3


def test_texts_that_cannot_be_read_have_no_tokens_and_a_reason() -> None:
    texts = text_column(["ab", None, b"caf\xe9", "c"])
    refused: dict[int, str] = {}
    found = encoded(ENCODER, "text", texts, refused)

    assert found.lengths.tolist() == [2, 0, 0, 1]
    assert sorted(refused) == [1, 2]
    column = reasons(refused, 4)
    assert column.is_null().to_pylist() == [True, False, False, True]
    assert "null" in column[1].as_py()
    assert "not UTF-8" in column[2].as_py()


def test_nothing_refused_is_a_column_of_nulls() -> None:
    assert reasons({}, 3).to_pylist() == [None] * 3
    assert reasons({}, 3).type == pa.utf8()

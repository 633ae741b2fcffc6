"""Samples that cannot be read have no tokens and no values, and the others do not notice."""

from typing import Any

import pyarrow as pa

from spiral_stream.runtime.columns.tokens import encoded, reasons
from tests.fixtures.kinds import ByteEncoder, text_column

ENCODER: Any = ByteEncoder()


def test_texts_that_cannot_be_read_have_no_tokens_and_a_reason() -> None:
    texts = text_column(["ab", None, b"caf\xe9", "c"])
    refused: dict[int, str] = {}
    found = encoded(ENCODER, pa.table({"text": texts}), refused)

    assert found.lengths.tolist() == [2, 0, 0, 1]
    assert sorted(refused) == [1, 2]
    column = reasons(refused, 4)
    assert column.is_null().to_pylist() == [True, False, False, True]
    assert "null" in column[1].as_py()
    assert "not UTF-8" in column[2].as_py()


def test_nothing_refused_is_a_column_of_nulls() -> None:
    assert reasons({}, 3).to_pylist() == [None] * 3
    assert reasons({}, 3).type == pa.utf8()

"""The rows of a part pass to disk as Arrow batches, and are counted as they pass."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.cache.store.part_rows import Chunk, PartRows
from spiral_stream.cache.store.part_schema import schema_of

SIZES = [3, 0, 2]


def rows() -> Rows:
    sizes = np.array(SIZES, dtype=np.int64)
    return Rows(b"abcde", sizes, {1: "bad bytes"}, {"height": np.array([4, 0, 5], np.int32)}, 5)


def test_rows_keep_offsets_columns_reasons_and_payload() -> None:
    part = PartRows(schema_of(["height"]), 9)

    (batch,) = part.batches([(np.array([2, 7, 8], dtype=np.uint32), rows())])

    assert batch.column(0).to_pylist() == [2, 7, 8]
    assert batch.column("height").to_pylist() == [4, 0, 5]
    assert batch.column("refused").to_pylist() == [None, "bad bytes", None]
    payload = batch.column(batch.num_columns - 1).storage
    assert payload.field("data").to_pylist() == [b"abc", b"", b"de"]
    assert payload.is_null().to_pylist() == [False, True, False]
    assert np.flatnonzero(part.mask).tolist() == [2, 7, 8]
    assert part.bytes == sum(SIZES)


def test_the_error_that_ends_the_rows_is_held_for_the_caller() -> None:
    def chunks() -> Iterator[Chunk]:
        yield np.array([0, 1, 2], dtype=np.uint32), rows()
        raise RuntimeError

    part = PartRows(schema_of(["height"]), 9)
    with pytest.raises(RuntimeError):
        list(part.batches(chunks()))

    assert isinstance(part.failed.pop(), RuntimeError)
    assert pa.array(part.mask).true_count == 3

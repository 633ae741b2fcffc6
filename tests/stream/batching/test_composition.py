from typing import Any

import pytest

from spiral_stream import StratifiedByStream
from spiral_stream.batching import OneStream
from spiral_stream.errors import PlanError


def test_compositions_are_values() -> None:
    assert StratifiedByStream("stream_id") == StratifiedByStream()
    assert OneStream(2) == OneStream(batches=2) != OneStream()


@pytest.mark.parametrize("column", ["", None, 3])
def test_a_column_needs_a_name(column: Any) -> None:
    with pytest.raises(PlanError, match="Give the name that mix gives it, 'stream_id'"):
        StratifiedByStream(column)


@pytest.mark.parametrize("batches", [0, -1, 1.5, True, None])
def test_batches_in_a_row_are_a_positive_number(batches: Any) -> None:
    with pytest.raises(PlanError, match="Give an integer from 1"):
        OneStream(batches)

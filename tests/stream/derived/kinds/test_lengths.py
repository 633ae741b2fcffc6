import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.derived.derivation import ShardRows
from spiral_stream.derived.kinds.column import ListLengths

LISTS = st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=6), max_size=30)


@given(lists=LISTS, large=st.booleans(), cut=st.integers(0, 5))
def test_the_lengths_are_those_of_the_lists_and_a_null_is_empty(
    lists: list[list[int] | None], large: bool, cut: int
) -> None:
    kind = (pa.large_list if large else pa.list_)(pa.int32())
    table = pa.table({"tokens": pa.array(lists, kind)}).slice(cut)
    piece = ListLengths("tokens", kind).piece(ShardRows(len(table), np.arange(len(table), dtype=np.uint64), table))

    assert piece.arrays["data"].view("<u4").tolist() == [len(each or []) for each in lists[cut:]]
    assert piece.summary["rows"] == len(table)
    assert piece.summary["nulls"] == 0


def test_another_column_or_type_has_other_pieces() -> None:
    made = ListLengths("tokens", pa.list_(pa.int32()))

    assert made.fingerprint == ListLengths("tokens", pa.list_(pa.int32())).fingerprint
    assert made.fingerprint != ListLengths("ids", pa.list_(pa.int32())).fingerprint
    assert made.fingerprint != ListLengths("tokens", pa.list_(pa.int64())).fingerprint
    assert made.fingerprint != made.numbers.fingerprint


@pytest.mark.parametrize("slot", ["data", "valid"])
def test_the_pieces_are_laid_out_as_a_column_of_numbers(slot: str) -> None:
    made = ListLengths("tokens", pa.list_(pa.int32()))

    assert made.slots[slot] == made.numbers.slots[slot]
    assert made.SUMMARY == made.numbers.SUMMARY

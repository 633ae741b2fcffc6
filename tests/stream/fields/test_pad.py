"""`Pad` and `PadMask`: every token at its place, and what is real."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Pad, PadMask
from spiral_stream.errors import PlanError
from spiral_stream.fields.pad import MASKS
from spiral_stream.fields.sequence import WIDE, SequenceLayout
from tests.fixtures.tokens import Drawn, drawn, filled, ragged


@given(batch=drawn(), dtype=st.sampled_from(WIDE), value=st.integers(-(2**31), 2**31 - 1))
def test_tokens_lie_where_they_are_placed_and_padding_elsewhere(batch: Drawn, dtype: str, value: int) -> None:
    out_BT = filled(Pad("t", pad_value=value, dtype=dtype), batch.tokens, batch.placed)

    assert out_BT.tolist() == batch.expected(value, lambda tokens, _start, _segment: tokens)


@given(batch=drawn(limit=2**63 - 1))
def test_64_bits_keep_every_token(batch: Drawn) -> None:
    out_BT = filled(Pad("t"), batch.tokens, batch.placed)

    assert out_BT.tolist() == batch.expected(0, lambda tokens, _start, _segment: tokens)


@given(batch=drawn(), dtype=st.sampled_from(MASKS))
def test_the_mask_is_one_on_real_tokens_only(batch: Drawn, dtype: str) -> None:
    out_BT = filled(PadMask("t", dtype=dtype), batch.tokens, batch.placed)

    assert out_BT.dtype == dtype
    assert out_BT.tolist() == batch.expected(0, lambda tokens, _start, _segment: [1] * len(tokens))


def test_two_documents_are_padded_to_the_width() -> None:
    tokens = ragged([np.array([5, 6, 7], dtype=np.uint16), np.array([8], dtype=np.uint32)])
    placed = SequenceLayout.at_row_starts(np.array([3, 1]), 4)

    assert filled(Pad("t", pad_value=9), tokens, placed).tolist() == [[5, 6, 7, 9], [8, 9, 9, 9]]
    assert filled(PadMask("t", dtype="bool"), tokens, placed).tolist() == [[True] * 3 + [False], [True] + [False] * 3]


def test_a_truncated_document_keeps_its_beginning() -> None:
    tokens = ragged([np.array([5, 6, 7], dtype=np.uint16)])

    assert filled(Pad("t"), tokens, SequenceLayout.at_row_starts(np.array([2]), 2)).tolist() == [[5, 6]]


def test_the_multiple_is_one_unless_said() -> None:
    assert Pad("t").multiple == PadMask("t").multiple == 1
    assert Pad("t", 128).multiple == PadMask("t", pad_to_multiple_of=128).multiple == 128


@pytest.mark.parametrize("field", [Pad, PadMask])
@pytest.mark.parametrize("value", [0, -128, 1.5, True, "128"])
def test_a_multiple_below_one_is_refused(field: type[Pad], value: Any) -> None:
    with pytest.raises(PlanError, match=r"pad_to_multiple_of=.*. Give an integer of at least 1, such as 128"):
        field("t", pad_to_multiple_of=value)


@pytest.mark.parametrize("dtype", ["int16", "uint32", "uint64", "bool", "long"])
def test_ids_are_int64_or_int32(dtype: str) -> None:
    with pytest.raises(PlanError, match=rf"Pad\('t'\): dtype='{dtype}'; it is one of int64, int32"):
        Pad("t", dtype=dtype)


def test_a_mask_is_no_float() -> None:
    with pytest.raises(PlanError, match="dtype='float32'; it is one of int64, int32, bool, uint8, int8, int16"):
        PadMask("t", dtype="float32")


@pytest.mark.parametrize(("value", "dtype"), [(2**31, "int32"), (2**63, "int64"), (0.0, "int64"), (True, "int64")])
def test_a_pad_value_fits_the_dtype(value: Any, dtype: str) -> None:
    with pytest.raises(PlanError, match=f"pad_value={value}. Give an integer that fits {dtype}"):
        Pad("t", pad_value=value, dtype=dtype)

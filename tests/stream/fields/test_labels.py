"""`ShiftedLabels` and `Labels`: the same targets, shifted here or by the model."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import ShiftedLabels
from spiral_stream.errors import PlanError
from spiral_stream.fields import Labels
from spiral_stream.fields.sequence import WIDE, SequenceLayout
from tests.fixtures.tokens import Drawn, drawn, filled, ragged

IGNORED = st.integers(-(2**31), -1)


@given(batch=drawn(), dtype=st.sampled_from(WIDE), ignore=IGNORED)
def test_each_place_is_labelled_with_the_next_token_of_its_piece(batch: Drawn, dtype: str, ignore: int) -> None:
    out_BT = filled(ShiftedLabels("t", ignore_index=ignore, dtype=dtype), batch.tokens, batch.placed)

    assert out_BT.tolist() == batch.expected(ignore, lambda tokens, _start, _segment: [*tokens[1:], ignore])


@given(batch=drawn(packed=False), dtype=st.sampled_from(WIDE), ignore=IGNORED)
def test_unshifted_labels_are_the_tokens(batch: Drawn, dtype: str, ignore: int) -> None:
    out_BT = filled(Labels("t", ignore_index=ignore, dtype=dtype), batch.tokens, batch.placed)

    assert out_BT.tolist() == batch.expected(ignore, lambda tokens, _start, _segment: tokens)


@given(batch=drawn(), dtype=st.sampled_from(WIDE), ignore=IGNORED)
def test_a_model_that_shifts_labels_gets_the_shifted_labels(batch: Drawn, dtype: str, ignore: int) -> None:
    labels_BT = filled(Labels("t", ignore_index=ignore, dtype=dtype), batch.tokens, batch.placed)
    shifted_BT = filled(ShiftedLabels("t", ignore_index=ignore, dtype=dtype), batch.tokens, batch.placed)

    np.testing.assert_array_equal(labels_BT[:, 1:], shifted_BT[:, :-1])
    assert (shifted_BT[:, -1:] == ignore).all()


def test_a_packed_row_predicts_no_token_of_another_document() -> None:
    tokens = ragged([np.array([1, 2, 3], dtype=np.uint16), np.array([4, 5], dtype=np.uint16)])
    zeros = np.zeros(2, dtype=np.int64)
    placed = SequenceLayout(zeros, np.array([0, 3]), zeros, np.array([3, 2]), 1, 6)

    assert filled(ShiftedLabels("t"), tokens, placed).tolist() == [[2, 3, -100, 5, -100, -100]]
    assert filled(Labels("t"), tokens, placed).tolist() == [[1, 2, 3, -100, 5, -100]]


def test_a_split_document_has_no_label_across_the_cut() -> None:
    document = np.array([1, 2, 3, 4, 5], dtype=np.uint16)
    placed = SequenceLayout(np.array([0, 1]), np.zeros(2, np.int64), np.array([0, 3]), np.array([3, 2]), 2, 3)

    assert filled(ShiftedLabels("t"), ragged([document] * 2), placed).tolist() == [[2, 3, -100], [5, -100, -100]]


@pytest.mark.parametrize("field", [ShiftedLabels, Labels])
def test_they_ask_for_no_width_of_their_own(field: type[Labels]) -> None:
    assert field("t").multiple == 1
    assert field("t").padding == -100


@pytest.mark.parametrize("field", [ShiftedLabels, Labels])
@pytest.mark.parametrize("value", [2**63, -1.0, None])
def test_an_ignore_index_is_an_integer_of_the_dtype(field: type[Labels], value: Any) -> None:
    with pytest.raises(PlanError, match=f"ignore_index={value}. Give an integer that fits int64"):
        field("t", ignore_index=value)


@pytest.mark.parametrize("field", [ShiftedLabels, Labels])
def test_labels_are_int64_or_int32(field: type[Labels]) -> None:
    with pytest.raises(PlanError, match="dtype='int16'; it is one of int64, int32"):
        field("t", dtype="int16")

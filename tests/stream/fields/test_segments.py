"""`Segments`, `Positions`, `CuSeqlens`: three spellings of where a packed row's samples begin and end."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import PlanError
from spiral_stream.fields import CuSeqlens, Positions, Segments
from spiral_stream.fields.sequence import WIDE, SequenceLayout
from tests.fixtures.tokens import Drawn, drawn, filled, ragged


@given(batch=drawn(), dtype=st.sampled_from(WIDE))
def test_segments_count_the_pieces_of_a_row_from_one(batch: Drawn, dtype: str) -> None:
    out_BT = filled(Segments("t", dtype=dtype), batch.tokens, batch.placed)

    assert out_BT.tolist() == batch.expected(0, lambda tokens, _start, segment: [segment] * len(tokens))


@given(batch=drawn(), dtype=st.sampled_from(WIDE))
def test_positions_begin_at_zero_in_each_piece(batch: Drawn, dtype: str) -> None:
    out_BT = filled(Positions("t", dtype=dtype), batch.tokens, batch.placed)

    assert out_BT.tolist() == batch.expected(0, lambda tokens, _start, _segment: list(range(len(tokens))))


@given(batch=drawn())
def test_cumulated_lengths_cut_the_flat_batch_where_segments_change(batch: Drawn) -> None:
    cu = CuSeqlens("t").cu_seqlens(batch.placed)
    ids_BT = filled(Segments("t"), batch.tokens, batch.placed).astype(np.int64)
    flat = (ids_BT + np.arange(batch.placed.B)[:, None] * 1_000).reshape(-1)  # a row is another segment always
    changes = np.flatnonzero(np.diff(flat)) + 1

    assert cu.dtype == np.int32
    assert cu.tolist() == ([0, *changes.tolist(), len(flat)] if len(flat) else [0])


@given(batch=drawn())
def test_every_piece_is_a_segment_of_the_cumulated_lengths(batch: Drawn) -> None:
    cu = CuSeqlens("t").cu_seqlens(batch.placed).tolist()
    segments = set(itertools.pairwise(cu))

    for row, start, tokens, _ in batch.pieces():
        begin = row * batch.placed.T + start
        assert (begin, begin + len(tokens)) in segments


def packed() -> SequenceLayout:
    """Documents of 3, 2 and 4 tokens in two rows of 6."""
    return SequenceLayout(np.array([0, 0, 1]), np.array([0, 3, 0]), np.zeros(3, np.int64), np.array([3, 2, 4]), 2, 6)


def test_a_packed_batch_in_three_spellings() -> None:
    tokens = ragged([np.arange(n, dtype=np.uint16) for n in (3, 2, 4)])

    assert filled(Segments("t"), tokens, packed()).tolist() == [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]]
    assert filled(Positions("t"), tokens, packed()).tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]]
    assert CuSeqlens("t").cu_seqlens(packed()).tolist() == [0, 3, 5, 6, 10, 12]


def test_without_padding_they_are_the_lengths_cumulated() -> None:
    lengths = np.array([3, 2, 4])
    zeros = np.zeros(3, dtype=np.int64)
    placed = SequenceLayout(zeros, np.array([0, 3, 5]), zeros, lengths, 1, 9)

    assert CuSeqlens("t").cu_seqlens(placed).tolist() == [0, *np.cumsum(lengths).tolist()]


def test_empty_documents_are_no_segments() -> None:
    zeros = np.zeros(3, dtype=np.int64)
    placed = SequenceLayout(zeros, np.array([0, 0, 2]), zeros, np.array([0, 1, 0]), 1, 4)
    tokens = ragged([np.array([9], dtype=np.uint16)] * 3)

    assert filled(Segments("t"), tokens, placed).tolist() == [[1, 0, 0, 0]]
    assert CuSeqlens("t").cu_seqlens(placed).tolist() == [0, 1, 4]


def test_attention_by_cumulated_lengths_equals_attention_by_segments() -> None:
    cu = CuSeqlens("t").cu_seqlens(packed())
    of_place = np.repeat(np.arange(len(cu) - 1), np.diff(cu))
    segments = filled(Segments("t"), ragged([np.arange(n, dtype=np.uint16) for n in (3, 2, 4)]), packed())
    real = segments.reshape(-1) > 0
    rows = np.repeat([0, 1], 6)

    same = (segments.reshape(-1)[:, None] == segments.reshape(-1)) & (rows[:, None] == rows)
    np.testing.assert_array_equal((of_place[:, None] == of_place)[real], same[real])


def test_cumulated_lengths_need_no_slot() -> None:
    assert not CuSeqlens.IN_SLOT
    assert Segments.IN_SLOT
    assert CuSeqlens("t").multiple == Segments("t").multiple == 1


def test_a_batch_that_int32_cannot_address_is_refused() -> None:
    lengths = np.full(2, 2**30, dtype=np.int64)

    with pytest.raises(PlanError, match=r"the batch has 2 x 1073741824 places; .* Lower max_tokens"):
        CuSeqlens("t").cu_seqlens(SequenceLayout.at_row_starts(lengths, 2**30))


@pytest.mark.parametrize("field", [Segments, Positions])
def test_numbers_are_int32_or_int64(field: type[Segments]) -> None:
    with pytest.raises(PlanError, match="dtype='uint8'; it is one of int64, int32"):
        field("t", dtype="uint8")

"""Batches joined to one hold what each of them held, and sequences lie where the shape says."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Pad
from spiral_stream.batching import Membership, Packing
from spiral_stream.errors import DataError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.fields.layout import TASK_ITEMS, as_ragged, cuts, lay_out, need_items, null_items
from spiral_stream.runtime.numbering.drawn import Drawn, joined, sample_count
from spiral_stream.sampling.epoch import StreamRows


def samples(count: int, first: int = 0) -> Samples:
    rows = np.arange(first, first + count, dtype=np.uint64)
    return Samples.at(StreamRows(np.zeros(count, dtype=np.int32), rows, np.zeros(count, dtype=np.uint64)))


def ragged(lengths: list[int]) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged.of_flat(np.arange(1, int(offsets[-1]) + 1, dtype=np.uint16), offsets)


def written(tokens: Ragged, shape: Membership, multiple: int) -> list[list[int]]:
    placed = lay_out(tokens, shape, multiple, alone=True)
    out = np.empty((placed.B, placed.T), dtype=np.int64)
    return Pad("tokens").fill_tokens(tokens, placed, out).tolist()  # type: ignore[no-any-return]


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_joined_batches_have_the_samples_of_each_in_order(counts: list[int]) -> None:
    firsts = np.cumsum([0, *counts])
    drawn = [
        Drawn(samples(count, int(first)), Membership(np.arange(count), count, width=count, lengths=np.full(count, 3)))
        for count, first in zip(counts, firsts, strict=False)
    ]
    whole = joined(drawn)

    assert whole.samples.stream_rows.rows.tolist() == list(range(sum(counts)))
    assert whole.membership.rows == sample_count(whole) == sum(counts)
    assert whole.membership.width == max(counts)
    assert whole.membership.lengths is not None
    assert whole.membership.lengths.tolist() == [3] * sum(counts)


def test_lengths_are_known_only_where_every_batch_knows_them() -> None:
    known = Drawn(samples(2), Membership(np.arange(2), 2, lengths=np.array([1, 2])))
    unknown = Drawn(samples(1, 2), Membership(np.arange(1), 1))

    assert joined([known, unknown]).membership.lengths is None
    assert joined([known]) is known


def test_rows_of_joined_packed_batches_follow_each_other_and_a_cut_sample_counts_once() -> None:
    first = Packing(np.array([0, 0, 1]), np.array([0, 2, 0]), np.array([0, 0, 3]), np.array([2, 3, 1]))
    second = Packing(np.array([0]), np.array([1]), np.array([0]), np.array([2]))
    whole = joined(
        [
            Drawn(samples(3), Membership(np.array([4, 5, 5]), 2, width=5, packing=first)),
            Drawn(samples(1, 3), Membership(np.array([6]), 1, width=5, packing=second)),
        ]
    )

    assert whole.membership.packing is not None
    assert whole.membership.packing.rows.tolist() == [0, 0, 1, 2]
    assert whole.membership.packing.offsets.tolist() == [0, 0, 3, 0]
    assert whole.membership.rows == 3
    assert sample_count(whole) == 3


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), multiple=st.integers(1, 8))
def test_each_sequence_begins_its_row_and_the_width_is_the_next_multiple(lengths: list[int], multiple: int) -> None:
    found = written(ragged(lengths), Membership(np.arange(len(lengths)), len(lengths)), multiple)
    width = -(-max(1, *lengths, 1) // multiple) * multiple
    token = iter(range(1, sum(lengths) + 1))

    assert found == [[*(next(token) for _ in range(n)), *[0] * (width - n)] for n in lengths]


def test_a_formations_lengths_cut_sequences_and_its_width_holds_for_an_only_column() -> None:
    shape = Membership(np.arange(2), 2, width=6, lengths=np.array([2, 9]))

    assert written(ragged([4, 3]), shape, 4) == [[1, 2, 0, 0, 0, 0], [5, 6, 7, 0, 0, 0]]
    assert lay_out(ragged([4, 3]), shape, 4, alone=False).T == 4


@given(rows=st.integers(1, 5_000), width=st.integers(1, 2 * TASK_ITEMS))
def test_cuts_cover_the_rows_in_pieces_of_bounded_size(rows: int, width: int) -> None:
    borders = cuts(lay_out(ragged([0] * rows), Membership(np.arange(rows), rows, width=width), 1, alone=True))
    sizes = np.diff(borders)

    assert (borders[0], borders[-1]) == (0, rows)
    assert (sizes > 0).all()
    assert (sizes * width <= max(TASK_ITEMS, width)).all()


def test_lists_become_addresses_and_addresses_stay() -> None:
    tokens = ragged([2, 0, 1])

    assert as_ragged(tokens) is tokens
    assert as_ragged(pa.array([[1, 2], [], [3]], pa.list_(pa.int32()))).lengths.tolist() == [2, 0, 1]


@given(
    lists=st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4), max_size=12),
    first=st.integers(0, 3),
)
def test_the_first_list_with_a_null_item_is_refused(lists: list[list[int | None] | None], first: int) -> None:
    column = pa.array(lists, pa.list_(pa.int32()))[first:]
    bad = [row for row, each in enumerate(lists[first:]) if each is not None and None in each]

    assert null_items(column) or not bad
    if not bad:
        need_items("tokens", column)
        return
    with pytest.raises(
        DataError, match=r"'tokens': the list holds a null item. Fill it in, or filter the row out"
    ) as found:
        need_items("tokens", column)
    assert found.value.row == bad[0]

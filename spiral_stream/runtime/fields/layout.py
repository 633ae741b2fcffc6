"""Where the sequences of a batch lie in its rows."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.batching.formation import Membership, Packing
from spiral_stream.batching.padding_width import padded
from spiral_stream.errors import DataError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.sequence import SequenceLayout
from spiral_stream.runtime.columns.samples import Int64

TASK_ITEMS: Final = 1 << 18  # tokens of each field that one task writes: 2 MB of int64, 1 ms


def lay_out(
    tokens: Ragged,
    shape: Membership,
    multiple: int,
    *,
    alone: bool,
    fixed: int | None = None,
    longest: Int64 | None = None,
    widths: tuple[int, int] | None = None,
) -> SequenceLayout:
    """Place the sequences of one column in the rows of a batch.

    Args:
        tokens: one sequence per sample, or in packed batches one per piece.
        shape: the batch. Its width holds for the only sequence column; of several columns each has its own width.
        multiple: the width is a multiple of this.
        alone: whether there is only one sequence column.
        fixed: the width, if the plan says it; longer sequences are cut here, and `need_room` refuses them.
        longest: the length of each sample's longest sequence in the columns that share the width; None if there is one.
        widths: of a packed column with a budget of its own, its place among those columns, and its width.

    Raises:
        DataError: of columns that share a packed row, a sample has no token in this one.
    """
    packing = shape.packing
    if packing is not None and widths is not None:
        at, width = widths
        numbers = _segments(packing)
        return SequenceLayout(
            packing.rows, packing.starts[at], packing.offsets, packing.lengths[at], shape.rows, width, numbers
        )
    if packing is not None and longest is not None:
        return SequenceLayout(
            packing.rows, packing.starts, packing.offsets, _lengths_of(tokens, packing), shape.rows, shape.width
        )
    if packing is not None:
        return SequenceLayout(packing.rows, packing.starts, packing.offsets, packing.lengths, shape.rows, shape.width)
    return SequenceLayout.at_row_starts(*in_rows(tokens, shape, multiple, alone=alone, fixed=fixed, longest=longest))


def in_rows(
    tokens: Ragged, shape: Membership, multiple: int, *, alone: bool, fixed: int | None, longest: Int64 | None
) -> tuple[Int64, int]:
    """Return how many tokens of each sequence lie in its row, shape [B], and the width T, of a batch that is not packed.

    Arguments as in `lay_out`.
    """
    lengths = tokens.lengths if shape.lengths is None else np.minimum(tokens.lengths, shape.lengths)
    if fixed is not None:
        return np.minimum(lengths, fixed), fixed
    width = shape.width if alone else 0
    if not width:
        most = lengths if longest is None else longest if shape.lengths is None else np.minimum(longest, shape.lengths)
        width = int(padded(most.max(initial=0), multiple))
    return lengths, width


def _segments(packing: Packing) -> Int64:
    """The number of each piece in its row, from 1, shape [S]: the same in every column. Pieces without any token have none."""
    counted = np.cumsum(packing.lengths.any(axis=0))
    before = np.concatenate(([0], counted))
    numbers: Int64 = counted - before[np.searchsorted(packing.rows, packing.rows)]
    return numbers


def _lengths_of(tokens: Ragged, packing: Packing) -> Int64:
    """The lengths of the pieces of one of several columns: they begin together, and may end before the longest.

    Raises:
        DataError: a piece has no token, so that the segments of the columns would be counted differently.
    """
    lengths = np.minimum(packing.lengths, tokens.lengths)
    empty = np.flatnonzero((lengths == 0) & (packing.lengths > 0))
    if len(empty):
        msg = (
            "collate: it has no token in one of the columns of Pad(also=), and some in another. Filter such samples out"
        )
        raise DataError(msg, row=int(empty[0]))
    return lengths


def null_items(column: pa.Array) -> bool:
    """Whether a list column may hold null items; free where no item is null."""
    return bool(column.values.null_count)


def need_items(column: str, values: pa.Array) -> None:
    """Refuse the first list that has a null item.

    Raises:
        DataError: with its place.
    """
    null = np.flatnonzero(values.flatten().is_null().to_numpy(zero_copy_only=False))
    if len(null):
        ends = np.cumsum(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False))
        msg = f"{column!r}: the list holds a null item. Fill it in, or filter the row out"
        raise DataError(msg, row=int(np.searchsorted(ends, null[0], side="right")))


def need_room(column: str, lengths: Int64, width: int) -> None:
    """Refuse the first sequence that is longer than a fixed width.

    Raises:
        DataError: with its place.
    """
    over = np.flatnonzero(lengths > width)
    if len(over):
        row = int(over[0])
        msg = (
            f"Pad({column!r}): the row has {lengths[row]:,} tokens, above length={width}. Raise it, or cut texts with "
            f"Tokenize(max_length={width})"
        )
        raise DataError(msg, row=row)


def cuts(layout: SequenceLayout) -> list[int]:
    """Borders of the runs of rows that one task writes, from 0 to B."""
    rows = max(1, TASK_ITEMS // max(1, layout.T))
    return [*range(0, layout.B, rows), layout.B]


def as_ragged(column: pa.Array | Ragged) -> Ragged:
    """A sequence column as addresses."""
    return column if isinstance(column, Ragged) else Ragged.of_arrow(column)

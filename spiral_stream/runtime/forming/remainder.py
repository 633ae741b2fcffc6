"""Batches of left-over samples: what chapters could not fill at the end of a lane, and lanes at the end of an epoch.

A *rest* is what a chapter leaves: samples, or parts of samples, in the order in which they joined. It is kept as numbers, a
row of `Forming.rest_columns` for each: the position of the epoch, so that the sample is found again from metadata; the part
of its parent, after flat_map; the tokens that are left, where rows cut samples. After assemble no position makes a sample,
so it is the number in its chapter, which is formed again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Membership, Packing
from spiral_stream.batching.padding_width import padded
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.sampling.order import UInt64

Int64 = NDArray[np.int64]
Again = Callable[
    [int, int, Int64], tuple[Samples, UInt64]
]  # lane, chapter, numbers -> the samples, and their positions


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rests:
    """N samples, or parts of samples, that chapters of an epoch left."""

    values: Int64  # [N, C] a row for each, as `Forming.rest_columns` says
    lanes: Int64  # [N] whose they are
    ends: bool = False  # whether the epoch ends with them, so that nothing may wait any more
    fill: "Fill | None" = None  # what `PadPartial` fills the last batch with; None: its own samples
    again: Again | None = None  # after assemble: gives samples of a chapter again

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Int64]], columns: int, *, ends: bool = False) -> "Rests":
        """Put the rests of chapters, each with its lane, one behind the other."""
        values = np.concatenate([np.empty((0, columns), dtype=np.int64), *(rest for _, rest in parts)])
        lanes = np.repeat(np.array([lane for lane, _ in parts], dtype=np.int64), [len(rest) for _, rest in parts])
        return cls(values, lanes, ends)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """The epoch's first batch, whose rows `PadPartial` repeats."""

    batch: Membership
    rests: Rests  # its samples, one for each of `batch.samples`


def filled(
    batch: Membership, other: Membership, numbers: Int64, rows: int, multiple: int, *, blank: bool = False
) -> Membership:
    """Return a batch with rows of another one behind its own.

    Args:
        batch: the batch.
        other: whose rows are repeated, from the first one on; again from its start where they are too few.
        numbers: the numbers of the other's samples; shape [S].
        rows: how many rows the result has.
        multiple: widths are multiples of this.
        blank: whether the rows hold a value, and no samples.
    """
    of = np.arange(len(other.samples)) if other.packing is None else other.packing.rows
    taken = [np.flatnonzero(of == at % other.rows) for at in range(rows - batch.rows)]
    at = np.concatenate([np.empty(0, dtype=np.int64), *taken])
    samples = np.concatenate((batch.samples, numbers[at]))
    lengths = None
    if batch.lengths is not None and other.lengths is not None:
        lengths = np.concatenate((batch.lengths, other.lengths[at]))
    if batch.packing is None or other.packing is None:
        width = 0 if lengths is None else int(padded(lengths.max(), multiple))
        return Membership(
            samples, rows, width, lengths, filler=np.arange(batch.rows, rows) if blank else None, size=batch.size
        )
    begins = np.repeat(np.arange(batch.rows, rows), [len(each) for each in taken])
    packing = Packing.concat([batch.packing, replace(other.packing.take(at), rows=begins)])
    return Membership(samples, rows, batch.width, lengths, packing)

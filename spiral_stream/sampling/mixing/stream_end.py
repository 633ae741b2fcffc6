"""What happens where a stream of a mixture ends: its next pass begins at once, in a new order.

A stream is never used up, and no epoch ends because a stream does. The samples of a stream are numbered over all epochs by
their *use* (see `mixture`). With n rows, use u is place ``u % n`` of pass ``u // n``. Every pass delivers every row once.
"""

from typing import TypeVar

from spiral_stream.sampling.order import UInt64

Number = TypeVar("Number", int, UInt64)


def pass_of(uses: Number, rows: Number) -> tuple[Number, Number]:
    """Return the pass of each use, and the place in that pass.

    Args:
        uses: one use, or uses of shape [P], uint64.
        rows: rows of the stream, or of the stream of each use; at least 1.
    """
    passes = uses // rows
    return passes, uses - passes * rows


def use_of(number: int, position: int, rows: int) -> int:
    """Return the use at a place of a pass: the inverse of `pass_of`."""
    return number * rows + position


def passes_of(first: int, end: int, rows: int) -> range:
    """Return the passes that uses [first, end) of a stream touch."""
    return range(first // rows, -(-end // rows))

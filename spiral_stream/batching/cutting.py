"""Where a sequence of samples is cut into batches that keep to the limits.

`cut` takes the longest run, again and again. `least_padded` takes the cut whose batches hold the fewest tokens, padding
included, and a price per batch: the least of all cuts, by dynamic programming (docs/decisions/0064). Without a price every
sample would be a batch of its own, which pads nothing. `run_ends` chooses between the two. The loops are in `_packing.c`; the
lengths need not be sorted. Cost: a few ns per sample for `cut`, 30 to 50 ns for `least_padded`.
"""

import numpy as np

from spiral_stream.batching import _packing
from spiral_stream.batching.budget import BatchLimits
from spiral_stream.batching.formation import Int64

# S samples, A additive limits


def cut(count: int, lengths: Int64 | None, costs: tuple[Int64, ...], limits: BatchLimits) -> Int64:
    """Cut greedily from the start.

    Args:
        count: S.
        lengths: shape [S], tokens per sample; None if no field has a length.
        costs: A arrays of shape [S].
        limits: of every batch. Each sample keeps to them on its own.

    Returns:
        shape [J + 1], int64: 0, then the end of each batch; the last is S. Only [0] where S is 0.
    """
    if limits.only_counts:
        assert limits.batch_size is not None
        return (
            np.append(np.arange(0, count, limits.batch_size, dtype=np.int64), count) if count else np.zeros(1, np.int64)
        )
    ends = np.zeros(count + 1, dtype=np.int64)
    return ends[: _packing.run_ends(*_arrays(count, lengths, costs, limits, ends)) + 1]


def least_padded(count: int, lengths: Int64 | None, costs: tuple[Int64, ...], limits: BatchLimits) -> Int64:
    """Cut so that batches hold the fewest tokens, padding included, and the price of each.

    Args:
        count: S, at most 2**22.
        lengths: as for `cut`.
        costs: as for `cut`.
        limits: as for `cut`, with a price.

    Returns:
        shape [J + 1], int64, as `cut` returns it.
    """
    assert limits.price is not None
    ends = np.zeros(count + 1, dtype=np.int64)
    found = _packing.least_ends(*_arrays(count, lengths, costs, limits, ends), limits.price)
    return ends[: found + 1]


def run_ends(count: int, lengths: Int64 | None, costs: tuple[Int64, ...], limits: BatchLimits) -> Int64:
    """Cut by `least_padded` where a batch has a price, else by `cut`; arguments and result as theirs."""
    return (cut if limits.price is None else least_padded)(count, lengths, costs, limits)


def _arrays(
    count: int, lengths: Int64 | None, costs: tuple[Int64, ...], limits: BatchLimits, ends: Int64
) -> tuple[Int64, Int64, Int64, Int64, int, int, int, bool]:
    """What the loops of `_packing` take; they write behind the first of ``ends``."""
    assert limits.max_tokens is None or lengths is not None
    lengths_int = np.zeros(count, dtype=np.int64) if lengths is None else np.ascontiguousarray(lengths, dtype=np.int64)
    costs_AS = np.array(costs, dtype=np.int64).reshape(len(costs), count)
    most = -1 if limits.max_tokens is None else limits.max_tokens
    size = -1 if limits.batch_size is None else limits.batch_size
    additive = np.array(limits.additive, dtype=np.int64)
    return lengths_int, costs_AS, additive, ends[1:], size, limits.multiple, most, limits.padded


def _growing(
    part: slice, lengths: Int64 | None, costs: tuple[Int64, ...], limits: BatchLimits, step: int = 1
) -> np.ndarray:
    """Whether the runs from the first sample of ``part`` to each of its samples keep to the limits; shape [size], bool.

    With ``step`` -1: the runs from each of its samples to the last.
    """
    counts = np.arange(1, part.stop - part.start + 1, dtype=np.int64)
    tokens = None if lengths is None else lengths[part][::step]
    good = limits.hold(
        counts,
        None if tokens is None else np.maximum.accumulate(tokens),
        None if tokens is None else np.cumsum(tokens),
        tuple(np.cumsum(cost[part][::step]) for cost in costs),
    )
    return good[::step]


def is_full(start: int, stop: int, lengths: Int64 | None, costs: tuple[Int64, ...], limits: BatchLimits) -> bool:
    """Return whether no further sample can join a run, not even one of a single token."""
    part = slice(start, stop)
    size = stop - start + 1
    longest = None if lengths is None else np.maximum(lengths[part].max(keepdims=True), 1)
    tokens = None if lengths is None else lengths[part].sum(keepdims=True) + 1
    sums = tuple(cost[part].sum(keepdims=True) + 1 for cost in costs)
    return not bool(limits.hold(np.array([size]), longest, tokens, sums)[0])


def even_end(ends: Int64, lengths: Int64 | None, costs: tuple[Int64, ...], limits: BatchLimits) -> Int64:
    """Move the cut between the last two batches so that their padded costs are as equal as the limits allow.

    Where a batch has a price, they do not grow by more than that.

    Args:
        ends: shape [J + 1], from `run_ends`.
        lengths: as for `cut`.
        costs: as for `cut`.
        limits: as for `cut`.

    Returns:
        shape [J + 1], int64; ``ends`` if the last batch is full or if it is the only one.
    """
    if len(ends) < 3 or is_full(int(ends[-2]), int(ends[-1]), lengths, costs, limits):  # noqa: PLR2004  two batches
        return ends
    part = slice(int(ends[-3]), int(ends[-1]))
    size = part.stop - part.start
    before = np.arange(1, size, dtype=np.int64)  # samples of the first of the two
    good = _growing(part, lengths, costs, limits)[:-1] & _growing(part, lengths, costs, limits, step=-1)[1:]
    left, right = before, size - before
    if lengths is not None:
        left = left * limits.widths(np.maximum.accumulate(lengths[part])[:-1])
        right = right * limits.widths(np.maximum.accumulate(lengths[part][::-1])[::-1][1:])
    if limits.price is not None:
        at = int(ends[-2]) - part.start - 1
        good &= left + right <= left[at] + right[at] + limits.price
    apart = np.where(good, np.abs(left - right), np.iinfo(np.int64).max)
    return np.concatenate((ends[:-2], [part.start + 1 + int(np.argmin(apart))], ends[-1:]))

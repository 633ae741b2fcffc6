"""How well a shard-aware order mixes shards, and what that costs: counts of shards per block, without reading a row.

Rows are uniform inside a block, so the chance that two rows of one batch share a shard follows from how many rows of each
shard a block holds. That table has one entry per (shard, block) that share rows; it is built from the unit table of one
pass in O(units + blocks): 0.3 s for 10**5 shards at three block sizes.
"""

from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from spiral_stream.sampling.order import LARGEST, Population, UInt64
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
MOST_BLOCKS: Final = 2**17  # with more blocks, figures are estimates from the first ones


class Choice(TypedDict):
    """How one block size mixes."""

    block_rows: int
    chosen: bool
    shards_per_block: float  # mean
    same_shard: float  # probability that two rows of one batch come from one shard; 0 if batches have one row
    run_length: float  # mean rows of one shard in one block, which one run of reads can fetch
    exact: bool  # counted in this pass; False: an estimate


def randomness(
    population: Population, order: ShardAwareShuffle, batch_size: int, pass_number: int = 0
) -> dict[str, object]:
    """Measure an order at its block size, at a quarter of it and at four times it.

    Args:
        population: the rows.
        order: the order.
        batch_size: rows per batch; batches are cut from the start of the pass.
        pass_number: the pass that is counted.

    Returns:
        ``granularity``, ``clump_size``, ``batch_size``, ``pass_number`` and
        ``choices``, a list of `Choice`.
    """
    chosen = order.shuffle_block_size
    sizes = dict.fromkeys((max(chosen // 4, 1), chosen, min(chosen * 4, LARGEST)))
    total = population.total
    if not total:
        choices = []
    elif order.sampling_granularity == "row":
        shards = order.units(population)[0].astype(np.float64)
        choices = [_of_rows(shards, size, chosen) for size in sizes]
    else:
        choices = [_of_units(population, order, batch_size, pass_number, size) for size in sizes]
    return {
        "granularity": order.sampling_granularity,
        "clump_size": order.clump_size,
        "batch_size": batch_size,
        "pass_number": pass_number,
        "choices": [_with_clumps(choice, order, population, batch_size) for choice in choices],
    }


def _of_rows(shard_rows: Float64, block_rows: int, chosen: int) -> Choice:
    """Rows that move singly meet by chance: every block is a uniform sample of all rows."""
    total = float(shard_rows.sum())
    held = min(float(block_rows), total)
    # Draws with replacement: too low by less than one part in (total / shard rows).
    met = held if total == held == 1 else float((1 - (1 - shard_rows / total) ** held).sum())
    pairs = float((shard_rows * (shard_rows - 1)).sum())
    return {
        "block_rows": block_rows,
        "chosen": block_rows == chosen,
        "shards_per_block": met,
        "same_shard": pairs / (total * (total - 1)) if total > 1 else 0.0,
        "run_length": held / met,
        "exact": False,
    }


def _of_units(
    population: Population, order: ShardAwareShuffle, batch_size: int, pass_number: int, block_rows: int
) -> Choice:
    layout = order.laid_out(population, pass_number)
    shard_at = order.units(population)[1][layout.pieces]
    # A batch of several blocks is all of their rows: it mixes as one block would.
    mixed_rows = max(block_rows, batch_size)
    counted = min(population.total, MOST_BLOCKS * block_rows)
    begins = np.minimum(layout.begins, np.uint64(counted))
    blocks, _, rows = _meetings(begins, shard_at, block_rows)
    number = int(blocks.max()) + 1
    return {
        "block_rows": block_rows,
        "chosen": block_rows == order.shuffle_block_size,
        "shards_per_block": rows.size / number,
        "same_shard": _same_shard(begins, shard_at, mixed_rows, batch_size),
        "run_length": counted / rows.size,
        "exact": counted == population.total and batch_size % min(block_rows, batch_size) == 0,
    }


def _meetings(begins: UInt64, shard_at: UInt64, block_rows: int) -> tuple[Int64, Int64, Float64]:
    """Shards and blocks that share rows, sorted by shard, then block.

    Args:
        begins: shape [U + 1], uint64: where each unit begins in the layout, and its end.
        shard_at: shape [U], uint64: the shard of each unit, in the order of the layout.
        block_rows: rows per block.

    Returns:
        three arrays of shape [M]: block, shard, rows that they share.
    """
    end = int(begins[-1])
    cuts = np.union1d(begins, np.arange(0, end, block_rows, dtype=np.uint64))
    starts, rows = cuts[:-1], np.diff(cuts)
    shards = shard_at[np.searchsorted(begins, starts, side="right") - 1]
    blocks = starts // np.uint64(block_rows)
    by = np.lexsort((blocks, shards))
    shards, blocks = shards[by], blocks[by]
    first = np.flatnonzero(np.concatenate(([True], (shards[1:] != shards[:-1]) | (blocks[1:] != blocks[:-1]))))
    return (
        blocks[first].astype(np.int64),
        shards[first].astype(np.int64),
        np.add.reduceat(rows[by], first).astype(np.float64),
    )


def _same_shard(begins: UInt64, shard_at: UInt64, block_rows: int, batch_size: int) -> float:
    """The fraction of ordered pairs of one batch that share a shard; a batch spans at most two blocks."""
    blocks, shards, rows = _meetings(begins, shard_at, block_rows)
    begin = np.arange(0, int(begins[-1]), block_rows, dtype=np.float64)
    size = np.minimum(float(block_rows), float(begins[-1]) - begin)
    alike = np.bincount(blocks, rows * (rows - 1), begin.size) / np.maximum(size * (size - 1), 1)
    batch = float(batch_size)
    head = np.minimum(-begin % batch, size)  # rows that end the batch of the block before
    full, tail = np.divmod(size - head, batch)
    within = head * (head - 1) + full * batch * (batch - 1) + tail * (tail - 1)
    across = 2 * tail[:-1] * head[1:]
    follows = np.flatnonzero((shards[1:] == shards[:-1]) & (blocks[1:] == blocks[:-1] + 1))
    shared = np.bincount(blocks[follows], rows[follows] * rows[follows + 1], begin.size)[:-1]
    pairs = float(within.sum() + across.sum())
    same = float((within * alike).sum() + (across * shared / (size[:-1] * size[1:])).sum())
    return same / pairs if pairs else 0.0


def _with_clumps(choice: Choice, order: ShardAwareShuffle, population: Population, batch_size: int) -> Choice:
    """Add the rows that lie in one clump of one unit; clumps are taken to begin anywhere in a batch."""
    clump_size = order.clump_size
    if clump_size == 1 or batch_size == 1:
        return choice
    apart = np.arange(1, min(clump_size, batch_size), dtype=np.float64)
    units = np.count_nonzero(order.units(population)[0])
    one_unit = np.maximum(1 - apart * units / population.total, 0)
    share = 2 * (batch_size - apart) * (1 - apart / clump_size) / (batch_size * (batch_size - 1))
    same = float((share * one_unit).sum()) + (1 - float(share.sum())) * choice["same_shard"]
    return {**choice, "same_shard": same, "exact": False}

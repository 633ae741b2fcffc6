"""CPU nanoseconds an index: the permutation, every order, and Grain's index_shuffle where grain is installed.

``python -m benchmarks.orders [--runs 5]`` prints min / median / max of the runs;
one run evaluates 2**18 positions in windows of 2**14, as a stream does.
"""

import argparse
import importlib.util
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from spiral_stream.sampling.order import Arrangement, Order, Population
from spiral_stream.sampling.orders.hash_bucketed import HashBucketed
from spiral_stream.sampling.orders.permutation import EXACT, permute
from spiral_stream.sampling.orders.sequential import Sequential
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.orders.shuffle import GlobalShuffle
from spiral_stream.seeding import mix64

UInt64 = NDArray[np.uint64]
ASKED, WINDOW = 2**18, 2**14
SHARDS, SHARD_ROWS = 100_000, 100_000


class EvenBuckets:
    """A BucketIndex of equal buckets whose sorted rows are the rows themselves, so that it costs nothing."""

    def __init__(self, total: int) -> None:
        self._total = total

    def starts(self, bucket_count: int) -> UInt64:
        return (np.arange(bucket_count + 1) * (self._total // bucket_count)).astype(np.uint64)

    def rows(self, ranks: UInt64) -> UInt64:
        return ranks

    def ranks(self, rows: UInt64) -> UInt64:
        return rows


def report(name: str, runs: int, work: Callable[[], int]) -> None:
    """Time ``work``, which returns how many indices it evaluated."""
    costs = []
    for _ in range(runs):
        start_s = time.process_time()
        count = work()
        costs.append((time.process_time() - start_s) / count * 1e9)
    print(f"{name:<58} {min(costs):8.1f} {statistics.median(costs):8.1f} {max(costs):8.1f}", flush=True)


def in_windows(evaluate: Callable[[UInt64], UInt64], index: UInt64) -> int:
    for start in range(0, index.size, WINDOW):
        evaluate(index[start : start + WINDOW])
    return index.size


def permutations(runs: int) -> None:
    index = np.arange(ASKED, dtype=np.uint64)
    for size in (EXACT, 1_000, 60_000, 1_281_167, 10**10):
        inside = index % np.uint64(size)
        report(
            f"permute, one size {size} and key",
            runs,
            lambda n=size, at=inside: in_windows(lambda x: permute(x, n, 7), at),
        )

    def mixed(size: UInt64, keys: UInt64) -> int:
        for start in range(0, ASKED, WINDOW):
            part = slice(start, start + WINDOW)
            permute(index[part] % size[part], size[part], keys[part])
        return ASKED

    keys = mix64(index)
    same = np.full(ASKED, 1_281_167, dtype=np.uint64)
    large = keys % np.uint64(10**6) + np.uint64(EXACT + 1)
    small = keys % np.uint64(EXACT) + np.uint64(1)
    report("permute, one size, every element its own key", runs, lambda: mixed(same, keys))
    report("permute, every element its own size past 128 and key", runs, lambda: mixed(large, keys))
    report("permute, every element its own size up to 128 and key", runs, lambda: mixed(small, keys))
    report(
        "permute, sizes up to 128 in runs of 64 elements",
        runs,
        lambda: mixed(np.repeat(small[::64], 64), np.repeat(keys[::64], 64)),
    )


def orders(runs: int) -> None:
    rows = np.full(SHARDS, SHARD_ROWS, dtype=np.uint64)
    total = SHARDS * SHARD_ROWS
    population = Population(rows, np.arange(SHARDS, dtype=np.uint64), index=EvenBuckets(total))
    middle = np.arange(total // 2, total // 2 + ASKED, dtype=np.uint64)
    anywhere = mix64(middle) % np.uint64(total)
    for order in (
        Sequential(),
        GlobalShuffle(1),
        GlobalShuffle(1, clump_size=8),
        ShardAwareShuffle(1),
        ShardAwareShuffle(1, clump_size=8),
        ShardAwareShuffle(1, sampling_granularity="row"),
        HashBucketed(1),
    ):
        report_order(order, population, middle, anywhere, runs)


def report_order(order: Order, population: Population, middle: UInt64, anywhere: UInt64, runs: int) -> None:
    name = repr(order).replace("shard_key=('storage_shard',), ", "").split(", bucket_order")[0]
    start_s = time.process_time()
    arrangement: Arrangement = order.arrange(population, 0)
    print(f"{name}: arranged in {(time.process_time() - start_s) * 1e3:.1f} ms")
    report("  rows, in sequence", runs, lambda: in_windows(arrangement.rows, middle))
    report("  rows, anywhere", runs, lambda: in_windows(arrangement.rows, anywhere))
    report("  positions, anywhere", runs, lambda: in_windows(arrangement.positions, anywhere))


def grain(runs: int) -> None:
    if importlib.util.find_spec("grain") is None:
        print("grain is not installed here: no figure of its index_shuffle")
        return
    from grain._src.python.experimental.index_shuffle.python import index_shuffle_module

    shuffle = index_shuffle_module.index_shuffle
    for size in (EXACT, 1_000, 60_000, 1_281_167):

        def one_by_one(size: int = size) -> int:
            for at in range(2_000):
                shuffle(index=at % size, max_index=size - 1, seed=7, rounds=4)
            return 2_000

        report(f"grain index_shuffle, size {size}, 4 rounds", runs, one_by_one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    print(
        f"CPython {platform.python_version()}, NumPy {np.__version__}; CPU ns an index: min, median, max of {runs} runs"
    )
    permutations(runs)
    print(f"{SHARDS:,} shards of {SHARD_ROWS:,} rows")
    orders(runs)
    grain(runs)


if __name__ == "__main__":
    main()

"""How long it takes to decide who shares a batch: CPU milliseconds a window of 8,192 documents, no payload touched.

Ours by `WindowedBucket` and `Packed` on lengths alone; beside them what the peers' users have: the NumPy buckets that
all peers of `benchmarks.text` run, and the index list of transformers' `LengthGroupedSampler`, which knows no budget.
One thread; repetitions interleaved.

    python -m benchmarks.formation [--repeats 7] [--data /tmp/spiral-text]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.documents import MULTIPLE, ROW, ROWS, WINDOW, Mapped, Texts, buckets, windows

BUDGETS = (131_072, 2_000_000)
HEADINGS = ("formation", "ms a window: min", "median", "max")

Form = Callable[[np.ndarray], object]


def peers() -> dict[str, Form]:
    """Title to a function of the window's lengths."""
    numbers = np.random.default_rng(5)
    found: dict[str, Form] = {
        f"peers' NumPy buckets, {budget:,} tokens": lambda lengths, budget=budget: buckets(lengths, budget, numbers)
        for budget in BUDGETS
    }
    try:
        from transformers.trainer_pt_utils import get_length_grouped_indices
    except ImportError:
        return found
    generator = torch.Generator().manual_seed(5)
    found["transformers, grouped by length, 128 rows"] = lambda lengths: get_length_grouped_indices(
        lengths.tolist(), 128, mega_batch_mult=WINDOW // 128, generator=generator
    )
    return found


def ours() -> dict[str, Form]:
    """As `peers`; a window is one chapter here, so that all of it comes out."""
    from spiral_stream import BatchBudget, BucketKey, WindowedBucket
    from spiral_stream.batching import Packed
    from spiral_stream.batching.formation import Formation, Setting, Window

    def former(formation: Formation, batch_size: int | None, multiple: int) -> Form:
        def run(lengths: np.ndarray) -> object:
            samples = np.arange(len(lengths))
            window = Window(
                samples, np.zeros(len(lengths), np.int32), lengths, (lengths,) if batch_size is None else ()
            )
            setting = Setting(key=5, size=len(lengths), multiple=multiple, batch_size=batch_size)
            return formation.former(setting).form(window, final=True)

        return run

    found = {}
    for budget in BUDGETS:
        bucket = WindowedBucket(
            window_size=WINDOW, keys=[BucketKey("len(tokens)")], budget=BatchBudget(max_tokens=budget)
        )
        found[f"Spiral, WindowedBucket, {budget:,} tokens"] = former(bucket, None, MULTIPLE)
    for strategy in ("best_fit", "first_fit", "concat_and_split"):
        cut = {} if strategy == "concat_and_split" else {"oversize": "truncate"}
        packed = Packed(max_tokens=ROW, strategy=strategy, window_size=WINDOW, **cut)
        found[f"Spiral, Packed, {strategy}"] = former(packed, ROWS, 1)
    return found


def measure(texts: Texts, repeats: int) -> list[tuple[str, ...]]:
    """A row of `HEADINGS` for everything that is there."""
    forms = peers()
    try:
        forms |= ours()
    except ImportError as error:
        print(f"ours left out: {error}")
    lengths = Mapped.tokens(texts).lengths
    turns: dict[str, list[float]] = {title: [] for title in forms}
    for repetition, window in zip(range(repeats + 1), windows(len(lengths)), strict=False):
        for title, form in forms.items():
            began = time.process_time()
            form(lengths[window])
            if repetition:  # the first warms up
                turns[title].append((time.process_time() - began) * 1e3)
    return [
        (title, *(f"{figure:.2f}" for figure in (min(found), statistics.median(found), max(found))))
        for title, found in turns.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--data", type=Path, default=Path("/tmp/spiral-text"))
    asked = parser.parse_args()
    for row in (HEADINGS, *measure(Texts(asked.data), asked.repeats)):
        print(f"{row[0]:46}" + "".join(f"{figure:>18}" for figure in row[1:]))


if __name__ == "__main__":
    main()

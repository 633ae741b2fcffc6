"""A user's function on threads, on processes and kept, beside torch's DataLoader and LanceDB's `transform`.

Cells take turns in one process: ``python -m benchmarks.functions FOLDER [--rounds 5]``. CPU seconds are those of the process
and of the children that a cell starts and ends, with all that these import. Two functions: `normalized` is NumPy (it
releases the GIL), `counted` is a loop of Python.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

import spiral_stream as sp
from benchmarks.function_bodies import counted, normalized

ROWS: Final = 16_384
BATCH: Final = 128
WORKERS: Final = 2
TENSOR: Final = pa.fixed_shape_tensor(pa.float32(), (3, 32, 32))
RETURNS: Final = {"numpy": {"x": TENSOR}, "python": {"k": pa.int64()}}


FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "numpy": (normalized, "pixels"),
    "python": (counted, "text"),
}


def make(folder: Path) -> None:
    """Write the rows once: 16,384 small images and texts of 120 words."""
    if (folder / "db" / "rows.lance").exists():
        return
    import lance

    random = np.random.default_rng(0)
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(random.integers(0, 256, ROWS * 3072, np.uint8)), 3072)
    words = random.integers(0, 5_000, (ROWS, 120))
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    table = pa.table({"id": np.arange(ROWS), "pixels": pixels, "text": texts})
    lance.write_dataset(table, folder / "db" / "rows.lance", max_rows_per_file=ROWS // 8)


# ---- the systems; each yields the number of samples of a batch


def spiral(folder: Path, what: str, workers: int | None = None, *, kept: bool = False) -> Iterator[int]:
    function, column = FUNCTIONS[what]
    catalog = sp.connect(str(folder / "catalog"))
    if "rows" not in catalog.tables():
        catalog.register("rows", sp.Lance(str(folder / "db" / "rows.lance")), identity="id")
    plan = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=1))
    plan = plan.map(function, columns=[column], returns=RETURNS[what], version="1", workers=workers)
    plan = plan.cache() if kept else plan
    (name,) = RETURNS[what]
    with plan.collate(batch_size=BATCH, fields={name: sp.Stack(name)}).to_torch(prefetch=4) as stream:
        if kept:
            stream.materialize(lambda _: None)
        for batch in stream:
            yield len(batch[name])


class Rows:
    """A map-style dataset as people write it: rows of a permutation, read and transformed a batch at a time."""

    def __init__(self, uri: str, what: str) -> None:
        self.uri, self.what, self.dataset = uri, what, None
        self.order = np.random.default_rng(1).permutation(ROWS)

    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, number: int) -> Any:
        function, column = FUNCTIONS[self.what]
        if self.dataset is None:
            import lance

            self.dataset = lance.dataset(self.uri)
        rows = self.order[number * BATCH : (number + 1) * BATCH]
        (batch,) = self.dataset.take(rows, columns=[column]).combine_chunks().to_batches()
        (found,) = function(batch).values()
        return torch.as_tensor(np.asarray(found))


def torch_loader(folder: Path, what: str, workers: int) -> Iterator[int]:
    from torch.utils.data import DataLoader

    rows: Any = Rows(str(folder / "db" / "rows.lance"), what)
    how = {"multiprocessing_context": "spawn"} if workers else {}
    for batch in DataLoader(rows, batch_size=None, num_workers=workers, **how):
        yield len(batch)


def lancedb_threads(folder: Path, what: str, threads: int) -> Iterator[int]:
    """LanceDB's `transform`: record batches read ahead, a thread pool that transforms them, 8 of them in flight."""
    from collections import deque
    from concurrent.futures import ThreadPoolExecutor

    rows = Rows(str(folder / "db" / "rows.lance"), what)
    with ThreadPoolExecutor(threads) as pool:
        ahead = deque(pool.submit(rows.__getitem__, number) for number in range(8))
        for number in range(8, len(rows) + 8):
            batch = ahead.popleft().result()
            if number < len(rows):
                ahead.append(pool.submit(rows.__getitem__, number))
            yield len(batch)


def lancedb_streaming(folder: Path, what: str, threads: int) -> Iterator[int]:
    """LanceDB's own `StreamingDataset`: it gives samples one by one, and the loop stacks them."""
    import lancedb
    from lancedb.streaming import StreamingDataset

    function, column = FUNCTIONS[what]

    def transform(rows: pa.RecordBatch) -> list[Any]:
        (found,) = function(rows).values()
        return list(torch.as_tensor(np.asarray(found)))

    dataset = StreamingDataset(
        lancedb.connect(str(folder / "db")).open_table("rows"), columns=[column], shuffle_seed=1, transform=transform,
        read_batch_size=BATCH, transform_parallelism=threads,
    )  # fmt: skip
    samples = iter(dataset)
    while held := list(islice(samples, BATCH)):
        yield len(torch.stack(held))


SYSTEMS: Final[dict[str, Callable[[Path, str], Iterator[int]]]] = {
    "spiral, threads": spiral,
    f"spiral, workers={WORKERS}": lambda folder, what: spiral(folder, what, WORKERS),
    "spiral, kept": lambda folder, what: spiral(folder, what, kept=True),
    "DataLoader, in the loop": lambda folder, what: torch_loader(folder, what, 0),
    f"DataLoader, {WORKERS} workers": lambda folder, what: torch_loader(folder, what, WORKERS),
    f"LanceDB StreamingDataset, {WORKERS} threads": lambda folder, what: lancedb_streaming(folder, what, WORKERS),
    f"thread pool as LanceDB's, {WORKERS}": lambda folder, what: lancedb_threads(folder, what, WORKERS),
}


def cpu_s() -> float:
    """CPU seconds of this process and of the children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def cell(folder: Path, what: str, name: str) -> dict[str, float]:
    """One pass over the rows; processes are started inside it and have ended at its end."""
    began, cpu = time.monotonic(), cpu_s()
    first, samples = 0.0, 0
    for size in SYSTEMS[name](folder, what):
        first = first or time.monotonic() - began
        samples += size
    return {"samples": samples, "cpu_s": cpu_s() - cpu, "wall_s": time.monotonic() - began, "first_s": first}


def main() -> None:
    """Run all cells in turn, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    make(given.folder)
    torch.set_num_threads(1)
    for what in FUNCTIONS:  # what is opened and kept once
        cell(given.folder, what, "spiral, kept")
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    names = list(SYSTEMS)
    for turn in range(given.rounds):
        for what in FUNCTIONS:
            for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
                found.setdefault((what, name), []).append(cell(given.folder, what, name))
                print(turn, what, name, found[what, name][-1], file=sys.stderr, flush=True)
    print("| function | system | CPU s: min, median, max | wall s: min, median, max | first batch s: median |")
    print("|---|---|---|---|---|")
    for (what, name), cells in found.items():
        columns = [[each[key] for each in cells] for key in ("cpu_s", "wall_s")]
        told = [f"{min(c):.2f}, {statistics.median(c):.2f}, {max(c):.2f}" for c in columns]
        first = statistics.median(each["first_s"] for each in cells)
        print(f"| {what} | {name} | {told[0]} | {told[1]} | {first:.2f} |")


if __name__ == "__main__":
    main()

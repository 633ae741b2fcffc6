"""One measurement: one system, in a process of its own, pinned to its cores.

Seconds of CPU are those of the whole process tree, read from /proc at two batch borders in steady state: queues are
as full at the end as at the start, so what is in flight cancels.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import time
from pathlib import Path

from benchmarks.peers.workload import BATCH, SIDE, Data

TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--batches", type=int, default=16, help="measured at least, however long they take")
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--prepare", action="store_true")
    asked = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    try:
        peer = importlib.import_module(f"benchmarks.peers.{asked.module}")
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    if asked.prepare:
        if hasattr(peer, "prepare"):
            peer.prepare(Data(asked.data), **asked.options)
        print(json.dumps({name: importlib.metadata.version(name) for name in peer.PACKAGES}))
        return
    print(
        json.dumps(measure(peer.batches(Data(asked.data), **asked.options), asked.warmup, asked.seconds, asked.batches))
    )
    os._exit(0)  # peers' threads and workers may wait for a consumer that has left


def measure(batches: object, warmup: int, seconds: float, at_least: int) -> dict[str, float]:
    """Count images between batch borders, for ``seconds`` and ``at_least`` batches or longer, after ``warmup`` batches."""
    began, source = time.perf_counter(), iter(batches)
    for _ in range(warmup):
        check(*next(source))
    first = time.perf_counter()
    start, cpu, images = first, tree_cpu_s(os.getpid()), 0
    while time.perf_counter() - start < seconds or images < at_least * BATCH:
        next(source)
        images += BATCH
    wall_s, cpu_s = time.perf_counter() - start, tree_cpu_s(os.getpid()) - cpu
    check(*next(source))
    return {
        "images": images, "wall_s": wall_s, "cpu_s": cpu_s, "per_cpu_s": images / cpu_s, "per_s": images / wall_s,
        "warmup_s": first - began,
    }  # fmt: skip


def check(pixels: object, labels: object) -> None:
    """The batch is what was asked for: shape, type, layout, and values that look normalised."""
    import torch

    assert pixels.shape == (BATCH, 3, SIDE, SIDE), pixels.shape
    assert pixels.dtype == torch.float16, pixels.dtype
    assert labels.shape == (BATCH,), labels.shape
    assert labels.dtype == torch.int64, labels.dtype
    sample = pixels[::16].float()
    assert -2.2 < sample.min() < -1.0, sample.min()
    assert 1.0 < sample.max() < 2.7, sample.max()
    assert 0.3 < sample.std() < 1.6, sample.std()


def tree_cpu_s(root: int) -> float:
    """User and system seconds of a process, its living descendants, and those of them already reaped."""
    parents, ticks = {}, {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended since the listing
            parents[int(path.name)] = int(fields[1])
            ticks[int(path.name)] = sum(map(int, fields[11:15]))
    tree, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in tree} - tree
        tree, grown = tree | more, bool(more)
    return sum(ticks[pid] for pid in tree) / TICKS


if __name__ == "__main__":
    main()

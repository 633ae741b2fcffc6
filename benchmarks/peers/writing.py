"""Write samples to shards, row by row: one cell of `benchmarks.writer`. Runs in Mosaic's environment too.

`python -m benchmarks.peers.writing SYSTEM WORKLOAD FOLDER` prints seconds, CPU seconds, samples and bytes as JSON.
"""

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

KEPT = 512  # different samples, made beforehand
SHARD_BYTES = 64 << 20  # Mosaic's default
WORKLOADS = {"images": (4_000, 84_000), "texts": (100_000, 2_000), "numbers": (300_000, 0)}  # samples, payload bytes
Rows = Iterator[dict[str, Any]]


def rows(workload: str, count: int, size: int) -> Rows:
    """The samples: payload from a few that lie in memory, so that making them costs next to nothing."""
    draw = np.random.default_rng(17)
    if workload == "images":
        payloads: list[Any] = [draw.bytes(size + 100 * k - 50 * KEPT) for k in range(KEPT)]
    else:
        words = ["".join(map(chr, draw.integers(97, 123, 8))) for _ in range(2000)]
        payloads = [" ".join(words[k] for k in draw.integers(0, 2000, size // 9)) for _ in range(KEPT)]
    for k in range(count):
        if workload == "images":
            yield {"id": k, "label": k % 1000, "image": payloads[k % KEPT]}
        elif workload == "texts":
            text, cut = payloads[k % KEPT], k // KEPT  # no two are equal
            yield {"id": k, "text": text[cut:] + text[:cut]}
        else:
            yield {"id": k, "label": k % 1000, "score": k / 7}


def mosaic(workload: str, folder: str, given: Rows) -> None:
    from streaming import MDSWriter

    kinds = {"id": "int", "label": "int", "image": "bytes", "text": "str", "score": "float64"}
    columns = {name: kinds[name] for name in names(workload)}
    with MDSWriter(out=folder, columns=columns, size_limit=SHARD_BYTES) as writer:
        for row in given:
            writer.write(row)


def ours(workload: str, folder: str, given: Rows, together: int = 1) -> None:
    import pyarrow as pa

    import spiral_stream as spiral

    kinds = {
        "id": pa.int64(),
        "label": pa.int64(),
        "image": pa.large_binary(),
        "text": pa.utf8(),
        "score": pa.float64(),
    }
    schema = pa.schema([(name, kinds[name]) for name in names(workload)])
    with spiral.sources.Writer(folder, schema, shard_bytes=SHARD_BYTES) as writer:
        if together == 1:
            for row in given:
                writer.write(row)
            return
        held: list[dict[str, Any]] = []
        for row in given:
            held.append(row)
            if len(held) == together:
                writer.write(pa.RecordBatch.from_pylist(held, schema))
                held = []
        if held:
            writer.write(pa.RecordBatch.from_pylist(held, schema))


def names(workload: str) -> list[str]:
    return {"images": ["id", "label", "image"], "texts": ["id", "text"], "numbers": ["id", "label", "score"]}[workload]


SYSTEMS: dict[str, Callable[[str, str, Rows], None]] = {
    "mosaic": mosaic,
    "rows": ours,
    "batches": lambda workload, folder, given: ours(workload, folder, given, 256),
}


def used() -> float:
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in times)


def main() -> None:
    system, workload, folder = sys.argv[1:]
    count, size = WORKLOADS[workload]
    SYSTEMS[system](workload, f"{folder}/warm", rows(workload, 300, size))  # imports
    held = 0
    for row in rows(workload, count, size):
        held += sum(len(value) if isinstance(value, bytes | str) else 8 for value in row.values())
    given = rows(workload, count, size)
    first = next(given)

    def every() -> Rows:
        yield first
        yield from given

    wall, cpu = time.perf_counter(), used()
    SYSTEMS[system](workload, f"{folder}/out", every())
    cpu, wall = used() - cpu, time.perf_counter() - wall
    stored = sum(path.stat().st_size for path in Path(folder, "out").rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shutil.rmtree(folder)
    print(
        json.dumps({"samples": count, "bytes": held, "stored": stored, "cpu_s": cpu, "wall_s": wall, "peak_mb": peak})
    )


if __name__ == "__main__":
    main()

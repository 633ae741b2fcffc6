"""How cost grows with rows and shards: CPU seconds and peak anonymous memory, each step in a fresh process.

``python -m benchmarks.scale register FOLDER [--rows 10000000] [--fragments 20] [--identity id|name]`` makes the Lance data
once in the folder and prints a line per step: register, register again, refresh after one more fragment was appended, and
the lookup of single rows. CPU seconds leave imports out. Memory is the largest RssAnon, looked at every 20 ms.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def rows_of(first: int, count: int, shard: int, identity: str) -> pa.Table:
    """Rows of one fragment."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    ids = (
        7919 * numbers + 13 if identity == "id" else pa.array(np.char.add("sample-", numbers.astype("U12")), pa.utf8())
    )
    return pa.table(
        {
            identity: ids,
            "label": (numbers % 1000).astype(np.int32),
            "quality": (numbers * 2_654_435_761 % 1_000 / 1_000).astype(np.float32),
            "storage_shard": pa.array(np.repeat(f"shard-{shard:06d}", count)),
        }
    )


def make(folder: Path, rows: int, fragments: int, identity: str) -> Path:
    """Write the data set, unless it is there; one fragment per shard."""
    import lance

    place = folder / f"{identity}-{rows}-{fragments}.lance"
    if not place.exists():
        each = rows // fragments
        for k in range(fragments):
            lance.write_dataset(
                rows_of(k * each, each, k, identity),
                str(place),
                mode="append" if k else "create",
                max_rows_per_file=each,
            )
    return place


def append(place: Path, rows: int, shard: int, identity: str) -> None:
    """Append one fragment."""
    import lance

    first = lance.dataset(str(place)).count_rows()
    lance.write_dataset(rows_of(first, rows, shard, identity), str(place), mode="append", max_rows_per_file=rows)


def step(what: str, catalog: str, place: str, identity: str) -> None:
    """Run one step here, and print what it cost."""
    import lance  # noqa: F401  imports are not measured

    import spiral_stream as sp

    opened = sp.connect(catalog)
    stream: Any = None
    if what == "locate":
        table = opened.table("rows").sample(identity=identity, order=sp.GlobalShuffle(seed=1), epoch=0)
        stream = table.collate(batch_size=1024, fields={"label": sp.Stack("label")}).to_numpy()
        value = 7919 * 5 + 13 if identity == "id" else "sample-5"
        stream.ledger(0)
    start, wall = time.process_time(), time.perf_counter()
    if what == "register":
        opened.register("rows", sp.Lance(place), identity=identity)
    elif what == "refresh":
        opened.refresh("rows")
    else:
        for _ in range(10):
            stream.locate(value, epoch=0)
    times = 10 if what == "locate" else 1
    print(json.dumps({"cpu_s": (time.process_time() - start) / times, "wall_s": (time.perf_counter() - wall) / times}))


def measured(*args: str) -> dict[str, float]:
    """Run a step in a fresh process; also its peak anonymous memory in MB."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scale", "step", *args], stdout=subprocess.PIPE, text=True
    )
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        time.sleep(0.02)
    out, _ = process.communicate()
    if process.returncode:
        msg = f"step {' '.join(args)} failed"
        raise SystemExit(msg)
    return {**json.loads(out.splitlines()[-1]), "anon_mb": peak / 1024}


def register(folder: Path, rows: int, fragments: int, identity: str) -> None:
    """Measure registration and look-ups."""
    place = make(folder, rows, fragments, identity)
    copy, catalog = folder / "grown.lance", folder / "catalog"
    for old in (copy, catalog):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(place, copy, copy_function=os.link)  # files of data never change
    each = rows // fragments

    def tell(name: str, what: str, counted: int) -> None:
        found = measured(what, str(catalog), str(copy), identity)
        per_row = found["cpu_s"] / counted * 1e6
        print(
            f"{name:<40} {found['cpu_s']:9.3f} {found['wall_s']:9.3f} {per_row:9.3f} {found['anon_mb']:9.0f}",
            flush=True,
        )

    print(f"{rows:,} rows, {fragments:,} fragments, identity {identity}")
    print(f"{'':<40} {'CPU s':>9} {'wall s':>9} {'us a row':>9} {'anon MB':>9}")
    tell("register", "register", rows)
    tell("register again, unchanged", "register", rows)
    tell("refresh, unchanged", "refresh", rows)
    append(copy, each, fragments, identity)
    tell("refresh, one fragment appended", "refresh", each)
    tell("locate", "locate", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("register")
    one.add_argument("folder", type=Path)
    one.add_argument("--rows", type=int, default=10_000_000)
    one.add_argument("--fragments", type=int, default=20)
    one.add_argument("--identity", choices=("id", "name"), default="id")
    inner = commands.add_parser("step")
    inner.add_argument("args", nargs=4)
    asked = parser.parse_args()
    if asked.command == "step":
        step(*asked.args)
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    register(asked.folder, asked.rows, asked.fragments, asked.identity)


if __name__ == "__main__":
    main()

"""How cost grows with rows and shards: CPU seconds and peak anonymous memory, each step in a fresh process.

    python -m benchmarks.scale register FOLDER [--rows 10000000] [--fragments 20] [--identity id|name]
    python -m benchmarks.scale select FOLDER [--rows 10000000] [--fragments 20]
    python -m benchmarks.scale narrow FOLDER [--rows 1000000] [--rounds 20] [--batches 100] [--other TREE] [--together]

Each makes its Lance data in the folder once. ``register`` registers, registers again, refreshes unchanged and after one
fragment was appended, and looks single rows up. ``select`` prepares ``quality >= 0.8`` (20 % pass), another threshold, the
first again, and then one threshold that nobody has prepared in 8 processes at once. CPU seconds leave imports out. Memory
is the largest RssAnon, looked at every 20 ms. ``narrow`` is in `benchmarks.narrow`: batches of narrow rows and of token
lists, with loops by hand in the same run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks import narrow

PROCESSES: Final = 8
_BATCH: Final = 1_024
_EVERY_S: Final = 0.02


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

    folder.mkdir(parents=True, exist_ok=True)
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


# ---- steps, each in a process of its own


def step(what: str, catalog: str, place: str, given: str) -> None:
    """Run one step here, and print what it cost."""
    found = prepared(catalog, float(given)) if what == "select" else registered(what, catalog, place, given)
    print(json.dumps(found))


def registered(what: str, catalog: str, place: str, identity: str) -> dict[str, float]:
    """Register, refresh or look rows up."""
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
    return {"cpu_s": (time.process_time() - start) / times, "wall_s": (time.perf_counter() - wall) / times}


def prepared(root: str, threshold: float) -> dict[str, float]:
    """Prepare the rows that pass a threshold, and find random ones of them."""
    import spiral_stream as sp
    from spiral_stream.catalog.relation.reader import OpenRelation
    from spiral_stream.planner.selection.find import Workplace
    from spiral_stream.planner.selection.narrow_columns import NarrowSource
    from spiral_stream.planner.selection.selected import select

    catalog, folder = sp.Catalog(root), Path(root).parent / "prepared"
    entry = catalog.entry("rows")
    base = OpenRelation(entry)
    plan = catalog.table("rows").filter(sp.col("quality") >= threshold)
    kept = NarrowSource(base, folder)
    place = Workplace(folder, lambda _: base, {"rows": entry.data_version}, lambda _: kept)
    next(base.scan([], sp.col("label") == -1, [0]), None)  # imports what a scan imports
    start, wall = time.process_time(), time.perf_counter()
    selected = select(plan.node, base, place)
    spent = {"cpu_s": time.process_time() - start, "wall_s": time.perf_counter() - wall}
    some = np.random.default_rng(0).integers(0, selected.total, (50, _BATCH)).astype(np.uint64)
    selected.columns.ordinals(some.ravel())  # maps it
    begun = time.perf_counter()
    for each in some:
        selected.columns.ordinals(each)
    return {**spent, "rows": selected.total, "select_us": (time.perf_counter() - begun) / len(some) * 1e6}


def begun(*args: str) -> "subprocess.Popen[str]":
    """Start a step in a fresh process."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scale", "step", *args], stdout=subprocess.PIPE, text=True
    )


def measured(*args: str) -> dict[str, float]:
    """Run a step in a fresh process; also its peak anonymous memory in MB."""
    process, peak = begun(*args), 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        time.sleep(_EVERY_S)
    out, _ = process.communicate()
    if process.returncode:
        msg = f"step {' '.join(args)} failed"
        raise SystemExit(msg)
    return {**json.loads(out.splitlines()[-1]), "anon_mb": peak / 1024}


# ---- what is measured


def head(words: str) -> None:
    print(words)
    print(f"{'':<40} {'CPU s':>9} {'wall s':>9} {'us a row':>9} {'anon MB':>9}")


def tell(name: str, found: dict[str, float], counted: int) -> None:
    per_row = found["cpu_s"] / counted * 1e6
    print(f"{name:<40} {found['cpu_s']:9.3f} {found['wall_s']:9.3f} {per_row:9.3f} {found['anon_mb']:9.0f}", flush=True)


def register(folder: Path, rows: int, fragments: int, identity: str) -> None:
    """Measure registration and look-ups."""
    place = make(folder, rows, fragments, identity)
    copy, catalog = folder / "grown.lance", folder / "catalog"
    for old in (copy, catalog):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(place, copy, copy_function=os.link)  # files of data never change
    each, given = rows // fragments, (str(catalog), str(copy), identity)
    head(f"{rows:,} rows, {fragments:,} fragments, identity {identity}")
    tell("register", measured("register", *given), rows)
    tell("register again, unchanged", measured("register", *given), rows)
    tell("refresh, unchanged", measured("refresh", *given), rows)
    append(copy, each, fragments, identity)
    tell("refresh, one fragment appended", measured("refresh", *given), each)
    tell("locate", measured("locate", *given), 1)


def select(folder: Path, rows: int, fragments: int) -> None:
    """Measure how the rows that pass a filter are found."""
    place, catalog = make(folder, rows, fragments, "id"), folder / "select" / "catalog"
    shutil.rmtree(folder / "select", ignore_errors=True)
    measured("register", str(catalog), str(place), "id")
    given = ("select", str(catalog), str(place))
    head(f"{rows:,} rows, {fragments:,} fragments")
    first = measured(*given, "0.8")
    tell("prepare quality >= 0.8", first, rows)
    other = measured(*given, "0.7")
    tell("another threshold", other, rows)
    tell("the first again", measured(*given, "0.8"), rows)
    print(f"{first['rows']:,.0f} rows survive; {_BATCH:,} random ones are found in {first['select_us']:.0f} us")
    for threshold in ("0.801", "0.802", "0.803"):
        done = [json.loads(each.communicate()[0]) for each in [begun(*given, threshold) for _ in range(PROCESSES)]]
        spent = [each["cpu_s"] for each in done]
        each_s = ", ".join(f"{each:.2f}" for each in spent)
        print(
            f"{PROCESSES} at once: {sum(spent):.2f} CPU s ({each_s}), {sum(spent) / other['cpu_s']:.2f} x another threshold"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("register", "select"):
        one = commands.add_parser(name)
        one.add_argument("folder", type=Path)
        one.add_argument("--rows", type=int, default=10_000_000)
        one.add_argument("--fragments", type=int, default=20)
        if name == "register":
            one.add_argument("--identity", choices=("id", "name"), default="id")
    narrow.add_arguments(commands.add_parser("narrow"))
    commands.add_parser("step").add_argument("args", nargs=4)
    asked = parser.parse_args()
    if asked.command == "step":
        step(*asked.args)
    elif asked.command == "narrow":
        narrow.main(asked)
    elif asked.command == "select":
        select(asked.folder, asked.rows, asked.fragments)
    else:
        register(asked.folder, asked.rows, asked.fragments, asked.identity)


if __name__ == "__main__":
    main()

"""What finding the surviving rows of a filter costs: CPU seconds and peak anonymous memory of fresh processes.

    python -m benchmarks.scale_select [rows] [fragments] [folder]

Prepares ``quality >= 0.8`` (20 % pass) over a Lance relation for the first time, then another threshold, then the first
one again; then 8 processes at once on a threshold that nobody has prepared. Imports are not counted.
"""

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np

ROWS: Final = 10_000_000
FRAGMENTS: Final = 20
PROCESSES: Final = 8
_BATCH: Final = 1_024
_EVERY_S: Final = 0.02


def main() -> None:
    """Run all steps and print a line for each."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    fragments = int(sys.argv[2]) if len(sys.argv) > 2 else FRAGMENTS
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as folder:
        _generate(Path(folder), rows, fragments)
        first = _run(folder, 0.8)
        _say("first", first, rows)
        _say("another threshold", _run(folder, 0.7), rows)
        _say("the first again", _run(folder, 0.8), rows)
        one = first["cpu_s"]
        both = [_start(folder, 0.801) for _ in range(PROCESSES)]
        done = [json.loads(each.communicate()[0]) for each in both]
        total = sum(each["cpu_s"] for each in done)
        each_s = ", ".join(f"{each['cpu_s']:.2f}" for each in done)
        print(f"{PROCESSES} at once: {total:.2f} CPU s of preparing ({each_s}), {total / one:.2f} x one")


def _generate(folder: Path, rows: int, fragments: int) -> None:
    import lance
    import pyarrow as pa

    import spiral_stream as sp

    each = rows // fragments
    for k in range(fragments):
        rng, ids = np.random.default_rng(k), np.arange(k * each, (k + 1) * each)
        table = pa.table(
            {
                "id": 7919 * ids + 13,
                "label": (ids % 1_000).astype(np.int32),
                "split": pa.array(np.array(["train", "val"])[(ids % 10 == 0).astype(int)]),
                "quality": rng.random(each, np.float32),
            }
        )
        lance.write_dataset(table, f"{folder}/rows.lance", mode="append" if k else "create", max_rows_per_file=each)
    catalog = sp.Catalog(f"{folder}/catalog")
    catalog.register("rows", sp.Lance(f"{folder}/rows.lance"), identity="id")


def _start(folder: str, threshold: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.scale_select", "--step", folder, str(threshold)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _run(folder: str, threshold: float) -> dict[str, float]:
    found: dict[str, float] = json.loads(_start(folder, threshold).communicate()[0])
    return found


def _say(what: str, found: dict[str, float], rows: int) -> None:
    print(
        f"{what}: {found['cpu_s']:.2f} CPU s, {found['cpu_s'] / rows * 1e6:.3f} us a row; peak anonymous memory "
        f"{found['anonymous_mb']:.0f} MB, {found['before_mb']:.0f} before; {found['rows']:,} rows survive; "
        f"{_BATCH:,} random ones in {found['select_us']:.0f} us"
    )


def _step(folder: str, threshold: float) -> None:
    """Prepare one threshold in this process and print what it cost."""
    import spiral_stream as sp
    from spiral_stream.catalog.opened import OpenRelation
    from spiral_stream.planner.selection_on_disk import select
    from spiral_stream.planner.surviving import Workplace

    catalog = sp.Catalog(f"{folder}/catalog")
    entry = catalog.entry("rows")
    base = OpenRelation(entry)
    plan = catalog.table("rows").filter(sp.col("quality") >= threshold)
    place = Workplace(Path(folder) / "prepared", lambda _: OpenRelation(entry), {"rows": entry.data_version})
    next(base.scan([], sp.col("label") == -1, [0]), None)  # imports what a scan imports
    watch = _Watch()
    before, begun = watch.peak_mb, _cpu_s()
    selected = select(plan.node, base, place)
    spent, peak = _cpu_s() - begun, watch.close()
    some = np.random.default_rng(0).integers(0, selected.total, (50, _BATCH)).astype(np.uint64)
    selected.columns.ordinals(some.ravel())  # maps it
    begun = time.perf_counter()
    for each in some:
        selected.columns.ordinals(each)
    took = (time.perf_counter() - begun) / len(some) * 1e6
    found = {"cpu_s": spent, "anonymous_mb": peak, "before_mb": before, "rows": selected.total, "select_us": took}
    print(json.dumps(found))


class _Watch:
    """The largest anonymous memory of this process so far."""

    def __init__(self) -> None:
        self.peak_mb, self._ended = _anonymous_mb(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> float:
        """Stop looking and return the peak."""
        self._ended.set()
        self._thread.join()
        return self.peak_mb

    def _look(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.peak_mb = max(self.peak_mb, _anonymous_mb())


def _anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        _step(sys.argv[2], float(sys.argv[3]))
    else:
        main()

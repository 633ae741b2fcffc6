"""From the start of a process to the first batch, and from an opened plan to the first batch of a pass: CPU seconds.

    python -m benchmarks.start FOLDER [--other TREE] [--shards 100000] [--rounds 7] [--pandas]

``program`` is a fresh process that imports the library, connects, plans, opens a kept plan over 2,000 rows and takes its
first batch. ``many shards`` opens a kept plan, with a filter and two kept columns, over a relation that names so many shards
(`tests.fixtures.huge`); there imports are left out. ``--other`` measures another checkout in turns with this one. pyarrow
imports pandas at the first scalar where it is installed; it is hidden from the processes, unless ``--pandas`` is given.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.interleaved import CONSOLE, ROOT, markdown

ROWS: Final = 2_000
PER_SHARD: Final = 100_000
ORDERS: Final = ("global", "shards")


def hide_pandas() -> None:
    """Let this process find no pandas, as one where nobody installed it."""
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec

    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return None if name == "pandas" else found(name, path, target)

    PathFinder.find_spec = find_spec  # type: ignore[method-assign]


class Laps:
    """CPU seconds of steps that follow each other."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._last = time.process_time()

    def note(self, step: str) -> None:
        now = time.process_time()
        self.found[step] = now - self._last
        self._last = time.process_time()


def program(folder: Path) -> dict[str, float]:
    """A first program over a small kept plan, step by step."""
    laps = Laps()
    import spiral_stream as spiral

    laps.note("import")
    catalog = spiral.connect(str(folder / "small"))
    laps.note("connect")
    rows = catalog.table("rows").sample(order=spiral.GlobalShuffle(seed=17))
    plan = rows.collate(batch_size=64, fields={"x": spiral.Stack("x", dtype="float32")})
    laps.note("plan")
    with plan.to_numpy() as stream:
        len(stream)
        laps.note("open")
        next(iter(stream))
        laps.note("first batch")
    ours = [name for name in sys.modules if name.startswith("spiral_stream")]
    return {**laps.found, "all": sum(laps.found.values()), "rooms": len(ours)}


def opened(folder: Path) -> dict[str, float]:
    """A kept plan over many shards, in two orders, after one over a single shard has imported everything."""
    from tests.fixtures import huge

    def measured(where: Path, order: str) -> dict[str, float]:
        laps = Laps()
        with huge.plan_of(where, order) as stream:
            len(stream)
            laps.note(f"open, {order}")
            for epoch, which in enumerate(("first batch", "first batch of a later pass")):
                stream.set_epoch(epoch)
                laps.note("")
                batches = iter(stream)
                next(batches)
                laps.note(f"{which}, {order}")
                batches.close()  # type: ignore[attr-defined]  # a pass
        return {step: spent for step, spent in laps.found.items() if step}

    for order in ORDERS:
        measured(folder / "one", order)
    return {step: spent for order in ORDERS for step, spent in measured(folder / "huge", order).items()}


def make(folder: Path, shards: int) -> None:
    """Make the relations that are not there."""
    import pyarrow as pa

    import spiral_stream as spiral
    from tests.fixtures import huge

    if not (folder / "small").exists():
        catalog = spiral.connect(str(folder / "small"))
        table = pa.table({"id": range(ROWS), "x": [row / 10 for row in range(ROWS)]})
        catalog.register("rows", spiral.Arrow(table), identity="id")
    for name, count in (("one", 1), ("huge", shards)):
        if not (folder / name).exists():
            huge.write(folder / name, count, PER_SHARD)


CELLS: Final = {"program": program, "many shards": opened}


def run(checkout: Path, cell: str, folder: Path, *, pandas: bool) -> dict[str, float]:
    """Run a cell of this module over the library of a checkout, in a fresh process."""
    command = [sys.executable, str(Path(__file__)), str(folder), "--cell", cell, *(["--pandas"] if pandas else [])]
    kept = {"PYTHONPATH": os.pathsep.join([str(checkout), str(ROOT)]), "PYTHONPYCACHEPREFIX": str(folder / "pycache")}
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=env | kept, cwd=checkout, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pandas", action="store_true")
    parser.add_argument("--cell", choices=list(CELLS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ.pop("SPIRAL_CACHE", None)  # what is kept lies beside each catalog, where `huge` names all shards in it
    if asked.cell:
        if not asked.pandas:
            hide_pandas()
        print(json.dumps(CELLS[asked.cell](asked.folder)))
        return
    make(asked.folder, asked.shards)
    trees = {**({"before": asked.other.resolve()} if asked.other else {}), "now": ROOT}
    turns: dict[tuple[str, str], list[float]] = {}
    for turn in range(asked.rounds + 1):  # the first compiles
        for name in [*trees, *trees][turn % len(trees) :][: len(trees)]:
            for cell in CELLS:
                for step, spent in run(trees[name], cell, asked.folder.resolve(), pandas=asked.pandas).items():
                    turns.setdefault((step, name), []).extend([spent] if turn else [])
    columns = ("step", "commit", "CPU ms: min", "median", "max")
    lines = [
        (step, name, *(f"{each * (1 if step == 'rooms' else 1e3):,.1f}" for each in _sides(spent)))
        for (step, name), spent in turns.items()
    ]
    CONSOLE.print("\n".join(markdown(columns, sorted(lines, key=lambda line: list(turns).index((line[0], line[1]))))))


def _sides(spent: list[float]) -> tuple[float, float, float]:
    return min(spent), statistics.median(spent), max(spent)


if __name__ == "__main__":
    main()

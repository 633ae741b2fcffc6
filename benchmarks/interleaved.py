"""Interleaved repetitions of systems, each in a fresh process, and the tables made of them.

A repetition runs every system once, in an order that moves on by one from repetition to repetition, so that what else
the machine does falls on all of them alike.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
CONSOLE = Console()

# Large batches are kept by the allocator instead of being unmapped and faulted in again: Grain 690 -> 800 images per
# CPU second, torch's workers 590 -> 700, LanceDB unchanged. Every system gets it.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}

Cell = dict[str, float]


@dataclass(frozen=True)
class System:
    """One line of the table."""

    title: str
    module: str
    options: dict[str, str] = field(default_factory=dict)
    role: str = "peer"  # "peer", "ours" or "limit"
    python: str = sys.executable  # a peer whose pins exclude ours has an environment of its own


def run_cell(
    cell: str, system: System, more: Sequence[str], timeout_s: float | None = None, checkout: Path = ROOT
) -> dict:
    """Run module ``cell`` of a checkout in a fresh process and read its last line.

    Raises:
        RuntimeError: it failed, or took longer than ``timeout_s``.
    """
    command = [system.python, "-m", cell, system.module, "--options", json.dumps(system.options), *more]
    try:
        done = subprocess.run(
            command,
            cwd=checkout,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | ALLOCATOR | {"PYTHONPATH": str(checkout)},
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{system.title} took more than {timeout_s:.0f} s in {' '.join(command)}"
        raise RuntimeError(msg) from error
    if done.returncode != 0:
        msg = f"{system.title} failed in {' '.join(command)}:\n{done.stderr[-4000:]}"
        raise RuntimeError(msg)
    return json.loads(done.stdout.splitlines()[-1])


def interleave(names: Sequence[str], repeats: int, run: Callable[[str], Cell], unit: str) -> dict[str, list[Cell]]:
    """The cells of every system, ``repeats`` each, printed as they come; ``unit`` names what ``per_cpu_s`` counts."""
    cells: dict[str, list[Cell]] = {name: [] for name in names}
    for repetition in range(repeats):
        turn = repetition % len(names)
        for name in [*names[turn:], *names[:turn]]:
            cell = run(name)
            cells[name].append(cell)
            rates = f"{cell['per_cpu_s']:10.4g} {unit}/CPU s {cell['per_s']:10.4g} {unit}/s"
            CONSOLE.print(f"{repetition + 1}/{repeats} {name:22} {rates}")
    return cells


def rows(systems: Mapping[str, System], cells: Mapping[str, list[Cell]], form: str = ",.0f") -> list[tuple[str, ...]]:
    """One row a system, slowest first; the last column divides medians per CPU second by the best peer's."""
    medians = {name: statistics.median(cell["per_cpu_s"] for cell in found) for name, found in cells.items()}
    best = max((median for name, median in medians.items() if systems[name].role == "peer"), default=None)
    made = []
    for name in sorted(cells, key=medians.__getitem__):
        rates = [cell["per_cpu_s"] for cell in cells[name]]
        wall = statistics.median(cell["per_s"] for cell in cells[name])
        ratio = "-" if best is None else f"{medians[name] / best:.2f}"
        figures = (format(rate, form) for rate in (min(rates), medians[name], max(rates), wall))
        made.append((systems[name].title, *figures, ratio))
    return made


def headings(unit: str) -> tuple[str, ...]:
    """What the columns of `rows` are."""
    return ("system", f"{unit} / CPU s: min", "median", "max", f"{unit} / s: median", "to the best peer")


def show(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(*columns, title=title)
    for line in lines:
        table.add_row(*line)
    CONSOLE.print(table)


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table of a report, a blank line after it."""
    marked = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return [*marked, *("| " + " | ".join(line) + " |" for line in lines), ""]


def facts(module: str, repeats: int, cores: int, versions: Mapping[str, str]) -> list[str]:
    """The list items that every report opens with."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return [
        f"- command: `{' '.join([f'python -m {module}', *sys.argv[1:]])}`",
        f"- commit: `{commit}`",
        f"- machine: {_processor()}, {cores} cores for each system; load average at the end {os.getloadavg()[0]:.1f}",
        f"- {repeats} interleaved repetitions, each system in a fresh process; CPU seconds of its whole process tree",
        f"- Python {platform.python_version()}; " + ", ".join(f"{name} {versions[name]}" for name in sorted(versions)),
    ]


def write_report(out: Path, theme: str, lines: Sequence[str]) -> None:
    """Write ``<theme>_<today>.md`` into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{theme}_{datetime.now(UTC):%Y-%m-%d}.md"
    path.write_text("\n".join(lines))
    CONSOLE.print(f"written to {path}")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

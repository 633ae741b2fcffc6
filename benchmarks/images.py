"""`make bench`: images per CPU second beside the peers, interleaved, written to docs/benchmarks.

A repetition runs every system once, each in a fresh process, in an order that moves on by one from repetition to
repetition, so that what else the machine does falls on all of them alike.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers.workload import Data
from spiral_assets.demo.images import write_image_relation

ROOT = Path(__file__).parents[1]
CONSOLE = Console()


@dataclass(frozen=True)
class System:
    """One line of the table."""

    title: str
    module: str
    options: dict[str, str] = field(default_factory=dict)
    role: str = "peer"  # "peer", "ours" or "limit"


SYSTEMS = {
    "torch-torchvision": System("torch DataLoader, torchvision v2", "torch_loader", {"kernels": "torchvision"}),
    "torch-simplejpeg": System("torch DataLoader, simplejpeg + OpenCV", "torch_loader", {"kernels": "simplejpeg"}),
    "grain": System("Grain", "grain_images"),
    "lancedb": System("LanceDB StreamingDataset", "lancedb_images"),
    "limit": System("(no loader: the peers' kernels alone)", "limit", role="limit"),
    "spiral": System("Spiral, originals", "spiral", {"cache": "none"}, role="ours"),
    "spiral-source": System("Spiral, originals kept in a cache, Source()", "spiral", {"cache": "source"}, role="ours"),
    "spiral-jpeg": System("Spiral, cache Jpeg(shorter_side=256)", "spiral", {"cache": "jpeg"}, role="ours"),
    "spiral-raw": System("Spiral, cache Raw(shorter_side=256)", "spiral", {"cache": "raw"}, role="ours"),
}


def main(
    systems: Annotated[str, typer.Option(help="comma-separated names, or all: " + ", ".join(SYSTEMS))] = "all",
    images: Annotated[int, typer.Option(help="how many images are drawn")] = 10_000,
    repeats: Annotated[int, typer.Option(min=1, help="repetitions; a published figure takes 5 or more")] = 5,
    seconds: Annotated[float, typer.Option(help="measured seconds a cell, after the warm-up")] = 4.0,
    cores: Annotated[int, typer.Option(min=1, help="cores a system may use")] = 2,
    data: Annotated[Path, typer.Option(help="where the images and their conversions are kept")] = ROOT
    / "demo"
    / "bench",
    out: Annotated[Path, typer.Option(help="folder of the report")] = ROOT / "docs" / "benchmarks",
) -> None:
    """Measure images per CPU second of every system on the same images."""
    names = list(SYSTEMS) if systems == "all" else systems.split(",")
    for name in names:
        if name not in SYSTEMS:
            msg = f"{name!r} is none of {', '.join(SYSTEMS)}"
            raise typer.BadParameter(msg)
    where = Data(data.resolve())
    drawn = write_image_relation(where.tables, images, form="lance", val_every=0)
    write_image_relation(where.folder, images, form="folder", val_every=0)
    versions: dict[str, str] = {}
    for name in list(names):
        found = _cell(SYSTEMS[name], where, cores, ["--prepare"])
        if "missing" in found:
            CONSOLE.print(f"{name}: left out, {found['missing']} is not installed here (make bench installs it)")
            names.remove(name)
        else:
            versions |= found
    cells: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for repetition in range(repeats):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            cell = _cell(SYSTEMS[name], where, cores, ["--seconds", str(seconds)])
            cells[name].append(cell)
            rates = f"{cell['per_cpu_s']:7.0f} images/CPU s {cell['per_s']:7.0f} images/s"
            CONSOLE.print(f"{repetition + 1}/{repeats} {name:18} {rates}")
    rows = _rows(cells)
    table = Table(
        *HEADINGS, title=f"W1, {images:,} images of {drawn.image_bytes / images / 1000:.0f} KB, {cores} cores"
    )
    for row in rows:
        table.add_row(*row)
    CONSOLE.print(table)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"images_{datetime.now(UTC):%Y-%m-%d}.md"
    facts = (
        f"- data: {images:,} drawn images of {drawn.image_bytes / images / 1000:.0f} KB on average, in the page cache",
        f"- machine: {_processor()}, {cores} cores for each system; load average at the end {os.getloadavg()[0]:.1f}",
        f"- {repeats} interleaved repetitions, each system in a fresh process; CPU seconds of its whole process tree",
        f"- Python {platform.python_version()}; " + ", ".join(f"{name} {versions[name]}" for name in sorted(versions)),
    )
    path.write_text(_report(facts, rows))
    CONSOLE.print(f"written to {path}")


HEADINGS = ("system", "images / CPU s: min", "median", "max", "images / s: median", "to the best peer")


def _rows(cells: dict[str, list[dict[str, float]]]) -> list[tuple[str, ...]]:
    """One row a system, slowest first; the last column divides medians per CPU second by the best peer's."""
    medians = {name: statistics.median(cell["per_cpu_s"] for cell in found) for name, found in cells.items()}
    best = max((median for name, median in medians.items() if SYSTEMS[name].role == "peer"), default=None)
    rows = []
    for name in sorted(cells, key=medians.__getitem__):
        rates = [cell["per_cpu_s"] for cell in cells[name]]
        wall = statistics.median(cell["per_s"] for cell in cells[name])
        ratio = "-" if best is None else f"{medians[name] / best:.2f}"
        figures = (f"{rate:,.0f}" for rate in (min(rates), medians[name], max(rates), wall))
        rows.append((SYSTEMS[name].title, *figures, ratio))
    return rows


def _report(facts: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    lines = [
        f"# Images per CPU second, {datetime.now(UTC):%Y-%m-%d}",
        "",
        "JPEG -> random resized crop 224 -> flip -> normalise -> float16 NCHW, batches of 256, shuffled.",
        "",
        f"- command: `{' '.join(['python -m benchmarks.images', *sys.argv[1:]])}`",
        f"- commit: `{commit}`",
        *facts,
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---" + "|---:" * (len(HEADINGS) - 1) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "Peers get the fastest ordinary kernels found (`benchmarks/peers/pixels.py`): bilinear without antialiasing,",
        "normalisation by table. Spiral's crops are antialiased. What each peer's configuration is, and what was tried",
        "and was slower, is in `benchmarks/README.md`.",
        "",
    ]
    return "\n".join(lines)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# Large batches are kept by the allocator instead of being unmapped and faulted in again: Grain 690 -> 800 images per
# CPU second, torch's workers 590 -> 700, LanceDB unchanged. Every system gets it.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def _cell(system: System, data: Data, cores: int, more: list[str]) -> dict:
    """Run `benchmarks.cell` in a fresh process and read its last line."""
    command = [sys.executable, "-m", "benchmarks.cell", system.module, "--data", str(data.root)]
    command += ["--options", json.dumps(system.options), "--cores", str(cores), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | ALLOCATOR)
    if done.returncode != 0:
        msg = f"{system.title} failed in {' '.join(command)}:\n{done.stderr[-4000:]}"
        raise RuntimeError(msg)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    typer.run(main)

"""Writing samples to shards: `spiral.sources.Writer` and Mosaic's MDSWriter, the same samples, interleaved, in fresh processes.

`python -m benchmarks.writer FOLDER --mosaic PYTHON` prints a table: CPU seconds of the process, imports left out.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.interleaved import ROOT
from benchmarks.peers.writing import WORKLOADS

SYSTEMS = {"rows": "Writer, row by row", "batches": "Writer, 256 rows at a time", "mosaic": "MDSWriter"}


def cell(python: str, system: str, workload: str, folder: Path) -> dict[str, float]:
    command = [python, "-m", "benchmarks.peers.writing", system, workload, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(command)}: {done.stderr[-2000:]}"
        raise RuntimeError(msg)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(
    folder: Path,
    mosaic: Annotated[str, typer.Option(help="The interpreter of Mosaic's environment.")] = ".mosaic-venv/bin/python",
    rounds: int = 5,
) -> None:
    """Print a table of CPU microseconds per sample and MB of samples per CPU second."""
    print(
        "| workload | system | us per sample: least, median | samples per CPU s | MB per CPU s | stored MB | peak MB |"
    )
    print("|---|---|---|---|---|---|---|")
    for workload in WORKLOADS:
        found: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
        for k in range(rounds):
            for system in [*SYSTEMS][k % len(SYSTEMS) :] + [*SYSTEMS][: k % len(SYSTEMS)]:
                python = mosaic if system == "mosaic" else sys.executable
                found[system].append(cell(python, system, workload, folder / f"{workload}-{system}"))
        for system, title in SYSTEMS.items():
            costs = [each["cpu_s"] / each["samples"] * 1e6 for each in found[system]]
            median, one = statistics.median(costs), found[system][0]
            rates = f"{1e6 / median:,.0f} | {one['bytes'] / one['samples'] / median:,.0f}"
            size, peak = one["stored"] / 1e6, max(each["peak_mb"] for each in found[system])
            print(
                f"| {workload} | {title} | {min(costs):.1f}, {median:.1f} | {rates} | {size:,.0f} | {peak:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)

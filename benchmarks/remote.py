"""Images on an object store 50 ms away: the first batch and an epoch, cold and warm, beside the libraries that do the same.

    python -m benchmarks.remote [--mosaic <python of an environment with mosaicml-streaming, simplejpeg, opencv>]

Every system gets a fresh process and an empty cache folder, reads most of an epoch (cold), and once more in another process
with what the first one has left on the disk (warm). Seconds of CPU are those of the system's processes, not the server's.
Prints the sections for docs/benchmarks/remote_<date>.md.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.interleaved import CONSOLE, ROOT, System, markdown, run_cell
from benchmarks.peers.workload import BATCH, Data
from benchmarks.remote_server import BUCKET
from spiral_assets.corpora.images import write_image_relation

LEFT_OUT = 2  # batches of the epoch's end, which systems cut differently
FIGURES = ("first_s", "wall_s", "per_s", "cpu_s", "per_cpu_s", "requests", "megabytes")
TITLES = ("system", "first batch, s", "all, s", "images/s", "CPU s", "images/CPU s", "requests", "MB")


def systems(server: str, mosaic: str) -> dict[str, System]:
    """The systems of a run; Mosaic has its own interpreter, if there is one."""
    far = f"s3://{BUCKET}"
    found = {
        "webdataset": System("webdataset, curl", "webdataset_images", {"remote": f"{server}/{BUCKET}/tars"}),
        "webdataset-kept": System(
            "webdataset, curl, cache_dir", "webdataset_images", {"remote": f"{server}/{BUCKET}/tars", "kept": True}
        ),
        "litdata": System("LitData StreamingDataset", "litdata_images", {"remote": f"{far}/litdata"}),
        "spiral-tars": System("Spiral, WebDataset(tars)", "spiral_shards", {"form": "tars", "remote": f"{far}/tars"}),
        "spiral-mds": System("Spiral, Mds", "spiral_shards", {"form": "mds", "remote": f"{far}/mds"}),
    }
    if mosaic:
        found["mosaic"] = System("Mosaic StreamingDataset", "mosaic_images", {"remote": f"{far}/mds"}, python=mosaic)
    return found


@contextmanager
def served(folder: Path, latency_ms: float) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Start the server over a folder; yield where it is, and its process."""
    command = [sys.executable, "-m", "benchmarks.remote_server", str(folder), "--latency-ms", str(latency_ms)]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started.stdout.readline().strip(), started
    finally:
        started.kill()
        started.wait()


def counts(server: "subprocess.Popen[str]") -> dict[str, float]:
    """What the server has answered since it was asked last."""
    server.stdin.write("count\n")
    server.stdin.flush()
    found = json.loads(server.stdout.readline())
    return {"requests": found["requests"], "megabytes": found["bytes"] / 1e6}


def main(
    images: Annotated[int, typer.Option(help="how many images are drawn")] = 4_096,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    latency_ms: Annotated[float, typer.Option(help="before each answer")] = 50,
    mosaic: Annotated[str, typer.Option(help="Python that has mosaicml-streaming; empty leaves it out")] = "",
    only: Annotated[str, typer.Option(help="names of systems, separated by commas")] = "",
    data: Annotated[Path, typer.Option(help="where images and shards are kept")] = ROOT / "demo" / "bench-remote",
) -> None:
    """Measure seconds to the first batch, and images per second and per CPU second."""
    where = Data(data.resolve())
    write_image_relation(where.folder, images, form="folder", val_every=0)
    for system in systems("", mosaic).values():
        if not system.module.startswith("spiral"):
            run_cell("benchmarks.remote_cell", system, ["--data", str(where.root), "--batches", "0", "--prepare"])
    shared = where.root / "served"
    shutil.rmtree(shared, ignore_errors=True)
    for form in ("tars", "mds", "litdata"):
        if (where.root / form).exists():
            shutil.copytree(where.root / form, shared / form, copy_function=os.link)
    with served(shared, latency_ms) as (place, server):
        measure(where, place, server, repeats, images // BATCH - LEFT_OUT, mosaic, only)


def measure(
    where: Data, place: str, server: "subprocess.Popen[str]", repeats: int, batches: int, mosaic: str, only: str
) -> None:
    """Run every system cold and warm, in turn, and print the tables."""
    profile = where.root / "storage.toml"
    profile.write_text(f'[bench]\nprefix = "s3://"\nendpoint = "{place}"\nallow_http = true\nregion = "us-east-1"\n')
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true", "S3_ENDPOINT_URL": place, "SPIRAL_STORAGE": str(profile),
    }  # fmt: skip
    asked = {name: each for name, each in systems(place, mosaic).items() if not only or name in only.split(",")}
    shutil.rmtree(where.root / "catalog-remote", ignore_errors=True)
    counts(server)
    for name, system in asked.items():
        if name.startswith("spiral"):
            run_cell("benchmarks.remote_cell", system, ["--data", str(where.root), "--batches", "0", "--prepare"])
            CONSOLE.print(f"{system.title}: registration, once for everybody:", counts(server))
    found: dict[str, dict[str, list[dict[str, float]]]] = {"cold": {}, "warm": {}}
    for repetition in range(repeats):
        for at in range(len(asked)):
            name = list(asked)[(at + repetition) % len(asked)]
            with tempfile.TemporaryDirectory(dir=where.root) as cache:
                os.environ |= {"BENCH_CACHE": cache, "SPIRAL_NODE_CACHE": cache}
                for state, cells in found.items():
                    more = ["--data", str(where.root), "--batches", str(batches)]
                    cell = run_cell("benchmarks.remote_cell", asked[name], more, 300) | counts(server)
                    cells.setdefault(name, []).append(cell)
                    CONSOLE.print(
                        f"{repetition + 1}/{repeats} {state} {name:18}", {k: round(cell[k], 2) for k in FIGURES}
                    )
    for state, cells in found.items():
        lines = [(asked[name].title, *_middle(some)) for name, some in cells.items()]
        print(f"\n## {state}\n", *markdown(TITLES, lines), sep="\n")


def _middle(cells: list[dict[str, float]]) -> list[str]:
    """The median of each figure."""
    return [f"{statistics.median(cell[name] for cell in cells):,.2f}" for name in FIGURES]


if __name__ == "__main__":
    typer.run(main)

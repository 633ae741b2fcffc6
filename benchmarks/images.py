"""`make bench`: images per CPU second beside the peers, interleaved, written to docs/benchmarks."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.interleaved import (
    CONSOLE,
    ROOT,
    Cell,
    System,
    facts,
    headings,
    interleave,
    markdown,
    rows,
    run_cell,
    show,
    write_report,
)
from benchmarks.peers.workload import Data
from spiral_assets.corpora.images import write_image_relation

SYSTEMS = {
    "torch-torchvision": System("torch DataLoader, torchvision v2", "torch_loader", {"kernels": "torchvision"}),
    "torch-simplejpeg": System("torch DataLoader, simplejpeg + OpenCV", "torch_loader", {"kernels": "simplejpeg"}),
    "grain": System("Grain", "grain_images"),
    "lancedb": System("LanceDB StreamingDataset", "lancedb_images"),
    "limit": System("(no loader: the peers' kernels alone)", "limit", role="limit"),
    "spiral": System("Spiral, originals", "spiral", {"cache": "none"}, role="ours"),
    "spiral-source": System(
        "Spiral, originals kept in a cache, Original()", "spiral", {"cache": "source"}, role="ours"
    ),
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
        found = run_cell(
            "benchmarks.cell", SYSTEMS[name], ["--data", str(where.root), "--cores", str(cores), "--prepare"]
        )
        if "missing" in found:
            CONSOLE.print(f"{name}: left out, {found['missing']} is not installed here (make bench installs it)")
            names.remove(name)
        else:
            versions |= found
    more = ["--data", str(where.root), "--cores", str(cores), "--seconds", str(seconds)]

    def run(name: str) -> Cell:
        return run_cell("benchmarks.cell", SYSTEMS[name], more)

    lines = rows(SYSTEMS, interleave(names, repeats, run, "images"))
    kilobytes = drawn.image_bytes / images / 1000
    show(f"W1, {images:,} images of {kilobytes:.0f} KB, {cores} cores", headings("images"), lines)
    page = [
        f"# Images per CPU second, {datetime.now(UTC):%Y-%m-%d}",
        "",
        "JPEG -> random resized crop 224 -> flip -> normalise -> float16 NCHW, batches of 256, shuffled.",
        "",
        *facts("benchmarks.images", repeats, cores, versions),
        f"- data: {images:,} drawn images of {kilobytes:.0f} KB on average, in the page cache",
        "",
        *markdown(headings("images"), lines),
        "Peers get the fastest ordinary kernels found (`benchmarks/peers/pixels.py`): bilinear without antialiasing,",
        "normalisation by table. Spiral's crops are antialiased. What each peer's configuration is, and what was tried",
        "and was slower, is in `benchmarks/README.md`.",
        "",
    ]
    write_report(out, "images", page)


if __name__ == "__main__":
    typer.run(main)

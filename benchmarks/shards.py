"""Image training from tars and from MDS shards, beside the libraries that wrote them; and what an index of tars costs.

    python -m benchmarks.shards --mosaic <python of an environment with mosaicml-streaming, simplejpeg, opencv>

Prints the sections for docs/benchmarks/sources_<date>.md.
"""

import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.interleaved import ROOT, System, facts, headings, interleave, markdown, rows, run_cell
from benchmarks.peers.workload import Data
from spiral_assets.corpora.images import write_image_relation

FORMS = {"tars": ("webdataset", "spiral-tars"), "mds": ("mosaic", "spiral-mds")}


def systems(mosaic: str) -> dict[str, System]:
    """The systems of a run; Mosaic has its own interpreter, if there is one."""
    found = {
        "webdataset": System("webdataset, simplejpeg + OpenCV", "webdataset_images"),
        "spiral-tars": System("Spiral, WebDataset(tars)", "spiral_shards", {"form": "tars"}, role="ours"),
    }
    if mosaic:
        found["mosaic"] = System("Mosaic StreamingDataset, simplejpeg + OpenCV", "mosaic_images", python=mosaic)
        found["spiral-mds"] = System("Spiral, Mds(folder)", "spiral_shards", {"form": "mds"}, role="ours")
    return found


def main(
    images: Annotated[int, typer.Option(help="how many images are drawn")] = 2_048,
    repeats: Annotated[int, typer.Option(min=1, help="repetitions; a published figure takes 5 or more")] = 5,
    seconds: Annotated[float, typer.Option(help="measured seconds a cell, after the warm-up")] = 4.0,
    cores: Annotated[int, typer.Option(min=1, help="cores a system may use")] = 2,
    mosaic: Annotated[str, typer.Option(help="Python that has mosaicml-streaming; empty leaves MDS out")] = "",
    data: Annotated[Path, typer.Option(help="where images and shards are kept")] = ROOT / "demo" / "bench",
) -> None:
    """Measure images per CPU second on the same shards."""
    where, asked = Data(data.resolve()), systems(mosaic)
    write_image_relation(where.folder, images, form="folder", val_every=0)
    shutil.rmtree(where.root / "catalog", ignore_errors=True)
    versions: dict[str, str] = {}
    for system in asked.values():
        versions |= run_cell("benchmarks.cell", system, ["--data", str(where.root), "--prepare"])
    more = ["--data", str(where.root), "--cores", str(cores), "--seconds", str(seconds)]
    cells = interleave(list(asked), repeats, lambda name: run_cell("benchmarks.cell", asked[name], more), "images")
    print("\n".join(facts("benchmarks.shards", repeats, cores, versions)))
    for form in FORMS.values():
        names = [name for name in form if name in cells]
        lines = rows(asked, {name: cells[name] for name in names}) if names else []
        print("\n", *markdown(headings("images"), lines), sep="\n")
    index = [(title, *(f"{value:,.1f}" for value in found)) for title, found in indexing(where, repeats).items()]
    print(*markdown(("an index of the tars", "CPU us / sample: min", "median", "max"), index), sep="\n")


def indexing(data: Data, repeats: int) -> dict[str, tuple[float, float, float]]:
    """CPU microseconds per sample of making an index of the tars, and of the libraries' own pass over the same tars."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    import spiral_stream as spiral

    paths = sorted((data.root / "tars").glob("*.tar"))

    def register() -> int:
        with tempfile.TemporaryDirectory() as folder:
            catalog = spiral.connect(folder)
            catalog.register("tars", spiral.sources.WebDataset(str(data.root / "tars")), identity="__key__")
            return len(catalog.table("tars").project("cls").to_arrow())

    def headers() -> int:
        return sum(len(tarfile.open(path).getmembers()) for path in paths) // 2

    def library() -> int:
        return sum(
            sum(1 for _ in group_by_keys(tar_file_expander([{"url": "", "stream": path.open("rb")}]))) for path in paths
        )

    asked: dict[str, Callable[[], int]] = {
        "Spiral: register(WebDataset), index kept and checked": register,
        "tarfile: getmembers()": headers,
        "webdataset: one pass": library,
    }
    found: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(repeats):
        for name, run in asked.items():
            begun = time.process_time()
            count = run()
            found[name].append((time.process_time() - begun) / count * 1e6)
    return {name: (min(each), sorted(each)[len(each) // 2], max(each)) for name, each in found.items()}


if __name__ == "__main__":
    typer.run(main)

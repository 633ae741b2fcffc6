"""What a change of the code costs: the same cells of images, texts and clips under two checkouts, in turns.

    .venv/bin/python -m benchmarks.checkouts OTHER FOLDER [--repeats 5] [--seconds 4]

OTHER is a checkout of another commit whose C rooms are built (``setup.py build_ext --inplace``); both use the interpreter
that runs this. Where the distribution was called otherwise then, its metadata has to lie in OTHER (``setup.py egg_info``).
FOLDER gets the data once, and for each checkout its own conversions. Narrow rows have a comparison of their own:
``benchmarks.narrow --other``.
"""

import argparse
import shutil
import statistics
from pathlib import Path
from typing import Final

from benchmarks import corpus, footage
from benchmarks.interleaved import CONSOLE, ROOT, Cell, System, interleave, markdown, run_cell
from benchmarks.peers.documents import Texts
from benchmarks.peers.segments import Footage
from benchmarks.peers.workload import Data
from spiral_assets.corpora.images import write_image_relation

# by name: the module of the cell, the system, and further arguments of the cell
CELLS: Final = {
    "images, originals": ("cell", System("Spiral", "spiral", {"cache": "none"}), []),
    "images, cache Raw": ("cell", System("Spiral", "spiral", {"cache": "raw"}), []),
    "texts, padded": ("text_cell", System("Spiral", "spiral_text", {"cache": "tokens"}), ["--kind", "padded"]),
    "texts, packed": (
        "text_cell",
        System("Spiral", "spiral_text", {"cache": "tokens", "strategy": "best_fit"}),
        ["--kind", "packed"],
    ),
    "clips, originals": ("video_cell", System("Spiral", "spiral_video", {"cache": "none"}), ["--kind", "segments"]),
    "clips, cache Frames": ("video_cell", System("Spiral", "spiral_video", {"cache": "raw"}), ["--kind", "segments"]),
}
SIDES: Final = ("other", "this")


def corpora(folder: Path, images: int, documents: int, films: int) -> None:
    """Write the data of all cells."""
    where = Data(folder / "cell")
    write_image_relation(where.tables, images, form="lance", val_every=0)
    write_image_relation(where.folder, images, form="folder", val_every=0)
    (folder / "video_cell").mkdir(parents=True, exist_ok=True)
    corpus.build(Texts(folder / "text_cell"), documents)
    footage.build(Footage(folder / "video_cell"), films)


def run(checkout: Path, folder: Path, name: str, more: list[str]) -> Cell:
    """Run a cell of a checkout in a fresh process; its last line."""
    cell, system, arguments = CELLS[name]
    return run_cell(f"benchmarks.{cell}", system, ["--data", str(folder / cell), *arguments, *more], None, checkout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--images", type=int, default=3_000)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--films", type=int, default=8)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    checkouts = dict(zip(SIDES, (asked.other.resolve(), ROOT), strict=True))
    if not (folder / SIDES[1]).exists():
        corpora(folder / SIDES[0], asked.images, asked.documents, asked.films)
        shutil.copytree(folder / SIDES[0], folder / SIDES[1], symlinks=True)
    for name in asked.cells:
        for side in SIDES:
            run(checkouts[side], folder / side, name, ["--prepare"])
    lines = []
    for name in asked.cells:
        CONSOLE.print(name)

        def measured(side: str, name: str = name) -> Cell:
            return run(checkouts[side], folder / side, name, ["--seconds", str(asked.seconds)])

        cells = interleave(SIDES, asked.repeats, measured, "units")
        rates = {side: [cell["per_cpu_s"] for cell in found] for side, found in cells.items()}
        ratios = [this / other for other, this in zip(*(rates[side] for side in SIDES), strict=True)]
        medians = [statistics.median(rates[side]) for side in SIDES]
        lines.append(
            (
                name,
                *(f"{each:,.4g}" for each in medians),
                *(f"{each(ratios):.3f}" for each in (min, statistics.median, max)),
            )
        )
    columns = ("cell", "other / CPU s", "this / CPU s", "this : other, least", "median", "most")
    CONSOLE.print("\n".join(markdown(columns, lines)))


if __name__ == "__main__":
    main()

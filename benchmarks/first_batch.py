"""Time to the first batch: what is installed, what is imported, and how long a first program takes over 100,000 images.

``python -m benchmarks.first_batch FOLDER`` makes an environment with torch alone, and one per system that sees it; draws the
images once; and runs the program of every system (``peers/first_<system>.py``) in fresh processes, in turns. A turn starts the
program twice in an empty folder: the first start has to convert the images or look at them, the second finds what the first one
kept. The clock stops when the program prints the shape of its first batch; CPU seconds are those of the process tree.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Final, final

import numpy as np

from benchmarks.cell import tree_cpu_s
from benchmarks.interleaved import CONSOLE, ROOT, facts, markdown, show, write_report

EXPECTED: Final = "torch.Size([256, 3, 64, 64]) torch.float32 torch.int64"
CLASSES: Final = 100
SIDE: Final = 64
TORCH: Final = "torch==2.14.1"
TIMEOUT_S: Final = 900.0
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
OWN: Final = {"pip", "setuptools"}  # of a virtual environment, or of torch


@final
@dataclass(frozen=True)
class Newcomer:
    """A system as somebody meets it who has torch and a folder of images."""

    title: str
    install: tuple[str, ...]  # what pip is given
    imports: str  # what its program imports of it
    package: str
    keeps: str  # what it makes of the folder
    slow: bool = False  # fewer turns
    environment: str | None = None  # another system's


SYSTEMS: Final[dict[str, Newcomer]] = {
    "spiral": Newcomer(
        "Spiral",
        ("{wheel}[torch]",),
        "import spiral_stream as spiral",
        "spiral-stream",
        "a catalog: names and stamps of files",
    ),
    "torchvision": Newcomer(
        "torchvision ImageFolder", ("torchvision",), "import torchvision.datasets", "torchvision", "nothing"
    ),
    "grain": Newcomer("Grain", ("grain", "pillow"), "import grain", "grain", "nothing"),
    "lance": Newcomer(
        "Lance, its torch loader", ("pylance", "pillow"), "import lance.torch.data", "pylance", "a table"
    ),
    "litdata": Newcomer("LitData", ("litdata", "pillow"), "import litdata", "litdata", "chunks"),
    "mosaic": Newcomer(
        "Mosaic streaming", ("mosaicml-streaming",), "import streaming", "mosaicml-streaming", "MDS shards"
    ),
    "webdataset": Newcomer("webdataset", ("webdataset", "pillow"), "import webdataset", "webdataset", "tars"),
    "datasets": Newcomer(
        "datasets", ("datasets", "pillow"), "import datasets", "datasets", "an Arrow table of paths", slow=True
    ),
    "datasets_streaming": Newcomer(
        "datasets, streaming",
        ("datasets", "pillow"),
        "import datasets",
        "datasets",
        "nothing",
        slow=True,
        environment="datasets",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where the images and the working folders lie")
    parser.add_argument("--environments", type=Path, default=ROOT / ".bench-venv" / "first_batch")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slow-repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    asked = parser.parse_args()
    names = asked.systems.split(",")
    wheel = install(asked.environments, names)
    images = asked.folder / "images"
    if not images.exists():
        draw(images, asked.images)
    looked_at(images)
    found = measure(asked.environments, asked.folder, names, asked.repeats, asked.slow_repeats)
    report(asked, names, wheel, found)


# ---- environments


def install(root: Path, names: list[str]) -> Path:
    """Make the environments that are not there, and return the wheel of this tree."""
    root.mkdir(parents=True, exist_ok=True)
    if not list(root.glob("*.whl")):
        _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(root), str(ROOT))
    wheel = next(root.glob("*.whl"))
    if not _site(root / "torch").exists():
        _environment(root / "torch", TORCH)
    for name in names:
        at = root / (SYSTEMS[name].environment or name)
        if not _site(at).exists():
            _environment(
                at, *(each.format(wheel=wheel) for each in SYSTEMS[name].install), behind=_site(root / "torch")
            )
    return wheel


def _environment(at: Path, *packages: str, behind: Path | None = None) -> None:
    CONSOLE.print(f"installing {' '.join(packages)}")
    _run(sys.executable, "-m", "venv", str(at))
    if behind is not None:
        (_site(at) / "torch_alone.pth").write_text(f"import site; site.addsitedir({str(behind)!r})\n")
    _run(str(at / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "-q", *packages)


def _site(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def installed(environment: Path) -> dict[str, tuple[str, float]]:
    """Version and megabytes of every package that lies in an environment itself."""
    found = {}
    for each in distributions(path=[str(_site(environment))]):
        if each.name not in OWN:
            sizes = [path.stat().st_size for file in each.files or () if (path := Path(file.locate())).is_file()]
            found[each.name] = (each.version, sum(sizes) / 1e6)
    return found


# ---- images


def draw(root: Path, count: int) -> None:
    """Write JPEGs of 64 x 64 in class folders: waves of three colours, and grain."""
    import simplejpeg

    CONSOLE.print(f"drawing {count:,} images")
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    for label in range(CLASSES):
        folder = root / f"class_{label:03}"
        folder.mkdir(parents=True)
        waves, phases = rng.uniform(0.5, 4, (count // CLASSES, 3, 2)), rng.uniform(0, 6.28, (count // CLASSES, 3))
        for number, (wave, phase) in enumerate(zip(waves, phases, strict=True)):
            planes = [np.sin(6.28 * (a * columns + b * rows) + c) for (a, b), c in zip(wave, phase, strict=True)]
            pixels = 127.5 + 90 * np.stack(planes, axis=2) + rng.normal(0, 6, (SIDE, SIDE, 1))
            encoded = simplejpeg.encode_jpeg(
                np.ascontiguousarray(pixels.clip(0, 255).astype(np.uint8)), 85, "RGB", "420"
            )
            (folder / f"{number:04}.jpg").write_bytes(encoded)


def looked_at(root: Path) -> None:
    """Read every image once, so that the page cache holds them for everybody."""
    for folder in sorted(root.iterdir()):
        for path in folder.iterdir():
            path.read_bytes()


# ---- cells


Found = dict[str, dict[str, list[float]]]  # system -> what was measured -> a figure a turn


def measure(environments: Path, work: Path, names: list[str], repeats: int, slow: int) -> Found:
    found: Found = {name: {} for name in names}
    for turn in range(repeats):
        here = [name for name in names if turn < (slow if SYSTEMS[name].slow else repeats)]
        for name in [*here[turn % len(here) :], *here[: turn % len(here)]]:
            python = str(environments / (SYSTEMS[name].environment or name) / "bin/python")
            cell = {"import": imported(python, SYSTEMS[name].imports) - imported(python, "pass")}
            with tempfile.TemporaryDirectory(dir=work) as kept:
                for start in ("first", "second"):
                    cell[f"{start} CPU"], cell[f"{start} wall"] = first_batch(python, name, work / "images", Path(kept))
            for what, figure in cell.items():
                found[name].setdefault(what, []).append(figure)
            CONSOLE.print(f"{turn + 1}/{repeats} {name:20}", {what: round(figure, 2) for what, figure in cell.items()})
    return found


def imported(python: str, program: str) -> float:
    """CPU seconds of a process up to the end of an import; the end of a process that has torch costs up to a second more."""
    said = subprocess.run(
        [python, "-c", f"import time; {program}; print(time.process_time())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(said.stdout.splitlines()[-1])


def first_batch(python: str, name: str, images: Path, work: Path) -> tuple[float, float]:
    """CPU and wall seconds from the start of a process to the line that tells of its first batch."""
    command = [python, str(program(name)), str(images)]
    began = time.perf_counter()
    with (
        (work / "said").open("a+") as said,
        subprocess.Popen(
            command, cwd=work, stdout=subprocess.PIPE, stderr=said, text=True, env=os.environ | OFFLINE
        ) as running,
    ):
        for line in running.stdout:
            if line.strip() == EXPECTED:
                spent = tree_cpu_s(running.pid), time.perf_counter() - began
                running.communicate(timeout=TIMEOUT_S)
                return spent
    msg = f"{name} ended without a batch: {(work / 'said').read_text()[-2000:]}"
    raise RuntimeError(msg)


def program(name: str) -> Path:
    return ROOT / "benchmarks" / "peers" / f"first_{name}.py"


def lines(name: str) -> int:
    """Lines of a program that somebody has to write: no blank one, no docstring, no comment."""
    written = [line.strip() for line in program(name).read_text().splitlines()]
    return sum(bool(line) and not line.startswith(('"""', "#")) for line in written)


# ---- the report


def report(asked: argparse.Namespace, names: list[str], wheel: Path, found: Found) -> None:
    packages = {name: installed(asked.environments / (SYSTEMS[name].environment or name)) for name in names}
    bare = installed(asked.environments / "torch")
    versions = {SYSTEMS[name].package: packages[name][SYSTEMS[name].package][0] for name in names}
    columns = (
        "system", "MB over torch alone", "packages", "import, CPU s", "first start, CPU s", "(wall)", "of it kept work, CPU s",
        "second start, CPU s", "(wall)", "lines", "what it keeps",
    )  # fmt: skip
    made = []
    for name in sorted(names, key=lambda each: statistics.median(found[each]["first CPU"])):
        middle = {what: statistics.median(figures) for what, figures in found[name].items()}
        made.append(
            (
                SYSTEMS[name].title,
                f"{sum(size for _, size in packages[name].values()):,.0f}",
                f"{len(packages[name])}",
                f"{middle['import']:.2f}",
                _spread(found[name]["first CPU"]),
                f"{middle['first wall']:.1f}",
                f"{max(0.0, middle['first CPU'] - middle['second CPU']):.1f}",
                _spread(found[name]["second CPU"]),
                f"{middle['second wall']:.1f}",
                str(lines(name)),
                SYSTEMS[name].keeps,
            )
        )
    show("time to the first batch", columns, made)
    largest = sorted(packages.get("spiral", {}).items(), key=lambda each: -each[1][1])[:6]
    alone = sum(size for _, size in bare.values())
    page = [
        "# Time to the first batch",
        "",
        *facts("benchmarks.first_batch", asked.repeats, os.cpu_count() or 1, versions | {"torch": bare["torch"][0]}),
        f"- an environment with torch alone takes {alone:,.0f} MB; our wheel {wheel.stat().st_size / 1e6:.1f} MB",
        "- of ours: " + ", ".join(f"{name} {size:,.0f} MB" for name, (_, size) in largest),
        "",
        *markdown(columns, made),
        "## The programs",
        "",
    ]
    for name in names:
        page += [f"### {SYSTEMS[name].title}", "", "```python", program(name).read_text().strip(), "```", ""]
    write_report(asked.out, "first_batch", page)


def _spread(figures: list[float]) -> str:
    return f"{statistics.median(figures):.1f} ({min(figures):.1f} to {max(figures):.1f})"


if __name__ == "__main__":
    main()

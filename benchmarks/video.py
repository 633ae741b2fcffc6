"""`make bench BENCH=video`: clips per CPU second beside the peers, interleaved, written to docs/benchmarks.

`peers/segments.py` says what each must deliver. ``segments``: ranges of films of 20 to 60 s; ``cut``: a file for each clip.
"""

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import av
import typer

from benchmarks import footage
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
from benchmarks.peers.segments import BATCH, FRAMES, SIDE, Footage

CELL = "benchmarks.video_cell"
PREPARE_S, CELL_S = 1_800.0, 900.0
AT_ONCE = 20  # clips, where memory is measured
KINDS = {"segments": "Segments of films of 20 to 60 s", "cut": "Clips cut out before, a file each"}


def _torch(clip: str) -> System:
    return System(f"torch DataLoader, workers, {TITLES[clip]}", "torch_video", {"clip": clip})


def _threads(clip: str) -> System:
    return System(f"thread pool, {TITLES[clip]}", "threads_video", {"clip": clip})


TITLES = {
    "pyav-swscale": "PyAV + swscale",
    "pyav-opencv": "PyAV + OpenCV",
    "torchcodec-exact-decoder": "torchcodec exact, its Resize and CenterCrop",
    "torchcodec-approximate-opencv": "torchcodec approximate + OpenCV",
    "torchcodec-exact-opencv": "torchcodec exact + OpenCV",
    "torchcodec-mappings-opencv": "torchcodec with its list of frames + OpenCV",
}
SYSTEMS = {
    "torch-pyav-swscale": _torch("pyav-swscale"),
    "torch-pyav": _torch("pyav-opencv"),
    "torch-torchcodec-own": _torch("torchcodec-exact-decoder"),
    "torch-torchcodec": _torch("torchcodec-mappings-opencv"),
    "threads-pyav": _threads("pyav-opencv"),
    "threads-torchcodec-approximate": _threads("torchcodec-approximate-opencv"),
    "threads-torchcodec-exact": _threads("torchcodec-exact-opencv"),
    "threads-torchcodec": _threads("torchcodec-mappings-opencv"),
    "spdl": System("SPDL, its own decoder", "spdl_video"),
    "grain": System("Grain, threads, PyAV + OpenCV", "grain_video", {"clip": "pyav-opencv"}),
    "lancedb": System("LanceDB StreamingDataset, PyAV + OpenCV", "lancedb_video", {"clip": "pyav-opencv"}),
    "limit": System("(libavcodec alone, no pixels)", "limit_video", {"frames": "all"}, "limit"),
    "limit-needed": System(
        "(libavcodec alone, unwanted disposable frames left out)", "limit_video", {"frames": "needed"}, "limit"
    ),
    "spiral": System("Spiral, originals", "spiral_video", {"cache": "none"}, "ours"),
    "spiral-jpeg": System("Spiral, clip cache Frames(shorter_side=256, quality=90)", "spiral_video", {"cache": "jpeg"}, "ours"),
    "spiral-raw": System("Spiral, clip cache Frames(shorter_side=256)", "spiral_video", {"cache": "raw"}, "ours"),
}  # fmt: skip
MEMORY = ("torch-pyav", "threads-pyav", "threads-torchcodec", "spdl", "grain", "spiral", "spiral-jpeg", "spiral-raw")


@dataclass(frozen=True)
class Settings:
    """How a table is measured."""

    footage: Footage
    repeats: int
    seconds: float
    warmup: int
    cores: int
    verified: bool


def main(
    kinds: Annotated[str, typer.Option(help="comma-separated, of segments, cut, memory")] = "segments,cut,memory",
    systems: Annotated[str, typer.Option(help="comma-separated names, or all: " + ", ".join(SYSTEMS))] = "all",
    films: Annotated[int, typer.Option(help="how many films of six segments are made")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="repetitions; a published figure takes 5 or more")] = 5,
    seconds: Annotated[float, typer.Option(help="measured seconds a cell, and an epoch at least")] = 4.0,
    warmup: Annotated[int, typer.Option(min=1, help="batches before a cell is measured; 6 are an epoch")] = 6,
    cores: Annotated[int, typer.Option(min=1, help="cores a system may use")] = 2,
    verify: Annotated[bool, typer.Option(help="compare every system's frames with whole decodes first")] = True,
    data: Annotated[Path, typer.Option(help="where the films and what is made of them are kept")] = Path(
        "/tmp/spiral-video"
    ),
    out: Annotated[Path, typer.Option(help="folder of the report")] = ROOT / "docs" / "benchmarks",
) -> None:
    """Measure clips per CPU second of every system on the same films."""
    wanted = list(SYSTEMS) if systems == "all" else systems.split(",")
    for name in (*wanted, *kinds.split(",")):
        if name not in SYSTEMS and name not in (*KINDS, "memory"):
            msg = f"{name!r} is none of {', '.join([*SYSTEMS, *KINDS, 'memory'])}"
            raise typer.BadParameter(msg)
    settings = Settings(Footage(data.resolve()), repeats, seconds, warmup, cores, verify)
    settings.footage.root.mkdir(parents=True, exist_ok=True)
    os.environ["LD_LIBRARY_PATH"] = str(ffmpeg(settings.footage.root / "ffmpeg"))
    made = footage.build(settings.footage, films)
    versions: dict[str, str] = {}
    page: list[str] = []
    for kind, title in KINDS.items():
        if kind in kinds.split(","):
            page += [f"## {title}", "", *_table(kind, wanted, settings, versions)]
    if "memory" in kinds.split(","):
        page += [f"## Memory with {AT_ONCE} clips decoded at a time", "", *_memory(wanted, settings)]
    opening = [
        f"# Clips per CPU second, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"A segment of H.264 -> {FRAMES} frames at even times -> shorter side 256 -> centre crop {SIDE} -> float16",
        f"[{BATCH}, {FRAMES}, 3, {SIDE}, {SIDE}] in [0, 1], shuffled.",
        "",
        *facts("benchmarks.video", repeats, cores, versions),
        f"- data: {made['films']} films drawn and encoded on the machine, x264 with its defaults, a quarter of them with",
        f"  a key frame every second; {made['seconds'] / 60:.0f} minutes, {made['kbits']:,.0f} kbit/s on average, from",
        f"  {made['least_kbits']:,.0f} to {made['most_kbits']:,.0f}; half 320x240, half 640x360; 24 and 30 frames/s",
        f"- {made['segments']} segments of {made['segment_s']:.1f} s on average, in the page cache",
        "",
    ]
    write_report(out, "video", [*opening, *page, *NOTES])


def ffmpeg(folder: Path) -> Path:
    """A folder of FFmpeg's libraries, the ones in PyAV's wheel under the names that torchcodec and SPDL look for."""
    folder.mkdir(parents=True, exist_ok=True)
    for library in (Path(av.__file__).parents[1] / "av.libs").iterdir():
        names = [library.name]
        stem, _, version = library.name.partition(".so.")
        if stem.startswith(("libav", "libsw")):
            names.append(f"{stem.partition('-')[0]}.so.{version.partition('.')[0]}")
        for name in names:
            if not (folder / name).exists():
                (folder / name).symlink_to(library)
    return folder


def _table(kind: str, wanted: list[str], settings: Settings, versions: dict[str, str]) -> list[str]:
    """Prepare, verify and measure; the section of the report."""
    common = ["--data", str(settings.footage.root), "--kind", kind, "--cores", str(settings.cores)]
    systems: dict[str, System] = {}
    notes: list[str] = []
    for name in wanted:
        system = SYSTEMS[name]
        prepared = run_cell(CELL, system, [*common, "--prepare"], PREPARE_S)
        if "missing" in prepared:
            CONSOLE.print(f"{name}: left out: {prepared['missing']}")
            continue
        versions |= prepared["versions"]
        notes += _notes(system, prepared["notes"])
        if settings.verified and system.role != "limit":
            CONSOLE.print(f"{name}: {run_cell(CELL, system, [*common, '--verify'], CELL_S)}")
        systems[name] = system
    more = [*common, "--seconds", str(settings.seconds), "--warmup", str(settings.warmup)]

    def run(name: str) -> Cell:
        return run_cell(CELL, systems[name], more, CELL_S)

    cells = interleave(list(systems), settings.repeats, run, "clips")
    first = {systems[name].title: statistics.median(cell["first_s"] for cell in found) for name, found in cells.items()}
    columns = (*headings("clips"), "first batch, s")
    lines = [(*line, f"{first[line[0]]:.2f}") for line in rows(systems, cells, ",.1f")]
    show(KINDS[kind], columns, lines)
    return [*markdown(columns, lines), *(f"- {note}" for note in notes), ""]


def _notes(system: System, found: Mapping[str, str]) -> list[str]:
    return [f"{system.title}, {what}: {value}" for what, value in found.items()]


def _memory(wanted: list[str], settings: Settings) -> list[str]:
    """The section of the report on memory; of what `_table` has prepared."""
    common = ["--data", str(settings.footage.root), "--cores", str(settings.cores), "--warmup", "6"]
    lines = []
    for name in MEMORY:
        if name in wanted:
            found = run_cell(CELL, SYSTEMS[name], [*common, "--memory", "--at-once", str(AT_ONCE)], CELL_S)
            if "missing" not in found:
                lines.append((SYSTEMS[name].title, f"{found['before_mb']:,.0f}", f"{found['peak_mb']:,.0f}"))
                CONSOLE.print(f"{name}: {found}")
    columns = ("system", "PSS before the first batch, MB", "peak, MB")
    show(f"{AT_ONCE} clips decoded at a time", columns, lines)
    return markdown(columns, lines)


NOTES = [
    "Every system's frames are compared with a decode of the whole file before they are measured (`--no-verify` leaves",
    "that out): they are nearer to the wanted frames than to their neighbours. All peers may use the same kernels; what each",
    "configuration is, and what was tried and was slower, is in `benchmarks/README.md`. PSS counts pages that processes",
    "share once.",
    "",
]


if __name__ == "__main__":
    typer.run(main)

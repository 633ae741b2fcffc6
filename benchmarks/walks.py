"""How far a reader of the code walks: the rooms that an operation enters, and the calls of ours that it makes.

    .venv/bin/python -m benchmarks.walks [--only first] [--rooms] [--seconds]

A small run in a temporary folder, with a hook of Python's profiler in every thread. `rooms` are files of `spiral_stream`;
`calls` are the calls and resumptions of functions of theirs; `returns` are stays in a room beyond the first; `climbs` are
distinct calls from a lower floor to a higher one, by the floors in `pyproject.toml`. A pipeline builds ahead, so what other
threads do when ``next()`` returns is counted or not: of several turns the one with the fewest calls is taken.

``--seconds`` counts nothing, and prints the CPU time of the process for a first batch of a pass and for one in its middle.
"""

import argparse
import contextlib
import io
import os
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import simplejpeg

import spiral_stream as spiral

TURNS: Final = 5
PASSES: Final = 200  # that are timed
ROWS: Final = 2_000
PACKAGE: Final = str(Path(spiral.__file__).parent) + os.sep
CONTRACTS: Final = Path(spiral.__file__).parents[1] / "pyproject.toml"
Walk = Callable[[], Any]


@final
@dataclass
class Counted:
    """What one run of a walk did."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)  # by room and function
    stays: int = 0
    climbs: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def rooms(self) -> set[str]:
        """The files that were entered."""
        return {room for room, _ in self.calls}

    @property
    def line(self) -> tuple[int, int, int, int]:
        """Rooms, calls, returns, climbs."""
        return len(self.rooms), self.calls.total(), self.stays - len(self.rooms), len(self.climbs)


def floors() -> dict[str, int]:
    """The floor of each part of the package, 0 at the bottom."""
    contracts = tomllib.loads(CONTRACTS.read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    return {part.strip(): at for at, layer in enumerate(reversed(layers)) for part in layer.split("|")}


@contextlib.contextmanager
def walking(floor: dict[str, int]) -> Iterator[Counted]:
    """Count what all threads do, those that begin meanwhile included, until the body ends."""
    counted, on, last = Counted(), [True], dict[int, str]()

    def room_of(code: Any) -> str | None:
        name: str = code.co_filename
        return name[len(PACKAGE) : -3] if name.startswith(PACKAGE) else None

    def floor_of(room: str) -> int:
        return floor.get(Path(room).parts[0], len(floor))

    def hook(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not on[0]:
            return
        room = room_of(frame.f_code)
        if room is None:
            return
        counted.calls[room, frame.f_code.co_qualname] += 1
        thread = threading.get_ident()
        if last.get(thread) != room:  # back in a caller's room counts when it calls the next room from there
            counted.stays += 1
        last[thread] = room
        above = frame.f_back
        while above is not None and room_of(above.f_code) is None:
            above = above.f_back
        if above is not None:
            caller = room_of(above.f_code) or ""
            if floor_of(room) > floor_of(caller):
                counted.climbs.add((caller, room, frame.f_code.co_qualname))

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        yield counted
    finally:
        on[0] = False
        sys.setprofile(None)
        threading.setprofile(None)


# ---- what is walked


def jpegs(folder: Path, rows: int) -> None:
    """Write small images that look like waves."""
    folder.mkdir()
    grid = np.mgrid[0:48, 0:64].sum(axis=0)
    for row in range(rows):
        pixels = (127 + 90 * np.sin(grid[..., None] * (row % 17 + 1) / 20 + np.arange(3))).astype(np.uint8)
        (folder / f"{row:05}.jpg").write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 80))


def tars(folder: Path) -> str:
    """Write two tars of 20 samples each."""
    folder.mkdir()
    pixels = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8), 80)
    for number in range(2):
        with tarfile.open(folder / f"part-{number}.tar", "w") as tar:
            for sample in range(20):
                for ending, content in (("jpg", pixels), ("cls", str(sample % 3).encode())):
                    info = tarfile.TarInfo(f"{number}-{sample:03}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return str(folder / "*.tar")


@final
class Scene:
    """A catalog of rows, texts and images, and the walks over it."""

    def __init__(self, folder: Path, images: int) -> None:
        self.folder, self.images = folder, images
        self.catalog = spiral.connect(str(folder / "catalog"))
        lengths = 1 + np.arange(ROWS) * 7 % 60
        self.catalog.register(
            "rows",
            spiral.sources.Arrow(
                pa.table(
                    {
                        "id": [f"r{row:05}" for row in range(ROWS)],
                        "number": np.arange(ROWS),
                        "group": np.arange(ROWS) % 10,
                        "tokens": pa.array([np.arange(n, dtype=np.int32) for n in lengths]),
                    }
                )
            ),
            identity="id",
        )
        jpegs(folder / "images", images)
        files = sorted(map(str, (folder / "images").iterdir()))
        table = pa.table({"id": [Path(each).stem for each in files], "image": files, "label": np.arange(images) % 7})
        self.catalog.register(
            "images", spiral.sources.Arrow(table), identity="id", semantic={"image": "image/jpeg-ref"}
        )
        self.tars = tars(folder / "tars")
        self._made = 0

    def plan(self, kind: str) -> spiral.Relation:
        """A collated plan: ``fixed``, ``filtered``, ``windowed``, ``packed`` or ``images``."""
        table = self.catalog.table("images" if kind == "images" else "rows")
        if kind == "filtered":
            table = table.filter(spiral.col("group") < 5)
        if kind == "images":
            table = table.cache(image=spiral.profiles.Raw(shorter_side=32))
        sampled = table.sample(order=spiral.orders.ShardAwareShuffle(seed=3))
        if kind == "windowed":
            formation: Any = spiral.batching.WindowedBucket(
                window_size=256,
                keys=[spiral.batching.BucketKey("len(tokens)")],
                budget=spiral.batching.BatchBudget(max_tokens=1_024),
            )
            padded: Any = {"tokens": spiral.fields.Pad("tokens"), "id": spiral.fields.List("id")}
            return sampled.collate(batch_size=None, formation=formation, fields=padded)
        if kind == "packed":
            formation = spiral.batching.Packed(max_tokens=128, window_size=256)
            fields: dict[str, Any] = {"tokens": spiral.fields.Pad("tokens"), "at": spiral.fields.Positions("tokens")}
            return sampled.collate(batch_size=4, formation=formation, fields=fields)
        fields = {"number": spiral.fields.Stack("number"), "id": spiral.fields.List("id")}
        if kind == "images":
            image = spiral.fields.Stack(
                "image", decode="jpeg", transforms=[spiral.transforms.RandomResizedCrop(24)], dtype="uint8"
            )
            fields = {"image": image, "label": spiral.fields.Stack("label"), "id": spiral.fields.List("id")}
        return sampled.collate(batch_size=16, fields=fields)

    def stream(self, kind: str) -> spiral.PreparedStream:
        """A stream that was read before: what is made once is there."""
        stream = self.plan(kind).to_numpy(prefetch=1)
        for epoch in range(2):
            stream.set_epoch(epoch)
            with contextlib.closing(iter(stream)) as batches:
                for _, _ in zip(range(3), batches, strict=False):
                    pass
        stream.set_epoch(5)
        return stream

    def name(self) -> str:
        """A name that nothing has yet."""
        self._made += 1
        return f"made{self._made}"


Ready = Callable[[], tuple[Walk, Walk]]  # makes a turn ready: the walk itself, and how it is cleared away


@final
class Walks:
    """The walks over a scene; each method makes a turn ready."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def all(self) -> Iterator[tuple[str, Ready]]:
        """Yield their titles, and what makes a turn of each ready."""
        for kind in ("fixed", "filtered", "windowed", "packed", "images"):
            yield f"first next(), {kind}", partial(self.first, kind)
        for kind in ("fixed", "windowed", "packed"):
            yield f"next(), steady, 16 steps, {kind}", partial(self.steady, kind)
        for kind in ("fixed", "windowed", "packed", "images"):
            yield f"batch(7), {kind}", partial(self.alone, kind)
        yield "open a filtered stream", self.filtered
        yield "filter to Arrow", self.arrow
        for kind in ("fixed", "packed"):
            yield f"load_state_dict, {kind}", partial(self.load, kind)
        yield "register two tars", self.register
        yield "register them again", self.registered
        yield f"materialize {self.scene.images} images", self.materialize

    def first(self, kind: str) -> tuple[Walk, Walk]:
        """The first batch of a pass."""
        stream = self.scene.stream(kind)
        batches = iter(stream)
        return lambda: next(batches), lambda: (batches.close(), stream.close())

    def steady(self, kind: str) -> tuple[Walk, Walk]:
        """Sixteen batches in the middle of a pass."""
        stream = self.scene.stream(kind)
        batches = iter(stream)
        for _ in range(6):
            next(batches)
        return lambda: [next(batches) for _ in range(16)], lambda: (batches.close(), stream.close())

    def alone(self, kind: str) -> tuple[Walk, Walk]:
        """A batch by itself."""
        stream = self.scene.stream(kind)
        return lambda: stream.batch(7), stream.close

    def filtered(self) -> tuple[Walk, Walk]:
        """Opening a stream whose rows pass a filter."""
        stream = self.scene.plan("filtered").to_numpy()
        return lambda: stream.rows, stream.close

    def arrow(self) -> tuple[Walk, Walk]:
        """The rows that pass a filter, as a table."""
        relation = self.scene.catalog.table("rows").filter(spiral.col("group") < 5).select("id", "number")
        return relation.to_arrow, lambda: None

    def load(self, kind: str) -> tuple[Walk, Walk]:
        """A state that is loaded for the second time."""
        stream = self.scene.stream(kind)
        with contextlib.closing(iter(stream)) as batches:
            next(batches)
            state = stream.state_dict()
        stream.load_state_dict(state)
        return lambda: stream.load_state_dict(state), stream.close

    def register(self) -> tuple[Walk, Walk]:
        """A registration of tars."""
        name, catalog = self.scene.name(), self.scene.catalog
        source = spiral.sources.WebDataset(self.scene.tars)
        return lambda: catalog.register(name, source, identity="__key__"), lambda: catalog.drop(name)

    def registered(self) -> tuple[Walk, Walk]:
        """The same, where nothing changed since."""
        turn, clear = self.register()
        turn()
        return turn, clear

    def materialize(self) -> tuple[Walk, Walk]:
        """A cache of images."""
        os.environ["SPIRAL_CACHE"] = str(self.scene.folder / self.scene.name())
        stream = self.scene.plan("images").to_numpy()
        return lambda: stream.materialize(lambda _: None), stream.close


def seconds(scene: Scene) -> None:
    """Print CPU time: minimum and median of many passes."""
    print(f"{'CPU us':12}{'first, min':>12}{'median':>10}{'steady, min':>14}{'median':>10}")
    for kind in ("fixed", "filtered", "windowed", "packed"):
        stream, firsts, steady = scene.stream(kind), list[float](), list[float]()
        for epoch in range(PASSES):
            stream.set_epoch(epoch)
            begun = time.process_time_ns()
            batches = iter(stream)
            next(batches)
            firsts.append((time.process_time_ns() - begun) / 1_000)
            for _ in range(4):
                next(batches)
            begun = time.process_time_ns()
            for _ in range(16):
                next(batches)
            steady.append((time.process_time_ns() - begun) / 16_000)
            batches.close()
        stream.close()
        print(f"{kind:12}{min(firsts):12,.0f}{median(firsts):10,.0f}{min(steady):14,.0f}{median(steady):10,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="only walks whose title holds this")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rooms", action="store_true", help="list the calls by room")
    parser.add_argument("--functions", action="store_true", help="list the calls by function")
    parser.add_argument("--climbs", action="store_true", help="list the climbs")
    parser.add_argument("--seconds", action="store_true", help="time instead of counting")
    asked = parser.parse_args()
    if asked.seconds:
        with tempfile.TemporaryDirectory(prefix="spiral-walks-") as folder:
            os.environ["SPIRAL_CACHE"] = str(Path(folder) / "prepared")
            seconds(Scene(Path(folder), asked.images))
        return
    floor = floors()
    print(f"{'walk':36}{'rooms':>8}{'calls':>8}{'returns':>9}{'climbs':>8}")
    with tempfile.TemporaryDirectory(prefix="spiral-walks-") as folder:
        os.environ["SPIRAL_CACHE"] = str(Path(folder) / "prepared")
        for title, ready in Walks(Scene(Path(folder), asked.images)).all():
            if asked.only not in title:
                continue
            best: Counted | None = None
            for _ in range(TURNS):
                walk, clear = ready()
                with walking(floor) as counted:
                    walk()
                clear()
                best = counted if best is None or counted.line[1] < best.line[1] else best
            assert best is not None
            rooms, calls, returns, climbs = best.line
            print(f"{title:36}{rooms:>8,}{calls:>8,}{returns:>9,}{climbs:>8,}", flush=True)
            _details(best, asked)


def _details(best: Counted, asked: argparse.Namespace) -> None:
    if asked.rooms:
        by_room = Counter[str]()
        for (room, _), count in best.calls.items():
            by_room[room] += count
        for room, count in by_room.most_common():
            print(f"    {count:6,}  {room}")
    if asked.functions:
        for (room, function), count in best.calls.most_common():
            print(f"    {count:6,}  {room}  {function}")
    if asked.climbs:
        for caller, room, function in sorted(best.climbs):
            print(f"    {caller} -> {room} {function}")


if __name__ == "__main__":
    main()

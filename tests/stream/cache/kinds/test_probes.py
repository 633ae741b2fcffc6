"""A process looks at a video file once, however many rows, streams and threads name it."""

import threading
import time
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spiral_stream.cache.kinds import probes
from spiral_stream.cache.kinds.probes import Probes, index_of
from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, SourceError
from spiral_stream.sources.references.ranged import Located, locate
from tests.fixtures.videos import Made, write_sound, write_video

MADE = Made(frames=36, width=64, height=48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "long.mp4", MADE)
    write_video(folder / "turned.mp4", MADE, rotation=90, frames=24, gop=6, fps=12)
    write_sound(folder / "sound.mp4")
    return folder


@pytest.fixture(autouse=True)
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is probed, by name; with a memory of the test's own."""
    names: list[str] = []

    def counted(read: Any, size: int, name: str, stamp: int) -> VideoIndex:
        names.append(name)
        return probe(read, size, name, stamp)

    monkeypatch.setattr(probes, "probe", counted)
    monkeypatch.setattr(probes, "of_process", cache(Probes))
    return names


def located(path: Path) -> Located:
    return locate(pa.array([str(path)]), "")[0]


def test_a_file_that_changed_is_probed_again(folder: Path, tmp_path: Path, probed: list[str]) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes((folder / "long.mp4").read_bytes())
    before = index_of(located(path))
    assert index_of(located(path)) is before
    path.write_bytes((folder / "turned.mp4").read_bytes())

    assert len(index_of(located(path)).times_F) == 24
    assert len(probed) == 2


def test_bad_bytes_are_remembered_and_failures_of_storage_are_not(
    folder: Path, tmp_path: Path, probed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        with pytest.raises(DataError, match="no video stream"):
            index_of(located(folder / "sound.mp4"))
    assert len(probed) == 1

    def failing(*_: Any) -> VideoIndex:
        probed.append("failing")
        msg = "the disk is gone"
        raise SourceError(msg)

    monkeypatch.setattr(probes, "probe", failing)
    for _ in range(3):
        with pytest.raises(SourceError, match="the disk is gone"):
            index_of(located(folder / "long.mp4"))
    assert probed.count("failing") == 3


def test_what_is_remembered_keeps_its_budget_and_the_latest_used(folder: Path) -> None:
    calls: list[str] = []

    def counted(place: Located, stamp: int) -> VideoIndex:
        calls.append(place.name)
        return probe(place.read, place.size, place.name, stamp)

    one, two = located(folder / "long.mp4"), located(folder / "turned.mp4")
    memory = Probes(budget_bytes=1)
    for place in (one, one, two, two, one):
        memory.index_of(place, counted)
    assert calls == [one.name, two.name, one.name]

    third = located(write_video(folder / "third.mp4", MADE, first=9))
    memory, calls[:] = Probes(budget_bytes=2 * 1_024 + 2_500), []
    for place in (one, two, one, third, one):
        memory.index_of(place, counted)
    assert calls == [one.name, two.name, third.name]


@pytest.mark.parametrize("fails", [None, DataError, SourceError])
def test_threads_that_ask_for_one_file_wait_for_one_probe(
    folder: Path, fails: type[SourceError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, calls, found = Probes(), [], []
    place = located(folder / "long.mp4")
    asked = threading.Semaphore(0)

    class Awaited(Future[VideoIndex]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            asked.release()  # who waits here is answered, though what failed is not remembered
            return super().exception(timeout)

    monkeypatch.setattr(probes, "Future", Awaited)

    def slow(place: Located, stamp: int) -> VideoIndex:
        calls.append(stamp)
        for _ in range(3):
            asked.acquire()
        time.sleep(0)
        if fails is not None:
            msg = "bad bytes"
            raise fails(msg)
        return probe(place.read, place.size, place.name, stamp)

    def ask() -> None:
        try:
            found.append(memory.index_of(place, slow))
        except SourceError as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(calls) == 1
    assert len(found) == 4
    if fails is not None:
        assert len({id(error) for error in found}) == 4  # each its own: a caller adds to it
    else:
        assert sum(read for _, read in found) == 1
        assert len({id(index) for index, _ in found}) == 1

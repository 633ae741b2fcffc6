"""Count the chapters of an epoch, in cooperation with other processes: `derived.work.cooperative_build`, a chapter at a time.

A chapter is counted by forming it, from lengths and small columns, and costs about 0.2 s. The number of its batches is
appended to the formation index, and what is in the index is never formed again.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived.work.cooperative_build import Job, Maker, Shards, Target, make, refusals
from spiral_stream.derived.work.executors import Builders
from spiral_stream.runtime.numbering.known_chapters import KnownChapters
from spiral_stream.seeding import key

WAIT_S: Final = 600.0  # for a process that holds leases and counts nothing; then its chapters are counted here too

At = tuple[int, int]  # lane, chapter
Counted = tuple[int, NDArray[np.int64] | None]  # how many batches a chapter has, and what it could not fill
Work = Callable[..., Counted]  # given, epoch, lane, chapter -> what it has


@final
class Chapters(Target):
    """Chapters of an epoch.

    Args:
        known: what is known of them.
        epoch: the epoch.
        which: those to count.
        lock: guards ``known`` from other threads of this process.
    """

    def __init__(
        self, known: KnownChapters, epoch: int, which: Sequence[At], lock: AbstractContextManager[None]
    ) -> None:
        self.known, self.epoch, self.which, self.lock = known, epoch, which, lock

    def prepare(self) -> Path:
        folder = self.known.index.folder
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def missing(self, shards: Shards) -> NDArray[np.bool_]:
        with self.lock:
            return np.array([self.known.batches(*self.which[at]) is None for at in shards.tolist()], np.bool_)

    def look(self) -> bool:
        with self.lock:
            return self.known.look()


@final
class _Count(Maker[Counted]):
    """The chapters that are not counted, each by itself, in their order: batches near the beginning are asked for first."""

    enter_every_s, ahead, scattered = 0.0, 1, False

    def __init__(self, chapters: Chapters, work: Work, given: Any, report: Callable[[], None]) -> None:
        self._chapters, self._work, self._given, self._report = chapters, work, given, report
        self.wait_s, self.targets = WAIT_S, (chapters,)
        claims = [(claim_of(chapters.epoch, at), 0) for at in chapters.which]
        self.keys = np.array(claims, dtype=np.uint64).reshape(-1, 2)
        self.units = [np.array([at]) for at in range(len(claims))]

    def job(self, wanted: dict[int, Shards]) -> Job:
        at = self._chapters.which[int(wanted[0][0])]
        return Job(wanted, self._work, (self._given, self._chapters.epoch, *at))

    def enter(self, done: Sequence[tuple[Job, Counted]]) -> None:
        for job, counted in done:
            with self._chapters.lock:
                self._chapters.known.enter(*self._chapters.which[int(job.leases[0][0])], *counted)

    def tell(self, running: Sequence[Job]) -> None:  # noqa: ARG002  a chapter takes a fraction of a second
        self._report()


def count_chapters(
    chapters: Chapters, builders: Callable[[], Builders], work: Work, given: Any, report: Callable[[], None]
) -> None:
    """Count chapters, or await those that others count.

    Args:
        chapters: which; those with a known count cost nothing.
        builders: makes the executor that forms them.
        work: forms one chapter; called with ``given``, the epoch, the lane and the chapter.
        given: what ``work`` forms chapters from.
        report: called after every chapter, whoever counted it.

    Raises:
        CacheError: the folder of the index cannot be written.
    """
    folder = chapters.known.index.folder
    with refusals(folder, "Make the folder writable, or set $SPIRAL_CACHE", "formation index: cannot write", folder):
        make(_Count(chapters, work, given, report), builders)


def claim_of(epoch: int, at: At) -> int:
    """Return what a process claims before it counts a chapter."""
    return key("chapter", epoch, *at)

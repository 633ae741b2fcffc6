"""Count the chapters of an epoch, in cooperation with other processes.

A chapter is counted by forming it, from lengths and small columns, and costs about 0.2 s. A process takes the lease of a
chapter (`derived.share.leases`), looks once more whether somebody has counted it, lets its executor form it, and appends the
number of its batches to the formation index. Then it waits for what others hold. What a killed process had leased is
free at once, and what is in the index is never formed again.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived.share.leases import Claims
from spiral_stream.derived.work.executors import Builders
from spiral_stream.integrity.faults import failed
from spiral_stream.runtime.numbering.known_chapters import KnownChapters
from spiral_stream.seeding import key

WAIT_S: Final = 600.0  # for a process that holds leases and counts nothing; then its chapters are counted here too
_PAUSES_S: Final = (0.02, 0.5)  # first and longest, between two looks at what others counted
_LOOK_EVERY_S: Final = 1.0

At = tuple[int, int]  # lane, chapter
Counted = tuple[int, NDArray[np.int64] | None]  # how many batches a chapter has, and what it could not fill
Work = Callable[..., Counted]  # given, epoch, lane, chapter -> what it has


@final
class Counting:
    """One call that counts chapters.

    Args:
        known: the chapters of the epoch.
        epoch: the epoch.
        lock: guards ``known`` from other threads of this process.
        report: called after every chapter, whoever counted it.
    """

    def __init__(
        self, known: KnownChapters, epoch: int, lock: AbstractContextManager[None], report: Callable[[], None]
    ) -> None:
        self._known, self._epoch, self._lock, self._report = known, epoch, lock, report
        self._overdue: set[At] = set()  # their owner counts nothing for too long

    def run(self, pool: Builders, work: Work, given: Any, chapters: Iterable[At]) -> None:
        """Count chapters, or await those that others count.

        Args:
            pool: where chapters are formed.
            work: forms one chapter; called with ``given``, the epoch, the lane and the chapter.
            given: what ``work`` forms chapters from.
            chapters: which; those with a known count cost nothing.

        Raises:
            CacheError: the folder of the index cannot be written.
        """
        claims = _claims(self._known)
        left = deque(chapters)
        try:
            while left:
                left = self._await(self._pass(left, claims, pool, work, given), claims)
        finally:
            claims.close()

    def _pass(self, todo: deque[At], claims: Claims, pool: Builders, work: Work, given: Any) -> deque[At]:
        """Count every chapter that nobody else has; return the others."""
        working: dict[Future[Counted], At] = {}
        elsewhere = deque[At]()
        try:
            while todo or working:
                while todo and len(working) <= pool.width:
                    at = todo.popleft()
                    if self._leased(at, claims):
                        working[pool.submit(work, given, self._epoch, *at)] = at
                    elif self._open(at):
                        elsewhere.append(at)
                done, _ = wait(working, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=lambda each: each.exception() is not None):  # what is done stays done
                    self._enter(working.pop(future), future.result(), claims)
                self._look()
        finally:
            for future in working:
                future.cancel()
        return elsewhere

    def _await(self, elsewhere: deque[At], claims: Claims) -> deque[At]:
        """Wait for chapters that others count; return what is left once an owner died, or all count nothing for too long."""
        pause, until = _PAUSES_S[0], time.monotonic() + WAIT_S
        while elsewhere := deque(at for at in elsewhere if self._open(at)):
            if self._look():
                pause, until = _PAUSES_S[0], time.monotonic() + WAIT_S
                continue
            if any(self._free(at, claims) for at in elsewhere):
                return elsewhere
            if time.monotonic() > until:
                self._overdue.update(elsewhere)
                return elsewhere
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES_S[1])
        return elsewhere

    def _open(self, at: At) -> bool:
        with self._lock:
            return self._known.batches(*at) is None

    def _leased(self, at: At, claims: Claims) -> bool:
        """Take the lease of a chapter, unless it is counted or somebody else has it."""
        if not self._open(at) or not (claims.take(claim_of(self._epoch, at)) or at in self._overdue):
            return False
        self._look()  # at what was counted before the lease was ours
        if self._open(at):
            return True
        claims.give_back(claim_of(self._epoch, at))
        return False

    def _free(self, at: At, claims: Claims) -> bool:
        """Whether somebody who had the lease of a chapter is gone."""
        if not claims.take(claim_of(self._epoch, at)):
            return False
        claims.give_back(claim_of(self._epoch, at))
        return True

    def _enter(self, at: At, counted: Counted, claims: Claims) -> None:
        with self._lock:
            self._known.enter(*at, *counted)
        claims.give_back(claim_of(self._epoch, at))
        self._report()

    def _look(self) -> bool:
        with self._lock:
            found = self._known.look()
        if found:
            self._report()
        return found


def claim_of(epoch: int, at: At) -> int:
    """Return what a process claims before it counts a chapter."""
    return key("chapter", epoch, *at)


def _claims(known: KnownChapters) -> Claims:
    folder = known.index.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Claims(folder)
    except OSError as error:
        otherwise = "Make the folder writable, or set $SPIRAL_CACHE"
        raise failed(error, otherwise, "formation index: cannot write", folder) from error

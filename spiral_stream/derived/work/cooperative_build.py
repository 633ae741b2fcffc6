"""Build missing shards cooperatively: lease some, build them, commit them, and wait for those that others have leased.

A unit is some shards that one builder makes at a time. Each builder begins at a different unit. It takes the leases of the
unit's shards, checks again that they are missing, lets its executor make them, and commits finished work now and then. At
the end it waits for what others hold. Leases are named by shard, so builders whose units have different borders never make
one shard twice. What a killed builder had leased is free at once; what it had not committed is made again by the next one.

Work that cannot be divided is made by one process, while others wait for it with a deadline.
"""

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived.index import Keys
from spiral_stream.derived.work.executors import Builders
from spiral_stream.errors import CacheError
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.locks import Held, Wait, lock, wait_for
from spiral_stream.keeping.leases import ShardLeases
from spiral_stream.keeping.store_leases import leases_of

LEASES: Final = 2048  # of shards that are made and not entered yet: the kernel keeps a list of them
WAIT_S: Final = 600.0  # for a builder that holds a lease and enters nothing; then its work is done here too
PAUSES_S: Final = (0.02, 0.5)  # first and longest, between two looks at what others made

Shards = NDArray[np.int64]


class Target(ABC):
    """One thing that is made shard by shard: who makes which shard is said in its folder's claims."""

    claims: ShardLeases | None = None

    @abstractmethod
    def prepare(self) -> Path:
        """Make the folder, and return it.

        Raises:
            OSError: it cannot be written.
        """

    @abstractmethod
    def missing(self, shards: Shards) -> NDArray[np.bool_]:
        """Shape [P] -> [P], bool: shards of which something is missing, as far as is known."""

    @abstractmethod
    def look(self) -> bool:
        """Find out what was entered since the last look; whether anything was, or whoever makes it shows a sign of life."""


@dataclass(eq=False)
class Job:
    """A unit that this builder has the leases of."""

    leases: dict[int, Shards]  # target -> shards
    work: Callable[..., Any]  # picklable, if processes are to do it
    args: tuple[Any, ...]
    drop: Callable[[], None] = field(default=lambda: None)  # removes what was not entered


Made = TypeVar("Made")


class Maker(ABC, Generic[Made]):
    """What a build makes, and how it is entered."""

    enter_every_s: float
    ahead: int  # jobs that wait for the executor, so that it is never idle
    scattered: bool = True  # whether each builder begins at another unit
    wait_s: float | None = None  # for a builder that holds a lease and enters nothing; None takes `WAIT_S`

    targets: Sequence[Target]
    keys: Keys  # [S, 2]: of the shards; equal ones are one
    units: Sequence[Shards]

    @abstractmethod
    def job(self, wanted: dict[int, Shards]) -> Job:
        """Return the job that makes what is missing of some shards, by target. Their leases are ours."""

    @abstractmethod
    def enter(self, done: Sequence[tuple[Job, Made]]) -> None:
        """Let others see what is done; a target that it enters nothing in knows of it at its next look."""

    @abstractmethod
    def tell(self, running: Sequence[Job]) -> None:
        """Report what is done, whoever did it."""


def make(maker: Maker[Made], builders: Callable[[], Builders]) -> None:
    """Make or await everything that is missing.

    Raises:
        SourceError: what it is made from cannot be read.
        CacheError: the operating system refuses, or a process of the executor was ended.
    """
    run = _Shift(maker)
    try:
        run.begin()
        with builders() as pool:
            run.all(pool)
    finally:
        run.close()


@contextmanager
def refusals(root: Path, otherwise: str, *what: object) -> Iterator[None]:
    """Say what to do where the operating system refuses.

    Args:
        root: where things are made.
        otherwise: what to do if the system's reason says nothing.
        what: fails, in words and paths.

    Raises:
        CacheError: it does, or it ended a process of the executor.
    """
    try:
        yield
    except OSError as error:
        raise failed(error, otherwise, *what) from error
    except BrokenExecutor as error:
        msg = (
            f"{root}: a process that made pieces was ended from outside, perhaps for want of memory. What is done stays; "
            "build the rest with fewer workers"
        )
        raise CacheError(msg) from error


@final
class _Shift(Generic[Made]):
    """One call of `make`."""

    def __init__(self, maker: Maker[Made]) -> None:
        self._maker, self._targets = maker, maker.targets
        first = np.unique(maker.keys, axis=0, return_index=True)[1] if len(maker.keys) else np.zeros(0, np.int64)
        self._first = np.zeros(len(maker.keys), np.bool_)  # of equal shards, one is made
        self._first[first] = True
        self._overdue: set[int] = set()  # units whose owner enters nothing for too long
        self._ready: list[tuple[Job, Made]] = []  # done, and not entered yet
        self._working: dict[Future[Made], Job] = {}
        self._entered_at = time.monotonic()

    def begin(self) -> None:
        """Make the folders, and open the claims."""
        for target in self._targets:
            target.claims = leases_of(target.prepare())

    def close(self) -> None:
        """Drop what was not entered, and give all leases back."""
        for job in [*self._working.values(), *(job for job, _ in self._ready)]:
            job.drop()
        for target in self._targets:
            if target.claims is not None:
                target.claims.close()

    def all(self, pool: Builders) -> None:
        """Make or await everything."""
        units = len(self._maker.units)
        first = hash((os.getpid(), id(self))) % max(1, units) if self._maker.scattered else 0
        order = np.roll(np.arange(units), -first)
        queue = deque(int(unit) for unit in order if self._open(int(unit)))
        try:
            while queue:
                elsewhere = deque[int]()
                self._pass(queue, elsewhere, pool)
                queue = self._await(elsewhere)
        finally:
            self._enter()  # what was done before an error stays done

    def _pass(self, queue: deque[int], elsewhere: deque[int], pool: Builders) -> None:
        """Take everything that nobody else has."""
        while queue or self._working:
            while queue and len(self._working) < pool.width + self._maker.ahead:
                unit = queue.popleft()
                job, has_all = self._claimed(unit)
                if job is not None:
                    self._working[pool.submit(job.work, *job.args)] = job
                if not has_all:
                    elsewhere.append(unit)
            done, _ = wait(self._working, timeout=PAUSES_S[1], return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: each.exception() is not None):  # what is done stays done
                made = future.result()
                self._ready.append((self._working.pop(future), made))
            held = sum(len(shards) for job, _ in self._ready for shards in job.leases.values())
            if held > LEASES or time.monotonic() - self._entered_at > self._maker.enter_every_s:
                self._enter()
            self._maker.tell(list(self._working.values()))
        self._enter()

    def _await(self, elsewhere: deque[int]) -> deque[int]:
        """Wait for what others make; returns what is missing once a maker died, or all enter nothing for too long."""
        wait = Wait(WAIT_S if self._maker.wait_s is None else self._maker.wait_s, PAUSES_S)
        while elsewhere := deque(unit for unit in elsewhere if self._open(unit)):
            if sum(target.look() for target in self._targets):  # all of them, so no `any`
                self._maker.tell(())
                wait.again()
                continue
            if any(self._free(unit) for unit in elsewhere):
                return elsewhere
            if sum(target.claims.are_moving() for target in self._targets if target.claims is not None):
                wait.again()
            if not wait.pause():
                self._overdue.update(elsewhere)
                return elsewhere
        return elsewhere

    def _claimed(self, unit: int) -> tuple[Job | None, bool]:
        """Take the leases of what is missing of a unit; also whether nobody else has one."""
        wanted = {k: self._missing(k, unit) for k in range(len(self._targets))}
        leased = {k: self._leased(k, shards, unit) for k, shards in wanted.items() if len(shards)}
        todo: dict[int, Shards] = {}
        for k, shards in leased.items():
            if len(shards):
                self._targets[k].look()
                still = self._targets[k].missing(shards)  # with what was entered before the lease was ours
                self._release(k, shards[~still])
                if still.any():
                    todo[k] = shards[still]
        has_all = all(len(leased[k]) == len(wanted[k]) for k in leased)
        return self._maker.job(todo) if todo else None, has_all

    def _leased(self, k: int, shards: Shards, unit: int) -> Shards:
        """Those of some shards that nobody else has, or whose owner had time enough."""
        claims, names = self._targets[k].claims, self._maker.keys[shards, 0].tolist()
        assert claims is not None
        taken = np.array(claims.take_all(names), np.bool_)
        return shards[taken | (unit in self._overdue)]

    def _release(self, k: int, shards: Shards) -> None:
        claims = self._targets[k].claims
        assert claims is not None
        claims.give_back_all(self._maker.keys[shards, 0].tolist())

    def _free(self, unit: int) -> bool:
        """Whether nobody makes the first missing shard of a unit: its owner died. Others follow when that one is there."""
        for k, target in enumerate(self._targets):
            assert target.claims is not None
            if any(target.claims.is_free(name) for name in self._maker.keys[self._missing(k, unit)[:1], 0].tolist()):
                return True
        return False

    def _open(self, unit: int) -> bool:
        return any(len(self._missing(k, unit)) for k in range(len(self._targets)))

    def _missing(self, k: int, unit: int) -> Shards:
        shards = self._maker.units[unit]
        return shards[self._first[shards] & self._targets[k].missing(shards)]

    def _enter(self) -> None:
        ready, self._ready = self._ready, []
        self._maker.enter(ready)
        for job, _ in ready:
            for k, shards in job.leases.items():
                self._release(k, shards)
            job.drop()
        self._entered_at = time.monotonic()
        self._maker.tell(list(self._working.values()))


@contextmanager
def one_at_a_time(file: Path, done: Callable[[], bool]) -> Iterator[None]:
    """Let one process into the block while others wait; a dead one's turn ends at once.

    Args:
        file: the lock; it is made, with its folder.
        done: whether another process has made it meanwhile, so that nobody needs to wait any longer.
    """
    held: Held | None = None
    with suppress(OSError):  # no locks here, or none in time: everybody makes it, and one outcome stays
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        held = wait_for(lambda: Held(-1) if done() else lock(file, alone=True), file, WAIT_S, quiet=True)
    try:
        yield
    finally:
        if held is not None:
            held.release()

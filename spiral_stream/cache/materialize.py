"""Build a cache: every shard that is not finished, in cooperation with other processes that build it.

The one builder (`derived.work.cooperative_build`) leases shards, makes them by threads, processes or Ray tasks, and awaits those
that others make. A finished shard is in the ledger at once: an interrupted build goes on with the next one.
Readers see what is committed, now and then and at the end. A row whose bytes are bad is stored as refused, with its
reason, so that cached and uncached streams treat it alike.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache import part_boundaries
from spiral_stream.cache.kinds.kind import Kind
from spiral_stream.cache.row_workers import BuildRows, Hands, ShardWork
from spiral_stream.cache.store.part_rows import Chunk
from spiral_stream.cache.store.store import REST, CacheStore
from spiral_stream.derived.index import keys_of
from spiral_stream.derived.work.cooperative_build import Job, Maker, Shards, Target, make, refusals
from spiral_stream.derived.work.executors import Builders, Executor, Shared, Threads, builders_in_force
from spiral_stream.display.progress import Progress, working
from spiral_stream.integrity.locks import Held
from spiral_stream.integrity.publish import drafts, new_draft

COMMIT_EVERY_S: Final = 30.0
WRITERS: Final = 2  # of shards at a time in this process: one writes while the other waits for rows
_TALLY: Final = struct.Struct("<q")
_TALLY_NAME: Final = "tally"


def build(
    relation: BuildRows,
    kind: Kind,
    store: CacheStore,
    shards: Sequence[ShardWork],
    threads: int,
    report: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
) -> Progress:
    """Store what is missing of ``shards`` and commit it.

    Args:
        relation: the open relation that owns the payload.
        kind: what to store.
        store: where.
        shards: the rows a selection needs, shard by shard.
        threads: that fetch, decode and tokenize, all processes together.
        report: called now and then with what is done so far.
        executor: that is in force (`building_with`); None: threads of this process.

    Raises:
        CacheError: the folder cannot be written.
        SourceError: the payload cannot be read (an I/O fault, not bad bytes).
    """
    store.mend()
    store.sweep()
    if store.parts.share is not None:
        store.parts.share.ask_again(store.folder)
    store.pull()
    store.parts.push()
    target = _Target(store, shards)
    if target.total:
        what = f"building the cache of {kind.relation}.{kind.column}"
        with refusals(store.folder, REST, "cache: cannot write under", store.folder), working(what, "rows") as tell:

            def report_rows(done: Progress) -> None:
                tell(done.rows, done.rows_total)
                if report is not None:
                    report(done)

            _make(relation, kind, target, threads, report_rows, executor or Executor())
    store.commit()
    store.sweep()
    return target.progress(())


def _make(
    relation: BuildRows,
    kind: Kind,
    target: "_Target",
    threads: int,
    report: Callable[[Progress], None],
    executor: Executor,
) -> None:
    units = part_boundaries.units(target.works)
    if executor.name == "threads":
        hands = Hands(relation, kind, threads)
        builders: Callable[[], Builders] = partial(_Writers, hands)
    else:
        hands, builders = Hands(relation, kind, max(1, threads // len(units))), builders_in_force
    make(_Parts(hands, target, units, report), builders)


@final
class _Writers(Builders):
    """Threads that write shards; they stop with those that make rows."""

    def __init__(self, hands: Hands) -> None:
        self._hands, self._threads = hands, Threads(WRITERS)
        self.width = self._threads.width

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        return self._threads.submit(work, *args)

    def close(self) -> None:
        self._hands.close()
        self._threads.close()


@final
class _Target(Target):
    """One cache under way: which of the wanted rows its ledger has. Reads each entry once."""

    def __init__(self, store: CacheStore, shards: Sequence[ShardWork]) -> None:
        self.store = store
        self._seen: set[str] = set()
        self._tallies: set[tuple[str, int]] = set()  # of all builders, and when they were written
        self._begin(_merged(shards))
        self.look()
        self._begin([work for work in self.works if len(work.offsets)])

    def _begin(self, works: list[ShardWork]) -> None:
        self.works = works
        self._at = {work.key: at for at, work in enumerate(works)}
        self.left = [len(work.offsets) for work in works]
        self.total = sum(self.left)
        self._refused = self._bytes = 0

    def prepare(self) -> Path:
        self.store.folder.mkdir(parents=True, exist_ok=True)
        return self.store.folder

    def missing(self, shards: Shards) -> NDArray[np.bool_]:
        return np.array([self.left[shard] > 0 for shard in shards.tolist()], np.bool_)

    def look(self) -> bool:
        self.store.pull()
        new = self.store.ledger.since(self._seen)
        for entry in new:
            at = self._at.get(entry.key)
            if at is not None:
                work = self.works[at]
                rest = work.offsets[~entry.mask[work.offsets.astype(np.int64)]]
                self.works[at], self.left[at] = replace(work, offsets=rest), len(rest)
                self._refused, self._bytes = self._refused + entry.refused, self._bytes + entry.bytes
        return self._are_working() or bool(new)

    def _are_working(self) -> bool:
        """Whether a builder made rows since the last look: a shard may take longer than others wait for nothing."""
        before, self._tallies = self._tallies, set()
        for path in drafts(self.store.folder, _TALLY_NAME):
            with suppress(OSError):
                self._tallies.add((path.name, path.stat().st_mtime_ns))
        return not self._tallies <= before

    def progress(self, running: Sequence["_Job"]) -> Progress:
        """Return what is done, with the rows of shards that are being made here."""
        begun = sum(max(0, job.done() - (job.rows - self._left_of(job))) for job in running)
        return Progress(
            shards=self.left.count(0),
            shards_total=len(self.left),
            rows=min(self.total, self.total - sum(self.left) + begun),
            rows_total=self.total,
            refused=self._refused,
            payload_bytes=self._bytes,
        )

    def _left_of(self, job: "_Job") -> int:
        return sum(self.left[shard] for shard in job.leases[0].tolist())


@dataclass(eq=False)
class _Job(Job):
    """Parts of one unit."""

    rows: int = 0
    tally: Path = field(default_factory=Path)  # where its maker writes down how many rows are done

    def done(self) -> int:
        """Rows that are done."""
        with suppress(OSError, struct.error):
            done: int = _TALLY.unpack(self.tally.read_bytes())[0]
            return done
        return 0


@final
class _Parts(Maker[None]):
    """The missing parts of one cache."""

    ahead = 0  # a shard takes long, and another builder may have nothing to do

    def __init__(
        self, hands: Hands, target: _Target, units: Sequence[Shards], report: Callable[[Progress], None]
    ) -> None:
        self.enter_every_s = COMMIT_EVERY_S
        self.targets, self.units = [target], units
        self.keys = keys_of(pa.array([work.key for work in target.works], pa.utf8()))
        self._target, self._report = target, report
        self._shared = Shared((hands, target.store))
        self._shown: Progress | None = None

    def job(self, wanted: dict[int, Shards]) -> _Job:
        works = [self._target.works[shard] for shard in wanted[0].tolist()]
        tally, held = new_draft(self._target.store.folder / _TALLY_NAME, Path.touch)
        rows = sum(len(work.offsets) for work in works)
        return _Job(wanted, make_parts, (self._shared, works, tally), lambda: _drop(tally, held), rows, tally)

    def enter(self, done: Sequence[tuple[Job, None]]) -> None:
        if done:
            self._target.look()
            self._target.store.commit()

    def tell(self, running: Sequence[Job]) -> None:
        self._target.look()
        now = self._target.progress([job for job in running if isinstance(job, _Job)])
        if self._shown is None or (now != self._shown and now.rows >= self._shown.rows):
            self._shown = now
            self._report(now)


def make_parts(shared: Shared[tuple[Hands, CacheStore]], works: Sequence[ShardWork], tally: Path) -> None:
    """Write the parts of some shards and enter them into the ledger. Runs wherever the executor likes.

    Args:
        shared: who makes rows, and where they are stored.
        works: the shards.
        tally: a file that gets the number of rows that are done.
    """
    hands, store = shared.value()
    handle, done = os.open(tally, os.O_WRONLY), 0

    def counted(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        nonlocal done
        for offsets, rows in chunks:
            yield offsets, rows
            done += len(offsets)
            os.pwrite(handle, _TALLY.pack(done), 0)

    try:
        for work in works:
            store.write(work.key, work.rows, counted(hands.shard(work)))
    finally:
        os.close(handle)


def _merged(shards: Sequence[ShardWork]) -> list[ShardWork]:
    """The work of each content: equal shards share their parts."""
    found: dict[str, ShardWork] = {}
    for work in shards:
        had = found.get(work.key)
        rows = work.offsets if had is None else np.union1d(had.offsets, work.offsets)
        found[work.key] = replace(had or work, offsets=rows)
    return list(found.values())


def _drop(tally: Path, held: Held) -> None:
    with suppress(OSError):
        tally.unlink(missing_ok=True)
    held.release()

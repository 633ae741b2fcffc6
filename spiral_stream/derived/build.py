"""Make the pieces that are missing: chunk by chunk, together with whoever else builds the same ones.

A chunk is a run of shards of about a million rows. Its borders depend on the shards alone, so all builders cut alike.
Each builder begins at a place of its own, takes the lease of a chunk, looks once more whether it is still missing, lets
its executor make it, and commits what is done every second. Then it waits for what others hold. What a killed builder
had leased is free at once, and what it had not committed is made again by the next one.
"""

import json
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.claims import Claims
from spiral_stream.derived.derivation import Derivation, ShardRows, ShardSource, ShardTable
from spiral_stream.derived.executors import Builders
from spiral_stream.derived.part import Written, write_part
from spiral_stream.derived.roster import Keys, Roster, RosterFile, keys_of
from spiral_stream.errors import CacheError
from spiral_stream.expr import to_json
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.locks import Held
from spiral_stream.integrity.publish import mended, new_draft
from spiral_stream.sources.source import ROW

CHUNK_ROWS: Final = 1 << 20
CHUNK_BYTES: Final = 256 << 20  # of the columns that are read
COMMIT_EVERY_S: Final = 1.0
WAIT_S: Final = 600.0  # for a builder that holds a lease and commits nothing; then its work is done here too
_PAUSES_S: Final = (0.02, 0.5)  # first and longest, between two looks at what others made

Shards = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class BuildProgress:
    """What a build has done so far, whoever did it."""

    rows: int
    rows_total: int


@final
@dataclass(eq=False)
class _Target:
    """One derivation under way."""

    derivation: Derivation
    file: RosterFile
    roster: Roster
    stamp: tuple[int, ...] | None
    claims: Claims | None = None

    def missing(self, keys: Keys) -> NDArray[np.bool_]:
        return self.roster.find(keys) < 0

    def look(self) -> bool:
        """Read the roster again if somebody committed; whether somebody did."""
        stamp = self.file.stamp()
        if stamp == self.stamp:
            return False
        self.roster, self.stamp = self.file.load(), stamp
        return True


@final
@dataclass(frozen=True, eq=False)
class _Work:
    """Pieces of one chunk that this builder has the lease of."""

    chunk: int
    targets: tuple[int, ...]
    shards: tuple[Shards, ...]  # per target: those whose piece is missing
    drafts: tuple[Path, ...]
    held: tuple[Held, ...]  # so that nobody takes a draft for that of a dead builder


def load(file: RosterFile) -> Roster:
    """Read a roster; one that is damaged is set aside with a warning, and its pieces are made again."""
    return mended(file.path, file.load, file.begin) if file.path.exists() else file.load()


def _target(derivation: Derivation, file: RosterFile) -> _Target:
    stamp = file.stamp()  # before the roster is read: who commits in between is seen at the next look
    return _Target(derivation, file, load(file), stamp)


def build(
    source: ShardSource,
    derivations: Sequence[Derivation],
    root: Path,
    builders: Callable[[], Builders],
    report: Callable[[BuildProgress], None] = lambda _: None,
) -> list[Roster]:
    """Make every missing piece of a relation's shards and return the rosters.

    Args:
        source: the relation.
        derivations: what to make; those with the same predicate are made in one pass over the rows.
        root: of all derived data.
        builders: makes the executor; called only if something is missing.
        report: called after every chunk.

    Raises:
        CacheError: the folder cannot be written.
        SourceError: the relation cannot be read.
    """
    targets = [_target(each, RosterFile(root, each)) for each in derivations]
    keys = keys_of(source.manifest.content_keys)
    if not any(target.missing(keys).any() for target in targets):
        return [target.roster for target in targets]
    run = _Build(source, targets, keys, report)
    try:
        run.prepare()
        with builders() as pool:
            run.all(pool)
    except OSError as error:
        raise failed(
            error, "Give a folder that can be written, or set $SPIRAL_CACHE", root, "cannot be written"
        ) from error
    except BrokenExecutor as error:
        msg = (
            f"{root}: a process that made pieces was ended from outside, perhaps for want of memory. What is done stays; "
            "build the rest with fewer workers"
        )
        raise CacheError(msg) from error
    finally:
        run.close()
    return [target.roster for target in targets]


@final
class _Build:
    """One call of `build`."""

    def __init__(
        self, source: ShardSource, targets: list[_Target], keys: Keys, report: Callable[[BuildProgress], None]
    ) -> None:
        self._source, self._targets, self._keys, self._report = source, targets, keys, report
        widths = [target.derivation.row_bytes for target in targets]
        self._chunks = chunks(source.manifest, None if None in widths else sum(w for w in widths if w is not None))
        self._rows = np.diff(source.manifest.starts).astype(np.int64)
        self._missing = [target.missing(keys) for target in targets]
        self._total = int(self._rows[np.logical_or.reduce(self._missing)].sum())
        self._overdue: set[int] = set()  # chunks whose owner commits nothing for too long
        self._ready: list[tuple[_Work, list[Written]]] = []  # made, and not committed yet
        self._working: dict[Future[list[Written]], _Work] = {}
        self._committed_at = time.monotonic()

    def prepare(self) -> None:
        """Make the folders, and open the claims."""
        for target in self._targets:
            target.file.prepare()
            target.claims = Claims(target.file.folder)

    def close(self) -> None:
        """Drop what was not committed, and give all leases back."""
        for work in [*self._working.values(), *(work for work, _ in self._ready)]:
            _drop(work)
        for target in self._targets:
            if target.claims is not None:
                target.claims.close()

    def all(self, pool: Builders) -> None:
        """Make or await everything."""
        order = np.roll(np.arange(len(self._chunks)), -(hash((os.getpid(), id(self))) % len(self._chunks)))
        queue = deque(int(chunk) for chunk in order if self._open(int(chunk)))
        try:
            while queue:
                elsewhere = deque[int]()
                self._pass(queue, elsewhere, pool)
                queue = self._await(elsewhere)
        finally:
            self._commit()  # what was done before an error stays done

    def _pass(self, queue: deque[int], elsewhere: deque[int], pool: Builders) -> None:
        """Take every chunk that nobody else has."""
        while queue or self._working:
            while queue and len(self._working) <= pool.width:
                chunk = queue.popleft()
                work, whole = self._claimed(chunk)
                if work is not None:
                    future = pool.submit(make_chunk, self._source, self._derivations(work), work.shards, work.drafts)
                    self._working[future] = work
                if not whole:
                    elsewhere.append(chunk)
            done, _ = wait(self._working, timeout=COMMIT_EVERY_S, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: each.exception() is not None):  # what is done stays done
                made = future.result()
                self._ready.append((self._working.pop(future), made))
            if time.monotonic() - self._committed_at > COMMIT_EVERY_S:
                self._commit()
        self._commit()

    def _await(self, elsewhere: deque[int]) -> deque[int]:
        """Wait for chunks that others make; returns what is missing once a maker died, or all commit nothing for too long."""
        pause, until = _PAUSES_S[0], time.monotonic() + WAIT_S
        while elsewhere := deque(chunk for chunk in elsewhere if self._open(chunk)):
            if sum(target.look() for target in self._targets):  # all of them, so no `any`
                self._tell()
                until = time.monotonic() + WAIT_S
                continue
            if any(self._free(chunk) for chunk in elsewhere):
                return elsewhere
            if time.monotonic() > until:
                self._overdue.update(elsewhere)
                return elsewhere
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES_S[1])
        return elsewhere

    def _claimed(self, chunk: int) -> tuple[_Work | None, bool]:
        """Take leases on what is missing of a chunk; also whether nobody else has one."""
        wanted = [k for k in range(len(self._targets)) if self._shards(k, chunk).size]
        got = [k for k in wanted if self._lease(k, chunk)]
        shards = {k: self._shards(k, chunk) for k in got}  # with what was committed before the lease was ours
        todo = [k for k in got if shards[k].size]
        for k in got:
            if k not in todo:
                self._release(k, chunk)
        if not todo:
            return None, len(got) == len(wanted)
        drafts = [new_draft(self._targets[k].file.parts / uuid.uuid4().hex, Path.touch) for k in todo]
        work = _Work(
            chunk,
            tuple(todo),
            tuple(shards[k] for k in todo),
            tuple(path for path, _ in drafts),
            tuple(held for _, held in drafts),
        )
        return work, len(got) == len(wanted)

    def _lease(self, k: int, chunk: int) -> bool:
        claims = self._targets[k].claims
        taken = claims is not None and (claims.take(self._name(chunk)) or chunk in self._overdue)
        if taken:
            self._targets[k].look()
        return taken

    def _release(self, k: int, chunk: int) -> None:
        claims = self._targets[k].claims
        if claims is not None:
            claims.give_back(self._name(chunk))

    def _free(self, chunk: int) -> bool:
        """Whether somebody who had the lease of a missing chunk is gone."""
        for k in range(len(self._targets)):
            if self._shards(k, chunk).size and self._lease(k, chunk):
                self._release(k, chunk)
                return True
        return False

    def _name(self, chunk: int) -> int:
        return int(self._keys[self._chunks[chunk][0], 0])

    def _derivations(self, work: _Work) -> tuple[Derivation, ...]:
        return tuple(self._targets[k].derivation for k in work.targets)

    def _open(self, chunk: int) -> bool:
        return any(self._shards(k, chunk).size for k in range(len(self._targets)))

    def _shards(self, k: int, chunk: int) -> Shards:
        """The shards of a chunk whose piece is still missing."""
        shards = self._chunks[chunk]
        return shards[self._targets[k].missing(self._keys[shards])]

    def _commit(self) -> None:
        ready, self._ready = self._ready, []
        for k, target in enumerate(self._targets):
            made = [
                (work.drafts[at], self._keys[work.shards[at]], written[at])
                for work, written in ready
                for at, which in enumerate(work.targets)
                if which == k
            ]
            if made:
                target.roster, target.stamp = target.file.commit(made)
        for work, _ in ready:
            for k in work.targets:
                self._release(k, work.chunk)
            _drop(work)
        self._committed_at = time.monotonic()
        if ready:
            self._tell()

    def _tell(self) -> None:
        left = np.logical_or.reduce([target.missing(self._keys) for target in self._targets])
        self._report(BuildProgress(self._total - int(self._rows[left].sum()), self._total))


def chunks(table: ShardTable, row_bytes: int | None) -> list[Shards]:
    """Cut shards into runs of about `CHUNK_ROWS` rows and `CHUNK_BYTES`; a shard is never cut.

    Args:
        table: the shards.
        row_bytes: that are read of each row; None takes the bytes of the whole shard.
    """
    rows = np.diff(table.starts).astype(np.float64)
    sizes = rows * row_bytes if row_bytes is not None else np.maximum(table.shard_bytes, 0)
    before = np.cumsum(np.maximum(rows / CHUNK_ROWS, sizes / CHUNK_BYTES))
    run = np.floor(np.concatenate([[0.0], before[:-1]])).astype(np.int64)
    borders = np.flatnonzero(np.diff(run)) + 1
    return np.split(np.arange(len(rows), dtype=np.int64), borders)


def make_chunk(
    source: ShardSource, derivations: Sequence[Derivation], shards: Sequence[Shards], drafts: Sequence[Path]
) -> list[Written]:
    """Make pieces of some shards and write them to drafts: one per derivation. Runs wherever the executor likes.

    Args:
        source: the relation.
        derivations: what to make.
        shards: per derivation: the shards, ascending.
        drafts: per derivation: an empty file that the caller holds.
    """
    out: list[Written | None] = [None] * len(derivations)
    for together in _by_predicate(derivations):
        columns = list(dict.fromkeys(name for k in together for name in derivations[k].columns))
        wanted = np.unique(np.concatenate([shards[k] for k in together]))
        asked = {k: set(shards[k].tolist()) for k in together}
        given: dict[int, list[ShardRows]] = {k: [] for k in together}
        for shard, rows in shard_rows(source, columns, derivations[together[0]].predicate, wanted):
            for k in together:
                if shard in asked[k]:
                    own = ShardRows(rows.rows, rows.offsets, rows.table.select(list(derivations[k].columns)))
                    given[k].append(own)
        for k in together:
            out[k] = write_part(drafts[k], derivations[k], derivations[k].pieces(given[k]))
    return [each for each in out if each is not None]


def _by_predicate(derivations: Sequence[Derivation]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for k, each in enumerate(derivations):
        predicate = each.predicate
        groups.setdefault("" if predicate is None else json.dumps(to_json(predicate)), []).append(k)
    return list(groups.values())


def shard_rows(
    source: ShardSource, columns: Sequence[str], predicate: Any, shards: Shards
) -> Iterator[tuple[int, ShardRows]]:
    """Yield the rows of some shards, shard by shard, ascending."""
    starts = source.manifest.starts
    batches = list(source.scan(columns, predicate, shards.tolist()))
    if batches:
        table = pa.Table.from_batches(batches)
    else:  # no row passes, or there is none
        fields = [source.schema.field(name) for name in columns]
        table = pa.schema([*fields, pa.field(ROW, pa.uint64())]).empty_table()
    ordinals = table.column(ROW).to_numpy()
    if len(ordinals) and not bool((ordinals[1:] > ordinals[:-1]).all()):
        order = np.argsort(ordinals, kind="stable")
        table, ordinals = table.take(pa.array(order)), ordinals[order]
    low = np.searchsorted(ordinals, starts[shards])
    high = np.searchsorted(ordinals, starts[shards + 1])
    for shard, first, last in zip(shards.tolist(), low.tolist(), high.tolist(), strict=True):
        rows = int(starts[shard + 1] - starts[shard])
        yield shard, ShardRows(rows, ordinals[first:last] - starts[shard], table.slice(first, last - first))


def _drop(work: _Work) -> None:
    """Remove drafts that were not committed."""
    for path, held in zip(work.drafts, work.held, strict=True):
        with suppress(OSError):
            path.unlink(missing_ok=True)
        held.release()

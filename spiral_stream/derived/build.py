"""Build the missing pieces of derivations, chunk by chunk, in cooperation with other processes.

A chunk is a run of shards of about a million rows; `derived.work.cooperative_build` says how builders share them. What is done is
committed every second. A shard may be as large as a file: the pieces of a large one are made a range of rows at a time, and
are the same bytes as those of all its rows together. So memory does not grow with files.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.derivation import Derivation, ShardRows, ShardSource, ShardTable
from spiral_stream.derived.index import Keys, Roster, RosterFile, keys_of
from spiral_stream.derived.part import PartWriter, Written
from spiral_stream.derived.pieces import FactsInMemory, Pieces
from spiral_stream.derived.shared_parts import PiecesParts, meet
from spiral_stream.derived.unasked import cost_of, tell
from spiral_stream.derived.work.cooperative_build import Job, Maker, Shards, Target, make, refusals
from spiral_stream.derived.work.executors import Builders, Shared, builders_in_force, is_explicit
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import DamageError, SourceError
from spiral_stream.expr import to_json
from spiral_stream.integrity.locks import Held
from spiral_stream.integrity.publish import mended, new_draft
from spiral_stream.sources.arrow.table import no_rows
from spiral_stream.sources.source import ROW

CHUNK_ROWS: Final = 1 << 20
CHUNK_BYTES: Final = 256 << 20  # of the columns that are read
LARGE_ROWS: Final = 1 << 21  # of a shard; pieces of a larger one are made a range at a time
LARGE_BYTES: Final = 64 << 20  # of a shard, as for rows
RANGE_BYTES: Final = 16 << 20  # of the rows of a large shard that are held
CHUNK_SHARDS: Final = 128  # each has a lease, and taking one costs the number of those held
_MANY: Final = 16  # batches that are looked through for each shard
_SMALL_BYTES: Final = 1 << 20  # of a batch on average, below which they are copied together
COMMIT_EVERY_S: Final = 1.0


@final
class _Target(Target):
    """One derivation under way."""

    def __init__(self, derivation: Derivation, file: RosterFile, keys: Keys) -> None:
        self.derivation, self.file, self._keys = derivation, file, keys
        meet(file, keys)
        self.stamp = file.stamp()  # before the roster is read: who commits in between is seen at the next look
        self.roster = load(file)

    def prepare(self) -> Path:
        self.file.prepare()
        return self.file.folder

    def missing(self, shards: Shards) -> NDArray[np.bool_]:
        if len(shards) == len(self._keys):
            return self.roster.all_of(self._keys)[shards] < 0
        return self.roster.find(self._keys[shards]) < 0

    def look(self) -> bool:
        PiecesParts(self.file).pull()
        stamp = self.file.stamp()
        if stamp == self.stamp:
            return False
        self.roster, self.stamp = self.file.load(), stamp
        return True


@dataclass(eq=False)
class _Job(Job):
    """Pieces of one chunk."""

    drafts: tuple[Path, ...] = ()
    held: tuple[Held, ...] = ()  # so that nobody takes a draft for that of a dead builder


def load(file: RosterFile) -> Roster:
    """Read a roster; one that is damaged is set aside with a warning, and its pieces are made again."""
    try:
        return file.load()
    except DamageError:
        return mended(file.path, file.load, file.begin)


def build(
    source: ShardSource,
    derivations: Sequence[Derivation],
    root: Path,
    builders: Callable[[], Builders] = builders_in_force,
    report: Report | None = None,
    *,
    unasked: bool = False,
) -> list[Roster]:
    """Make every missing piece of a relation's shards and return the rosters.

    Args:
        source: the relation.
        derivations: what to make; those with the same predicate are made in one pass over the rows.
        root: of all derived data.
        builders: makes the executor; called only if something is missing. By default what is in force.
        report: called after every chunk, with the rows that are done.
        unasked: whether nobody asked for it, so that a warning says what much of it costs before it begins.

    Raises:
        CacheError: the folder cannot be written.
        SourceError: the relation cannot be read.
    """
    keys = keys_of(source.manifest.content_keys)
    targets = _built(source, derivations, root, keys, builders, report, unasked=unasked)
    return [target.roster for target in targets]


def open_built(
    source: ShardSource,
    derivations: Sequence[Derivation],
    root: Path,
    report: Report | None = None,
    *,
    unasked: bool = False,
) -> list[Pieces]:
    """Make every missing piece as `build` does, and open all of them."""
    keys = keys_of(source.manifest.content_keys)
    targets = _built(source, derivations, root, keys, builders_in_force, report, unasked=unasked)
    return [Pieces(target.file, target.roster, keys) for target in targets]


def in_memory(source: ShardSource, derivations: Sequence[Derivation]) -> list[FactsInMemory]:
    """Make what derivations have of all shards of a small relation in one pass over its rows, and write nothing.

    Args:
        source: the relation.
        derivations: what to make; none has a predicate.

    Raises:
        SourceError: the relation cannot be read.
    """
    columns = list(dict.fromkeys(name for each in derivations for name in each.columns))
    shards = np.arange(len(source.manifest.starts) - 1)
    every = [rows for _, rows in shard_rows(source, columns, None, shards)]
    return [
        FactsInMemory(each, [ShardRows(r.rows, r.offsets, r.table.select(list(each.columns))) for r in every])
        for each in derivations
    ]


def _built(
    source: ShardSource,
    derivations: Sequence[Derivation],
    root: Path,
    keys: Keys,
    builders: Callable[[], Builders],
    report: Report | None,
    *,
    unasked: bool,
) -> list[_Target]:
    targets = [_Target(each, RosterFile(root, each), keys) for each in derivations]
    if (todo := _missing(targets, keys)).any():
        if unasked and not is_explicit():
            tell(derivations, cost_of(source, derivations, int(np.diff(source.manifest.starts)[todo].sum())))
        with refusals(root, "Give a folder that can be written, or set $SPIRAL_CACHE", root, "cannot be written"):
            rows = int(np.diff(source.manifest.starts)[todo].sum())
            kinds = ", ".join(dict.fromkeys(each.KIND for each in derivations))
            with working(f"reading {rows:,} rows ({kinds})", "rows", rows, report=report) as tell_rows:
                make(_Pieces(source, targets, keys, tell_rows), builders)
    return targets


@final
class _Pieces(Maker[list[Written]]):
    """The missing pieces of one relation."""

    ahead = 1

    def __init__(self, source: ShardSource, targets: list[_Target], keys: Keys, report: Report) -> None:
        self.enter_every_s = COMMIT_EVERY_S
        self.targets, self.keys = targets, keys
        self._source, self._derived, self._report = Shared(source), targets, report
        widths = [target.derivation.row_bytes for target in targets]
        few = [target.derivation.chunk_rows or CHUNK_ROWS for target in targets]
        width = None if None in widths else sum(w for w in widths if w is not None)
        self.units = chunks(source.manifest, width, min(few))
        self._rows = np.diff(source.manifest.starts).astype(np.int64)
        self._total, self._shown = self._missing_rows(), [target.roster for target in targets]

    def job(self, wanted: dict[int, Shards]) -> _Job:
        drafts = [new_draft(self._derived[k].file.parts / uuid.uuid4().hex, Path.touch) for k in wanted]
        paths, held = tuple(path for path, _ in drafts), tuple(held for _, held in drafts)
        derivations = tuple(self._derived[k].derivation for k in wanted)
        args = (self._source, derivations, tuple(wanted.values()), paths)
        return _Job(wanted, make_chunk, args, lambda: _drop(paths, held), paths, held)

    def enter(self, done: Sequence[tuple[Job, list[Written]]]) -> None:
        for k, target in enumerate(self._derived):
            made = [
                (job.drafts[at], self.keys[shards], written[at])
                for job, written in done
                if isinstance(job, _Job)
                for at, (which, shards) in enumerate(job.leases.items())
                if which == k
            ]
            if made:
                target.roster, target.stamp = target.file.commit(made)
                PiecesParts(target.file).push()

    def tell(self, running: Sequence[Job]) -> None:  # noqa: ARG002  a chunk takes a second
        now = [target.roster for target in self._derived]
        if any(a is not b for a, b in zip(now, self._shown, strict=True)):
            self._shown = now
            self._report(self._total - self._missing_rows(), self._total)

    def _missing_rows(self) -> int:
        return int(self._rows[_missing(self._derived, self.keys)].sum())


def _missing(targets: Sequence[_Target], keys: Keys) -> NDArray[np.bool_]:
    """Shape [S]: whether a target lacks the piece of a shard."""
    every = np.arange(len(keys))
    found: NDArray[np.bool_] = np.logical_or.reduce([target.missing(every) for target in targets])
    return found


def chunks(table: ShardTable, row_bytes: int | None, most_rows: int | None = None) -> list[Shards]:
    """Cut shards into runs of about `CHUNK_ROWS` rows, `CHUNK_BYTES` and `CHUNK_SHARDS`; a shard is never cut.

    Args:
        table: the shards.
        row_bytes: that are read of each row; None takes the bytes of the whole shard.
        most_rows: about how many rows a run has at most; None takes `CHUNK_ROWS`.
    """
    rows = np.diff(table.starts).astype(np.float64)
    sizes = rows * row_bytes if row_bytes is not None else np.maximum(table.shard_bytes, 0)
    return cut_by_weight(
        np.maximum(np.maximum(rows / (most_rows or CHUNK_ROWS), sizes / CHUNK_BYTES), 1 / CHUNK_SHARDS)
    )


def cut_by_weight(weights: NDArray[np.float64]) -> list[Shards]:
    """Cut shards into runs that weigh about 1 each; a shard is never cut.

    Args:
        weights: shape [S].
    """
    run = np.floor(np.concatenate([[0.0], np.cumsum(weights)[:-1]])).astype(np.int64)
    return np.split(np.arange(len(weights), dtype=np.int64), np.flatnonzero(np.diff(run)) + 1)


def make_chunk(
    shared: Shared[ShardSource], derivations: Sequence[Derivation], shards: Sequence[Shards], drafts: Sequence[Path]
) -> list[Written]:
    """Make pieces of some shards and write them to drafts: one per derivation. Runs wherever the executor likes.

    Args:
        shared: the relation, opened once per process.
        derivations: what to make.
        shards: per derivation: the shards, ascending.
        drafts: per derivation: an empty file that the caller holds.
    """
    source = shared.value()
    with ExitStack() as open_files:
        writers = [open_files.enter_context(PartWriter(*each)) for each in zip(drafts, derivations, strict=True)]
        for together in _by_predicate(derivations):
            for wanted in _runs(source, [derivations[k] for k in together], [shards[k] for k in together]):
                some = {k: wanted[np.isin(wanted, shards[k])] for k in together}
                builds = [(derivations[k], missing, writers[k]) for k, missing in some.items() if len(missing)]
                alone = len(wanted) == 1 and _is_large(source.manifest, wanted, _row_bytes(each for each, *_ in builds))
                builds = _by_range(source, builds) if alone else builds
                if builds:
                    _together(source, builds, wanted)
        return [writer.done() for writer in writers]


_Build = tuple[Derivation, Shards, PartWriter]  # what is made, of which shards, and where it is written


def _together(source: ShardSource, builds: Sequence[_Build], wanted: Shards) -> None:
    """Make the pieces of some shards whose rows are held together, and write them."""
    columns = list(dict.fromkeys(name for each, *_ in builds for name in each.columns))
    given: list[list[ShardRows]] = [[] for _ in builds]
    wants = [set(shards.tolist()) for _, shards, _ in builds]
    for shard, rows in shard_rows(source, columns, builds[0][0].predicate, wanted):
        for (each, *_), want, shards_of in zip(builds, wants, given, strict=True):
            if shard in want:
                shards_of.append(ShardRows(rows.rows, rows.offsets, rows.table.select(list(each.columns))))
    for (each, _, writer), shards_of in zip(builds, given, strict=True):
        for made in each.pieces(shards_of):
            writer.add(made)


def _by_range(source: ShardSource, builds: Sequence[_Build]) -> list[_Build]:
    """Make the pieces of one large shard a range at a time, and write them; returns what has no such way."""
    shard = int(builds[0][1][0])
    rows = int(source.manifest.starts[shard + 1] - source.manifest.starts[shard])
    made = [(each.by_range(rows, writer.spool), each, writer) for each, _, writer in builds]
    able = [(by_range, each, writer) for by_range, each, writer in made if by_range is not None]
    columns = list(dict.fromkeys(name for _, each, _ in able for name in each.columns))
    for some in ranges(source, columns, able[0][1].predicate, shard) if able else ():
        for by_range, each, _ in able:
            by_range.add(ShardRows(rows, some.offsets, some.table.select(list(each.columns))))
    for by_range, _, writer in able:
        writer.add(by_range.end())
    return [build for build, (by_range, *_) in zip(builds, made, strict=True) if by_range is None]


def _runs(source: ShardSource, derivations: Sequence[Derivation], shards: Sequence[Shards]) -> Iterator[Shards]:
    """The shards that are wanted, ascending: each large one by itself, and those between large ones together."""
    wanted = np.unique(np.concatenate(shards))
    large = _is_large(source.manifest, wanted, _row_bytes(derivations))
    cuts = np.unique(np.concatenate([np.flatnonzero(large), np.flatnonzero(large) + 1]))
    yield from (run for run in np.split(wanted, cuts) if len(run))


def _row_bytes(derivations: Iterable[Derivation]) -> int | None:
    """Bytes that are read of each row; None where nobody knows."""
    widths = [each.row_bytes for each in derivations]
    return None if None in widths else sum(width for width in widths if width is not None)


def _is_large(table: ShardTable, shards: Shards, row_bytes: int | None) -> NDArray[np.bool_]:
    """Shape [N] -> [N]: which shards have more rows or bytes than are held at a time."""
    rows = (table.starts[shards + 1] - table.starts[shards]).astype(np.float64)
    sizes = table.shard_bytes[shards] if row_bytes is None else rows * row_bytes
    large: NDArray[np.bool_] = (rows > LARGE_ROWS) | (sizes > LARGE_BYTES)
    return large


def ranges(source: ShardSource, columns: Sequence[str], predicate: Any, shard: int) -> Iterator[ShardRows]:
    """Yield the rows of one shard a range at a time, in their order.

    Raises:
        SourceError: the source gives them in another order.
    """
    begin, end = (int(each) for each in source.manifest.starts[shard : shard + 2])
    held, size, last = list[pa.RecordBatch](), 0, -1
    for batch in source.scan(columns, predicate, [shard]):
        if not len(batch):
            continue
        ordinals = batch.column(ROW).to_numpy()
        if int(ordinals[0]) <= last or not bool((ordinals[1:] > ordinals[:-1]).all()):
            msg = f"a source: rows of shard {shard} come in another order than they are stored. Yield them in physical order"
            raise SourceError(msg)
        last = int(ordinals[-1])
        held.append(batch)
        size += batch.nbytes
        if size >= RANGE_BYTES:
            yield _range(held, begin, end)
            held, size = [], 0
    if held:
        yield _range(held, begin, end)


def _range(held: list[pa.RecordBatch], begin: int, end: int) -> ShardRows:
    table = pa.Table.from_batches(held).combine_chunks()
    return ShardRows(end - begin, table.column(ROW).to_numpy() - np.uint64(begin), table)


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
        if len(batches) > _MANY and table.nbytes < _SMALL_BYTES * len(batches):
            table = table.combine_chunks()  # a slice costs as much as there are batches
    else:  # no row passes, or there is none
        fields = [source.schema.field(name) for name in columns]
        table = no_rows(pa.schema([*fields, pa.field(ROW, pa.uint64())]))
    ordinals = table.column(ROW).to_numpy()
    if len(ordinals) and not bool((ordinals[1:] > ordinals[:-1]).all()):
        order = np.argsort(ordinals, kind="stable")
        table, ordinals = table.take(pa.array(order)), ordinals[order]
    low = np.searchsorted(ordinals, starts[shards])
    high = np.searchsorted(ordinals, starts[shards + 1])
    for shard, first, last in zip(shards.tolist(), low.tolist(), high.tolist(), strict=True):
        rows = int(starts[shard + 1] - starts[shard])
        yield shard, ShardRows(rows, ordinals[first:last] - starts[shard], table.slice(first, last - first))


def _drop(drafts: Sequence[Path], held: Sequence[Held]) -> None:
    """Remove drafts that were not committed."""
    for path, lock in zip(drafts, held, strict=True):
        with suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()

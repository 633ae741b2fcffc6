"""What one node reads from its stores in an epoch: which files, how many at a time, and how often again with a node cache.

Positions are laid out as batches take them (`planner.binding.node_batches`), so this needs no batch to be formed. Cost:
1 us per sample, and for the node cache 5 us per sample and file. Of more than 262,144 asks, a sample of the files is
followed against as much less room (Waldspurger et al. 2015, "Efficient MRC construction with SHARDS").
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.explain.network.eviction import Evicting, Extent
from spiral_stream.explain.network.remote_columns import ALL_BYTES, Remote, RemoteColumn, RemoteField
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.binding.node_batches import Dealing
from spiral_stream.runtime.fields.draft import TASK_ROWS
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import combine
from spiral_stream.storage.node_cache.file import BLOCK, PAGE

MOST_SAMPLES: Final = 1 << 22  # of an epoch; of more, nothing is said
ASKS: Final = 1 << 18
_LEAST_FILES: Final = 256  # in a sample of them

Int64 = NDArray[np.int64]
# P samples of the node, A asks for references of them, U files


@final
@dataclass(frozen=True, slots=True, eq=False)
class Asks:
    """What a node asks for, in order."""

    task: Int64  # [A] ascending: what is asked for together
    file: Int64  # [A]
    begin: Int64  # [A] byte
    end: Int64  # [A]
    sizes: Int64  # [U] bytes, 0 where nobody knows
    uris: list[str]  # [U]

    @property
    def files(self) -> int:
        """How many files are read."""
        return len(np.unique(self.file))


@final
@dataclass(frozen=True, slots=True)
class Live:
    """Files between the first and the last time that an epoch reads them."""

    files: int
    bytes: int
    most_files: int  # at a time
    most_bytes: int


def asks(subject: Subject, found: Remote, dealing: Dealing, node: int, epoch: int) -> Asks:
    """Return what a node asks for in an epoch."""
    streams_P, rows_P, tasks_P = _samples(subject, dealing, node, epoch)
    parts: list[tuple[Int64, Int64, Int64, Int64]] = []
    files: dict[str, int] = {}
    sizes: list[int] = []
    for each in found.fields:
        for stream, column in each.streams.items():
            named, where = _named(column, files, sizes), np.flatnonzero(streams_P == stream)
            if len(where):
                parts.append(_of(column, named, rows_P[where], tasks_P[where], each))
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return Asks(empty, empty, empty, empty, np.array(sizes, dtype=np.int64), list(files))
    task, file, begin, end = (np.concatenate([part[k] for part in parts]) for k in range(4))
    by = np.lexsort((begin, file, task))
    return Asks(task[by], file[by], begin[by], end[by], np.array(sizes, dtype=np.int64), list(files))


def _samples(subject: Subject, dealing: Dealing, node: int, epoch: int) -> tuple[NDArray[np.int32], UInt64, Int64]:
    """Stream and row of each sample of a node, and the task that reads it; in order, shape [P] each."""
    stages = subject.stages
    total = stages.epochs.length(epoch)
    size = stages.batches.batch_size if stages.formation is None else stages.formation.window_size
    positions = np.arange(total, dtype=np.int64)
    batch, within, whose = dealing.dealt(stages, subject.bound, total, positions)
    mine = np.flatnonzero(whose == node)
    mine = mine[np.argsort(batch[mine], kind="stable")]
    samples = stages.epochs.stream_rows(epoch, positions[mine].astype(np.uint64))
    return samples.streams, samples.rows, batch[mine] * (-(-size // TASK_ROWS) * TASK_ROWS) + within[mine]


def _named(column: RemoteColumn, files: dict[str, int], sizes: list[int]) -> Int64:
    """Number the objects of a column among those of all columns."""
    for uri, size in zip(column.uris, column.sizes.tolist(), strict=True):
        if uri not in files:
            files[uri] = len(files)
            sizes.append(size)
    return np.array([files[uri] for uri in column.uris], dtype=np.int64)


def _of(
    column: RemoteColumn, named: Int64, rows: UInt64, at: Int64, field: RemoteField
) -> tuple[Int64, Int64, Int64, Int64]:
    """Task, file and bytes of what the samples of one stream read for one field."""
    found, owners = column.references(rows)
    starts, lengths = column.starts[found], column.lengths[found]
    objects = column.objects[found]
    stops = np.where(lengths == ALL_BYTES, np.maximum(1, column.sizes[objects]), starts + lengths)
    return at[owners] // field.piece_rows * field.piece_rows, named[objects], starts, stops


def live(found: Asks) -> Live:
    """Return how many files and bytes an epoch reads, and how many of them at a time."""
    if not len(found.file):
        return Live(0, 0, 0, 0)
    sizes = _distinct(found)
    read, number = np.unique(found.file, return_inverse=True)
    first = np.full(len(read), len(found.file), dtype=np.int64)
    last = np.zeros(len(read), dtype=np.int64)
    np.minimum.at(first, number, np.arange(len(number)))
    np.maximum.at(last, number, np.arange(len(number)))
    at = np.zeros((2, len(number) + 1), dtype=np.int64)
    for row, weight in enumerate((np.ones(len(read), dtype=np.int64), sizes[read])):
        np.add.at(at[row], first, weight)
        np.add.at(at[row], last + 1, -weight)
    most = np.cumsum(at, axis=1).max(axis=1)
    return Live(len(read), int(sizes.sum()), int(most[0]), int(most[1]))


def _distinct(found: Asks) -> Int64:
    """Bytes of each file that are asked for, each once; shape [U]."""
    unit = np.where(found.end - found.begin < BLOCK, BLOCK, PAGE)  # as `pages_of` has it
    page, after = found.begin // unit * (unit // PAGE), -(-found.end // unit) * (unit // PAGE)
    by = np.lexsort((page, found.file))
    file, offset = found.file[by], found.file[by] << 40  # pages of a file: fewer than 2^40
    first, stop = page[by] + offset, after[by] + offset
    before = np.concatenate([[0], np.maximum.accumulate(stop)[:-1]])
    fresh = np.maximum(0, stop - np.maximum(first, before))
    sizes = np.bincount(file, fresh * PAGE, minlength=len(found.sizes)).astype(np.int64)
    ends = np.zeros(len(found.sizes), dtype=np.int64)
    np.maximum.at(ends, found.file, after)
    beyond = np.where(found.sizes > 0, np.maximum(0, ends * PAGE - found.sizes), 0)
    return np.asarray(np.maximum(0, sizes - beyond), dtype=np.int64)


@final
@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes that a node cache fetches."""

    cold: int  # in an epoch that begins with an empty cache
    again: int  # of these, for at least the second time
    later: int  # in the epoch after it
    requests: tuple[int, int]  # in these two epochs
    dropped: bool  # whether anything was removed for others
    exact: bool  # whether all files were followed


def fetched(epochs: tuple[Asks, Asks], limit_bytes: int) -> Fetched:
    """Follow two epochs through a node cache."""
    share = _share(epochs)
    cache, totals = Evicting(max(1, round(limit_bytes * share))), list[tuple[int, int, int]]()
    some = [_sampled(each, share) for each in epochs]
    for each in some:
        before = cache.fetched, cache.again, cache.requests
        for file, size, ranges in _events(each):
            cache.ask(each.uris[file], size, ranges)
        totals.append((cache.fetched - before[0], cache.again - before[1], cache.requests - before[2]))
    (cold, again, requests), (later, _, requests_later) = [[round(each / share) for each in one] for one in totals]
    return Fetched(cold, again, later, (requests, requests_later), cache.dropped, share == 1)


def _share(epochs: tuple[Asks, Asks]) -> float:
    """The part of the files that is followed."""
    most = max(len(each.file) for each in epochs)
    files = max(1, *(each.files for each in epochs))
    return 1.0 if most <= ASKS else min(1.0, max(ASKS / most, _LEAST_FILES / files))


def _sampled(found: Asks, share: float) -> Asks:
    if share == 1:
        return found
    chosen = combine(np.uint64(0), found.file.astype(np.uint64)) < np.uint64(int(share * (2**64 - 1)))
    return Asks(found.task[chosen], found.file[chosen], found.begin[chosen], found.end[chosen], found.sizes, found.uris)


def _events(found: Asks) -> "list[tuple[int, int, list[Extent]]]":
    """File, size and bytes of each ask, those of one task and file together."""
    if not len(found.file):
        return []
    turns = np.flatnonzero((np.diff(found.task) != 0) | (np.diff(found.file) != 0)) + 1
    begins, ends = [0, *turns.tolist()], [*turns.tolist(), len(found.file)]
    ranges = list(zip(found.begin.tolist(), found.end.tolist(), strict=True))
    files = found.file[begins].tolist()
    sizes = found.sizes[files].tolist()
    return [(file, size, ranges[begin:end]) for file, size, begin, end in zip(files, sizes, begins, ends, strict=True)]

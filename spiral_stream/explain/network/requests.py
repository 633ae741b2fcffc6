"""How many requests and bytes the batches of an epoch need, counted with the run's own rules for joining ranges.

Batches are drawn as the run draws them, and what each task reads is joined by the rule of `storage.store`. Up to 131,072
samples are counted, in batches evenly spaced over the epoch (of a formation, its first ones). Cost: 3 us per sample.
"""

from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from spiral_stream.batching import tail
from spiral_stream.batching.tail import PadPartial
from spiral_stream.explain.network.remote_columns import ALL_BYTES, Remote, RemoteColumn
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.columns.streams import split
from spiral_stream.runtime.fetch import chunks
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.storage.ranges import coalesced
from spiral_stream.storage.store import Get

MOST_SAMPLES: Final = 1 << 17


@final
@dataclass(slots=True, eq=False)
class Counted:
    """What some batches of an epoch ask for. A batch is what a rank has in one step."""

    total: int = 0  # batches of the epoch, of all ranks
    known: bool = True  # whether ``total`` is
    exact: bool = True  # and all of them were counted
    samples: list[int] = field(default_factory=list)  # per batch
    pieces: list[int] = field(default_factory=list)  # per batch: tasks that fetch
    requests: list[int] = field(default_factory=list)  # per batch
    bytes: list[int] = field(default_factory=list)  # per batch
    mine: list[bool] = field(default_factory=list)  # per batch: whether this rank has it
    unsized: bool = False  # whether whole objects of unknown size are asked for

    def epoch(self, values: list[int]) -> int:
        """Return what a whole epoch of all ranks comes to."""
        return sum(values) if self.exact else round(self.mean(values) * self.total)

    def rank(self, values: list[int], share: float) -> int:
        """Return what a whole epoch of this rank comes to, or of ``share`` of all ranks where not all is counted."""
        mine = sum(value for value, is_mine in zip(values, self.mine, strict=True) if is_mine)
        return mine if self.exact else round(self.epoch(values) * share)

    @staticmethod
    def mean(values: list[int]) -> float:
        """Return what a batch comes to."""
        return sum(values) / max(1, len(values))


def counted(subject: Subject, found: Remote) -> Counted | str:
    """Count requests and bytes; or say why nobody can yet."""
    stages, bound, numbering = subject.stages, subject.bound, subject.numbering
    if stages.formed and isinstance(subject.first, str):
        return subject.first
    group = bound.world_size * bound.merge
    known = not stages.formed or numbering.unknown(bound.epoch) == 0
    out = Counted(known=known)
    if known:
        batches = tail.end(stages.batches.last, numbering.total(bound.epoch), group)
        out.total = -(-batches // bound.merge)
    wanted = _chosen(subject, out.total if known else None)
    drawn = 0
    for number in wanted:
        samples = _stream_rows(subject, number)
        if samples is None or (stages.formed and drawn > MOST_SAMPLES):
            break
        drawn += len(samples)
        out.mine.append(number % bound.world_size == bound.turn)
        _count(out, found, samples)
    if not known:
        out.total = round(stages.epochs.length(bound.epoch) / max(1.0, out.mean(out.samples)))
    out.exact = known and len(out.samples) == out.total
    return out


def _chosen(subject: Subject, total: int | None) -> range | list[int]:
    """Which batches are counted; without a total, from the first on."""
    if total is None or subject.stages.formed:
        return range(total if total is not None else MOST_SAMPLES)
    size = subject.stages.batches.batch_size * subject.bound.merge
    most = max(1, MOST_SAMPLES // size)
    return range(total) if total <= most else np.linspace(0, total - 1, most).astype(int).tolist()


def _stream_rows(subject: Subject, number: int) -> StreamRows | None:
    """The samples of what a rank has in one step; None after the end."""
    bound, numbering = subject.bound, subject.numbering
    numbers = range(number * bound.merge, (number + 1) * bound.merge)
    padded = isinstance(numbering.last, PadPartial)
    there = [each for each in numbers if padded or numbering.exists(bound.epoch, each)]
    if not there:
        return None
    drawn = [each for number in there for each in numbering.draw(bound.epoch, [number])]
    return StreamRows.concat([each.samples.stream_rows for each in drawn])


def _count(out: Counted, found: Remote, stream_rows: StreamRows) -> None:
    tasks = requests = size = 0
    for each in found.fields:
        for start, stop in chunks(len(stream_rows), each.piece_rows):
            tasks += 1
            for stream, where in split(stream_rows.take(np.arange(start, stop))):
                if stream in each.streams:
                    more, came = _requested(out, each.streams[stream], stream_rows.rows[start:stop][where])
                    requests, size = requests + more, size + came
    out.samples.append(len(stream_rows))
    out.pieces.append(tasks)
    out.requests.append(requests)
    out.bytes.append(size)


def _requested(
    out: Counted, column: RemoteColumn, rows: "np.ndarray[tuple[int], np.dtype[np.uint64]]"
) -> tuple[int, int]:
    """Requests and bytes of what one task reads of one stream."""
    at, _ = column.references(np.unique(rows))
    objects, starts, lengths = column.objects[at].tolist(), column.starts[at].tolist(), column.lengths[at].tolist()
    gets = [
        Get(column.uris[each], start, None if length == ALL_BYTES else length)
        for each, start, length in zip(objects, starts, lengths, strict=True)
    ]
    runs, size = coalesced(gets), 0
    for run in runs:
        if lengths[run[0]] == ALL_BYTES:
            size += int(column.sizes[objects[run[0]]])
            out.unsized |= not column.sizes[objects[run[0]]]
        else:
            size += max(starts[each] + lengths[each] for each in run) - starts[run[0]]
    return len(runs), size

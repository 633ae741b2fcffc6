"""How well an order mixes: which shards and labels meet in a batch, counted in batches of the epoch.

This holds for every order. Up to 65,536 rows are looked at: all batches, or some that are evenly spaced over the epoch.
Where a formation decides who shares a batch, its windows stand for batches; in a mixture, runs of as many samples of one
stream as a batch has. Beside it stands what rows drawn at random would give. Cost: arithmetic, and reading one narrow column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching import tail
from spiral_stream.explain.figure import RATIO, Figure, Mark, Phrase, marked, phrase
from spiral_stream.explain.shares import joined_or_delivered
from spiral_stream.explain.subject import Subject
from spiral_stream.expr import kind_of
from spiral_stream.planner.streams import StreamStage
from spiral_stream.sampling.order import Arrangement, Order, UInt64
from spiral_stream.sampling.sequential import Sequential
from spiral_stream.sampling.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.stream_end import pass_of

_ROWS: Final = 65_536
_ORDER: Final = "order"
_LABEL: Final = "/batch"
_FEW: Final = 0.5  # of the labels that rows at random would bring: with fewer, EXPLAIN warns
_ONE: Final = 1.5  # labels at random: with fewer, a batch of one label says nothing

Int64 = NDArray[np.int64]
# G groups of M rows that may share a batch


@final
@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Rows of one stream that may share a batch, by where they stand in its passes."""

    passes: UInt64  # [G, M]
    offsets: UInt64  # [G, M]
    whole: bool  # whether these are all batches of the epoch

    @property
    def mark(self) -> Mark:
        """Of what is counted in them."""
        return marked(self.whole)

    def rows(self, arrange: Callable[[int], Arrangement]) -> UInt64:
        """Return the rows that an order reads there; shape [G, M]."""
        passes, offsets = self.passes.ravel(), self.offsets.ravel()
        rows = np.empty(len(passes), dtype=np.uint64)
        for number in np.unique(passes).tolist():
            at = np.flatnonzero(passes == number)
            rows[at] = arrange(number).rows(offsets[at])
        return rows.reshape(self.passes.shape)


def groups_of(subject: Subject, k: int, meeting: int) -> Groups:
    """Return groups of the rows of one stream that may share a batch.

    Args:
        subject: what is explained.
        k: the stream.
        meeting: rows of the stream in a group.
    """
    if subject.stages.mixed:
        return _of_uses(subject, k, meeting)
    positions_GM, whole = _windows(subject, meeting) if subject.stages.formed else _batches(subject)
    size = subject.stages.order.size(subject.stages.streams[0].population)
    passes, offsets = subject.stages.epochs.extent.back(subject.bound.epoch, positions_GM.ravel(), size)
    return Groups(passes.reshape(positions_GM.shape), offsets.reshape(positions_GM.shape), whole)


def _batches(subject: Subject) -> tuple[UInt64, bool]:
    """The positions of whole batches that are delivered, and whether these are all batches."""
    stages, group = subject.stages, subject.bound.world_size * subject.bound.merge
    batches = stages.batches_of(subject.bound.epoch)
    count = min(tail.end(batches.last, batches.formed, group), batches.formed)
    full = min(count, batches.total // batches.batch_size)
    chosen = _spaced(full, batches.batch_size)
    none = np.empty((0, batches.batch_size), dtype=np.uint64)
    found = np.stack([batches.positions(each) for each in chosen.tolist()]) if len(chosen) else none
    return found, len(chosen) == count and batches.total == stages.epochs.total


def _windows(subject: Subject, meeting: int) -> tuple[UInt64, bool]:
    """The positions of whole windows. Which of their rows share a batch is another question, so nothing is exact."""
    lanes = subject.stages.batches_of(subject.bound.epoch).lanes
    size = max(2, min(meeting, lanes.total // lanes.count))
    begins = [np.arange(lanes.begin(k), lanes.begin(k + 1) - size + 1, size) for k in range(lanes.count)]
    starts = np.concatenate(begins).astype(np.uint64)
    chosen = starts[_spaced(len(starts), size)]
    return np.add.outer(chosen, np.arange(size, dtype=np.uint64)), False


def _of_uses(subject: Subject, k: int, meeting: int) -> Groups:
    mixture, stream = subject.stages.epochs.mixture, subject.stages.streams[k]
    assert mixture is not None
    epoch, size = subject.bound.epoch, subject.stages.order.size(stream.population)
    first, quota = int(mixture.first_uses(epoch)[k]), int(mixture.quotas(epoch)[k])
    meeting = max(1, min(meeting, quota))
    chosen = _spaced(quota // meeting, meeting).astype(np.uint64) * np.uint64(meeting) + np.uint64(first)
    uses_GM = np.add.outer(chosen, np.arange(meeting, dtype=np.uint64))
    passes, offsets = pass_of(uses_GM.ravel(), np.full(uses_GM.size, size, dtype=np.uint64))
    return Groups(passes.reshape(uses_GM.shape), offsets.reshape(uses_GM.shape), whole=False)


def _spaced(count: int, rows: int) -> Int64:
    """Numbers of groups: all of them, or some that are evenly spaced."""
    most = max(1, _ROWS // max(1, rows))
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


# ---- what meets


@final
@dataclass(frozen=True, slots=True)
class Met:
    """What meets in a group of rows, on average."""

    values: float  # different ones
    same: float  # probability that two rows have the same; 0 if groups have one row


def met(codes_GM: Int64) -> Met:
    """Count what meets; ``codes_GM`` says which value each row has."""
    count, size = codes_GM.shape
    if not count:
        return Met(0.0, 0.0)
    keys = np.arange(count)[:, None] * (int(codes_GM.max()) + 1) + codes_GM
    alike = np.unique(keys, return_counts=True)[1].astype(np.float64)
    pairs = count * size * (size - 1)
    return Met(len(alike) / count, float((alike * (alike - 1)).sum()) / pairs if pairs else 0.0)


def met_at_random(counts_V: NDArray[np.float64], size: int) -> Met:
    """Return what would meet in ``size`` rows at random, of ``counts_V`` rows of each value."""
    total = float(counts_V.sum())
    values = float((1 - (1 - counts_V / max(1.0, total)) ** size).sum())  # with replacement: a little too few
    same = float((counts_V * (counts_V - 1)).sum()) / (total * (total - 1)) if total > 1 else 0.0
    return Met(values, same)


def label_of(subject: Subject, stream: StreamStage) -> str | None:
    """The first integer that is joined on or delivered, and does not identify samples."""
    schema, hidden = stream.selected.columns.schema, {*subject.stages.identity, *subject.payload}
    names = [name for name in joined_or_delivered(subject, stream) if name in schema.names and name not in hidden]
    return next((name for name in names if kind_of(schema.field(name).type) in ("int", "bool")), None)


def labels_in(stream: StreamStage, rows_GM: UInt64, label: str) -> Int64:
    """The label of each row, as a number from 0; shape [G, M]."""
    column = stream.selected.columns.fetch(rows_GM.ravel(), [label])[label]
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    codes = flat.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False)
    return np.asarray(codes, dtype=np.int64).reshape(rows_GM.shape)


# ---- the table of orders that have no blocks


def mixing_rows(subject: Subject, k: int, meeting: int) -> list[dict[str, Any]]:
    """Return how well the plan's order mixes the rows of one stream, and how well rows at random would be."""
    order, stream = subject.stages.order, subject.stages.streams[k]
    groups = groups_of(subject, k, meeting)
    if not groups.passes.size:
        return []
    rows = groups.rows(lambda number: order.arrange(stream.population, number))
    shards = np.asarray(stream.base.manifest.shard_of(stream.selected.columns.ordinals(rows.ravel())), dtype=np.int64)
    size, source = rows.shape[1], f"{len(rows):,} batches of the epoch"
    ours, random = met(shards.reshape(rows.shape)), met_at_random(_shard_rows(stream), size)
    name = type(order).__name__
    out = [_row(f"-> {name}", ours, size, groups.mark, source), _row("   at random", random, size, "estimated", "rows")]
    label = label_of(subject, stream)
    if label is not None:
        codes = labels_in(stream, rows, label)
        found, chance = met(codes), met_at_random(np.bincount(codes.ravel()).astype(np.float64), size)
        for row, each, mark in zip(out, (found, chance), (groups.mark, "estimated"), strict=True):
            row[f"{label}{_LABEL}"] = Figure(each.values, "values", mark, source=source)
        warn_of_labels(subject, order, stream, label, found.values, chance.values)
    return out


def _row(name: str, found: Met, size: int, mark: Mark, source: str) -> dict[str, Any]:
    return {
        _ORDER: name,
        "rows that meet": Figure(size, "rows"),
        "shards/batch": Figure(found.values, "shards", mark, source=source),
        "P(same shard)": Figure(found.same, RATIO, mark, source=source),
    }


def _shard_rows(stream: StreamStage) -> NDArray[np.float64]:
    population = stream.population
    rows = np.bincount(population.unit_shards.astype(np.int64), population.unit_rows.astype(np.float64))
    return np.asarray(rows, dtype=np.float64)


def warn_of_labels(
    subject: Subject, order: Order, stream: StreamStage, label: str, found: float, at_random: float
) -> None:
    """Warn if batches hold far fewer labels than rows at random would; `Sequential` promises nothing else."""
    if isinstance(order, Sequential) or at_random < _ONE or found >= _FEW * at_random:
        return
    of = f" of {stream.name}" if stream.name else ""
    name = type(order).__name__
    wider = (
        "a larger shuffle_block_size" if isinstance(order, ShardAwareShuffle) else "GlobalShuffle, or ShardAwareShuffle"
    )
    subject.warnings.add(
        f"batches{of} hold {found:,.1f} values of {label} on average, and rows at random {at_random:,.1f}: {name} keeps rows "
        f"of a shard together, and shards differ in {label}. {wider} over blocks of several shards mixes them"
    )


def shards_line(stream: StreamStage) -> Phrase:
    """Return how many shards have rows of a stream, and how many."""
    rows = _shard_rows(stream)
    rows = rows[rows > 0]
    return phrase(
        "{shards} (min {min} / median {median} / max {max} rows)",
        shards=Figure(len(rows), "shards"),
        **{
            name: Figure(int(value) if value == int(value) else float(value), "rows", form=",.0f")
            for name, value in (("min", rows.min()), ("median", np.median(rows)), ("max", rows.max()))
        },
    )

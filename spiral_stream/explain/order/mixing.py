"""How well an order mixes: how many shards and labels meet in a batch, counted in batches of the epoch.

This holds for every order. Up to 65,536 rows are looked at: all batches, or some that are evenly spaced over the epoch.
Where a formation decides who shares a batch, its windows stand for batches. In a mixture, samples of one stream are compared.
Beside it stands what rows drawn at random would give. Cost: arithmetic, and reading one narrow column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.explain.figure import EXACT, RATIO, Figure, FigureSource, Phrase, marked
from spiral_stream.explain.shares import joined_or_delivered
from spiral_stream.explain.subject import Subject
from spiral_stream.expr import kind_of
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.sampling.mixing.stream_end import pass_of
from spiral_stream.sampling.order import Arrangement, Order, UInt64
from spiral_stream.sampling.orders.sequential import Sequential
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle

_ORDER: Final = "order"
_LABEL: Final = "/batch"
_FEW: Final = 0.5  # of the labels that rows at random would bring: with fewer, EXPLAIN warns
_PASSES: Final = 256  # that are arranged; each takes about 0.2 ms
_ONE: Final = 1.5  # labels at random: with fewer, a batch of one label says nothing

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """N rows of one stream, by where they stand in its passes, and which of them may share a batch."""

    passes: UInt64  # [N]
    offsets: UInt64  # [N]
    group: Int64  # [N] ascending
    count: int  # groups
    is_complete: bool  # whether these are all batches of the epoch

    @property
    def source(self) -> FigureSource:
        """Of what is counted in them."""
        name = "batches of the epoch" if self.is_complete else "of the epoch's batches or windows"
        return FigureSource(f"{self.count:,} {name}", marked(self.is_complete))

    def rows(self, arrange: Callable[[int], Arrangement]) -> UInt64:
        """Return the rows that an order reads there; shape [N]."""
        rows = np.empty(len(self.passes), dtype=np.uint64)
        for number in np.unique(self.passes).tolist():
            at = np.flatnonzero(self.passes == number)
            rows[at] = arrange(number).rows(self.offsets[at])
        return rows


def groups_of(subject: Subject, k: int) -> Groups:
    """Return rows of one stream that may share a batch: of batches, or of the windows that a formation looks at."""
    positions_GM, is_complete = subject.meeting
    group = np.repeat(np.arange(len(positions_GM)), positions_GM.shape[1])
    stages = subject.stages
    size = stages.order.size(stages.streams[k].population)
    if not stages.mixed:
        passes, offsets = stages.epochs.extent.back(subject.bound.epoch, positions_GM.ravel(), size)
        return _in_few_passes(Groups(passes, offsets, group, len(positions_GM), is_complete))
    streams, uses = subject.meeting_uses
    members = np.flatnonzero(streams == k)
    passes, offsets = pass_of(uses[members], np.full(len(members), size, dtype=np.uint64))
    present, group = np.unique(group[members], return_inverse=True)
    return _in_few_passes(Groups(passes, offsets, group, len(present), is_complete=False))


def _in_few_passes(groups: Groups) -> Groups:
    """Return some of the groups, evenly spaced, where rows are repeated so often that arranging every pass takes long."""
    step = -(-len(np.unique(groups.passes)) // _PASSES)
    if step <= 1:
        return groups
    left = np.flatnonzero(groups.group % step == 0)
    return Groups(
        groups.passes[left],
        groups.offsets[left],
        groups.group[left] // step,
        -(-groups.count // step),
        is_complete=False,
    )


# ---- what meets


@final
@dataclass(frozen=True, slots=True)
class Met:
    """What meets in a group of rows, on average."""

    values: float  # different ones
    same: float  # probability that two rows have the same; 0 if groups have one row


def met(codes_N: Int64, groups: Groups) -> Met:
    """Count what meets; ``codes_N`` says which value each row has."""
    if not len(codes_N):
        return Met(0.0, 0.0)
    alike = np.unique(groups.group * (int(codes_N.max()) + 1) + codes_N, return_counts=True)[1].astype(np.float64)
    sizes = np.bincount(groups.group).astype(np.float64)
    pairs = float((sizes * (sizes - 1)).sum())
    return Met(len(alike) / groups.count, float((alike * (alike - 1)).sum()) / pairs if pairs else 0.0)


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


def labels_in(stream: StreamStage, rows_N: UInt64, label: str) -> Int64:
    """The label of each row, as a number from 0; shape [N]."""
    column = stream.selected.columns.fetch(rows_N, [label])[label]
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(flat.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False), dtype=np.int64)


# ---- the table of orders that have no blocks


def mixing_rows(subject: Subject, k: int) -> list[dict[str, Any]]:
    """Return how well the plan's order mixes the rows of one stream, and how well rows at random would be."""
    order, stream, groups = subject.stages.order, subject.stages.streams[k], groups_of(subject, k)
    if not groups.count:
        return []
    rows = groups.rows(lambda number: order.arrange(stream.population, number))
    size = groups.source(len(rows) / groups.count, "rows")
    if len(rows) % groups.count == 0 and not subject.stages.mixed:
        size = Figure(len(rows) // groups.count, "rows")
    ours, random = met(_shards_of(stream, rows), groups), met_at_random(_shard_rows(stream), round(size.value))
    out = [
        _row(f"-> {type(order).__name__}", ours, size, groups.source),
        _row("   at random", random, size, FigureSource("rows", "estimated")),
    ]
    label = label_of(subject, stream)
    if label is not None:
        codes = labels_in(stream, rows, label)
        chance = met_at_random(np.bincount(codes).astype(np.float64), round(size.value)).values
        found = met(codes, groups).values
        out[0][f"{label}{_LABEL}"] = groups.source(found, "values")
        out[1][f"{label}{_LABEL}"] = FigureSource(groups.source.name, "estimated")(chance, "values")
        warn_of_labels(subject, order, stream, label, found, chance)
    return out


def same_shard(stream: StreamStage, order: Order, groups: Groups) -> float:
    """Return how often two rows of one stream that meet share a shard."""
    return met(_shards_of(stream, groups.rows(lambda number: order.arrange(stream.population, number))), groups).same


def _shards_of(stream: StreamStage, rows_N: UInt64) -> Int64:
    """The shard of each row; shape [N]."""
    return np.asarray(stream.base.manifest.shard_of(stream.selected.columns.ordinals(rows_N)), dtype=np.int64)


def _row(name: str, found: Met, size: Figure, source: FigureSource) -> dict[str, Any]:
    return {
        _ORDER: name,
        "rows that meet": size,
        "shards/batch": source(found.values, "shards"),
        "P(same shard)": source(found.same, RATIO),
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
    least, middle, most = (int(each) if each == int(each) else each for each in np.quantile(rows, [0, 0.5, 1]).tolist())
    words = "{shards} (min {min:,.0f} / median {median:,.0f} / max {max:,.0f} rows)"
    return EXACT.phrase(words, "rows", shards=Figure(len(rows), "shards"), min=least, median=middle, max=most)

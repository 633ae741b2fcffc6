"""SAMPLE in EXPLAIN DATA: the order of each stream, what stays together in it, and how many shards meet in a block."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.explain.blocks import BLOCK, block_rows
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.streams import StreamStage
from spiral_stream.sampling.hash_bucketed import HashBucketed
from spiral_stream.sampling.shard_aware import ShardAwareShuffle

_NEIGHBOURS: Final = 8  # streams of a mixture that are shown at other block sizes too
_STREAMS: Final = 64  # most streams that are counted for a mixture; each costs 0.1 s for 10**5 shards


def sample_facts(subject: Subject) -> dict[str, Any]:
    """Return the order with its trade-off; without a mixture also at other block sizes."""
    stages = subject.stages
    order, lanes = stages.order, stages.batches.lanes.count
    out: dict[str, Any] = {"order": str(order), "rows": stages.epochs.total}
    if not stages.mixed:
        out["shards with rows"] = _shards(stages.streams[0])
    out["lanes"] = lanes
    if isinstance(order, ShardAwareShuffle):
        out["moves whole between blocks"] = order.sampling_granularity
        if order.grouped_by:
            out["moves whole between blocks"] = (
                f"rows equal in {', '.join(order.grouped_by)}: {_groups(stages.streams)}"
            )
        out["kept together inside a block"] = f"{order.clump_size} rows"
        if not stages.mixed:
            out["randomness"] = _choices(subject, order)
    if isinstance(order, HashBucketed):
        rows_each = sum(stream.selected.total for stream in stages.streams) / order.bucket_count
        out["buckets"] = f"{order.bucket_count:,} (~{rows_each:,.1f} rows each), by xxh3-128 of the identity"
    if order.weighted_by is not None:
        out["weights"] = _weights(order.weighted_by, stages.streams)
    if stages.mixed:
        out["rows"] = f"{stages.epochs.total:,} positions of {len(stages.streams):,} streams, each in its own order"
        out["streams"] = _streams(subject)
    if lanes == 1 and subject.bound.world_size > 1 and isinstance(order, ShardAwareShuffle):
        world_size = subject.bound.world_size
        subject.warnings.add(
            f"lanes=1: every rank reads every shard. DataParallel(..., lanes={world_size}) would let each of the "
            f"{world_size} ranks read its own shards"
        )
    return out


def _weights(text: str, streams: Sequence[StreamStage]) -> str:
    known = [(stream.population.total, stream.population.weights) for stream in streams]
    positive = sum(weights.positive for _, weights in known if weights is not None)
    return f"{text}: above 0 in {positive:,} of {sum(total for total, _ in known):,} rows"


def _groups(streams: Sequence[StreamStage]) -> str:
    runs = [stream.population.runs for stream in streams if stream.population.runs is not None]
    groups = sum(int(each.groups.max()) + 1 for each in runs)
    return f"{groups:,} groups in {sum(len(each.starts) for each in runs):,} runs of rows, which stand for shards below"


def _shard_rows(stream: StreamStage) -> NDArray[np.float64]:
    population = stream.population
    rows = np.bincount(population.unit_shards.astype(np.int64), population.unit_rows.astype(np.float64))
    return np.asarray(rows[rows > 0], dtype=np.float64)


def _shards(stream: StreamStage) -> str:
    rows = _shard_rows(stream)
    return f"{len(rows):,} (min {rows.min():,.0f} / median {np.median(rows):,.0f} / max {rows.max():,.0f} rows)"


def _meeting(subject: Subject, share: float = 1.0) -> int:
    """How many rows of a stream may share a batch: those of a batch, or of the window it is formed from."""
    formation = subject.stages.formation
    rows = subject.stages.batches.batch_size if formation is None else formation.window_size
    return rows if share == 1 else max(2, round(rows * share))


def _choices(subject: Subject, order: ShardAwareShuffle) -> list[dict[str, Any]]:
    return block_rows(subject, order, 0, _meeting(subject))


def _streams(subject: Subject) -> list[dict[str, Any]]:
    """One row per stream of a mixture; of a shard-aware order one per block size too."""
    stages = subject.stages
    mixture, order = stages.epochs.mixture, stages.order
    assert mixture is not None
    shares = mixture.quotas(subject.bound.epoch) / mixture.total
    rows: list[dict[str, Any]] = []
    for k, stream in enumerate(stages.streams[:_STREAMS]):
        named: dict[str, Any] = {"stream": stream.name, "shards with rows": _shards(stream)}
        if not isinstance(order, ShardAwareShuffle):
            rows.append(named)
            continue
        found = block_rows(subject, order, k, _meeting(subject, float(shares[k])))
        shown = found if k < _NEIGHBOURS else [each for each in found if each[BLOCK].startswith("->")]
        rows += [_of_stream(named, each) for each in shown]
    return rows


def _of_stream(named: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A block size of one stream, in fewer columns."""
    size, rest = found[BLOCK], {name: value for name, value in found.items() if name not in (BLOCK, "rows buffered")}
    shards = named["shards with rows"] if size.startswith("->") else ""
    return {"stream": named["stream"], "block size": size, "shards with rows": shards, **rest}

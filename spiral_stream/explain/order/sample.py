"""SAMPLE in EXPLAIN DATA: the order of each stream, what stays together in it, and how well it mixes."""

from collections.abc import Sequence
from typing import Any, Final

from spiral_stream.explain.figure import ABOUT, EXACT, Figure, Phrase
from spiral_stream.explain.order.blocks import BLOCK, block_rows
from spiral_stream.explain.order.mixing import mixing_rows, shards_line
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.sampling.orders.hash_bucketed import HashBucketed
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle

_NEIGHBOURS: Final = 8  # streams of a mixture that are shown at other block sizes too
_STREAMS: Final = 64  # most streams that are counted for a mixture; each costs 0.1 s for 10**5 shards


def sample_facts(subject: Subject) -> dict[str, Any]:
    """Return the order with its trade-off; of a shard-aware one also at other block sizes."""
    stages = subject.stages
    order, lanes = stages.order, stages.batches.lanes.count
    out: dict[str, Any] = {"order": str(order), "rows": Figure(stages.epochs.total, "rows")}
    if not stages.mixed:
        out["shards with rows"] = shards_line(stages.streams[0])
    out["lanes"] = lanes
    if isinstance(order, ShardAwareShuffle):
        out["moves whole between blocks"] = order.sampling_granularity
        if order.grouped_by:
            out["moves whole between blocks"] = _groups(order, stages.streams)
        out["kept together inside a block"] = EXACT.phrase("{rows} rows", rows=order.clump_size)
    if isinstance(order, HashBucketed):
        rows_each = sum(stream.selected.total for stream in stages.streams) / order.bucket_count
        words = "{buckets} ({rows:m,.1f} rows each), by xxh3-128 of the identity"
        out["buckets"] = EXACT.phrase(words, buckets=order.bucket_count, rows=ABOUT(rows_each, "rows"))
    if order.weighted_by is not None:
        out["weights"] = _weights(order.weighted_by, stages.streams)
    if stages.mixed:
        words = f"{{positions}} positions of {len(stages.streams):,} streams, each in its own order"
        out["rows"] = EXACT.phrase(words, positions=stages.epochs.total)
        out["streams"] = _streams(subject)
    elif found := _mixing(subject, 0):
        out["randomness"] = found
    if lanes == 1 and subject.bound.world_size > 1 and isinstance(order, ShardAwareShuffle):
        world_size = subject.bound.world_size
        subject.warnings.add(
            f"lanes=1: every rank reads every shard. DataParallel(..., lanes={world_size}) would let each of the "
            f"{world_size} ranks read its own shards"
        )
    return out


def _weights(text: str, streams: Sequence[StreamStage]) -> Phrase:
    known = [(stream.population.total, stream.population.weights) for stream in streams]
    positive = sum(weights.positive for _, weights in known if weights is not None)
    figures = {"positive": Figure(positive, "rows"), "rows": Figure(sum(total for total, _ in known), "rows")}
    return Phrase(f"{text}: above 0 in {figures['positive']} of {figures['rows']} rows", figures)


def _groups(order: ShardAwareShuffle, streams: Sequence[StreamStage]) -> Phrase:
    runs = [stream.population.runs for stream in streams if stream.population.runs is not None]
    figures = {
        "groups": Figure(sum(int(each.groups.max()) + 1 for each in runs), "groups"),
        "runs": Figure(sum(len(each.starts) for each in runs), "runs"),
    }
    sentence = f"{figures['groups']} groups in {figures['runs']} runs of rows, which stand for shards below"
    return Phrase(f"rows equal in {', '.join(order.grouped_by)}: {sentence}", figures)


def _meeting(subject: Subject, share: float = 1.0) -> int:
    """How many rows of a stream may share a batch: those of a batch, or of the window it is formed from."""
    formation = subject.stages.formation
    rows = subject.stages.batches.batch_size if formation is None else formation.window_size
    return rows if share == 1 else max(2, round(rows * share))


def _mixing(subject: Subject, k: int, share: float = 1.0) -> list[dict[str, Any]]:
    """How well the rows of one stream mix, at several block sizes if the order has blocks."""
    order = subject.stages.order
    if isinstance(order, ShardAwareShuffle):
        return block_rows(subject, order, k, _meeting(subject, share))
    return mixing_rows(subject, k)


def _streams(subject: Subject) -> list[dict[str, Any]]:
    """Several rows per stream of a mixture: one per block size, or its order beside rows at random."""
    stages = subject.stages
    mixture = stages.epochs.mixture
    assert mixture is not None
    shares = mixture.quotas(subject.bound.epoch) / mixture.total
    rows: list[dict[str, Any]] = []
    labels = dict[str, str]()
    for k, stream in enumerate(stages.streams[:_STREAMS]):
        found = _mixing(subject, k, float(shares[k]))
        shown = found if k < _NEIGHBOURS else [each for each in found if _is_chosen(each)]
        rows += [_of_stream(stream, each) for each in shown] or [{"stream": stream.name}]
        labels |= {name: "-" for row in rows for name in row}
    return [{**labels, **row} for row in rows]


def _is_chosen(row: dict[str, Any]) -> bool:
    return str(next(iter(row.values()))).startswith("->")


def _of_stream(stream: StreamStage, found: dict[str, Any]) -> dict[str, Any]:
    """What one stream's rows say, in fewer columns."""
    first = "block size" if BLOCK in found else "order"
    rest = {name: value for name, value in found.items() if name not in (BLOCK, "order", "rows buffered")}
    shards = shards_line(stream) if _is_chosen(found) else ""
    return {"stream": stream.name, first: found.get(BLOCK, found.get("order")), "shards with rows": shards, **rest}

"""Cost of clips in a batch: frames and bytes against the budget, and how evenly decoding is spread over its clips.

The cost of a sample is the product of its bucket keys, such as ``frame_count`` times ``width * height``, the pixels of its
segment. Decoding time follows it as long as the keys are sizes. Buckets make the samples of a batch similar, so variance
moves from inside batches to between them; both are compared with the same samples in their order, under the same limits.
Batches of one step are neighbours of similar cost (``cost_group``), so how long ranks wait for each other is a figure of its
own. Cost: O(samples seen).
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.budget import limits_of
from spiral_stream.batching.cutting import cut
from spiral_stream.batching.formation import Int64
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.explain.figure import RATIO, Figure, FigureSource, Phrase, marked, phrase
from spiral_stream.explain.formed import FirstBatches
from spiral_stream.explain.subject import Subject
from spiral_stream.plan.fields.clips import clip_costs
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need

Float64 = NDArray[np.float64]
_SEEN: Final = "the first batches"
# S samples, J batches


def sample_costs(subject: Subject) -> dict[str, int]:
    """Return the ``frames`` and ``bytes`` that one sample delivers; zeros without clips."""
    return clip_costs(need(subject.stages.plan, Collate).fields)


def clip_batches(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    """Return frames, bytes and decode cost of the batches seen; nothing without clips."""
    costs = sample_costs(subject)
    if not costs["frames"] or not len(first.rows):
        return {}
    out: dict[str, Any] = {}
    seen = FigureSource(_SEEN, marked(first.is_complete))
    for name, cost in costs.items():
        words = "{sign}min {min} / median {median:,.0f} / max {max}, {sample} a sample"
        out[f"{name} a batch"] = seen.spread(words, name, first.rows * cost, sample=Figure(cost, name))
    if isinstance(first.formation, WindowedBucket):
        out |= _fill(subject, first, costs, seen)
        out |= _tight(subject, first.formation, costs)
        out |= _alike(subject, first, costs, seen)
    return out


def _fill(subject: Subject, first: FirstBatches, costs: dict[str, int], seen: FigureSource) -> dict[str, Any]:
    """How much of each limit the batches seen use."""
    batches, rows = len(first.rows), int(first.rows.sum())
    used = {name: seen.ratio(rows * costs[unit], limit * batches) for name, unit, limit in _limits(first.formation)}
    size = subject.forming.batch_size
    if size is not None:
        used["batch_size"] = seen.ratio(rows, size * batches)
    return {"budget used": phrase("{sign}" + "; ".join(f"{name} {{{name}}}" for name in used), **used)} if used else {}


def _limits(formation: Any) -> list[tuple[str, str, int]]:
    budget = getattr(formation, "budget", None)
    if budget is None:
        return []
    named = (("max_frames", "frames", budget.max_frames), ("max_bytes", "bytes", budget.max_bytes))
    return [(name, unit, limit) for name, unit, limit in named if limit is not None]


def _tight(subject: Subject, formation: WindowedBucket, costs: dict[str, int]) -> dict[str, Phrase]:
    """Which limit ends a batch. Every sample costs the same, so each limit is a number of samples."""
    allow = {name: limit // costs[unit] for name, unit, limit in _limits(formation)}
    if subject.forming.batch_size is not None:
        allow["batch_size"] = subject.forming.batch_size
    if not allow:
        return {}
    least = min(allow.values())
    tight = " and ".join(name for name, count in allow.items() if count == least)
    other = [f"{name} would allow {count:,}" for name, count in allow.items() if count > least]
    figures = {name: Figure(count, "samples") for name, count in allow.items()}
    return {"tight bound": Phrase("; ".join([f"{tight}, {least:,} samples a batch", *other]), figures)}


# ---- how similar the clips of a batch are


def _alike(subject: Subject, first: FirstBatches, costs: dict[str, int], source: FigureSource) -> dict[str, Any]:
    """The variance of decode cost inside batches, with buckets and without."""
    formation = first.formation
    if not isinstance(formation, WindowedBucket) or not formation.keys:
        return {"decode cost": "unknown: no bucket keys, so nothing says which clips cost alike"}
    cost_S = _decode_cost(first)
    if cost_S is None:
        return {"decode cost": f"unknown: the keys {', '.join(formation.key_texts)} are no sizes above 0"}
    batches = [batch.samples for batch in first.formed]
    if not batches:
        return {"decode cost": "unknown: the first chapter forms no batch"}
    seen = np.sort(np.concatenate(batches))
    cost_S = cost_S / cost_S[seen].mean()
    total = float(((cost_S[seen] - 1) ** 2).sum())
    if total == 0:
        return {"decode cost": "every sample costs the same"}
    rows = [_bucketed(first, source, subject)]
    order, cuts = _cut(first, costs, seen)
    rows.append(_row("the same samples in order", _Spread(cost_S, order, cuts), total, source, subject))
    if len(formation.keys) > 1:
        order, cuts = _cut(first, costs, seen, cost_S)
        estimate = FigureSource(_SEEN, "estimated")
        rows.append(_row("sorted by the product as one key", _Spread(cost_S, order, cuts), total, estimate, subject))
    product = " x ".join(text if text.isidentifier() else f"({text})" for text in formation.key_texts)
    return {"a sample's decode cost": f"{product}, in units of its mean", "decode cost": rows}


def _bucketed(first: FirstBatches, source: FigureSource, subject: Subject) -> dict[str, Any]:
    """The batches that a run makes."""
    cost = np.concatenate([np.prod([key.astype(np.float64) for key in keys], axis=0) for keys in first.keys])
    cost = cost / cost.mean()
    spread = _Spread(cost, np.arange(len(cost)), first.rows)
    return _row("with buckets", spread, float(((cost - 1) ** 2).sum()), source, subject)


class _Spread:
    """The decode costs of some batches: of their samples [S], batch by batch, and the size of each batch [J]."""

    def __init__(self, cost_S: Float64, samples: Int64, sizes: Int64) -> None:
        starts = np.cumsum(sizes) - sizes
        cost = cost_S[samples]
        self.sums = np.add.reduceat(cost, starts)
        means = self.sums / sizes
        squares = np.add.reduceat((cost - np.repeat(means, sizes)) ** 2, starts)
        self.within = float(squares.sum())
        self.deviations = np.sqrt(squares / sizes) / means


def _row(name: str, spread: _Spread, total: float, source: FigureSource, subject: Subject) -> dict[str, Any]:
    within = source.ratio(spread.within, total)
    text = f"{within.sign}{spread.within / total:.1%} ({spread.within:,.2f}/{total:,.2f})"
    row: dict[str, Any] = {
        "decode cost": name,
        "variance in a batch": Phrase(text, {"share": within}),
        "deviation/mean in a batch": source.spread(
            "{sign}median {median:.1%} / max {max:.1%}", RATIO, spread.deviations
        ),
    }
    group = subject.bound.world_size * subject.bound.merge
    if group > 1:
        row["costliest batch of a step"] = _in_step(spread.sums, group, source)
    return row


def _decode_cost(first: FirstBatches) -> Float64 | None:
    """The product of each sample's keys, shape [S]; None if a key is not a size."""
    keys = zip(*(window.keys for window in first.windows), strict=True)
    cost_S = np.prod([np.concatenate(key).astype(np.float64) for key in keys], axis=0)
    return cost_S if len(cost_S) and np.isfinite(cost_S).all() and cost_S.min() > 0 else None


def _cut(
    first: FirstBatches, costs: dict[str, int], samples: Int64, cost_S: Float64 | None = None
) -> tuple[Int64, Int64]:
    """Samples cut by the plan's limits, in their order or, window by window, by cost: samples [S], sizes [J]."""
    assert isinstance(first.formation, WindowedBucket)
    window = first.formation.window_size
    if cost_S is not None:
        samples = samples[np.lexsort((cost_S[samples], np.arange(len(samples)) // window))]
    limits = limits_of(first.formation.budget, first.setting)
    lengths = [window.lengths for window in first.windows]
    known = [np.asarray(each, dtype=np.int64) for each in lengths if each is not None]
    length = np.concatenate(known)[samples] if len(known) == len(lengths) else None
    each = tuple(np.full(len(samples), costs[unit], dtype=np.int64) for _, unit, _ in _limits(first.formation))
    return samples, np.diff(cut(len(samples), length, each, limits))


def _in_step(sums: Float64, group: int, source: FigureSource) -> Phrase | str:
    """How far the costliest batch of a step is above the mean: how long the other ranks wait."""
    steps = sums[: len(sums) // group * group].reshape(-1, group)
    if not len(steps):
        return f"{source(0, RATIO).sign}no whole step"
    over = steps.max(axis=1) / steps.mean(axis=1) - 1
    return source.phrase("{over:m.1%} above the step's mean", RATIO, over=over.mean())

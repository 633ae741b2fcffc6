"""BATCH in EXPLAIN DATA: which samples share a batch, how many batches there are, and how full they are."""

from typing import Any, Final

import numpy as np

from spiral_stream.batching import tail
from spiral_stream.batching.composition import OneStream
from spiral_stream.batching.formation import Int64
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import DropPartial, PadPartial
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.explain.costs import clip_batches, sample_costs
from spiral_stream.explain.formed import FirstBatches
from spiral_stream.explain.outline import budget_of
from spiral_stream.explain.subject import STOPS, Subject, percent
from spiral_stream.plan.bad_samples import allowed, budget_text
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.composed import doubts
from spiral_stream.runtime.formed_batches import FormedBatches

_BARS: Final = 8  # bars of the histogram of T
_BAR: Final = 40  # characters of the longest bar
_UNUSED: Final = 0.2  # of a budget: above this, EXPLAIN warns
_ENOUGH: Final = 8  # batches from which on medians mean something

# J batches, K streams


def batch_facts(subject: Subject) -> dict[str, Any]:
    """Return the section; it also says what happens to samples that cannot be read, if the plan tolerates some."""
    out = _formed(subject) if subject.stages.formed else _fixed(subject)
    collate = need(subject.stages.plan, Collate)
    if collate.on_error != "raise":
        most, total = allowed(collate.error_budget, subject.stages.epochs.total), subject.stages.epochs.total
        what = "leaves samples that cannot be read out of their batch"
        if collate.on_error == "substitute":
            what = "puts the next good sample of the batch in the place of one that cannot be read"
        budget = budget_text(collate.error_budget)
        out["on_error"] = f"{collate.on_error}: {what}; at most {most:,} of {total:,} an epoch and process ({budget})"
    return out


def _fixed(subject: Subject) -> dict[str, Any]:
    batches, bound, total = subject.stages.batches, subject.bound, subject.stages.epochs.total
    count = tail.end(batches.last, batches.formed, bound.world_size * bound.merge)
    dropped = max(0, total - count * batches.batch_size)
    if count == 0:
        subject.warnings.add(f"no batch is delivered: {total:,} rows do not fill one of {batches.batch_size} a rank")
    return {
        "formation": f"fixed count of {batches.batch_size}",
        "last": type(batches.last).__name__,
        "global batches an epoch": count,
        "steps of this rank": tail.steps(batches.last, batches.formed, bound.world_size, bound.merge, bound.place),
        "rows dropped an epoch": f"{dropped:,} ({dropped / max(1, total):.2%} of {total:,})",
        **{
            f"{name} a batch": f"{batches.batch_size * cost:,}, {cost:,} a sample"
            for name, cost in sample_costs(subject).items()
            if cost
        },
    }


def _formed(subject: Subject) -> dict[str, Any]:
    numbering, forming = subject.formed
    formation = forming.formation
    out: dict[str, Any] = {"formation": f"{type(formation).__name__}, window {formation.window_size:,}"}
    if isinstance(formation, WindowedBucket):
        out["keys"] = ", ".join(formation.key_texts) or "none: by position"
        out["budget"] = budget_of(formation)
        out["composition"] = str(formation.composition or "none")
    if isinstance(formation, Packed):
        segments = "any number of" if formation.max_segments is None else f"at most {formation.max_segments:,}"
        out["packing"] = f"{formation.strategy} into rows of {formation.max_tokens:,}, {segments} segments a row"
        out["oversize"] = str(formation.oversize)
    if formation.length is not None:
        out["lengths"] = f"stored as {formation.length}"
    out["decided by"] = ", ".join(forming.decides_on()) or "stored columns"
    for doubt in doubts(subject.stages, subject.bound.epoch):
        subject.warnings.add(doubt.removeprefix("collate: "))
    out["last"] = _tail(subject)
    first = subject.first
    if isinstance(first, str):
        out["batches"] = first
        if "cannot be formed" in first:
            subject.warnings.add(first.removeprefix("unknown: "), STOPS)
        return out
    return {**out, **_counts(subject, numbering, first), **_shapes(subject, first)}


def _tail(subject: Subject) -> str:
    last = subject.stages.batches.last
    group = subject.bound.world_size * subject.bound.merge
    if isinstance(last, DropPartial) and group > 1:
        return f"DropPartial: at most {group - 1:,} batches an epoch"
    if isinstance(last, PadPartial) and group > 1:
        return f"PadPartial: at most {group - 1:,} batches an epoch come twice"
    return type(last).__name__


def _counts(subject: Subject, numbering: FormedBatches, first: FirstBatches) -> dict[str, Any]:
    """Batches and steps of an epoch: exact if all chapters are known, else extrapolated from the first batches."""
    bound, total = subject.bound, subject.stages.epochs.total
    based = f"all {total:,} samples" if first.whole else f"~ the first {first.positions:,} of {total:,} samples"
    out: dict[str, Any] = {"seen for this": f"{based}, {len(first.batches):,} batches"}
    exact = numbering.unknown(bound.epoch) == 0
    if exact or first.whole:
        count, mark = numbering.total(bound.epoch) if exact else len(first.batches), ""
        out["batches an epoch"] = count
    else:
        delivered = max(1, first.joined - first.waiting)  # dropped samples included
        count, mark = round(len(first.batches) / delivered * first.joined * total / max(1, first.positions)), "~"
        out["batches an epoch"] = f"~{count:,} ({numbering.unknown(bound.epoch):,} chapters not formed yet)"
    steps = tail.steps(subject.stages.batches.last, count, bound.world_size, bound.merge, bound.place)
    out["steps of this rank"] = f"~{steps:,}" if mark else steps
    if count and not steps:
        subject.warnings.add(f"this rank gets no batch: {count:,} batches do not make a step of all ranks", STOPS)
    filtered = first.positions - first.joined
    if filtered:
        out["filtered after sample"] = f"{_mark(first)}{percent(filtered, first.positions)}"
    return out


def _mark(first: FirstBatches) -> str:
    return "" if first.whole else "~"


def _shapes(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    if not first.batches:
        subject.warnings.add("no batch is formed: no sample is left after filters and budget", STOPS)
        return {"B": "none"}
    mark, rows = _mark(first), first.rows
    out: dict[str, Any] = {"B": f"{mark}min {rows.min():,} / median {np.median(rows):,.0f} / max {rows.max():,}"}
    if first.widths.any():
        p50, p95 = (int(each) for each in np.quantile(first.widths, [0.5, 0.95], method="lower"))
        multiple = f" (a multiple of {first.setting.multiple})" if first.setting.multiple > 1 else ""
        out["T"] = f"{mark}p50 {p50:,} / p95 {p95:,} / max {first.widths.max():,}{multiple}"
        out["tokens a batch"] = f"{mark}median {np.median(first.tokens):,.0f}, without padding"
    if isinstance(first.formation, Packed):
        out |= _packing(subject, first)
    else:
        out |= _filling(subject, first)
    out |= clip_batches(subject, first, mark)
    tally = first.tally
    out["oversize samples"] = f"{mark}dropped {tally.dropped:,}, truncated {tally.truncated:,}, alone {tally.alone:,}"
    if subject.stages.mixed:
        out |= _composition(subject, first)
    if first.widths.any() and first.widths.min() < first.widths.max():
        out["widths"] = _histogram(first.widths, first.setting.multiple)
    return out


def _filling(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    """Budget fill, and padding with and without buckets."""
    formation, mark, out = first.formation, _mark(first), dict[str, Any]()
    assert isinstance(formation, WindowedBucket)
    budget, rows = formation.budget, first.rows
    if budget is not None and budget.max_tokens is not None:
        padded = budget.count == "padded"
        used = first.places if padded else int(first.tokens.sum())
        limit = budget.max_tokens * len(rows)
        out["budget fill"] = f"{mark}{percent(used, limit)} tokens"
        if used < (1 - _UNUSED) * limit and len(rows) >= _ENOUGH:
            subject.warnings.add(
                f"batches leave {1 - used / limit:.0%} of max_tokens={budget.max_tokens:,} unused: a larger window_size "
                "or finer keys bring samples of similar length together. Where batch_size is the tighter bound, lower max_tokens"
            )
    if 2 * float(np.median(rows)) > formation.window_size and formation.keys:
        subject.warnings.add(
            f"a batch takes most of the window (B median {np.median(rows):,.0f}, window_size {formation.window_size:,}), "
            f"so sorting by keys cannot separate lengths: give window_size of {8 * int(np.median(rows)):,} or more, or "
            "lower max_tokens"
        )
    if first.places:
        padding = first.places - int(first.tokens.sum())
        out["padding"] = f"{mark}{percent(padding, first.places)} tokens"
        plain = first.unsorted()
        if plain is not None and formation.keys:
            out["padding without buckets"] = (
                f"{mark}{percent(plain[1] - plain[0], plain[1])} tokens, the same samples in order"
            )
    return out


def _packing(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    mark, used = _mark(first), int(first.tokens.sum())
    pieces = [len(batch.samples) for batch in first.batches]
    longest = max(_most_pieces(batch.packing.rows) for batch in first.batches if batch.packing is not None)
    if used < (1 - _UNUSED) * first.places and len(first.batches) >= _ENOUGH:
        subject.warnings.add(
            f"rows are {used / first.places:.0%} full: a larger window_size, strategy='best_fit' or no max_segments fill them"
        )
    return {
        "utilisation": f"{mark}{percent(used, first.places)} tokens",
        "segments a row": f"{mark}mean {sum(pieces) / int(first.rows.sum()):,.1f}, max {longest:,}",
    }


def _most_pieces(rows: Int64) -> int:
    return int(np.bincount(rows).max()) if len(rows) else 0


def _composition(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    """Each stream's share in the batches seen, and how far a batch is from its target at most."""
    streams, names = first.streams, [stream.name for stream in subject.stages.streams]
    shares = first.setting.shares
    assert shares is not None
    own = [np.unique(batch.samples[_begins(batch.packing)]) for batch in first.batches]
    counts_JK = np.array([np.bincount(streams[each], minlength=len(names)) for each in own])
    sizes = counts_JK.sum(axis=1, keepdims=True)
    apart = np.abs(counts_JK - sizes * shares)
    running = np.abs(np.cumsum(counts_JK, axis=0) - np.cumsum(sizes, axis=0) * shares)
    one = isinstance(first.formation, WindowedBucket) and isinstance(first.formation.composition, OneStream)
    mark = _mark(first)
    return {
        "streams": [
            {
                "stream": name,
                "target": f"{shares[k]:.3%}",
                "found": f"{mark}{percent(int(counts_JK[:, k].sum()), int(sizes.sum()))}",
                "most apart in a batch": "one stream a batch" if one else f"{mark}{apart[:, k].max():,.2f} samples",
                "after any batch": f"{mark}{running[:, k].max():,.2f} samples",
            }
            for k, name in enumerate(names)
        ]
    }


def _begins(packing: Any) -> Any:
    """Which entries begin a sample: all of them without a packing."""
    return slice(None) if packing is None else packing.offsets == 0


def _histogram(widths: Int64, multiple: int) -> list[dict[str, Any]]:
    """Batches by T, in at most eight bars of equal width, each a multiple of the fields' own."""
    low, high = int(widths.min()), int(widths.max())
    step = -(-(high - low + multiple) // (_BARS * multiple)) * multiple
    counts = np.bincount((widths - low) // step)
    return [
        {
            "T": f"{low + at * step:,}"
            if step == multiple
            else f"{low + at * step:,} - {low + (at + 1) * step - multiple:,}",
            "batches": int(count),
            "": "#" * -(-int(count) * _BAR // int(counts.max())),
        }
        for at, count in enumerate(counts)
    ]

"""BATCH in EXPLAIN DATA: which samples share a batch, how many batches there are, and how full they are."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from spiral_stream.batching import tail
from spiral_stream.batching.budget import MAX_LIMIT
from spiral_stream.batching.composition import OneStream
from spiral_stream.batching.formation import Int64
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.batching.tail import DropPartial, PadPartial
from spiral_stream.batching.windowed import MAX_WINDOW, WindowedBucket
from spiral_stream.errors import DataError, PlanError
from spiral_stream.explain.batch.even_steps import step_facts
from spiral_stream.explain.batch.shapes import shape_facts
from spiral_stream.explain.clips.costs import clip_batches, sample_costs
from spiral_stream.explain.figure import EXACT, RATIO, Figure, FigureSource, Phrase, phrase, ratio
from spiral_stream.explain.formed import FirstBatches, begins
from spiral_stream.explain.outline import budget_of
from spiral_stream.explain.subject import STOPS, Subject
from spiral_stream.plan.bad_samples import allowed, budget_text
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.defaults import doubts
from spiral_stream.runtime.numbering.numbering import BatchStore

_BARS: Final = 8  # bars of the histogram of T
_BAR: Final = 40  # characters of the longest bar
_UNUSED: Final = 0.2  # of a budget: above this, EXPLAIN warns
_WIDER: Final = 4  # times the plan's window, in the comparison with other limits
_ENOUGH: Final = 8  # batches from which on medians mean something

# J batches, K streams


def batch_facts(subject: Subject) -> dict[str, Any]:
    """Return the section; it also says what happens to samples that cannot be read, if the plan tolerates some."""
    out = (_formed(subject) if subject.stages.formed else _fixed(subject)) | step_facts(subject)
    collate = need(subject.stages.plan, Collate)
    if collate.on_error != "raise":
        total = Figure(subject.stages.epochs.total, "samples")
        most = Figure(allowed(collate.error_budget, subject.stages.epochs.total), "samples", source="error_budget")
        what = "leaves samples that cannot be read out of their batch"
        if collate.on_error == "substitute":
            what = "puts the next good sample of the batch in the place of one that cannot be read"
        budget = budget_text(collate.error_budget)
        refusals = f"{collate.on_error}: {what}; at most {most} of {total} an epoch and process ({budget})"
        out["on_error"] = Phrase(refusals, {"most": most, "samples": total})
    return out


def _fixed(subject: Subject) -> dict[str, Any]:
    bound = subject.bound
    batches, total = subject.stages.batches_of(bound.epoch), subject.stages.epochs.length(bound.epoch)
    count = tail.end(batches.last, batches.formed, bound.together)
    dropped = max(0, total - count * batches.batch_size)
    steps = tail.steps(batches.last, batches.formed, bound.world_size, bound.merge, bound.turn, bound.together)
    if count == 0:
        subject.warnings.add(f"no batch is delivered: {total:,} rows do not fill one of {batches.batch_size} a rank")
    return {
        "formation": f"fixed count of {batches.batch_size}",
        "last": type(batches.last).__name__,
        "global batches an epoch": Figure(count, "batches"),
        "steps of this rank": Figure(steps, "steps"),
        "rows dropped an epoch": _dropped(dropped, total),
        **{
            f"{name} a batch": EXACT.phrase(
                "{batch}, {sample} a sample", name, batch=batches.batch_size * cost, sample=cost
            )
            for name, cost in sample_costs(subject).items()
            if cost
        },
    }


def _dropped(dropped: int, total: int) -> Phrase:
    figures = {"rows": Figure(dropped, "rows"), "share": ratio(dropped, max(1, total))}
    return Phrase(f"{dropped:,} ({dropped / max(1, total):.2%} of {total:,})", figures)


def _formed(subject: Subject) -> dict[str, Any]:
    batches, forming = subject.formed
    formation = forming.formation
    window = Figure(formation.window_size, "samples")
    out: dict[str, Any] = {"formation": Phrase(f"{type(formation).__name__}, window {window}", {"window": window})}
    if isinstance(formation, WindowedBucket):
        out["keys"] = ", ".join(formation.key_texts) or "none: by position"
        out["budget"] = budget_of(formation)
        out["composition"] = str(formation.composition or "none")
    if isinstance(formation, OneShape):
        in_a_row, every = Figure(formation.batches, "batches"), Figure(len(formation.shapes), "shapes")
        words = "the nearest of {shapes} by {keys}, {batches} batches of a shape in a row"
        text = words.format(shapes=every, batches=in_a_row, keys=", ".join(formation.key_texts))
        out["shape"] = Phrase(text, {"shapes": every, "batches": in_a_row})
    if isinstance(formation, Packed):
        segments = "any number of" if formation.max_segments is None else f"at most {formation.max_segments:,}"
        limits = "".join(f", at most {most:,} {name}" for name, most in formation.limits.items())
        out["packing"] = f"{formation.strategy} into rows of {formation.row_text}{limits}, {segments} segments a row"
        out["oversize"] = str(formation.oversize)
    if formation.length_texts:
        out["lengths"] = f"stored as {', '.join(formation.length_texts)}"
    out["decided by"] = ", ".join(forming.decides_on()) or "stored columns"
    for doubt in doubts(subject.stages, subject.bound.epoch):
        subject.warnings.add(doubt.removeprefix("collate: "))
    out["last"] = _tail(subject)
    if forming.leaves:
        out |= _left(subject, batches)
    first = subject.first
    if isinstance(first, str):
        out["batches"] = first
        if "cannot be formed" in first:
            subject.warnings.add(first.removeprefix("unknown: "), STOPS)
        return out
    return {**out, **_counts(subject, batches, first), **_shapes(subject, first)}


def _left(subject: Subject, batches: BatchStore) -> dict[str, Any]:
    """What chapters cannot fill, where it goes, and what `DropPartial` leaves out of it at the epoch's end."""
    forming = subject.forming
    unit = "rows" if isinstance(forming.formation, Packed) else "samples"
    most = Figure(forming.most_left, unit)
    out: dict[str, Any] = {"chapters leave": "nothing: they begin at whole batches"}
    if not forming.arithmetic:
        words = (
            f"at most {{most}} {unit} each, delivered at the lane's end; a run that resumes without their index forms "
        )
        again = batches.not_indexed(subject.bound.epoch)
        out["chapters leave"] = EXACT.phrase(
            f"{words}{{again}} chapters again for that", "chapters", most=most, again=again
        )
    if isinstance(subject.stages.batches.last, DropPartial):
        total = subject.stages.epochs.length(subject.bound.epoch)
        out[f"{unit} dropped at the end"] = phrase(f"at most {{most}} {unit}", most=most)
        if forming.arithmetic:
            count = batches.total(subject.bound.epoch)
            out[f"{unit} dropped at the end"] = _dropped(total - count * forming.rows, total)
    return out


def _tail(subject: Subject) -> Phrase | str:
    last = subject.stages.batches.last
    most = Figure(subject.bound.world_size * subject.bound.merge - 1, "batches")
    if isinstance(last, DropPartial) and most.value:
        return phrase("DropPartial: at most {most} batches an epoch", most=most)
    if isinstance(last, PadPartial) and last.blanks:
        words = "PadPartial: the last batch, and at most {most} batches of the last step, are filled with a value and masked"
        return phrase(words, most=most)
    if isinstance(last, PadPartial) and most.value:
        return phrase("PadPartial: at most {most} batches an epoch come twice", most=most)
    return type(last).__name__


def _counts(subject: Subject, batches: BatchStore, first: FirstBatches) -> dict[str, Any]:
    """Batches and steps of an epoch: exact if all chapters are known, else extrapolated from the first batches."""
    bound, total = subject.bound, subject.stages.epochs.total
    out: dict[str, Any] = {"seen for this": _seen(first, total)}
    exact = batches.unknown(bound.epoch) == 0
    if exact or first.is_complete:
        count, source = batches.total(bound.epoch) if exact else len(first.batches), FigureSource(first.source.name)
        out["batches an epoch"] = Figure(count, "batches", source="counted chapters" if exact else source.name)
    else:
        count, source = first.estimated(total), FigureSource(first.source.name, "estimated")
        words, later = "{batches:m} ({chapters} chapters not formed yet)", batches.uncounted(bound.epoch)
        out["batches an epoch"] = source.phrase(words, batches=count, chapters=Figure(later, "chapters"))
    shape = bound.world_size, bound.merge, bound.turn, bound.together
    steps = tail.steps(subject.stages.batches.last, count, *shape)
    out["steps of this rank"] = source(steps, "steps")
    if count and not steps:
        subject.warnings.add(f"this rank gets no batch: {count:,} batches do not make a step of all ranks", STOPS)
    filtered, of = (first.filtered, total) if first.is_complete else (first.positions - first.joined, first.positions)
    if filtered:
        out["filtered after sample"] = first.source.ratio(filtered, of)
    return out


def _seen(first: FirstBatches, total: int) -> Phrase:
    template = "all {samples} samples, {batches} batches"
    if not first.is_complete:
        template = f"~ the first {{seen}} of {{samples}} samples, {len(first.batches):,} batches"
    seen = Figure(first.positions, "samples")
    return EXACT.phrase(template, seen=seen, samples=total, batches=len(first.batches))


def _shapes(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    if not first.batches:
        subject.warnings.add("no batch is formed: no sample is left after filters and budget", STOPS)
        return {"B": "none"}
    rows, widths, figure = first.rows, first.widths, first.source
    out: dict[str, Any] = {"B": figure.spread("{sign}min {min} / median {median:,.0f} / max {max}", "samples", rows)}
    if isinstance(first.formation, Packed) and first.formation.widths:
        formation_widths = first.formation.widths
        out["T"] = Phrase(
            first.formation.row_text, {name: Figure(width, "tokens") for name, width in formation_widths.items()}
        )
    elif widths.any():
        p50, p95 = np.quantile(widths, [0.5, 0.95], method="lower").astype(np.int64).tolist()
        multiple = f" (a multiple of {first.setting.multiple})" if first.setting.multiple > 1 else ""
        template = f"{{sign}}p50 {{p50}} / p95 {{p95}} / max {{max}}{multiple}"
        out["T"] = figure.phrase(template, "tokens", p50=p50, p95=p95, max=widths.max())
    if widths.any():
        out["tokens a batch"] = figure.spread("{sign}median {median:,.0f}, without padding", "tokens", first.tokens)
    if isinstance(first.formation, Packed):
        out |= _packing(subject, first)
    else:
        out |= _filling(subject, first)
    out |= clip_batches(subject, first)
    tally = first.tally
    words = "{sign}dropped {dropped}, truncated {truncated}, alone {alone}"
    counts = {"dropped": tally.dropped, "truncated": tally.truncated, "alone": tally.alone}
    out["oversize samples"] = figure.phrase(words, "samples", **counts)
    if subject.stages.mixed:
        out |= _composition(subject, first)
    if widths.any() and widths.min() < widths.max():
        out["widths"] = _histogram(first)
    return out


def _filling(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    """Budget fill, and padding with and without buckets."""
    formation, source, out = first.formation, first.source, dict[str, Any]()
    if not isinstance(formation, WindowedBucket):
        return shape_facts(subject, first)
    budget, rows = formation.budget, first.rows
    if budget is not None and budget.max_tokens is not None:
        padded = budget.count == "padded"
        used = first.cells if padded else int(first.tokens.sum())
        limit = budget.max_tokens * len(rows)
        out["budget fill"] = phrase("{share:m} tokens", share=source.ratio(used, limit))
        if used < (1 - _UNUSED) * limit and len(rows) >= _ENOUGH:
            subject.warnings.add(
                f"batches leave {1 - used / limit:.0%} of max_tokens={budget.max_tokens:,} unused, since fuller ones would pad "
                "more: a larger window_size or finer keys bring samples of similar length together, or lower max_tokens. Where "
                "batch_size is the tighter bound, lower max_tokens"
            )
    if 2 * float(np.median(rows)) > formation.window_size and formation.keys:
        subject.warnings.add(
            f"a batch takes most of the window (B median {np.median(rows):,.0f}, window_size {formation.window_size:,}), "
            f"so sorting by keys cannot separate lengths: give window_size of {8 * int(np.median(rows)):,} or more, or "
            "lower max_tokens"
        )
    if first.cells:
        padding = first.cells - int(first.tokens.sum())
        out["padding"] = phrase("{share:m} tokens", share=source.ratio(padding, first.cells))
        plain = first.unsorted()
        if plain is not None and formation.keys:
            out["padding without buckets"] = phrase(
                "{share:m} tokens, the same samples in order",
                share=source.ratio(plain[1] - plain[0], plain[1]),
            )
    return {**out, **_other_limits(first, subject.stages.epochs.total)}


def _other_limits(first: FirstBatches, total: int) -> dict[str, Any]:
    """What half and twice the budget, and four times the window, would make of the samples seen."""
    formation = first.formation
    assert isinstance(formation, WindowedBucket)
    budget = formation.budget
    if budget is None or budget.max_tokens is None or not first.joined:
        return {}
    if any(window.shares is not None for window in first.windows):
        return {"other limits": "unknown: a schedule moves the streams' shares"}
    others: dict[str, WindowedBucket] = {"as planned": formation}
    for limit in (budget.max_tokens // 2, budget.max_tokens * 2):
        if 1 <= limit <= MAX_LIMIT:
            others[f"max_tokens {limit:,}"] = replace(formation, budget=replace(budget, max_tokens=limit))
    wide = _WIDER * formation.window_size
    if formation.keys and formation.window_size < first.joined and wide <= MAX_WINDOW:
        others[f"window_size {wide:,}"] = replace(formation, window_size=wide)
    return {"other limits": [{"limits": name, **_made_by(first, other, total)} for name, other in others.items()]}


def _made_by(first: FirstBatches, formation: WindowedBucket, total: int) -> dict[str, Any]:
    """Padding and size of the batches of the recorded windows, and how many an epoch of ``total`` positions has."""
    try:
        batches = first.formed_by(formation)
    except (DataError, PlanError) as error:
        return {"padding": f"refused: {error}", "batches an epoch": "", "B median": "", "budget fill": ""}
    budget = formation.budget
    assert budget is not None
    source = FigureSource(f"the first {first.joined:,} samples", "estimated")
    rows, cells = np.array([b.rows for b in batches]), sum(b.rows * b.width for b in batches)
    tokens = sum(int(b.lengths.sum()) for b in batches if b.lengths is not None)
    used = cells if budget.count == "padded" else tokens
    return {
        "padding": source.ratio(cells - tokens, max(1, cells)),
        "batches an epoch": source(round(len(batches) * total / max(1, first.positions)), "batches"),
        "B median": source(float(np.median(rows)) if len(rows) else 0.0, "samples", ",.0f"),
        "budget fill": source.ratio(used, max(1, (budget.max_tokens or 1) * len(batches))),
    }


def _packing(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    source, used = first.source, int(first.tokens.sum())
    pieces = [len(batch.samples) for batch in first.batches]
    longest = max(_most_pieces(batch.packing.rows) for batch in first.batches if batch.packing is not None)
    if used < (1 - _UNUSED) * first.cells and len(first.batches) >= _ENOUGH:
        subject.warnings.add(
            f"rows are {used / first.cells:.0%} full: a larger window_size, strategy='best_fit' or no max_segments fill them"
        )
    return {
        "utilisation": phrase("{share:m} tokens", share=source.ratio(used, first.cells)),
        **_by_column(first),
        "segments a row": phrase(
            "{sign}mean {mean}, max {max}",
            mean=source(sum(pieces) / int(first.rows.sum()), "segments", ",.1f"),
            max=source(longest, "segments"),
        ),
    }


def _by_column(first: FirstBatches) -> dict[str, Any]:
    """How full each column is that has a width of its own."""
    packings = [batch.packing for batch in first.batches if batch.packing is not None]
    rows = int(first.rows.sum())
    columns = [
        {
            "column": name,
            "T": Figure(width, "tokens"),
            "filled": first.source.ratio(sum(int(each.lengths[at].sum()) for each in packings), rows * width),
        }
        for at, (name, width) in enumerate(first.formation.widths.items())
    ]
    return {"columns": columns} if columns else {}


def _most_pieces(rows: Int64) -> int:
    return int(np.bincount(rows).max()) if len(rows) else 0


def _composition(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    """Each stream's share in the batches seen, and how far a batch is from its target at most."""
    names = [stream.name for stream in subject.stages.streams]
    shares = first.setting.shares
    assert shares is not None
    streams = [each[begins(batch)] for batch, each in zip(first.batches, first.streams, strict=True)]
    counts_JK = np.array([np.bincount(each, minlength=len(names)) for each in streams])
    sizes = counts_JK.sum(axis=1, keepdims=True)
    apart = np.abs(counts_JK - sizes * shares)
    running = np.abs(np.cumsum(counts_JK, axis=0) - np.cumsum(sizes, axis=0) * shares)
    one = isinstance(first.formation, WindowedBucket) and isinstance(first.formation.composition, OneStream)

    def far(samples: float) -> Phrase:
        return phrase("{far:m} samples", far=first.source(samples, "samples", ",.2f"))

    return {
        "streams": [
            {
                "stream": name,
                "target": Figure(shares[k], RATIO, form=".3%"),
                "found": first.source.ratio(int(counts_JK[:, k].sum()), int(sizes.sum())),
                "most apart in a batch": "one stream a batch" if one else far(apart[:, k].max()),
                "after any batch": far(running[:, k].max()),
            }
            for k, name in enumerate(names)
        ]
    }


def _histogram(first: FirstBatches) -> list[dict[str, Any]]:
    """Batches by T, in at most eight bars of equal width, each a multiple of the fields' own."""
    widths, multiple = first.widths, first.setting.multiple
    low, high = int(widths.min()), int(widths.max())
    step = -(-(high - low + multiple) // (_BARS * multiple)) * multiple
    counts = np.bincount((widths - low) // step)
    return [
        {
            "T": f"{low + at * step:,}"
            if step == multiple
            else f"{low + at * step:,} - {low + (at + 1) * step - multiple:,}",
            "batches": first.source(int(count), "batches"),
            "": "#" * -(-int(count) * _BAR // int(counts.max())),
        }
        for at, count in enumerate(counts)
    ]

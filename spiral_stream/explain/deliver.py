"""DELIVER and RESUME in EXPLAIN DATA: the queue, the threads and the copies between batches and loop, and what resuming costs."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from spiral_stream.batching.formation import CHAPTER_WINDOWS
from spiral_stream.explain.batch.sizes import Size, batch_size, delivered_arrays, widened_fields
from spiral_stream.explain.figure import ABOUT, EXACT, METRICS, Figure, Phrase, phrase
from spiral_stream.explain.subject import Subject

_BUFFER_WARNING_BYTES: Final = 8 << 30


# what a running stream counts: the words of each fact, and of their figures the metric and its unit
_COUNTED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "largest batch": (
        "{batch} bytes, batches ahead {ahead} at most",
        {"batch": "peak_batch_bytes bytes", "ahead": "peak_queue_bytes bytes"},
    ),
    "delivered": ("{batches} batches, {samples} samples", {"batches": "batches batches", "samples": "samples samples"}),
    "read": (
        "{bytes} payload bytes of {rows}/{all} rows; the rest from caches",
        {"bytes": "source_bytes bytes", "rows": "source_rows rows", "all": "rows rows"},
    ),
    "table columns": ("{bytes} bytes of {rows} rows", {"bytes": "table_bytes bytes", "rows": "table_rows rows"}),
    "ahead": (
        "{raw} batches being read or made, {ready} ready; {left} rows of the epoch not yet read",
        {"raw": "raw_depth batches", "ready": "ready_depth batches", "left": "rows_not_read rows"},
    ),
    "seconds": (
        "fetch {fetch:.2f}, transform {transform:.2f} (over threads), consumer waited {waited:.2f}",
        {"fetch": "fetch_s s", "transform": "transform_s s", "waited": "consumer_waited_s s"},
    ),
}


def deliver_facts(subject: Subject) -> dict[str, Any]:
    """Return depth, threads and memory, and what was measured if there are metrics."""
    stages, metrics = subject.stages, subject.metrics
    size = batch_size(subject)
    device = _device(subject)
    slots = (2 if device else 1) * stages.plan.prefetch + 2
    host = (size.arrays + int(size.lists or 0)) * slots
    if host > _BUFFER_WARNING_BYTES:
        lower = "max_tokens or batch_size" if stages.formed else "batch_size"
        subject.warnings.add(f"batches ahead take ~{host / 2**30:.1f} GiB of host memory. Lower prefetch or {lower}")
    out: dict[str, Any] = {
        "framework": stages.plan.framework,
        "prefetch": EXACT.phrase("{batches} batches", batches=stages.plan.prefetch),
        "threads": subject.threads,
        "bytes a batch": size.shown,
        "host memory bound": _bound(subject, size, host, "2 x prefetch" if device else "prefetch"),
    }
    wide = widened_fields(subject) if stages.plan.framework == "torch" else []
    there = delivered_arrays(subject) if wide else size.arrays
    if wide:
        where = f"copied to {device}" if device else "delivered"
        words = f"{', '.join(wide)}: uint16 until they are {where}, then int64"
        out["widened"] = ABOUT.phrase(f"{words}: {{bytes:m}} bytes a batch", "bytes", bytes=there) if there else words
    if device:
        out["on the device"] = ABOUT.phrase(
            f"{device}: {stages.plan.prefetch} batches before the loop has them, {{ahead:m}} bytes; "
            "page-locked on the host up to {locked} bytes, since PyTorch makes powers of two of each field's",
            "bytes",
            ahead=there * stages.plan.prefetch,
            locked=2 * size.arrays * slots,
        )
    return out if metrics is None else out | _measured(subject, metrics)


def _measured(subject: Subject, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the running stream counted."""
    known = {**metrics, "rows": metrics["cached_rows"] + metrics["source_rows"]}
    is_read = metrics.get("rows_not_read") is not None
    out: dict[str, Any] = {
        fact: _metrics_in(known, *line) if is_read or fact != "ahead" else "no loop reads the stream"
        for fact, line in _COUNTED.items()
    }
    spent = {name: METRICS(value, "s", ".2f") for name, value in metrics["stages"].items()}
    out["seconds by stage"] = METRICS.phrase("{sign}" + _named(spent), **spent)
    if called := {name: METRICS(value, "s", ".2f") for name, value in metrics["functions"].items()}:
        words = ", ".join(f"{name} {each:}" for name, each in called.items())
        out["seconds by function"] = Phrase(f"! {words}", called)
    if subject.stages.formed:
        left_out = {name: f"{name} samples" for name in ("filtered", "dropped", "truncated", "alone")}
        out["left out or cut"] = _metrics_in(metrics, f"{_named(left_out)} (samples of the windows formed)", left_out)
    if metrics["refused"]:
        done = {name: f"{name} samples" for name in ("skipped", "substituted") if metrics[name]}
        words = f"{{refused}} samples that cannot be read: {_named(done)}; stream.quarantine() lists them"
        out["refused"] = _metrics_in(metrics, words, {"refused": "refused samples", **done})
    if network := _network(metrics["network"]):
        out["network"] = network
    return {**out, "bound by": f"! {metrics['bound_by']}"}


def _metrics_in(metrics: Mapping[str, Any], words: str, figures: Mapping[str, str]) -> Phrase:
    """Words with metrics in them: of each figure the metric, and what it counts."""
    named = {figure: metric.split(" ") for figure, metric in figures.items()}
    return METRICS.phrase(
        "{sign}" + words, **{each: METRICS(metrics[name], unit) for each, (name, unit) in named.items()}
    )


def _named(figures: Iterable[str]) -> str:
    return ", ".join(f"{name} {{{name}}}" for name in figures)


def _network(counts: Mapping[str, Any]) -> Phrase | None:
    """What was asked of object stores; None if nothing was, and the node cache gave nothing."""
    if not counts["requests"] and not counts["hits"]:
        return None
    units = {"requests": "requests", "retries": "requests", "bytes": "bytes", "again": "bytes", "hits": "hits"}
    units |= {"hit_bytes": "bytes", "first_byte_ms": "ms", "wait_s": "s"}
    forms = {"first_byte_ms": ",.1f", "wait_s": ",.2f"}
    again = ", {again} of them again" if counts["again"] else ""
    return phrase(
        f"{{sign}}{{requests}} requests, {{retries}} repeated, {{bytes}} bytes{again}; {{hits}} hits of the node cache, "
        "{hit_bytes} bytes; first byte after {first_byte_ms} ms; waited {wait_s} s (over threads)",
        **{name: METRICS(counts[name], unit, forms.get(name, "")) for name, unit in units.items()},
    )


def _device(subject: Subject) -> str:
    """The device that batches are copied to; "" if they stay on the host."""
    if subject.stages.plan.framework != "torch":
        return ""
    return next((device for device in subject.devices.values() if device not in (None, "cpu")), "") or ""


def _bound(subject: Subject, size: Size, host: int, ahead: str) -> Phrase:
    """The memory of batches, and of what decoding originals needs in addition to them."""
    template = f"{{bytes:m}} bytes ({ahead} + 2 slots)"
    if size.unknown:
        template = f"unknown: {ahead} + 2 slots of {{bytes:m}} bytes and what is unknown of a batch; "
        template += "budget_bytes bounds what is ahead"
    figures = {"bytes": Figure(host, "bytes", "estimated", source="bytes a batch")}
    frames = sum(stage.held_frames for stage in subject.stages.fields)
    if frames:
        template += "; while decoding {frames} frames a thread, in the size of the file"
        figures["frames"] = Figure(frames, "frames")
    return phrase(template, **figures)


def resume_facts(subject: Subject) -> dict[str, Any]:
    """Return the size of a state, what is read to resume from it, and what the run skips."""
    skips = subject.numbering.skips
    if not skips:
        return _cost(subject)
    words, batches = "{batches} batches and {samples} samples; the state lists them", skips.batches
    skipped = EXACT.phrase(
        words,
        batches=sum(count for *_, count in batches),
        samples=len(skips.samples) + sum(each.rows for each in skips.tables),
    )
    return {**_cost(subject), "skipped": skipped}


def _cost(subject: Subject) -> dict[str, Any]:
    size = Figure(subject.state_bytes, "bytes", source="a state at the epoch's start")
    state = phrase("{bytes} bytes of JSON at the epoch's start, equal on every rank", bytes=size)
    if not subject.stages.formed:
        words = "arithmetic; {rows} rows of the prefix are read, at any place and on any world size"
        return {"state": state, "reposition": EXACT.phrase(words, rows=0)}
    forming = subject.forming
    span = Figure(forming.span, "samples")
    computed = forming.unknown()
    cost = f"{', '.join(computed)} again for up to {span} samples" if computed else "metadata alone, no payload"
    unit = f"a chapter of {span} samples a lane ({CHAPTER_WINDOWS} windows); the state says where each begins"
    sentence = f"at most one chapter a lane is formed again: {cost}; 0 rows of the prefix before it"
    return {
        "state": state,
        "unit": Phrase(unit, {"samples": span, "windows": Figure(CHAPTER_WINDOWS, "windows")}),
        "reposition": Phrase(sentence, {"rows": Figure(0, "rows")}),
    }

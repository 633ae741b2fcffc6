"""DELIVER and RESUME in EXPLAIN DATA: the queue, the threads and the copies between batches and loop, and what resuming costs."""

from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.batching.formation import CHAPTER_WINDOWS
from spiral_stream.explain.batch.sizes import Size, batch_size
from spiral_stream.explain.figure import METRICS, Figure, Phrase, phrase
from spiral_stream.explain.subject import Subject

_BUFFER_WARNING_BYTES: Final = 8 << 30


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
        "prefetch": phrase("{batches} batches", batches=Figure(stages.plan.prefetch, "batches")),
        "threads": subject.threads,
        "bytes a batch": size.shown,
        "host memory bound": _bound(subject, size, host, "2 x prefetch" if device else "prefetch"),
    }
    if device:
        ahead, locked = size.arrays * stages.plan.prefetch, 2 * size.arrays * slots
        out["on the device"] = phrase(
            f"{device}: {stages.plan.prefetch} batches before the loop has them, {{ahead:m}} bytes; "
            "page-locked on the host up to {locked} bytes, since PyTorch makes powers of two of each field's",
            ahead=Figure(ahead, "bytes", "estimated"),
            locked=Figure(locked, "bytes", "estimated"),
        )
    return out if metrics is None else out | _measured(subject, metrics)


def _measured(subject: Subject, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the running stream counted."""

    def count(name: str, unit: str) -> Figure:
        return METRICS(metrics[name], unit)

    def seconds(value: float) -> Figure:
        return METRICS(value, "s", ".2f")

    rows = metrics["cached_rows"] + metrics["source_rows"]
    spent = {name: seconds(value) for name, value in metrics["stages"].items()}
    out: dict[str, Any] = {
        "largest batch": phrase(
            "{sign}{batch} bytes, batches ahead {ahead} at most",
            batch=count("peak_batch_bytes", "bytes"),
            ahead=count("peak_queue_bytes", "bytes"),
        ),
        "delivered": phrase(
            "{sign}{batches} batches, {samples} samples",
            batches=count("batches", "batches"),
            samples=count("samples", "samples"),
        ),
        "read": phrase(
            "{sign}{bytes} payload bytes of {rows}/{all} rows; the rest from caches",
            bytes=count("source_bytes", "bytes"),
            rows=count("source_rows", "rows"),
            all=METRICS(rows, "rows"),
        ),
        "table columns": phrase(
            "{sign}{bytes} bytes of {rows} rows",
            bytes=count("table_bytes", "bytes"),
            rows=count("table_rows", "rows"),
        ),
        "ahead": phrase(
            "{sign}{raw} batches being read or made, {ready} ready; {left} rows of the epoch not yet read",
            raw=count("raw_depth", "batches"),
            ready=count("ready_depth", "batches"),
            left=count("rows_not_read", "rows"),
        )
        if metrics.get("rows_not_read") is not None
        else "no loop reads the stream",
        "seconds": phrase(
            "{sign}fetch {fetch}, transform {transform} (over threads), consumer waited {waited}",
            fetch=seconds(metrics["fetch_s"]),
            transform=seconds(metrics["transform_s"]),
            waited=seconds(metrics["consumer_waited_s"]),
        ),
        "seconds by stage": phrase("{sign}" + ", ".join(f"{name} {{{name}}}" for name in spent), **spent),
    }
    if called := {name: seconds(value) for name, value in metrics["functions"].items()}:
        out["seconds by function"] = Phrase(
            "! " + ", ".join(f"{name} {each:}" for name, each in called.items()), called
        )
    if subject.stages.formed:
        left_out = {name: count(name, "samples") for name in ("filtered", "dropped", "truncated", "alone")}
        named = ", ".join(f"{name} {{{name}}}" for name in left_out)
        out["left out or cut"] = phrase(f"{{sign}}{named} (samples of the windows formed)", **left_out)
    if metrics["refused"]:
        done = {name: count(name, "samples") for name in ("skipped", "substituted") if metrics[name]}
        named = ", ".join(f"{name} {{{name}}}" for name in done)
        out["refused"] = phrase(
            f"{{sign}}{{refused}} samples that cannot be read: {named}; stream.quarantine() lists them",
            refused=count("refused", "samples"),
            **done,
        )
    if network := _network(metrics["network"]):
        out["network"] = network
    return {**out, "bound by": f"! {metrics['bound_by']}"}


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
    skipped = phrase(
        "{batches} batches and {samples} samples; the state lists them",
        batches=Figure(sum(count for *_, count in skips.batches), "batches"),
        samples=Figure(len(skips.samples), "samples"),
    )
    return {**_cost(subject), "skipped": skipped}


def _cost(subject: Subject) -> dict[str, Any]:
    size = Figure(subject.state_bytes, "bytes", source="a state at the epoch's start")
    state = phrase("{bytes} bytes of JSON at the epoch's start, equal on every rank", bytes=size)
    if not subject.stages.formed:
        nothing = phrase(
            "arithmetic; {rows} rows of the prefix are read, at any place and on any world size", rows=Figure(0, "rows")
        )
        return {"state": state, "reposition": nothing}
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

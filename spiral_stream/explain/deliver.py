"""DELIVER and RESUME in EXPLAIN DATA: what lies between the batches and the loop, and what resuming costs."""

import json
from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.batching.formation import CHAPTER_WINDOWS
from spiral_stream.cursor import Cursor
from spiral_stream.explain.sizes import Size, batch_size
from spiral_stream.explain.subject import Subject
from spiral_stream.plan.fingerprint import digest
from spiral_stream.planner.saved_state import SavedState
from spiral_stream.runtime.formed_batches import FormedBatches

_STATE_BYTES: Final = 400  # a state with one segment and one relation, as JSON
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
        "prefetch": f"{stages.plan.prefetch} batches",
        "threads": subject.threads,
        "bytes a batch": size.text,
        "host memory bound": _bound(size, host, "2 x prefetch" if device else "prefetch") + _decoding(subject),
    }
    if device:
        out["on the device"] = (
            f"{device}: {stages.plan.prefetch} batches before the loop has them, ~{size.arrays * stages.plan.prefetch:,} bytes; "
            f"page-locked on the host up to {2 * size.arrays * slots:,} bytes, since PyTorch makes powers of two of each field's"
        )
    if metrics is not None:
        out["largest batch"] = (
            f"! {metrics['peak_batch_bytes']:,} bytes, batches ahead {metrics['peak_queue_bytes']:,} at most"
        )
        rows = metrics["cached_rows"] + metrics["source_rows"]
        out["delivered"] = f"! {metrics['batches']:,} batches, {metrics['samples']:,} samples"
        out["read"] = (
            f"! {metrics['source_bytes']:,} payload bytes of {metrics['source_rows']:,}/{rows:,} rows; the rest from caches"
        )
        out["seconds"] = (
            f"! fetch {metrics['fetch_s']:.2f}, transform {metrics['transform_s']:.2f} (over threads), "
            f"consumer waited {metrics['consumer_waited_s']:.2f}"
        )
        spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in metrics.get("stages", {}).items())
        out["seconds by stage"] = f"! {spent}"
        if stages.formed:
            left_out = ", ".join(f"{name} {metrics[name]:,}" for name in ("filtered", "dropped", "truncated", "alone"))
            out["left out or cut"] = f"! {left_out} (samples of the windows formed)"
        if metrics["refused"]:
            done = ", ".join(f"{name} {metrics[name]:,}" for name in ("skipped", "substituted") if metrics[name])
            out["refused"] = (
                f"! {metrics['refused']:,} samples that cannot be read: {done}; stream.quarantine() lists them"
            )
        if network := _network(metrics["network"]):
            out["network"] = network
        out["bound by"] = f"! {metrics['bound_by']}"
    return out


def _network(counts: Mapping[str, Any]) -> str:
    """What was asked of object stores; "" if nothing was, and the node cache gave nothing."""
    if not counts["requests"] and not counts["hits"]:
        return ""
    again = f", {counts['again']:,} of them again" if counts["again"] else ""
    return (
        f"! {counts['requests']:,} requests, {counts['retries']:,} repeated, {counts['bytes']:,} bytes{again}; "
        f"{counts['hits']:,} hits of the node cache, {counts['hit_bytes']:,} bytes; "
        f"first byte after {counts['first_byte_ms']:.1f} ms; waited {counts['wait_s']:.2f} s (over threads)"
    )


def _device(subject: Subject) -> str:
    """The device that batches are copied to; "" if they stay on the host."""
    if subject.stages.plan.framework != "torch":
        return ""
    return next((device for device in subject.devices.values() if device not in (None, "cpu")), "") or ""


def _bound(size: Size, host: int, ahead: str) -> str:
    if size.unknown:
        return f"unknown: {ahead} + 2 slots of ~{host:,} bytes and what is unknown of a batch; budget_bytes bounds what is ahead"
    return f"~{host:,} bytes ({ahead} + 2 slots)"


def _decoding(subject: Subject) -> str:
    """The memory that decoding originals needs in addition to the batches."""
    frames = sum(clip.frames for clip in subject.stages.clips if any(each.frames is None for each in clip.sources))
    return f"; while decoding {frames:,} frames a thread, in the size of the file" if frames else ""


def resume_facts(subject: Subject) -> dict[str, Any]:
    """Return the size of a state, what is read to resume from it, and what the run skips."""
    skips = subject.numbering.skips
    batches = sum(count for *_, count in skips.batches)
    skipped = (
        {"skipped": f"{batches:,} batches and {len(skips.samples):,} samples; the state lists them"} if skips else {}
    )
    return {**_cost(subject), **skipped}


def _cost(subject: Subject) -> dict[str, Any]:
    if not subject.stages.formed:
        return {
            "state": f"~{_STATE_BYTES} bytes of JSON, equal on every rank",
            "reposition": "arithmetic; 0 rows of the prefix are read, at any place and on any world size",
        }
    numbering, forming = subject.formed
    span = forming.span
    computed = forming.unknown()
    cost = f"{', '.join(computed)} again for up to {span:,} samples" if computed else "metadata alone, no payload"
    return {
        "state": f"{_state_bytes(subject, numbering):,} bytes of JSON at the epoch's start, equal on every rank",
        "unit": f"a chapter of {span:,} samples a lane ({CHAPTER_WINDOWS} windows); the state says where each begins",
        "reposition": f"at most one chapter a lane is formed again: {cost}; 0 rows of the prefix before it",
    }


def _state_bytes(subject: Subject, numbering: FormedBatches) -> int:
    """The size of a state as the stream saves it."""
    bound, stages = subject.bound, subject.stages
    cursor = Cursor(bound.epoch).enter(bound.world_size, bound.merge)
    data = tuple(sorted(stages.data_versions.items()))
    state = SavedState(stages.fingerprint, data, bound.run_seed, cursor, tuple(numbering.anchors(bound.epoch, 0)))
    return len(json.dumps(state.shortened(digest).to_json()))

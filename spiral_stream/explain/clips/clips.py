"""Clips in EXPLAIN DATA: where they are decoded and cached, what decoding costs, and which are short or unusable."""

from typing import Any, Final

import numpy as np

from spiral_stream.explain.clips.footage import Footage, first_reasons, footage
from spiral_stream.explain.figure import (
    METRICS,
    RATIO,
    Figure,
    FigureSource,
    Phrase,
    joined,
    marked,
    phrase,
    ratio,
)
from spiral_stream.explain.outline import chosen_text
from spiral_stream.explain.subject import STOPS, Subject
from spiral_stream.fields.stack import Stack
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.decoded import FRAME_COUNT
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.runtime.fields.clips import ClipStage

_OVER_READ: Final = 4.0  # frames decoded per frame kept: above this, most of the time goes into frames that nobody sees
_SHORT: Final = 0.05  # of the segments: above this, batches hold many repeated frames
_UNKNOWN: Final = "unknown: materialize asset video_index"
_INDEX: Final = "the video index"
_BUILD: Final = "stream.materialize(), or the asset that builds"


def frame_bytes(clip: ClipStage) -> Phrase:
    """Return the bytes of a sample's frames, with the factors of the product."""
    shape, dtype = [n or 1 for n in clip.spec.shape], host_dtype(clip.spec.dtype or "uint8")
    size = Figure(int(np.prod(shape)) * dtype.itemsize, "bytes")
    return phrase(f"{{bytes}} ({' x '.join(map(str, shape))} x {dtype.itemsize} bytes)", bytes=size)


def where_made(subject: Subject) -> str:
    """Say where clips are decoded. That never decides which samples share a batch: formations look at columns only."""
    decides = subject.forming.decides_on() if subject.stages.formed else []
    if decides:
        return f"after membership: {', '.join(decides)} decides, not the frames"
    return "after membership: all keys are columns" if subject.stages.formed else "after membership"


def clip_row(subject: Subject, clip: ClipStage) -> tuple[str, Phrase, Figure | str]:
    """Return where clips are made, their size, and how many came from the cache."""
    return where_made(subject), frame_bytes(clip), hit(subject, clip)


def coverage(subject: Subject, clip: ClipStage) -> tuple[int, int]:
    """Return how many rows the clip cache holds (without a clip cache: the video index), and how many are read."""
    return subject.coverage(each.kind.fingerprint for each in clip.caches)


def clip_facts(subject: Subject, clip: ClipStage) -> dict[str, Any]:
    """Return what decoding costs, and what happens to short and bad clips."""
    seen = footage(subject, clip)
    _warn(subject, clip, seen)
    field = dict(need(subject.stages.plan, Collate).fields)[clip.name]
    assert isinstance(field, Stack)
    facts = {
        "selection": f"{clip.frames} frames a sample, {chosen_text(field)}",
        "over-read": _over_read(subject, clip, seen),
        "decode bytes": _decode_bytes(seen, _index(subject, clip, seen)),
        "key-frame distance": _key_frames(seen, _index(subject, clip, seen)),
        "short clips": _short(subject, clip, seen),
        "refused": _refused(seen),
    }
    return {f"{name} of {clip.name}": text for name, text in facts.items()}


def _way_out(clip: ClipStage) -> str:
    """How to build the video index without Dagster."""
    if clip.sources[0].frames is None:
        return "stream.materialize()"
    return ", ".join(
        f'spiral_stream.index_videos(catalog, "{each.index.kind.relation}", "{each.index.kind.column}")'
        for each in clip.sources
    )


def _measured(subject: Subject, *names: str) -> tuple[int, ...] | None:
    if subject.metrics is None:
        return None
    return tuple(int(subject.metrics[name]) for name in names)


def _index(subject: Subject, clip: ClipStage, seen: Footage) -> FigureSource:
    """Exact if every row was planned and the plan has no random selection; else figures are estimates."""
    exact = seen.planned == seen.total and clip.selection.deterministic and not subject.stages.mixed
    return FigureSource(_INDEX, marked(exact))


def _over_read(subject: Subject, clip: ClipStage, seen: Footage) -> Phrase | str:
    parts: list[Phrase | str] = []
    if seen.planned:
        over = _index(subject, clip, seen).ratio(sum(seen.decoded), sum(seen.needed_frames), ",.2f")
        of = f"of {seen.planned:,} of {seen.total:,} clips, by the video index"
        parts.append(phrase(f"{{planned:m}} frames decoded / kept, {of}", planned=over))
    else:
        parts.append(f"{_UNKNOWN}, or {_way_out(clip)}")
    measured = _measured(subject, "frames_decoded", "frames_kept")
    if measured is not None and measured[1]:
        parts.append(phrase("{measured:m}", measured=METRICS.ratio(measured[0], measured[1], ",.2f")))
    if clip.sources[0].frames is not None:
        parts.append("paid once, when the cache is built")
    return joined(parts, "; ")


def _decode_bytes(seen: Footage, index: FigureSource) -> Phrase | str:
    if not seen.planned:
        return _UNKNOWN
    words = f"{{sign}}mean {{mean:,.0f}} / max {{max}} bytes of packets a clip, of {seen.planned:,} clips"
    return index.spread(words, "bytes", seen.read)


def _key_frames(seen: Footage, index: FigureSource) -> Phrase | str:
    if not seen.planned:
        return _UNKNOWN
    words = "{sign}median {median:,.0f} / max {max} frames, the farthest key frames of a file"
    return index.spread(words, "frames", seen.apart)


def _short(subject: Subject, clip: ClipStage, seen: Footage) -> Phrase | str:
    policy = {"pad": "padded", "loop": "looped", "drop": f"left out, by a filter on {FRAME_COUNT}"}[
        clip.selection.short
    ]
    short, of, source = _short_of(clip, seen)
    parts: list[Phrase | str] = [f"{_UNKNOWN}; {policy}"]
    if of:
        mark = marked(of == seen.total and (bool(seen.counted) or clip.selection.deterministic))
        sentence = f"have fewer than {clip.selection.need} frames, by {source}: {policy}"
        parts = [phrase(f"{{share:m}} {sentence}", share=ratio(short, of, mark, source))]
    measured = _measured(subject, "short_clips")
    if measured is not None:
        parts.append(METRICS.phrase("{met:m} met", "clips", met=measured[0]))
    return joined(parts, "; ")


def _short_of(clip: ClipStage, seen: Footage) -> tuple[int, int, str]:
    """Short segments, out of how many, and the source: the relation, else the clip cache, else the video index."""
    if seen.counted:
        return seen.too_few, seen.counted, FRAME_COUNT
    if seen.cached_rows and clip.selection.deterministic:
        return seen.cached_short, seen.cached_rows, "the clip cache"
    return seen.short, seen.planned, "the video index"


def _refused(seen: Footage) -> Phrase | str:
    if not seen.known:
        return _UNKNOWN
    reasons = f": {first_reasons(seen.refused)}" if seen.refused else ""
    where = "clip cache" if seen.cached_rows else "video index"
    refused = ratio(len(seen.refused), seen.known, marked(seen.is_complete), f"the {where}")
    return Phrase(f"{refused:m} of the clips in the {where}{reasons}", {"refused": refused})


# ---- what to do about it


def _warn(subject: Subject, clip: ClipStage, seen: Footage) -> None:
    have, total = coverage(subject, clip)
    left = total - have
    stated = clip.sources[0].frames is not None
    if left and stated:
        subject.warnings.add(
            f"{clip.name}: {left:,} of {total:,} clips are in no cache, so they are decoded from originals in every pass: "
            f"{_BUILD} the clip cache"
        )
    elif left:
        subject.warnings.add(
            f"{clip.name}: {left:,} of {total:,} rows are not in the video index, so their files are looked through in "
            f"every pass: {_BUILD} the video index"
        )
    if not stated and seen.planned and seen.over_read > _OVER_READ:
        subject.warnings.add(
            f"{clip.name}: {seen.over_read:.1f} frames are decoded for each that is kept "
            f"({sum(seen.decoded):,}/{sum(seen.needed_frames):,}). Keep decoded clips with .cache({clip.column}=Frames(...)), or "
            "encode the files with key frames closer together"
        )
    _warn_of_clips(subject, clip, seen)


def _warn_of_clips(subject: Subject, clip: ClipStage, seen: Footage) -> None:
    """Warn of short segments, and of files that cannot be used."""
    short, of, _ = _short_of(clip, seen)
    if of and short > _SHORT * of and clip.selection.short != "drop":
        has = (
            f'filter on {FRAME_COUNT} >= {clip.selection.need}, or short="drop"' if seen.counted else "a longer segment"
        )
        smaller = "" if clip.selection.stride in (None, 1) else ", or a smaller stride"
        subject.warnings.add(
            f"{clip.name}: {ratio(short, of)} of the segments have fewer than {clip.selection.need} frames, so clips "
            f"repeat frames; {has}{smaller} leaves that out"
        )
    if seen.refused:
        policy = getattr(need(subject.stages.plan, Collate), "on_error", "raise")
        stops = str(policy) == "raise"
        subject.warnings.add(
            f"{clip.name}: {len(seen.refused):,} of {seen.known:,} clips cannot be decoded: {first_reasons(seen.refused)}. "
            + ('Filter them out, restore the files, or collate(on_error="skip")' if stops else f"on_error is {policy}"),
            STOPS if stops else 1,
        )


def hit(subject: Subject, clip: ClipStage) -> Figure | str:
    """Return the share of clips that came from the cache in this run; "-" if that is not measured."""
    rate = None if subject.metrics is None or clip.sources[0].frames is None else subject.metrics["cache_hit_rate"]
    return "-" if rate is None else METRICS(rate, RATIO, ".1%")

"""MATERIALIZE in EXPLAIN DATA: where each field is computed, how many bytes it takes, and how much of it is cached."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from spiral_stream.errors import CatalogError
from spiral_stream.explain.clips import cache_text, clip_facts, coverage, frame_bytes, hit, where_made
from spiral_stream.explain.subject import Subject
from spiral_stream.plan.maps import SampleMap, SampleTokens
from spiral_stream.planner.physical import ClipStage, ImageStage, TokenStage


def materialize_facts(subject: Subject) -> dict[str, Any]:
    """Return one row per map that makes payload, and one row per field of the batch."""
    stages = subject.stages
    fields = [_image(subject, image) for image in stages.images] + [_clip(subject, clip) for clip in stages.clips]
    fields += _plains(subject) + _sequences(subject)
    order = stages.field_names
    made = [_tokens(subject, stage) for stage in stages.tokens] + _mapped(subject)
    rows = [*made, *sorted(fields, key=lambda row: order.index(row["field"]))]
    named = {f"tokenizer of {stage.name}": _tokenizer(subject, stage) for stage in stages.tokens}
    for clip in stages.clips:
        named |= clip_facts(subject, clip)
    return {**named, "fields": rows}


def _row(field: str, where: str, size: Any, cache: str = "-", built: str = "-", hit: str = "-") -> dict[str, Any]:
    return {"field": field, "where": where, "out/sample": size, "cache": cache, "built": built, "hit": hit}


def _image(subject: Subject, image: ImageStage) -> dict[str, Any]:
    shape = image.program.output_shape
    size = (
        "unknown: the images decide" if shape is None else int(np.prod(shape)) * np.dtype(image.program.dtype).itemsize
    )
    where = f"after membership; normalized on {_place(subject.devices.get(image.name))}"
    cache = f"{image.caches[0].kind.profile} {image.caches[0].kind.fingerprint[:8]}"
    built = _built(*subject.coverage(each.kind.fingerprint for each in image.caches))
    return _row(image.name, where, size, cache, built, _hit(subject.metrics))


def _clip(subject: Subject, clip: ClipStage) -> dict[str, Any]:
    where = f"{where_made(subject)}; {_place(subject.devices.get(clip.name))}"
    built = _built(*coverage(subject, clip))
    return _row(clip.name, where, frame_bytes(clip), cache_text(clip), built, hit(subject, clip))


def _plains(subject: Subject) -> list[dict[str, Any]]:
    rows = []
    for plain in subject.stages.plains:
        dtype = plain.spec.dtype
        items = int(np.prod([n or 1 for n in plain.spec.shape], dtype=np.int64))
        size: Any = items * np.dtype(dtype).itemsize if dtype else "Python values"
        rows.append(_row(plain.name, f"with membership; {_place(subject.devices.get(plain.name))}", size))
    return rows


def _sequences(subject: Subject) -> list[dict[str, Any]]:
    rows = []
    for stage in subject.stages.sequences:
        size = f"{np.dtype(stage.spec.dtype).itemsize} a token" if stage.spec.dtype else "Python values"
        place = _place(subject.devices.get(stage.name))
        rows.append(_row(stage.name, f"in Collate, one pass over {stage.field.column}; {place}", size))
    return rows


def _tokens(subject: Subject, stage: TokenStage) -> dict[str, Any]:
    size = f"{stage.encoder.dtype.itemsize} a token"
    where = _when(subject, f"len({stage.name})")
    if not stage.caches:
        return _row(stage.name, f"{where}; {stage.column} is computed", size, "none: of no relation")
    have, total = subject.coverage(each.kind.fingerprint for each in stage.caches)
    if have < total:
        subject.warnings.add(
            f"{stage.name}: {total - have:,} of {total:,} rows are in no cache, so their text is tokenized again in every "
            "pass: stream.materialize(), or the asset that builds the token cache"
        )
    names = list(dict.fromkeys(each.kind.fingerprint[:8] for each in stage.caches))
    cache = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return _row(stage.name, where, size, f"tokens {cache}", _built(have, total), _hit(subject.metrics))


def _mapped(subject: Subject) -> list[dict[str, Any]]:
    steps = [step for step in subject.stages.maps if isinstance(step, SampleMap)]
    return [_row(step.name, _when(subject, f"map {step.function.name}"), str(step.function.kind)) for step in steps]


def _when(subject: Subject, what: str) -> str:
    """Whether a map runs before batches are formed, or after."""
    if not subject.stages.formed or what not in subject.forming.decides_on():
        return "after membership"
    if what in subject.forming.unknown():
        return "before membership: it decides, window by window"
    return "after membership: its lengths decide, from the cache"


def _tokenizer(subject: Subject, stage: TokenStage) -> str:
    """Name, content and engine of a tokenizer. The engine is read from the catalog: building one may take seconds."""
    (name,) = [
        step.transform.tokenizer
        for step in subject.stages.maps
        if isinstance(step, SampleTokens) and step.name == stage.name
    ][-1:]
    try:
        entry = subject.catalog.tokenizer(name)
    except CatalogError:  # dropped since the stream was opened
        return f"{name}, tokens {stage.encoder.digest[:8]}"
    return f"{name} sha256:{entry.digest[:8]}, {entry.vocab_size:,} ids, by {entry.engine}"


def _built(have: int, total: int) -> str:
    return f"{have / max(1, total):.0%} ({have:,}/{total:,})"


def _hit(metrics: Mapping[str, Any] | None) -> str:
    return "-" if metrics is None or metrics["cache_hit_rate"] is None else f"! {metrics['cache_hit_rate']:.1%}"


def _place(device: str | None) -> str:
    return "the host (chosen)" if device is None else f"{device} (requested)"

"""MATERIALIZE in EXPLAIN DATA: where each field is computed, how many bytes it takes, and how much of it is cached."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spiral_stream.errors import CatalogError, listed
from spiral_stream.explain.figure import METRICS, RATIO, Figure, Phrase, phrase
from spiral_stream.explain.kinds import SECTIONS
from spiral_stream.explain.subject import Subject
from spiral_stream.plan.verbs.maps import SampleMap, SampleRecords, SampleTokens
from spiral_stream.planner.columns.lineage import Made
from spiral_stream.planner.columns.values import CachedValues
from spiral_stream.planner.field_stages import FieldStage
from spiral_stream.planner.stages import TokenStage

CACHES: Final = 8  # caches of one field that get a line of their own
_STREAMS: Final = 3  # streams that a line names


class _Cache(NamedTuple):
    """The cache of one field in one stream."""

    text: str
    fingerprint: str


def materialize_facts(subject: Subject) -> dict[str, Any]:
    """Return one row per map that makes payload, and one row per field of the batch."""
    stages = subject.stages
    made = [_tokens(subject, stage) for stage in stages.tokens] + _mapped(subject)
    rows = [*made, *(_field(subject, stage) for stage in stages.fields if stage.when)]
    named: dict[str, Any] = {f"tokenizer of {stage.name}": _tokenizer(subject, stage) for stage in stages.tokens}
    for name, caches in _caches(subject):
        named |= _by_stream(subject, name, caches)
    for stage in stages.fields:
        if section := SECTIONS.get(type(stage)):
            named |= section.facts(subject, stage)
    return {**named, **_too_large(subject), "fields": rows}


def _too_large(subject: Subject) -> dict[str, str]:
    """One line per column that is read from its source, because keeping it takes more than is done unasked."""
    found = {
        (relation, column): cost
        for s in subject.stages.streams
        for relation, column, cost in s.selected.narrow.too_large()
    }
    return {
        f"column {relation}.{column}": f"read from its source; keeping it takes {cost}, more than is done unasked: "
        "stream.materialize()"
        for (relation, column), cost in found.items()
    }


def _row(field: str, where: str, size: Any, cache: str = "-", built: Any = "-", hit: Any = "-") -> dict[str, Any]:
    return {"field": field, "where": where, "out/sample": size, "cache": cache, "built": built, "hit": hit}


def _field(subject: Subject, stage: FieldStage) -> dict[str, Any]:
    """The row of one field; what its kind tells in other words is told by its own section."""
    device, caches = _device_text(subject.devices.get(stage.name)), _cached(stage)
    built = _built(*subject.coverage(each.fingerprint for each in caches)) if caches else "-"
    if section := SECTIONS.get(type(stage)):
        where, size, hit = section.row(subject, stage)
        return _row(stage.name, f"{where}; {device}", size, _cell(caches), built, hit)
    value = stage.value
    figure: Any = value if isinstance(value, str) else Figure(value[0], "bytes")
    what = "" if isinstance(value, str) else value[1]
    size = phrase(f"{{bytes}}{what}", bytes=figure) if what else figure
    cell, hit = (_cell(caches), _hit(subject.metrics)) if caches else ("-", "-")
    return _row(stage.name, f"{stage.when} {device}", size, cell, built, hit)


def _tokens(subject: Subject, stage: TokenStage) -> dict[str, Any]:
    size = _a_token(stage.encoder.dtype.itemsize)
    where = _when(subject, f"len({stage.name})")
    if not stage.caches:
        return _row(stage.name, f"{where}; {stage.column} is computed", size, "none: of no relation")
    caches = _cached(stage)
    have, total = subject.coverage(each.fingerprint for each in caches)
    if have < total:
        subject.warnings.add(
            f"{stage.name}: {total - have:,} of {total:,} rows are in no cache, so their text is tokenized again in every "
            "pass: stream.materialize(), or the asset that builds the token cache"
        )
    return _row(stage.name, where, size, _cell(caches), _built(have, total), _hit(subject.metrics))


def _a_token(size: int) -> Phrase:
    return phrase("{bytes} a token", bytes=Figure(size, "bytes"))


def _caches(subject: Subject) -> list[tuple[str, list[_Cache]]]:
    """Return each field or map that has caches, with the cache of each stream."""
    return [(stage.name, _cached(stage)) for stage in subject.stages.readers if stage.caches]


def _cached(stage: FieldStage | TokenStage) -> list[_Cache]:
    kinds = [each.kind for each in stage.caches]
    return [_Cache(f"{kind.title} {kind.fingerprint[:8]}", kind.fingerprint) for kind in kinds]


def _cell(caches: list[_Cache]) -> str:
    """Name the cache that all streams share, or say how many there are."""
    different = len(set(caches))
    return caches[0].text if different == 1 else f"{different} caches, named above"


def _by_stream(subject: Subject, name: str, caches: list[_Cache]) -> dict[str, Phrase]:
    """Return one line per cache if the streams of a mixture have different ones: its streams, and how far it is built."""
    shared: dict[_Cache, list[int]] = {}
    for number, cache in enumerate(caches):
        shared.setdefault(cache, []).append(number)
    if len(shared) == 1:
        return {}
    lines = {}
    for cache, numbers in list(shared.items())[:CACHES]:
        part = _part(subject, caches, numbers)
        lines[f"{name} of {_streams(subject, numbers)}"] = Phrase(f"{cache.text}, {part}", part.figures)
    if rest := list(shared.values())[CACHES:]:
        numbers = [number for each in rest for number in each]
        part, others = _part(subject, caches, numbers), f"{len(rest):,} other cache{'s' if len(rest) > 1 else ''}"
        lines[f"{name} of {len(numbers):,} more"] = Phrase(f"{others}, {part}", part.figures)
    return lines


def _streams(subject: Subject, numbers: list[int]) -> str:
    return listed([subject.stages.streams[number].name for number in numbers], _STREAMS)


def _part(subject: Subject, caches: list[_Cache], numbers: list[int]) -> Phrase:
    """Say how far the caches of some streams are built."""
    keys = [(caches[number].fingerprint, number) for number in numbers]
    return _built(sum(subject.rows_built[key] for key in keys), sum(subject.rows_read[key] for key in keys))


def _mapped(subject: Subject) -> list[dict[str, Any]]:
    """One row per column that a function makes."""
    rows = []
    cached_values = {key: each for each in subject.stages.values for key, _ in each.boundary.outputs}
    for at, step in enumerate(subject.stages.maps):
        made: list[tuple[str, Any]] = []
        if isinstance(step, SampleMap):
            made = [(step.name, step.function.kind)]
        elif isinstance(step, SampleRecords):
            made = [(field.name, field.type) for field in step.function.kind]
        for name, kind in made:
            what = _when(subject, f"map {step.function.name}")  # type: ignore[attr-defined]  # both call one
            rows.append(_row(name, what, str(kind), *_values(cached_values.get(Made(name, at)))))
    return rows


def _values(cached_values: CachedValues | None) -> tuple[str, Phrase | str]:
    """Where a column's values are kept, and how far they are made."""
    if cached_values is None:
        return "-", "-"
    each = [cached_values.built(at) for at in range(len(cached_values.values))]
    names = list(dict.fromkeys(values.fingerprint[:8] for values in cached_values.values))
    cell = f"values {names[0]}" if len(names) == 1 else f"{len(names)} sets of values"
    return cell, _built(sum(have for have, _, _ in each), sum(need for _, need, _ in each))


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


def _built(have: int, total: int) -> Phrase:
    built = Figure(have / max(1, total), RATIO, operands=(have, total), source="the caches", form=".0%")
    return phrase("{rows}", rows=built)


def _hit(metrics: Mapping[str, Any] | None) -> Figure | str:
    rate = None if metrics is None else metrics["cache_hit_rate"]
    return "-" if rate is None else METRICS(rate, RATIO, ".1%")


def _device_text(device: str | None) -> str:
    return "the host (chosen)" if device is None else f"{device} (requested)"

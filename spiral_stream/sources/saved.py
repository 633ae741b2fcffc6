"""How a source is written down: a JSON object with its kind and its fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.errors import SourceError, shown
from spiral_stream.sources.arrow import Arrow
from spiral_stream.sources.folder import ImageFolder, VideoFolder
from spiral_stream.sources.imported import ImportedRows
from spiral_stream.sources.lance import Lance
from spiral_stream.sources.parquet import Parquet
from spiral_stream.sources.source import Source

_KINDS: Final[dict[str, type[Source]]] = {kind.KIND: kind for kind in (ImageFolder, Lance, Parquet, VideoFolder)}
_MADE: Final[dict[str, type[Source]]] = {ImportedRows.KIND: ImportedRows}  # by registering others


SAVED: Final = tuple(kind.__name__ for kind in _KINDS.values())


def is_saved(source: Source) -> bool:
    """Whether a source can be written down and opened again."""
    return type(source) in _KINDS.values()


def source_to_json(source: Source) -> dict[str, Any]:
    """Return the JSON form: ``{"kind": ..., <its fields>}``.

    Raises:
        SourceError: the source holds its rows itself (`Arrow`).
    """
    if isinstance(source, Arrow) or not dataclasses.is_dataclass(source):
        msg = (
            f"{type(source).__name__} has no JSON form: it holds its rows itself. "
            "Register it in a catalog, which copies the rows, or write them to Parquet or Lance"
        )
        raise SourceError(msg)
    fields = {field.name: _to_json(getattr(source, field.name)) for field in dataclasses.fields(source)}
    if fields.get("allow_outside"):  # as it was before there was such a thing, and how it is read back
        del fields["allow_outside"]
    return {"kind": source.KIND, **fields}


def source_from_json(saved: Mapping[str, Any]) -> Source:
    """Return the inverse of `source_to_json`.

    Raises:
        SourceError: the kind is unknown, or its fields do not fit.
    """
    kind = saved.get("kind")
    known = _KINDS | _MADE
    if not isinstance(kind, str) or kind not in known:
        msg = (
            f"source kind {kind!r} is unknown; this version knows {', '.join(_KINDS)}. Update spiral, or register again"
        )
        raise SourceError(msg)
    fields = {name: _from_json(value) for name, value in saved.items() if name != "kind"}
    if any(field.name == "allow_outside" for field in dataclasses.fields(known[kind])):  # type: ignore[arg-type]  # each is a dataclass
        fields.setdefault("allow_outside", True)
    try:
        return known[kind](**fields)
    except TypeError as error:
        msg = f"source {kind}: {error}. Register it again with this version"
        raise SourceError(msg) from error


def declared_source(declared: Mapping[str, Any]) -> Source:
    """Return the source that a person declared: its kind, and what its constructor takes.

    A field that is not given has its default, and ``path`` and ``uri`` both mean where the rows lie.

    Args:
        declared: ``{"kind": "parquet", "path": "/data/photos", ...}``.

    Raises:
        SourceError: the kind is unknown, or its fields do not fit.
    """
    kind = declared.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        msg = f"source kind {shown(kind)} is unknown; this version knows {', '.join(_KINDS)}. Correct it, or update spiral"
        raise SourceError(msg)
    names = [field.name for field in dataclasses.fields(_KINDS[kind])]  # type: ignore[arg-type]  # each is a dataclass
    place = next((name for name in ("path", "uri") if name in names), "")
    fields = {
        place if place and name in ("path", "uri") else name: value
        for name, value in declared.items()
        if name != "kind"
    }
    if unknown := sorted(set(fields) - set(names)):
        msg = f"source {kind}: {unknown[0]!r} is none of its fields; it has {', '.join(names)}. Correct the name"
        raise SourceError(msg)
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        msg = f"source {kind}: {error}. It has {', '.join(names)}"
        raise SourceError(msg) from error


def _to_json(value: object) -> object:
    return source_to_json(value) if isinstance(value, Source) else value


def _from_json(value: Any) -> object:
    """A value of a source's field; one that is a source has a kind."""
    return source_from_json(value) if isinstance(value, dict) and "kind" in value else value

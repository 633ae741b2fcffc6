"""How a source is written down: a JSON object with its kind and its fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.errors import SourceError
from spiral_stream.sources.arrow import Arrow
from spiral_stream.sources.folder import ImageFolder, VideoFolder
from spiral_stream.sources.huggingface import HuggingFace
from spiral_stream.sources.imported import ImportedRows
from spiral_stream.sources.lance import Lance
from spiral_stream.sources.parquet import Parquet
from spiral_stream.sources.source import Source

_KINDS: Final[dict[str, type[Source]]] = {
    kind.KIND: kind for kind in (HuggingFace, ImageFolder, Lance, Parquet, VideoFolder)
}
_MADE: Final[dict[str, type[Source]]] = {ImportedRows.KIND: ImportedRows}  # by registering others
_BEFORE: Final = {
    "allow_outside": True,
    "hive": False,
    "origin": False,
}  # what sources did before they had these fields

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
    return {
        "kind": source.KIND,
        **{n: value for n, value in fields.items() if n not in _BEFORE or value is not _BEFORE[n]},
    }


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
    for field in dataclasses.fields(known[kind]):  # type: ignore[arg-type]  # each is a dataclass
        if field.name in _BEFORE:
            fields.setdefault(field.name, _BEFORE[field.name])
    try:
        return known[kind](**fields)
    except TypeError as error:
        msg = f"source {kind}: {error}. Register it again with this version"
        raise SourceError(msg) from error


def _to_json(value: object) -> object:
    return source_to_json(value) if isinstance(value, Source) else value


def _from_json(value: Any) -> object:
    """A value of a source's field; one that is a source has a kind."""
    return source_from_json(value) if isinstance(value, dict) and "kind" in value else value

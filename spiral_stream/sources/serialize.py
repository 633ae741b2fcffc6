"""How a source is written down: a JSON object with its kind and its fields."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.arguments import door
from spiral_stream.errors import SourceError, shown
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.columnar.huggingface import HuggingFace
from spiral_stream.sources.columnar.parquet import Parquet
from spiral_stream.sources.columnar.vortex import Vortex
from spiral_stream.sources.image_folder import ImageFolder, VideoFolder
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.mds.source import Mds
from spiral_stream.sources.own import need_json, need_own_source, own_source, unknown_kind
from spiral_stream.sources.source import Source
from spiral_stream.sources.tar.webdataset import WebDataset
from spiral_stream.sources.text.csv import Csv
from spiral_stream.sources.text.jsonl import Jsonl
from spiral_stream.sources.text.text_files import TextFiles
from spiral_stream.sources.tokens.source import Tokens

_KINDS: Final[dict[str, type[Source]]] = {
    kind.KIND: kind
    for kind in (
        Csv,
        HuggingFace,
        ImageFolder,
        Jsonl,
        Lance,
        Mds,
        Parquet,
        TextFiles,
        Tokens,
        VideoFolder,
        Vortex,
        WebDataset,
    )
}
_MADE: Final[dict[str, type[Source]]] = {ImportedRows.KIND: ImportedRows}  # by registering others
_BEFORE: Final = {
    "allow_outside": True,
    "hive": False,
    "newlines_in_values": True,
    "origin": False,
}  # what sources did before they had these fields
_WITHOUT: Final = frozenset(
    {("mds", "schema"), ("webdataset", "schema")}
)  # fields of later versions, left out where None


def library_kinds() -> Mapping[str, type[Source]]:
    """Return the sources of the library that can be saved, by kind."""
    return _KINDS


def need_saved(source: Source) -> None:
    """Refuse a source that cannot be written down and opened again.

    Raises:
        SourceError: says what its class lacks.
    """
    if type(source) not in _KINDS.values():
        need_own_source(source, _KINDS | _MADE)
        again = source_from_json(json.loads(json.dumps(source_to_json(source))))
        if again != source:
            msg = (
                f"{type(source).__name__}: saved and opened again it is {shown(again)}, not {shown(source)}. Tuples come back as "
                "lists: turn them into tuples in __post_init__"
            )
            raise SourceError(msg)


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
    need_json(type(source).__name__, fields)
    said = {n: value for n, value in fields.items() if value is not None or (source.KIND, n) not in _WITHOUT}
    return {"kind": source.KIND, **{n: each for n, each in said.items() if n not in _BEFORE or each is not _BEFORE[n]}}


def source_from_json(saved: Mapping[str, Any]) -> Source:
    """Return the inverse of `source_to_json`.

    Raises:
        SourceError: the kind is unknown, or its fields do not fit.
    """
    kind, known = saved.get("kind"), _KINDS | _MADE
    found = (known.get(kind) or own_source(kind)) if isinstance(kind, str) else None
    if found is None:
        raise unknown_kind(kind, ", ".join(_KINDS))
    fields = {name: _from_json(value) for name, value in saved.items() if name != "kind"}
    for field in dataclasses.fields(found):  # type: ignore[arg-type]  # each is a dataclass
        if field.name in _BEFORE:
            fields.setdefault(field.name, _BEFORE[field.name])
    try:
        return found(**fields)
    except TypeError as error:
        msg = f"source {kind}: {error}. Register it again with this version"
        raise SourceError(msg) from error


@door(SourceError)
def declared_source(declared: Mapping[str, Any]) -> Source:
    """Return the source that a person declared: its kind, and what its constructor takes.

    A field that is not given has its default, and ``path`` and ``uri`` both mean where the rows lie.

    Args:
        declared: ``{"kind": "parquet", "path": "/data/photos", ...}``.

    Raises:
        SourceError: the kind is unknown, or its fields do not fit.

    Examples:
        >>> spiral.declared_source({"kind": "parquet", "path": "parts/*.parquet"}).KIND
        'parquet'
    """
    kind = declared.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        msg = f"source kind {shown(kind)} is unknown; this version knows {', '.join(_KINDS)}. Correct it, or update spiral"
        raise SourceError(msg)
    known = dataclasses.fields(_KINDS[kind])  # type: ignore[arg-type]  # each is a dataclass
    names = [field.name for field in known]
    place = next((name for name in ("path", "uri") if name in names), "")
    fields = {
        place if place and name in ("path", "uri") else name: value
        for name, value in declared.items()
        if name != "kind"
    }
    if unknown := sorted(set(fields) - set(names)):
        msg = f"source {kind}: {unknown[0]!r} is none of its fields; it has {', '.join(names)}. Correct the name"
        raise SourceError(msg)
    missing = (dataclasses.MISSING, dataclasses.MISSING)
    needed = [each.name for each in known if each.init and (each.default, each.default_factory) == missing]
    if lacking := [name for name in needed if name not in fields]:
        msg = f"source {kind}: {lacking[0]} is missing; it has {', '.join(names)}. Say where the rows lie, {lacking[0]}: ..."
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

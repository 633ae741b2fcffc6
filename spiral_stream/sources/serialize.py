"""How a source is saved: a JSON object with its kind and its fields; and which class a saved kind stands for.

A catalog's text only says a kind. It never says which module to import. The class of a user's own source comes from an entry
point, which was chosen by whoever installed the package, or from a module that the process has already imported by itself.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spiral_stream.arguments import door
from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.source import Source

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "spiral.sources"  # of entry points; each is called as the KIND of the class that it leads to


def plugin_class(kind: str) -> type[Source] | None:
    """Return the class of this kind; None if no installed package and no imported module has one.

    Raises:
        SourceError: two classes have the kind, or the entry point does not lead to one.
    """
    found = {_name_of(each): each for each in _imported(kind)}
    for point in _entry_points(tuple(sys.path)).get(kind, ()):
        if point.value.replace(":", ".") not in found:
            each = _loaded(point)
            found[_name_of(each)] = each
    if len(found) > 1:
        msg = (
            f"source kind {shown(kind)}: two classes have it, {' and '.join(sorted(found)[:2])}. Give one another KIND"
        )
        raise SourceError(msg)
    return next(iter(found.values()), None)


def need_plugin_class(source: Source) -> None:
    """Refuse a source of a user's own that could not be opened again after it is saved.

    Raises:
        SourceError: says what its class lacks.
    """
    kind, name = type(source), type(source).__name__
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        msg = f"{name}: a source is saved by its fields. Make the class a frozen dataclass: @dataclass(frozen=True)"
        raise SourceError(msg)
    declared = vars(kind).get("KIND")
    taken = _library_class(declared)
    if not isinstance(declared, str) or not declared or taken is not None:
        said = (
            "it has no KIND of its own"
            if taken is None
            else f"its KIND is {shown(declared)}, which is {taken.__name__}'s"
        )
        msg = f'{name}: {said}. A catalog finds the class again by it: KIND: ClassVar[str] = "{name.lower()}"'
        raise SourceError(msg)
    found = plugin_class(declared)
    if found is not kind:
        other = "no class that is imported" if found is None else _name_of(found)
        msg = f"{name}: its KIND {declared!r} leads to {other}, not to {_name_of(kind)}. Define the class at the top of a module"
        raise SourceError(msg)


def classes_of(saved: Iterable[str]) -> tuple[type[Source], ...]:
    """Return the classes of users' own that saved sources need here: who pickles them takes them to another process.

    Args:
        saved: sources as JSON texts.
    """
    plugins = {
        each for each in _below(Source) if not each.__module__.startswith("spiral_stream.") and vars(each).get("KIND")
    }
    if not plugins:
        return ()
    texts = list(saved)
    named = [each for each in plugins if any(f'"kind": {json.dumps(each.KIND)}' in text for text in texts)]
    return tuple(each for each in named if plugin_class(each.KIND) is each)


def need_json(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse fields that JSON does not hold.

    Raises:
        SourceError: names the field.
    """
    for field, value in fields.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            msg = (
                f"{name}: its field {field!r} is {shown(value)}, which JSON does not hold. Use text, numbers, booleans, None, "
                "and lists or tuples of them"
            )
            raise SourceError(msg) from error


def unknown_kind(kind: object, known: str) -> SourceError:
    """Return the error for a kind that nothing has."""
    return SourceError(
        f"source kind {shown(kind)} is unknown. Import the module of its class, or install the package that has it as entry "
        f"point in the group {GROUP}; this version knows {known}"
    )


def _imported(kind: str) -> list[type[Source]]:
    """Classes of this process with a KIND of their own; of those with one name, the one that was defined last."""
    found = {_name_of(each): each for each in _below(Source) if vars(each).get("KIND") == kind}
    return [each for each in found.values() if not inspect.isabstract(each)]


def _below(kind: Any) -> Iterator[type[Source]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> "Mapping[str, tuple[EntryPoint, ...]]":
    """Entry points of the group, by name; listing them costs some ms.

    Args:
        path: ``sys.path``, so that a package that appears is seen.
    """
    from importlib.metadata import entry_points

    del path
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _loaded(point: "EntryPoint") -> type[Source]:
    where = f"entry point {point.name!r} of {point.dist.name if point.dist else 'a package'} in the group {GROUP}"
    try:
        found = point.load()
    except Exception as error:  # an installed package may fail in any way
        msg = f"{where}: {point.value} cannot be imported: {cut(str(error))}. Repair or update the package"
        raise SourceError(msg) from error
    if not (isinstance(found, type) and issubclass(found, Source) and getattr(found, "KIND", None) == point.name):
        msg = f"{where}: {point.value} is no source of this KIND. Name the entry point as the KIND of its class"
        raise SourceError(msg)
    return found


_ROOMS: Final = {  # kind to its room and class, imported when a source of the kind is met
    "csv": ("text.csv", "Csv"),
    "huggingface": ("columnar.huggingface", "HuggingFace"),
    "image_folder": ("image_folder", "ImageFolder"),
    "jsonl": ("text.jsonl", "Jsonl"),
    "lance": ("lance.source", "Lance"),
    "mds": ("mds.source", "Mds"),
    "parquet": ("columnar.parquet", "Parquet"),
    "text_files": ("text.text_files", "TextFiles"),
    "tokens": ("tokens.source", "Tokens"),
    "video_folder": ("image_folder", "VideoFolder"),
    "vortex": ("columnar.vortex", "Vortex"),
    "webdataset": ("tar.webdataset", "WebDataset"),
}
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
    """Return the sources of the library that can be saved, by kind: all of their rooms are imported."""
    return {kind: _class_of(kind) for kind in _ROOMS}


def _class_of(kind: str) -> type[Source]:
    room, name = _ROOMS[kind]
    found: type[Source] = getattr(import_module(f"spiral_stream.sources.{room}"), name)
    return found


def _library_class(kind: object) -> type[Source] | None:
    """The class of a kind that a catalog saves, if the library has it; imported rows are made by registering others."""
    if kind == ImportedRows.KIND:
        return ImportedRows
    return _class_of(kind) if isinstance(kind, str) and kind in _ROOMS else None


def _is_saved_by_kind(kind: type[Source]) -> bool:
    said = getattr(kind, "KIND", None)
    return isinstance(said, str) and said in _ROOMS and _class_of(said) is kind


def is_of_library(source: Source) -> bool:
    """Whether a source is one of the library's, whose class stays the same; a user may define his own anew."""
    return _is_saved_by_kind(type(source.of if isinstance(source, ImportedRows) else source))


def need_saved(source: Source) -> None:
    """Refuse a source that cannot be written down and opened again.

    Raises:
        SourceError: says what its class lacks.
    """
    if not _is_saved_by_kind(type(source)):
        need_plugin_class(source)
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
    kind = saved.get("kind")
    found = (_library_class(kind) or plugin_class(kind)) if isinstance(kind, str) else None
    if found is None:
        raise unknown_kind(kind, ", ".join(_ROOMS))
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
        >>> spiral.sources.declared_source({"kind": "parquet", "path": "parts/*.parquet"}).KIND
        'parquet'
    """
    kind = declared.get("kind")
    if not isinstance(kind, str) or kind not in _ROOMS:
        msg = f"source kind {shown(kind)} is unknown; this version knows {', '.join(_ROOMS)}. Correct it, or update spiral"
        raise SourceError(msg)
    found = _class_of(kind)
    known = dataclasses.fields(found)  # type: ignore[arg-type]  # each is a dataclass
    names = [field.name for field in known]
    location_field = next((name for name in ("path", "uri") if name in names), "")
    fields = {
        location_field if location_field and name in ("path", "uri") else name: value
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
        return found(**fields)
    except TypeError as error:
        msg = f"source {kind}: {error}. It has {', '.join(names)}"
        raise SourceError(msg) from error


def _to_json(value: object) -> object:
    return source_to_json(value) if isinstance(value, Source) else value


def _from_json(value: Any) -> object:
    """A value of a source's field; one that is a source has a kind."""
    return source_from_json(value) if isinstance(value, dict) and "kind" in value else value

"""The options of a source as texts, as a command line gives them: ``delimiter=;``, ``hive=false``."""

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from spiral_stream.errors import SourceError, shown
from spiral_stream.sources.source import Source

_MISSING = object()


def options_of(kind: type[Source], place: str, given: Sequence[str]) -> dict[str, Any]:
    """Return what a source's constructor takes.

    A value is JSON. For a field of text it may be the text itself, without quotes.

    Args:
        kind: the source's class.
        place: the field that says where its rows lie, which is given otherwise.
        given: ``name=value`` each.

    Raises:
        SourceError: a name is no option of the source, or is given twice, or a value is of another type.
    """
    types_of = _types(kind)
    names = [name for name in types_of if name != place]
    found: dict[str, Any] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or name not in names:
            what = f"{shown(name)} is no option of {kind.KIND}" if mark else f"{shown(text)} is no name=value"
            msg = f"--option: {what}; it has {', '.join(names) or 'none'}. Correct it"
            raise SourceError(msg)
        if name in found:
            msg = f"--option: {name} is given twice. Give it once; several values are a JSON list"
            raise SourceError(msg)
        found[name] = _value(name, value, types_of[name])
    return found


def _types(kind: type[Source]) -> Mapping[str, tuple[Any, ...]]:
    """The types that each field takes."""
    try:
        hints = get_type_hints(kind)
    except Exception:  # noqa: BLE001  hints of a class of the user's may name what is not there
        hints = {}
    fields = [field for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]  # each is a dataclass
    return {field.name: _alternatives(hints.get(field.name, Any)) for field in fields}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(each for part in get_args(hint) for each in _alternatives(part))
    return (get_origin(hint) or hint,)


def _value(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = _MISSING
    if value is not _MISSING and any(_fits(value, kind) for kind in kinds):
        return float(value) if float in kinds and int not in kinds and type(value) is int else value
    if str in kinds or (Any in kinds and value is _MISSING):
        return text
    words = " or ".join(dict.fromkeys(_WORDS.get(kind, "a JSON value") for kind in kinds))
    msg = f"--option: {name}={text}: the value would be {words}. Correct it"
    raise SourceError(msg)


_WORDS = {
    bool: "true or false",
    dict: "a JSON object",
    float: "a number",
    int: "a whole number",
    list: "a JSON list",
    str: "a text",
    tuple: "a JSON list",
    type(None): "null",
}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is one of a type."""
    if kind is Any:
        return True
    if kind in (bool, str, type(None)):
        return type(value) is kind
    if kind in (int, float):
        return type(value) in (int, kind)
    if isinstance(value, dict):
        return kind is dict or (isinstance(kind, type) and issubclass(dict, kind))
    return isinstance(value, list) and (kind is tuple or (isinstance(kind, type) and issubclass(list, kind)))

"""What pydantic finds wrong, in the words of Spiral: what was found, what would be right, the way out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel

_LONGEST: Final = 60  # characters of a value in a message
# Parts of pydantic's messages that name classes of Python, and what stands in YAML.
_PLAIN: Final = (
    (r"a valid dictionary or (instance of|object to extract fields from)\s*\w*", "a mapping"),
    (r"'str' instances are not allowed as a Sequence value", "Input should be a list"),
    (r"an instance of \w+|a valid (tuple|list)", "a list"),
    (r"an object|a valid dictionary", "a mapping"),
    (r", unable to \w+( string as an? \w+| input)", ""),
)
_SHOULD: Final = "Input should be "


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the end of a sentence: the question whether a known name was meant, if one is near.

    Args:
        name: that is not known.
        known: names.
    """
    near = get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else "."


def worded(
    errors: Sequence[Mapping[str, Any]], model: type[BaseModel] | None = None
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the keys that lead to what is wrong, and what is said of it; once where the alternatives of a type all fail.

    Args:
        errors: of pydantic, about a model.
        model: says which fields there are.
    """
    by_keys: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
    for each in errors:
        by_keys.setdefault(tuple(each["loc"]), []).append(each)
    for keys, found in by_keys.items():
        missing = [each for each in found if each["type"] in ("missing", "extra_forbidden")]
        yield keys, _of_field(missing[0], [] if model is None else [model]) if missing else _of_value(found)


def _of_field(error: Mapping[str, Any], models: Sequence[type[BaseModel]]) -> str:
    """Say that a field is unknown, or missing."""
    *above, name = error["loc"]
    fields = {key: field for each in _models(models, above) for key, field in each.model_fields.items()}
    if error["type"] == "missing":
        about = fields[name].description if name in fields else None
        return f"it has no {name}. Give it" + (f": {about}" if about else "")
    return f"{name!r} is no field of it{nearest(name, fields)} It has {', '.join(fields)}. Correct the name"


def _of_value(errors: Sequence[Mapping[str, Any]]) -> str:
    """Say that a value is none that its field can have."""
    said: list[str] = []
    for each in errors:
        words = each["msg"]
        for pattern, plain in _PLAIN:
            words = re.sub(pattern, plain, words)
        said.append(words.removeprefix(_SHOULD) if said else words)
    value = errors[0]["input"]
    shown = repr(value) if len(repr(value)) <= _LONGEST else f"{repr(value)[:_LONGEST]} ..."
    if errors[0]["type"] == "value_error":  # of our own, which says the way out
        return f"{shown} is wrong. {errors[0]['ctx']['error']}"
    choices = re.findall(r"'([^']+)'", " ".join(said)) if isinstance(value, str) else []
    return f"{shown} is wrong{nearest(value, choices)} {', or '.join(dict.fromkeys(said))}. Correct it"


def _models(models: Sequence[type[BaseModel]], keys: Sequence[str | int]) -> Sequence[type[BaseModel]]:
    """Return the models that a value at some keys may be of."""
    found = models
    for key in keys:
        fields = [each.model_fields[key] for each in found if key in each.model_fields]
        found = [each for field in fields for each in _inside(field.annotation)] if fields else found
    return found


def _inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _inside(each)

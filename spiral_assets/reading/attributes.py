"""The model by which the attributes of a component are read from YAML, with errors that lead to the very key.

Dagster derives a model whose fields all may be templates, so a wrong value fails once per alternative, and deep in a field only
the field is named. Here each value without a template is read as its field is declared, first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, get_args

import dagster as dg
from pydantic import BaseModel, TypeAdapter, ValidationError, create_model, model_validator

from spiral_assets.reading.positions import Wrong
from spiral_assets.reading.wording import worded

_TEMPLATE: Final = "{{"
_SIMPLE: Final = ("string_type", "literal_error")
_WRONG: Final = "_spiral_wrong"  # attribute of a model: what is wrong in it
_NESTED: Final = dg.Resolver.default().fn  # of fields that are read as they are declared, part by part


@lru_cache(64)
def strict_model(kind: type[BaseModel], derived: type[BaseModel]) -> type[BaseModel]:
    """Return a model that knows what the fields of a component cannot have: `wrong_attributes` says it of an instance.

    It raises nothing, because Dagster would say it in words of Python. `Face.load` refuses it in ours.

    Args:
        kind: the component.
        derived: as Dagster derives it.
    """

    def read(value: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(value, Mapping):
            return handler(value)
        errors = [error for name, given in value.items() for error in _errors(kind, str(name), given)]
        named = {error["loc"][0] for error in errors}
        try:
            found = handler(value)
        except ValidationError as error:
            more = [each for each in error.errors() if each["loc"][:1] and each["loc"][0] not in named]
            errors += [{**each, "loc": keys_of(value, each["loc"])} for each in _deep(more)]
            found = None
        if errors:
            found = strict.model_construct()
            object.__setattr__(found, _WRONG, [Wrong(keys, said) for keys, said in worded(errors, derived)])
        return found

    wrap: Any = model_validator(mode="wrap")(read)  # type: ignore[arg-type]  # of a model that is made here
    strict = create_model(derived.__name__, __base__=derived, __validators__={"read": wrap})
    return strict


def wrong_attributes(attributes: BaseModel | None) -> Sequence[Wrong]:
    """Return what is wrong in attributes that were read by a strict model.

    Args:
        attributes: as they were read.
    """
    found: Sequence[Wrong] = getattr(attributes, _WRONG, ())
    return found


def keys_of(value: Any, loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the keys of an error's place that are keys of the value: pydantic names alternatives of types in between.

    Args:
        value: that is wrong.
        loc: as pydantic says it.
    """
    keys: list[str | int] = []
    for at, each in enumerate(loc):
        inside = isinstance(value, Mapping) and each in value
        if inside or (isinstance(value, list | tuple) and isinstance(each, int) and each < len(value)):
            value = value[each]
            keys.append(each)
        elif at == len(loc) - 1 and isinstance(value, Mapping):
            keys.append(each)  # a key that is missing
    return tuple(keys)


def _errors(kind: type[BaseModel], name: str, value: Any) -> Iterator[dict[str, Any]]:
    """Yield what is wrong with the value of a field; nothing for templates, and for fields that Dagster resolves."""
    nested = _nested(kind, name)
    if nested is not None and isinstance(value, Mapping):
        for key, part in value.items():
            yield from ({**error, "loc": (name, *error["loc"])} for error in _errors(nested, str(key), part))
        return
    adapter = _adapter(kind, name)
    if adapter is None or _has_template(value):
        return
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        found = [{**each, "loc": (name, *keys_of(value, each["loc"]))} for each in error.errors()]
        yield from _deep(found)


def _deep(errors: Sequence[Any]) -> Sequence[Any]:
    """Leave out that a mapping or a list is no text, where another alternative of its type says what is wrong inside."""
    deep = [each for each in errors if each["type"] not in _SIMPLE or not isinstance(each["input"], dict | list)]
    return deep or errors[:1]


@lru_cache(64)
def _nested(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of a field whose parts are read one by one."""
    field = kind.model_fields.get(name)
    if field is None or not any(isinstance(each, dg.Resolver) and each.fn is _NESTED for each in field.metadata):
        return None
    models = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
    return next((each for each in models if issubclass(each, BaseModel)), None)


@lru_cache(512)
def _adapter(kind: type[BaseModel], name: str) -> TypeAdapter[Any] | None:
    field = kind.model_fields.get(name)
    if field is None or any(isinstance(each, dg.Resolver) for each in field.metadata):
        return None
    declared: Any = field.annotation
    for each in field.metadata:
        declared = Annotated[declared, each]
    return TypeAdapter(declared)


def _has_template(value: Any) -> bool:
    if isinstance(value, str):
        return _TEMPLATE in value
    if isinstance(value, Mapping):
        return any(_has_template(each) for each in value.values())
    return isinstance(value, list | tuple) and any(_has_template(each) for each in value)

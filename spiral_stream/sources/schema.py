"""A schema that a user declares for files without types, and its form as JSON.

A type is its Arrow name (``"int64"``, ``"timestamp[us]"``), or a tuple: ``("list", type)``, ``("large_list", type)``,
``("fixed_size_list", type, size)``, ``("struct", (name, type), ...)``, ``("timestamp", unit, zone)``,
``("decimal128", precision, scale)``. Sources of payload take what it is, such as ``"image/jpeg-ref"``, or a list of that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spiral_stream.errors import SourceError, shown
from spiral_stream.semantic import SEMANTIC, SEMANTIC_TYPES, semantic_of

Declared = tuple[tuple[str, Any], ...]

GIVE: Final = 'Give the columns: schema={"name": "type", ...}'  # the way out of first rows that do not show everything
_LIST: Final = 2  # items of the written form of a list
_RESERVED: Final = ("_rowaddr", "_rowid")  # names of columns that Lance makes


def declared(schema: object, what: str, *, payload: pa.DataType | None = None) -> Declared:
    """Return the form that is kept of a schema.

    Args:
        schema: a pyarrow Schema; a mapping of names to Arrow types or their names; or the form itself, as JSON brings it.
        what: the source, for messages.
        payload: the type of payload columns, which are declared by what they hold; None if the source has none.

    Raises:
        SourceError: it is none of these, has no columns or two of one name, or a type has no written form.
    """
    if isinstance(schema, pa.Schema):
        pairs = [(field.name, _of_field(field, what)) for field in schema]
    elif isinstance(schema, Mapping):
        pairs = [(name, _named(kind, name, what)) for name, kind in schema.items()]
    elif isinstance(schema, list | tuple):
        pairs = [(pair[0], _frozen(pair[1])) for pair in schema if isinstance(pair, list | tuple) and len(pair) == 2]  # noqa: PLR2004
        if len(pairs) < len(schema):
            raise _no_schema(schema, what)
    else:
        raise _no_schema(schema, what)
    names = [name for name, _ in pairs]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise _no_schema(schema, what)
    if twice := [name for name in names if names.count(name) > 1]:
        msg = f"{what}: schema has two columns {shown(twice[0])}. Give one another name"
        raise SourceError(msg)
    columns(tuple(pairs), what, payload=payload)
    return tuple(pairs)


def columns(written: Declared, what: str, *, payload: pa.DataType | None = None) -> pa.Schema:
    """Return the schema that `declared` wrote down.

    Args:
        written: what it wrote.
        what: the source, for messages.
        payload: the type of payload columns; None if the source has none.

    Raises:
        SourceError: a type is unknown.
    """
    try:
        return pa.schema([_field(name, kind, payload) for name, kind in written])
    except (ValueError, TypeError, IndexError, KeyError, pa.ArrowException) as error:
        known = "" if payload is None else f"; of payload one of {', '.join(SEMANTIC_TYPES)}"
        msg = (
            f"{what}: schema={shown(written)} names an unknown type: {error}. Give pyarrow types, or names such as "
            f'"int64"{known}'
        )
        raise SourceError(msg) from error


def need_column_names(names: Sequence[str], where: str, way_out: str) -> None:
    """Refuse names that Lance gives no column.

    Raises:
        SourceError: names the column.
    """
    for name in names:
        if not name or "." in name or unreadable(name) or name in _RESERVED:
            never = ", ".join(("*", *_RESERVED))
            msg = f"{where}: a column is called {shown(name)}, and names have no dot or backtick, nor are they {never}. {way_out}"
            raise SourceError(msg)


def unreadable(name: str) -> bool:
    """Whether Lance keeps a column of this name, and cannot read it by the name."""
    return "`" in name or name == "*"


def _no_schema(schema: object, what: str) -> SourceError:
    msg = f'{what}: schema={shown(schema)}. Give a pyarrow.schema([...]), or a dict such as {{"text": "string", "n": "int64"}}'
    return SourceError(msg)


def _named(kind: object, name: object, what: str) -> Any:
    if isinstance(kind, pa.DataType):
        return _written(kind, str(name), what)
    return _frozen(kind)


def _frozen(kind: Any) -> Any:
    return tuple(_frozen(part) for part in kind) if isinstance(kind, list | tuple) else kind


def _written(kind: pa.DataType, name: str, what: str) -> Any:
    t = pa.types
    if t.is_list(kind) or t.is_large_list(kind):
        return "list" if t.is_list(kind) else "large_list", _written(kind.value_type, name, what)
    if t.is_fixed_size_list(kind):
        return "fixed_size_list", _written(kind.value_type, name, what), kind.list_size
    if t.is_struct(kind):
        return "struct", *((field.name, _written(field.type, name, what)) for field in kind)
    if t.is_timestamp(kind) and kind.tz is not None:
        return "timestamp", kind.unit, kind.tz
    if t.is_decimal128(kind):
        return "decimal128", kind.precision, kind.scale
    try:
        if pa.type_for_alias(str(kind)) == kind:
            return str(kind)
    except ValueError:
        pass
    msg = (
        f"{what}: column {shown(name)} is {kind}, which no text is read as. Give a number, text, time, decimal128, "
        "or a list or struct of them"
    )
    raise SourceError(msg)


def _of_field(field: pa.Field, what: str) -> Any:
    """The written form of a column, which says what payload it holds if it holds some."""
    said = semantic_of(field)
    if said is None:
        return _written(field.type, field.name, what)
    return ("list", said) if pa.types.is_list(field.type) else said


def _field(name: str, kind: Any, payload: pa.DataType | None) -> pa.Field:
    is_list = isinstance(kind, tuple) and len(kind) == _LIST and kind[0] == "list"
    said = kind[1] if is_list else kind
    if payload is None or said not in SEMANTIC_TYPES:
        return pa.field(name, _read(kind))
    return pa.field(name, pa.list_(payload) if is_list else payload, metadata={SEMANTIC: said.encode()})


def _read(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return pa.type_for_alias(kind)
    form, *parts = kind
    if form == "struct":
        return pa.struct([(name, _read(each)) for name, each in parts])
    if form == "timestamp":
        return pa.timestamp(*parts)
    if form == "decimal128":
        return pa.decimal128(*parts)
    make = {"list": pa.list_, "large_list": pa.large_list, "fixed_size_list": pa.list_}[form]
    return make(_read(parts[0]), *parts[1:])

"""Columns of JSON values: the Arrow type that fits the values of some rows, and the array of the values of others.

Types are taken from values as Python's ``json`` reads them. Nothing is guessed: a text that looks like a date stays text,
and a number never becomes a text. Values of other types than the column has are reported row by row; about 1 us per value.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.errors import shown

MOST_FIELDS: Final = 1000  # of one object: more are no columns, but a dictionary with data as its keys
_PLAIN: Final[dict[type, pa.DataType]] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.utf8()}


class MixedTypesError(ValueError):
    """Two values that no column holds both."""


def type_of(value: object) -> pa.DataType:
    """Return the type of one value; null for one that says nothing.

    Raises:
        MixedTypesError: a list holds values of several types, or an object has too many keys.
    """
    if isinstance(value, dict):
        if len(value) > MOST_FIELDS:
            msg = f"an object of {len(value):,} keys, and at most {MOST_FIELDS:,} become fields"
            raise MixedTypesError(msg)
        return pa.struct([(name, type_of(each)) for name, each in value.items()])
    if isinstance(value, list):
        kind = pa.null()
        for each in value:
            kind = merged(kind, type_of(each))
        return pa.list_(kind)
    return _PLAIN.get(type(value), pa.null())


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of a column that holds values of both types.

    Raises:
        MixedTypesError: there is none.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merged(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {field.name: field.type for field in one}
        for field in other:
            kinds[field.name] = merged(kinds.get(field.name, pa.null()), field.type)
        if len(kinds) > MOST_FIELDS:
            msg = f"objects of more than {MOST_FIELDS:,} different keys"
            raise MixedTypesError(msg)
        return pa.struct(list(kinds.items()))
    msg = f"{one} in one row and {other} in another"
    raise MixedTypesError(msg)


def settled(kind: pa.DataType) -> pa.DataType | None:
    """Return a type without unknown parts: what was null everywhere is text; None for an object that has no fields."""
    if pa.types.is_null(kind):
        return pa.utf8()
    if pa.types.is_list(kind):
        inner = settled(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = [(field.name, settled(field.type)) for field in kind]
        return pa.struct([(name, each) for name, each in fields if each is not None]) if fields else None
    return kind


def column_of(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Build a column.

    Args:
        values: as ``json`` reads them; None is null.
        kind: of the column.

    Returns:
        the column, and for each value that does not fit (null there) its row and what was found.
    """
    plain = _TAKES.get(kind)
    if (plain is not None and set(map(type, values)) <= plain) or (
        plain is None and all(_fits(value, kind) for value in values)
    ):
        try:
            return pa.array(values, kind), []
        except (pa.ArrowException, OverflowError, ValueError):
            pass
    wrong = [
        (row, f"is {shown(value)}, and the column is {kind}")
        for row, value in enumerate(values)
        if not _is(value, kind)
    ]
    left = list(values)
    for row, _ in wrong:
        left[row] = None
    return pa.array(left, kind), wrong


def without_rows(batch: pa.RecordBatch, rows: Iterable[int]) -> pa.RecordBatch:
    """Return a batch without some of its rows."""
    keep = np.ones(len(batch), np.bool_)
    keep[list(rows)] = False
    return batch if keep.all() else pc.filter(batch, pa.array(keep))


_NONE: Final = type(None)
_TAKES: Final[dict[pa.DataType, set[type]]] = {
    pa.bool_(): {bool, _NONE},
    pa.int64(): {int, _NONE},
    pa.float64(): {float, int, _NONE},
    pa.utf8(): {str, _NONE},
}


def _is(value: Any, kind: pa.DataType) -> bool:
    """Whether one value fits, in its size too."""
    if not _fits(value, kind):
        return False
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, ValueError):
        return False
    return True


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    plain = _TAKES.get(kind)
    if plain is not None:
        return type(value) in plain
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_fits(each, kind.value_type) for each in value)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        kinds = {field.name: field.type for field in kind}
        return all(name in kinds and _fits(each, kinds[name]) for name, each in value.items() if each is not None)
    return False

"""Columns of values that Python's ``json`` read, one list per column: their Arrow type, and the values that it does not hold."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.sources.json.lines import LineParser
from spiral_stream.sources.json.parts import with_parts
from spiral_stream.sources.json.types import faults, settled
from spiral_stream.sources.schema import GIVE

_NONE: Final = type(None)
_TAKES: Final[dict[pa.DataType, set[type]]] = {
    pa.bool_(): {bool, _NONE},
    pa.int64(): {int, _NONE},
    pa.uint64(): {int, _NONE},
    pa.float64(): {float, _NONE},
    pa.utf8(): {str, _NONE},
}


def kept_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column whose values were merged to ``kind``; None for objects that have no fields."""
    if pa.types.is_list(kind):
        inner = kept_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = [(field.name, kept_type(field.type)) for field in kind]
        there = [(name, each) for name, each in fields if each is not None]
        return pa.struct(there) if there else None
    return settled(kind)


def column_of(
    name: str, values: Sequence[Any], kind: pa.DataType, *, is_declared: bool = False
) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Build a column.

    Args:
        name: of the column, for messages.
        values: as ``json`` reads them; None is null.
        kind: of the column.
        is_declared: whether a user said what the column is: then values are read as `Jsonl` reads them with ``schema=``.

    Returns:
        the column, and for each value that does not fit (null there) its row and what was found.
    """
    if set(map(type, values)) <= _TAKES.get(kind, set()):
        try:
            return pa.array(values, kind), []
        except (pa.ArrowException, OverflowError, ValueError):
            pass
    if is_declared and values:
        return _declared_column(name, values, kind)
    wrong = [(row, fault) for row, value in enumerate(values) if (fault := _fault(name, value, kind)) is not None]
    left = [_floats(with_parts(value, kind, name), kind) for value in values]
    for row, _ in wrong:
        left[row] = None
    return pa.array(left, kind), wrong


def _declared_column(name: str, values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Build a column of values that are written as lines of JSON again and read as those: 5 us per value."""
    parser = LineParser(pa.schema([(name, kind)]), known_only=False)
    lines = [json.dumps({name: value}).encode() for value in values]
    wrong: list[tuple[int, str]] = []
    table = parser.table(b"\n".join(lines), len(lines))
    if table is None:
        wrong = [(row, parser.fault(line)) for row, line in enumerate(lines) if parser.table(line, 1) is None]
        for row, _ in wrong:
            lines[row] = b"{}"
        table = parser.table(b"\n".join(lines), len(lines))
    assert table is not None  # each line was read alone
    return pa.concat_arrays(table.column(0).chunks), wrong


def without_rows(batch: pa.RecordBatch, rows: Iterable[int]) -> pa.RecordBatch:
    """Return a batch without some of its rows."""
    keep = np.ones(len(batch), np.bool_)
    keep[list(rows)] = False
    return batch if keep.all() else pc.filter(batch, pa.array(keep))


def _fault(name: str, value: Any, kind: pa.DataType) -> str | None:
    found = next(faults(_without_empty(value), kind, name, known_only=True), None)
    if found is not None:
        return found
    try:
        pa.array([_floats(with_parts(value, kind, name), kind)], kind)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        return f"column {name!r} is {kind}, which does not hold the value ({error}). {GIVE}"
    return None


def _without_empty(value: Any) -> Any:
    """A value without the fields that say nothing: columns are made of those that do."""
    if isinstance(value, dict):
        return {key: _without_empty(each) for key, each in value.items() if each is not None and each != {}}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value


def _floats(value: Any, kind: pa.DataType) -> Any:
    """A value whose whole numbers are floats where the column has floats: Arrow takes no whole number beyond 2^53."""
    if pa.types.is_float64(kind):
        return float(value) if type(value) is int else value
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_floats(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        kinds = {field.name: field.type for field in kind}
        return {key: _floats(each, kinds[key]) for key, each in value.items() if key in kinds}
    return value

"""What a user's function returns, as Arrow columns of the types that the plan states.

A value may be an Arrow array, a NumPy array with a row per sample, anything that NumPy reads (a CPU tensor of PyTorch),
or a list. Several columns come as a record batch, a table, a mapping, or one mapping per sample. What does not fit is
refused by column, with the sample where one can be told.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spiral_stream.dialects.offsets import unsliced
from spiral_stream.errors import DataError
from spiral_stream.host_dtypes import numpy_dtype

UNFIT: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError)
_MEND: Final = "State another returns=, or mend the function"


def column_of(values: Any, kind: pa.DataType, who: str) -> pa.Array:
    """Return values as an array of a type.

    Args:
        values: one per sample.
        kind: the type that the plan states.
        who: the function and the column, for messages.

    Raises:
        DataError: they do not fit; ``row`` is the first such sample, if it can be told.
    """
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            return unsliced(_cast(values, kind))  # rows of it will be chosen
        if hasattr(values, "__array__"):
            values = np.asarray(values)
        if isinstance(values, np.ndarray):
            return _of_numpy(values, kind, who)
        return _of_list(list(values), kind, who)
    except UNFIT as error:
        msg = f"{who}: returned {type(values).__name__} that is no {kind} ({error}). {_MEND}"
        row = first_unfit(values, kind) if isinstance(values, Sequence) and not isinstance(values, str) else None
        raise DataError(msg, row=row) from error


def need_rows(found: int, samples: int, who: str) -> None:
    """Refuse another number of values than there are samples.

    Raises:
        DataError: names both numbers; ``row`` is the first of the samples.
    """
    if found != samples:
        msg = (
            f"{who}: returned {found:,} values for {samples:,} samples, of which this is the first. "
            "Return one for each, in order"
        )
        raise DataError(msg, row=0)


def columns_of(found: Any, kind: pa.DataType, samples: int, who: str) -> pa.Array:
    """Return what a function of record batches gave as one array of structs: a child per column.

    Args:
        found: what it returned.
        kind: the struct of the columns that the plan states.
        samples: how many samples it was given.
        who: the function, for messages.

    Raises:
        DataError: a column is missing, has another number of values, another type or shape, or is null where
            it may not be.
    """
    given = _by_name(found, kind, who)
    columns = []
    for field in kind:
        where = f"{who}: column {field.name!r}"
        if field.name not in given:
            msg = f"{where} is missing; there are {', '.join(map(str, given)) or 'none'}. Return it, or drop it from returns="
            raise DataError(msg)
        column = column_of(given[field.name], field.type, where)
        need_rows(len(column), samples, where)
        need_values(column, field, where)
        columns.append(column)
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def need_values(column: pa.Array, field: pa.Field, where: str) -> None:
    """Refuse null in a column that is declared to have none.

    Raises:
        DataError: ``row`` is the first null.
    """
    if column.null_count and not field.nullable:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        msg = f"{where} is null, and returns= says that it is never. Return a value, or declare it nullable"
        raise DataError(msg, row=row)


def first_unfit(values: Sequence[Any], kind: pa.DataType) -> int | None:
    """Return the first value that is not of a type."""
    for row, value in enumerate(values):
        try:
            _of_list([value], kind, "")
        except (DataError, *UNFIT):
            return row
    return None


def _by_name(found: Any, kind: pa.DataType, who: str) -> dict[str, Any]:
    """The columns that a function returned, by name."""
    if isinstance(found, pa.RecordBatch | pa.Table):
        return {name: found.column(name) for name in found.schema.names}
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, pa.StructArray):
        return {field.name: found.field(field.name) for field in found.type}
    rows: list[Any] = list(found) if isinstance(found, Sequence) or hasattr(found, "__next__") else [None]
    if not all(isinstance(row, Mapping) for row in rows):
        what = type(found).__name__
        if isinstance(found, Sequence):
            what = f"{what} of {type(next(row for row in rows if not isinstance(row, Mapping))).__name__}"
        msg = f"{who}: returned {what}. Return a record batch, a table, a dict of columns, or a list with one dict per sample"
        raise DataError(msg)
    for row, each in enumerate(rows):
        lacking = next((field.name for field in kind if field.name not in each), None)
        if lacking is not None:
            there = ", ".join(map(str, each))
            msg = f"{who}: column {lacking!r} is missing; the sample's dict has {there}. Return it in every dict"
            raise DataError(msg, row=row)
    return {field.name: [row[field.name] for row in rows] for field in kind}


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    if isinstance(kind, pa.FixedShapeTensorType):
        storage = values.storage if isinstance(values, pa.ExtensionArray) else values
        if isinstance(values.type, pa.FixedShapeTensorType) and tuple(values.type.shape) != tuple(kind.shape):
            msg = f"its tensors have shape {_shape(values.type.shape)}, not {_shape(kind.shape)}"
            raise ValueError(msg)
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    return (values.storage if isinstance(values, pa.ExtensionArray) else values).cast(kind)


def _of_list(values: list[Any], kind: pa.DataType, who: str) -> pa.Array:
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, empty = tuple(kind.shape), numpy_dtype(kind.value_type)
        rows = [None if value is None else np.asarray(value) for value in values]
        wrong = next((row for row, each in enumerate(rows) if each is not None and each.shape != shape), None)
        if wrong is not None:
            raise DataError(_unlike(rows[wrong], shape, who), row=wrong)
        flat = np.stack([np.zeros(shape, empty) if each is None else each for each in rows]) if rows else None
        found = _of_numpy(np.zeros((0, *shape), empty) if flat is None else flat, kind, who)
        if None in [None if each is None else 0 for each in rows]:
            at = pa.array([None if each is None else row for row, each in enumerate(rows)], pa.int64())
            return pa.ExtensionArray.from_storage(kind, found.storage.take(at))
        return found
    plain = [np.asarray(value).tolist() if getattr(value, "ndim", 0) > 1 else value for value in values]
    return pa.array(plain, kind)


def _of_numpy(values: np.ndarray[Any, Any], kind: pa.DataType, who: str) -> pa.Array:
    """A row per sample: numbers, or arrays of one shape for tensors and fixed-size lists."""
    if isinstance(kind, pa.FixedShapeTensorType):
        if values.shape[1:] != tuple(kind.shape):
            raise DataError(_unlike(values[0] if len(values) else values, tuple(kind.shape), who), row=0)
        return pa.ExtensionArray.from_storage(kind, _nested(values, kind.storage_type))
    if values.ndim > 1 and pa.types.is_fixed_size_list(kind):
        shape, inner = [], kind
        while pa.types.is_fixed_size_list(inner):
            shape.append(inner.list_size)
            inner = inner.value_type
        if values.shape[1:] == tuple(shape):
            return _nested(values, kind)
        raise DataError(_unlike(values[0] if len(values) else values, tuple(shape), who), row=0)
    return pa.array(values.tolist() if values.ndim > 1 else values, kind)


def _nested(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """An array of fixed-size lists, nested or one long one per row, from numbers in the order of their bytes."""
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(np.ascontiguousarray(values).reshape(-1)).cast(kind)
    items = _nested(values, kind.value_type)
    if not kind.list_size:
        return pa.array([[]] * len(values), kind)
    return pa.FixedSizeListArray.from_arrays(items, type=kind)


def _unlike(value: Any, shape: tuple[int, ...], who: str) -> str:
    return f"{who}: returned shape {_shape(value.shape)} for a sample, and returns= says {_shape(shape)}. {_MEND}"


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"

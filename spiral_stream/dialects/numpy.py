"""The meaning of an expression, computed with NumPy: the reference for every engine.

Also used on rows after sampling and for conjuncts that an engine cannot express.
A value is a pair (data, valid); data under ``valid == False`` is arbitrary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from spiral_stream.dialects.arrow import constants_of
from spiral_stream.errors import DataError
from spiral_stream.expr import FUNCTIONS, Alias, Call, Cast, Col, Expr, Lit, bind, bind_predicate, kind_of, type_of
from spiral_stream.host_dtypes import numpy_dtype
from spiral_stream.seeding import combine, key

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Columns = Mapping[str, Array | pa.Array | pa.ChunkedArray]
Values = tuple[Array, Bools]

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.remainder,
}
_OF_ONE: Final[dict[str, Callable[[Any], Any]]] = {"not": np.invert, "neg": np.negative, "is_nan": np.isnan}
_ASCII_LOWER: Final = {a: a + 32 for a in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER: Final = {a: a - 32 for a in range(ord("a"), ord("z") + 1)}


def evaluate(expr: Expr, columns: Columns) -> Array:
    """Return the expression's value for each row; for a condition, whether the row passes.

    Args:
        expr: on the given columns.
        columns: N values each, NumPy or Arrow.

    Returns:
        shape [N]: bool for a condition (null does not pass), else the type of the expression.

    Raises:
        PlanError: the expression does not fit the columns' types.
        DataError: a value that is not a condition is missing; the message names the first row.
    """
    data, valid = evaluate_nullable(expr, columns)
    if data.dtype == np.bool_:
        return data & valid
    if not valid.all():
        row = int(np.flatnonzero(~valid)[0])
        msg = f"{expr} is null in row {row} of {len(valid)}. Filter such rows out with ~{_operand(expr)}.is_null()"
        raise DataError(msg)
    return data


def passes(predicate: Expr, columns: Columns) -> Bools:
    """Shape [N], bool: the rows for which ``predicate`` is true.

    Raises:
        PlanError: it is not a condition, or does not fit the columns' types.
    """
    bound = bind_predicate(predicate, _schema(columns))
    data, valid = evaluate_nullable(bound, columns)
    return data & valid


def to_column(expr: Expr, columns: Columns, rows: int) -> pa.Array:
    """Return the expression as a column of its own type, null where it has no value.

    Args:
        expr: on the given columns.
        columns: ``rows`` values each, NumPy or Arrow.
        rows: how many; a constant has no column to count.

    Raises:
        PlanError: the expression does not fit the columns' types.
    """
    if isinstance(expr, Lit) and expr.value is None and expr.type is not None:
        return pa.nulls(rows, expr.type)
    schema = _schema(columns)
    bound, kind = bind(expr, schema), type_of(expr, schema)
    with np.errstate(all="ignore"):
        if isinstance(bound, Call) and bound.op in FUNCTIONS:
            return _one_array(_Evaluation(columns, rows).arrow(bound)).cast(kind)
        data, valid = _Evaluation(columns, rows).value(bound)
    data, valid = np.broadcast_to(data, rows), np.broadcast_to(valid, rows)
    return pa.array(data, mask=~valid).cast(kind) if rows else pa.array([], kind)


def evaluate_nullable(expr: Expr, columns: Columns) -> Values:
    """Return the expression's values, and where there are any: two arrays of shape [N].

    Raises:
        PlanError: the expression does not fit the columns' types.
    """
    bound = bind(expr, _schema(columns))
    rows = len(next(iter(columns.values()))) if columns else 0
    with np.errstate(all="ignore"):
        data, valid = _Evaluation(columns, rows).value(bound)
    return np.broadcast_to(data, rows).copy(), np.broadcast_to(valid, rows).copy()


class _Evaluation:
    def __init__(self, columns: Columns, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self._columns: dict[str, Values] = {}
        self._hashes: dict[tuple[str, int], Values] = {}  # parts of a split compare one hash with many borders,
        self._coded: dict[str, tuple[Array, pa.Array] | None] = {}  # and one label with many lists

    def value(self, expr: Expr) -> Values:  # noqa: C901, PLR0911  one return a kind of node
        if isinstance(expr, Col):
            if expr.name not in self._columns:
                self._columns[expr.name] = _from_column(self.columns[expr.name])
            return self._columns[expr.name]
        if isinstance(expr, Lit):
            return _from_literal(expr)
        if isinstance(expr, Alias):
            return self.value(expr.source)
        if isinstance(expr, Cast):
            return self.cast(expr)
        assert isinstance(expr, Call)
        if expr.op in FUNCTIONS:
            return _from_column(self.arrow(expr))
        if expr.op in ("is_null", "len"):
            return self.of_column(expr)
        if expr.op == "hash" and isinstance(expr.args[0], Col):
            return self.hash_of(expr.args[0], expr.args[1])
        if expr.op == "is_in" and isinstance(expr.args[0], Col):
            found = self.listed(expr.args[0].name, expr.args[1:])
            if found is not None:
                return found
        args = [self.value(arg) for arg in expr.args]
        return _call(expr.op, args)

    def hash_of(self, column: Col, seed: Expr) -> Values:
        """The hash of a column, which is computed once."""
        assert isinstance(seed, Lit)
        hashed = column.name, int(seed.value)  # type: ignore[arg-type]  # an integer, by binding
        if hashed not in self._hashes:
            data, valid = self.value(column)
            self._hashes[hashed] = _hashes(data, hashed[1]), valid
        return self._hashes[hashed]

    def listed(self, name: str, options: Sequence[Expr]) -> Values | None:
        """Whether a column's integers, texts or bytes are among constants; None of other types.

        A second list looks up the column's distinct values alone: 2 ms per million rows, whatever the lists' lengths.
        """
        array = _one_array(_arrow(self.columns[name]))
        array = array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array
        if kind_of(array.type) not in ("int", "text", "binary"):
            return None
        wanted = pa.array([option.value for option in options if isinstance(option, Lit)], array.type)
        valid = np.asarray(pc.is_valid(array))
        if name not in self._coded:
            self._coded[name] = None
            return np.asarray(pc.is_in(array, value_set=wanted)), valid
        coded = self._coded[name]
        if coded is None:
            encoded = array.dictionary_encode()
            coded = self._coded[name] = np.asarray(encoded.indices.fill_null(0)), encoded.dictionary
        indices, values = coded
        hits = np.append(np.asarray(pc.is_in(values, value_set=wanted)), [False])
        return hits[indices], valid

    def arrow(self, expr: Expr) -> Any:
        """The value as an array of Arrow (or a scalar, of a constant): what the functions of the table take and give."""
        if isinstance(expr, Col):
            return _arrow(self.columns[expr.name])
        if isinstance(expr, Call) and expr.op in FUNCTIONS:
            function = FUNCTIONS[expr.op]
            return function.compute(*map(self.arrow, expr.args[: function.values]), *constants_of(expr))
        if isinstance(expr, Lit):
            return pa.scalar(expr.value, expr.type)
        kind = type_of(expr, _schema(self.columns))
        if isinstance(expr, Cast) and kind_of(kind) in ("text", "binary"):
            return self.arrow(expr.source).cast(kind)
        data, valid = self.value(expr)
        return pa.array(np.broadcast_to(data, self.rows), mask=~np.broadcast_to(valid, self.rows)).cast(kind)

    def cast(self, expr: Cast) -> Values:
        data, valid = self.value(expr.source)
        if kind_of(expr.type) in ("int", "float"):
            return data.astype(numpy_dtype(expr.type)), valid
        return data, valid

    def of_column(self, expr: Call) -> Values:
        """Functions that need no values, or those of a nested column."""
        source = expr.args[0]
        if isinstance(source, Col) or (isinstance(source, Call) and source.op in FUNCTIONS):
            array = self.arrow(source)
            valid = np.asarray(pc.is_valid(array))
            if expr.op == "is_null":
                return ~valid, np.ones_like(valid)
            if kind_of(array.type) == "list":
                return np.asarray(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64), valid
        data, valid = self.value(source)
        if expr.op == "is_null":
            return ~np.broadcast_to(valid, self.rows), np.ones(self.rows, bool)
        return np.fromiter((len(v) for v in data), np.int64, len(data)), valid


def _call(op: str, args: list[Values]) -> Values:  # noqa: PLR0911  one return a kind of operator
    if op in ("and", "or"):
        return _kleene(op, args)
    (data, valid), rest = args[0], args[1:]
    if op in _OF_ONE:
        return _OF_ONE[op](data), valid
    if op == "is_in":
        hits = [np.equal(data, option).astype(bool) for option, _ in rest]
        return np.logical_or.reduce(hits), valid
    if op == "hash":
        return _hashes(data, int(rest[0][0])), valid
    if op in ("lower", "upper"):
        table = _ASCII_LOWER if op == "lower" else _ASCII_UPPER
        return _objects(v.translate(table) for v in data), valid
    if op in ("starts_with", "ends_with", "contains"):
        part = rest[0][0].item()
        tests = {"starts_with": str.startswith, "ends_with": str.endswith, "contains": str.__contains__}
        return np.fromiter((tests[op](v, part) for v in data), bool, len(data)), valid
    (other, other_valid) = rest[0]
    both = valid & other_valid
    if op in ("//", "%"):
        both = both & (other != 0)
    if op in _COMPARE:
        return np.asarray(_COMPARE[op](data, other)).astype(bool), both
    return _ARITHMETIC[op](data, other), both


def _hashes(values: Array, seed: int) -> Array:
    """Of integers: SplitMix64 over (seed, value). Of texts and bytes: XXH3-64 of the bytes, then the same."""
    if values.dtype == object:
        digest = xxhash.xxh3_64_intdigest
        words = (digest(v.encode() if isinstance(v, str) else v) for v in values)
        keyed = combine(np.uint64(key("hash", "bytes", seed)), np.fromiter(words, np.uint64, len(values)))
    else:
        integers = np.asarray(values).astype(np.uint64 if values.dtype == np.uint64 else np.int64)
        keyed = combine(np.uint64(key("hash", "integer", seed)), integers.view(np.uint64))
    return (keyed >> np.uint64(1)).astype(np.int64)


def _kleene(op: str, args: list[Values]) -> Values:
    decides = op == "or"  # one true operand decides OR, one false operand decides AND
    data, valid = args[0]
    for other, other_valid in args[1:]:
        settled = (valid & (data == decides)) | (other_valid & (other == decides))
        valid = settled | (valid & other_valid)
        data = settled if decides else ~settled
    return data, valid


def _schema(columns: Columns) -> pa.Schema:
    return pa.schema([(name, _type(values)) for name, values in columns.items()])


def _type(values: Array | pa.Array | pa.ChunkedArray) -> pa.DataType:
    if not isinstance(values, np.ndarray):
        return values.type
    if values.dtype.kind in "OUT":
        return _arrow(values).type
    return pa.from_numpy_dtype(values.dtype)


def _arrow(values: Array | pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if not isinstance(values, np.ndarray):
        return values
    return pa.array(values.astype(object) if values.dtype.kind in "UT" else values, from_pandas=False)


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    found = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _from_column(values: Array | pa.Array | pa.ChunkedArray) -> Values:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values, np.ones(len(values), bool)
    array = _arrow(values)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    valid = np.asarray(pc.is_valid(array))
    kind = kind_of(array.type)
    if kind in ("time", "date"):
        array = array.cast(pa.int32() if kind == "date" else pa.int64())
        kind = "int"
    if kind in ("bool", "int", "float"):
        filled = pc.fill_null(array, pa.scalar(0).cast(array.type)) if array.null_count else array
        return filled.to_numpy() if isinstance(filled, pa.ChunkedArray) else filled.to_numpy(
            zero_copy_only=False
        ), valid
    blank: str | bytes = b"" if kind == "binary" else ""
    return _objects(blank if v is None else v for v in array.to_pylist()), valid


def _from_literal(literal: Lit) -> Values:
    assert literal.type is not None
    kind = kind_of(literal.type)
    valid = np.asarray(literal.value is not None)
    if kind in ("int", "float"):
        return np.asarray(literal.value, numpy_dtype(literal.type)), valid
    if kind in ("time", "date"):
        return np.asarray(literal.value, np.int64), valid
    if kind == "bool":
        return np.asarray(bool(literal.value)), valid
    data = np.empty((), dtype=object)
    data[()] = literal.value
    return data, valid


def _objects(values: Any) -> Array:
    items = list(values)
    data = np.empty(len(items), dtype=object)
    data[:] = items
    return data


def _operand(expr: Expr) -> str:
    names = sorted(expr.columns())
    return f"col({names[0]!r})" if names else str(expr)

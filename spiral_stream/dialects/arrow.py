"""Lower expressions to pyarrow: `to_arrow` for rows in memory, `to_parquet` for scans with statistics."""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.dialects.pushdown import Inexpressible
from spiral_stream.expr import FUNCTIONS, Alias, Call, Cast, Col, Expr, Lit, bind, kind_of, type_of

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_ARITHMETIC: Final = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}
_TEXT: Final = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring}


def to_arrow(expr: Expr, schema: pa.Schema) -> pc.Expression:
    """Lower an expression for ``pyarrow.dataset`` and ``Table.filter``.

    Raises:
        Inexpressible: Arrow has no exact form (division by a column that may be zero).
        PlanError: the expression does not fit the schema.
    """
    return _lower(bind(expr, schema), schema)


def to_parquet(expr: Expr, schema: pa.Schema) -> pc.Expression:
    """Lower a predicate for a dataset with statistics, as the row groups of Parquet.

    Row-group statistics leave NaN out, so Arrow drops groups whose NaN rows should pass:
    with values {0.7, NaN}, ``d != 0.7`` is "never true". Conditions that NaN can meet are
    therefore not pushed into a scan; use `to_arrow` on its batches.

    Raises:
        Inexpressible: Arrow has no exact form.
        PlanError: the expression does not fit the schema.
    """
    bound = bind(expr, schema)
    for node in bound.walk():
        if isinstance(node, Call) and node.op in FUNCTIONS:
            raise Inexpressible  # statistics of a column say nothing of its functions, and hide NaN from them
        if isinstance(node, Call) and node.op in ("not", "!=", "is_nan") and _compares_floats(node, schema):
            raise Inexpressible
    return _lower(bound, schema)


def _compares_floats(expr: Call, schema: pa.Schema) -> bool:
    tests = (*_COMPARE, "!=", "is_in", "is_nan")
    return any(
        isinstance(node, Call) and node.op in tests and kind_of(type_of(node.args[0], schema)) == "float"
        for node in expr.walk()
    )


def _lower(expr: Expr, schema: pa.Schema) -> pc.Expression:  # noqa: PLR0911  one return a kind of node
    if isinstance(expr, Col):
        return pc.field(expr.name)
    if isinstance(expr, Lit):
        return pc.scalar(pa.scalar(expr.value, expr.type))
    if isinstance(expr, Alias):
        return _lower(expr.source, schema)
    if isinstance(expr, Cast):
        return _cast(expr, schema)
    assert isinstance(expr, Call)
    if expr.op in FUNCTIONS:
        return _tabled(expr, schema)
    args = [_lower(arg, schema) for arg in expr.args]
    if expr.op in _COMPARE or expr.op == "!=":
        return _compare(expr, args, schema)
    if expr.op in _ARITHMETIC:
        return _ARITHMETIC[expr.op](*args)
    if expr.op in _TEXT:
        part = expr.args[1]
        assert isinstance(part, Lit)
        return _TEXT[expr.op](args[0], pattern=part.value)
    if expr.op in ("//", "%"):
        return _floored(expr, args)
    return _function(expr, args, schema)


def _tabled(expr: Call, schema: pa.Schema) -> pc.Expression:
    function = FUNCTIONS[expr.op]
    if not function.lowers:
        raise Inexpressible
    values = [_lower(arg, schema) for arg in expr.args[: function.values]]
    return function.compute(*values, *constants_of(expr))


def constants_of(expr: Call) -> list[Any]:
    """Return the constants of a bound call of `FUNCTIONS`, which follow its values."""
    return [arg.value for arg in expr.args[FUNCTIONS[expr.op].values :] if isinstance(arg, Lit)]


def _cast(expr: Cast, schema: pa.Schema) -> pc.Expression:
    result = _lower(expr.source, schema).cast(expr.type, safe=False)
    if kind_of(expr.type) == "float" and kind_of(type_of(expr.source, schema)) == "int":
        # Adding -0.0 changes no float. It hides the cast from Arrow, which otherwise moves it to the
        # bounds of row-group statistics and fails on those past 2**53.
        return pc.add(result, pc.scalar(pa.scalar(-0.0, expr.type)))
    return result


def _compare(expr: Call, args: list[pc.Expression], schema: pa.Schema) -> pc.Expression:
    left, right = args
    result = _COMPARE["==" if expr.op == "!=" else expr.op](left, right)
    if kind_of(type_of(expr.args[0], schema)) == "float":
        sides = [side for arg, side in zip(expr.args, args, strict=True) if not isinstance(arg, Lit)]
        for side, other in zip(sides, sides[::-1], strict=True):
            nan = pc.is_nan(side)  # where the other side is null the comparison stays null
            result = result & ~(nan if len(sides) == 1 else nan & other.is_valid())
    return ~result if expr.op == "!=" else result


def _floored(expr: Call, args: list[pc.Expression]) -> pc.Expression:
    divisor = expr.args[1]
    if not isinstance(divisor, Lit) or not isinstance(divisor.value, int) or divisor.value <= 0:
        raise Inexpressible
    value, by = args
    minus_one = pc.scalar(pa.scalar(-1, pa.int64()))
    below = pc.subtract(minus_one, pc.divide(pc.subtract(minus_one, value), by))  # Arrow divides towards zero
    quotient = pc.if_else(value >= pc.scalar(pa.scalar(0, pa.int64())), pc.divide(value, by), below)
    return quotient if expr.op == "//" else pc.subtract(value, pc.multiply(quotient, by))


def _function(expr: Call, args: list[pc.Expression], schema: pa.Schema) -> pc.Expression:  # noqa: PLR0911  a table
    first = args[0]
    if expr.op == "and":
        return _fold(args, lambda a, b: a & b)
    if expr.op == "or":
        return _fold(args, lambda a, b: a | b)
    if expr.op == "not":
        return ~first
    if expr.op == "neg":
        return pc.negate(first)
    if expr.op == "is_null":
        return first.is_null()
    if expr.op == "is_nan":
        return pc.is_nan(first)
    if expr.op == "is_in":
        return _is_in(expr, first)
    if expr.op in ("lower", "upper"):
        return pc.ascii_lower(first) if expr.op == "lower" else pc.ascii_upper(first)
    if expr.op == "hash":
        raise Inexpressible
    assert expr.op == "len"
    measure = {"text": pc.utf8_length, "binary": pc.binary_length, "list": pc.list_value_length}
    return measure[kind_of(type_of(expr.args[0], schema))](first).cast(pa.int64())


def _fold(args: list[pc.Expression], joined: Callable[[Any, Any], Any]) -> pc.Expression:
    result = args[0]
    for arg in args[1:]:
        result = joined(result, arg)
    return result


def _is_in(expr: Call, first: pc.Expression) -> pc.Expression:
    options = [arg for arg in expr.args[1:] if isinstance(arg, Lit)]
    values = [option.value for option in options]
    if any(type(value) is float and value == 0 for value in values):
        values.append(-0.0)  # Arrow's hash tells the zeros apart
    null = pc.scalar(pa.scalar(None, pa.bool_()))
    return first.isin(pa.array(values, options[0].type)) | (first.is_null() & null)

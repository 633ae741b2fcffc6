"""One spelling for one meaning: the normal form of an expression, and its JSON.

The JSON is a nested list: ``["col", name]``, ``["lit", type, value]``, ``["cast", type, x]``,
``["alias", name, x]``, ``[op, *args]``. Floats are written by bit pattern (`float.hex`),
so that a fingerprint sees exactly the constant that rows are compared with.
"""

import json
import math
from typing import Any, Final

import pyarrow as pa

from spiral_stream.errors import PlanError
from spiral_stream.expr.binding import bind
from spiral_stream.expr.nodes import ARITHMETIC, COMPARISONS, TEXT_MAPS, TEXT_TESTS, Alias, Call, Cast, Col, Expr, Lit

_OPS: Final = frozenset(
    (*COMPARISONS, *ARITHMETIC, *TEXT_TESTS, *TEXT_MAPS, "and", "or", "not", "neg", "is_in", "is_null", "is_nan", "len")
)


def canonical(expr: Expr, schema: pa.Schema) -> Expr:
    """The bound expression in normal form: equal for predicates that differ only in spelling.

    Comparisons have the column first, AND, OR, ``is_in`` and the operands of ``+`` and ``*``
    are sorted (AND and OR flattened and without repeats), ``~~x`` is ``x``.

    Raises:
        PlanError: as `bind`.
    """
    return _normal(bind(expr, schema))


def _normal(expr: Expr) -> Expr:  # noqa: PLR0911  one return a kind of node
    if isinstance(expr, Cast):
        return Cast(_normal(expr.source), expr.type)
    if isinstance(expr, Alias):
        return Alias(_normal(expr.source), expr.name)
    if not isinstance(expr, Call):
        return expr
    args = tuple(_normal(arg) for arg in expr.args)
    if expr.op in ("and", "or"):
        flat = [part for a in args for part in (a.args if isinstance(a, Call) and a.op == expr.op else (a,))]
        unique = {_text(part): part for part in flat}
        parts = tuple(unique[key] for key in sorted(unique))
        return parts[0] if len(parts) == 1 else Call(expr.op, parts)
    if expr.op == "not" and isinstance(args[0], Call) and args[0].op == "not":
        return args[0].args[0]
    if expr.op in COMPARISONS and not isinstance(args[1], Lit) and _text(args[1]) < _text(args[0]):
        return Call(COMPARISONS[expr.op], args[::-1])
    if expr.op in COMPARISONS:
        return Call(expr.op, (args[0], _one_zero(args[1])))
    if expr.op in ("+", "*"):
        return Call(expr.op, tuple(sorted(args, key=_text)))
    if expr.op == "is_in":
        options = tuple(sorted(args[1:], key=_text))
        return Call("is_in", (args[0], *options)) if len(options) > 1 else Call("==", (args[0], *options))
    return Call(expr.op, args)


def _one_zero(expr: Expr) -> Expr:
    return Lit(0.0, expr.type) if isinstance(expr, Lit) and type(expr.value) is float and expr.value == 0 else expr


def _text(expr: Expr) -> str:
    return json.dumps(to_json(expr), ensure_ascii=False)


def to_json(expr: Expr) -> list[Any]:
    """The expression as nested lists of JSON values."""
    if isinstance(expr, Col):
        return ["col", expr.name]
    if isinstance(expr, Lit):
        return ["lit", *_value_to_json(expr)]
    if isinstance(expr, Cast):
        return ["cast", _type_to_text(expr.type), to_json(expr.source)]
    if isinstance(expr, Alias):
        return ["alias", expr.name, to_json(expr.source)]
    assert isinstance(expr, Call)
    return [expr.op, *(to_json(arg) for arg in expr.args)]


def from_json(data: list[Any]) -> Expr:
    """The inverse of `to_json`.

    Raises:
        PlanError: ``data`` is not such a list.
    """
    try:
        op, rest = data[0], data[1:]
        if op == "col":
            return Col(*rest)
        if op == "lit":
            return _value_from_json(*rest)
        if op == "cast":
            return Cast(from_json(rest[1]), _type_from_text(rest[0]))
        if op == "alias":
            return Alias(from_json(rest[1]), rest[0])
        if op in _OPS:
            return Call(op, tuple(from_json(arg) for arg in rest))
    except (TypeError, ValueError, IndexError, KeyError) as error:
        msg = f"expression: {json.dumps(data)[:200]} is not a saved expression ({error}). Save the plan again"
        raise PlanError(msg) from error
    msg = f"expression: {op!r} is unknown to this version. Load it with the version that saved it"
    raise PlanError(msg)


def _value_to_json(literal: Lit) -> tuple[str, Any]:
    value = literal.value
    kind = _type_to_text(literal.type) if literal.type is not None else f"python {type(value).__name__}"
    if isinstance(value, float):
        return kind, "nan" if math.isnan(value) else value.hex()
    if isinstance(value, bytes):
        return kind, value.hex()
    if type(value) is int:
        return kind, str(value)  # JSON numbers are doubles to many readers
    return kind, value


def _value_from_json(kind: str, value: Any) -> Lit:
    type_ = None if kind.startswith("python ") else _type_from_text(kind)
    if isinstance(value, str):
        name = kind.removeprefix("python ")
        if name == "float" or (type_ is not None and pa.types.is_floating(type_)):
            return Lit(float.fromhex(value), type_)
        if name == "bytes" or (type_ is not None and (pa.types.is_binary(type_) or pa.types.is_large_binary(type_))):
            return Lit(bytes.fromhex(value), type_)
        if name == "int" or (type_ is not None and (pa.types.is_integer(type_) or pa.types.is_temporal(type_))):
            return Lit(int(value), type_)
    return Lit(value, type_)


def _type_to_text(type_: pa.DataType) -> str:
    return str(type_)


def _type_from_text(text: str) -> pa.DataType:
    if text.startswith("timestamp[") and ", tz=" in text:
        unit, zone = text.removeprefix("timestamp[").removesuffix("]").split(", tz=")
        return pa.timestamp(unit, tz=zone)
    return pa.type_for_alias({"float": "float32", "double": "float64", "date32[day]": "date32"}.get(text, text))

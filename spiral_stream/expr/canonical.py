"""The normal form of an expression, equal for equal meanings, and its JSON.

The JSON is a nested list: ``["col", name]``, ``["lit", type, value]``, ``["cast", type, x]``,
``["alias", name, x]``, ``[op, *args]``. Floats are written by bit pattern (`float.hex`),
so that a fingerprint sees exactly the constant that rows are compared with.
"""

import json
import math
from typing import Any, Final

import pyarrow as pa

from spiral_stream.errors import PlanError, shown
from spiral_stream.expr.binding import bind, kind_of
from spiral_stream.expr.functions import FUNCTIONS
from spiral_stream.expr.nodes import ARITHMETIC, COMPARISONS, TEXT_MAPS, TEXT_TESTS, Alias, Call, Cast, Col, Expr, Lit

_MANY: Final = 2**31
_OPS: Final = {  # operators, and the least and most arguments that they take
    **dict.fromkeys((*COMPARISONS, *ARITHMETIC, *TEXT_TESTS, "hash"), (2, 2)),
    **dict.fromkeys((*TEXT_MAPS, "not", "neg", "is_null", "is_nan", "len"), (1, 1)),
    "and": (2, _MANY),
    "or": (2, _MANY),
    "is_in": (1, _MANY),
    **{name: function.arity for name, function in FUNCTIONS.items()},
}


def canonical(expr: Expr, schema: pa.Schema) -> Expr:
    """Return the bound expression in normal form: equal for predicates that differ only in spelling.

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
    args = tuple(map(_normal, expr.args))
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
    """Return the expression as nested lists of JSON values."""
    if isinstance(expr, Col):
        return ["col", expr.name]
    if isinstance(expr, Lit):
        return ["lit", *_value_to_json(expr)]
    if isinstance(expr, Cast):
        return ["cast", _type_to_text(expr.type), to_json(expr.source)]
    if isinstance(expr, Alias):
        return ["alias", expr.name, to_json(expr.source)]
    assert isinstance(expr, Call)
    return [expr.op, *map(to_json, expr.args)]


def from_json(data: object) -> Expr:
    """Return the inverse of `to_json`.

    Raises:
        PlanError: ``data`` is not such a list.
    """
    op, rest = (data[0], data[1:]) if isinstance(data, list) and data else (None, [])
    if not isinstance(op, str) or op not in ("col", "lit", "cast", "alias", *_OPS):
        found = data if op is None else op
        msg = f"expression: {shown(found)} is unknown to this version. Load it with the version that saved it"
        raise PlanError(msg)
    try:
        if op == "lit":
            kind, value = rest
            return _value_from_json(_text_of(kind), value)
        if op == "col":
            (name,) = rest
            return Col(_text_of(name))
        if op in ("cast", "alias"):
            what, source = rest
            inner = from_json(source)
            return Cast(inner, _type_from_text(_text_of(what))) if op == "cast" else Alias(inner, _text_of(what))
    except (TypeError, ValueError, KeyError) as error:
        raise _unreadable(data, str(error)) from error
    least, most = _OPS[op]
    if not least <= len(rest) <= most:
        raise _unreadable(
            data, f"{op!r} takes {least} {'values' if least == most else 'or more values'}, here are {len(rest)}"
        )
    return Call(op, tuple(map(from_json, rest)))


def _unreadable(data: object, why: str) -> PlanError:
    return PlanError(f"expression: {json.dumps(data):.200} is not a saved expression ({why:.200}). Save the plan again")


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        msg = f"{value!r:.80} is no text"
        raise TypeError(msg)
    value.encode()  # half a character is refused, as a ValueError
    return value


_NULL: Final = "null "  # before the schema of a type that has no name, in hexadecimal digits


def _value_to_json(literal: Lit) -> tuple[str, Any]:
    value = literal.value
    if value is None and literal.type is not None and pa.types.is_nested(literal.type):
        return _NULL + pa.schema([("", literal.type)]).serialize().to_pybytes().hex(), None
    kind = _type_to_text(literal.type) if literal.type is not None else f"python {type(value).__name__}"
    if isinstance(value, float):
        return kind, "nan" if math.isnan(value) else value.hex()
    if isinstance(value, bytes):
        return kind, value.hex()
    if type(value) is int:
        return kind, str(value)  # JSON numbers are doubles to many readers
    return kind, value


def _value_from_json(kind: str, value: object) -> Lit:  # noqa: PLR0911  one return a kind of value
    if kind.startswith(_NULL) and value is None:
        return Lit(None, pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(kind.removeprefix(_NULL)))).field(0).type)
    name = kind.removeprefix("python ")
    type_ = None if name != kind else _type_from_text(kind)
    if type_ is not None:
        kinds = {"time": "int", "date": "int", "text": "str", "binary": "bytes"}
        name = "NoneType" if value is None else kinds.get(kind_of(type_), kind_of(type_))
    if name == "NoneType" and value is None:
        return Lit(None, type_)
    if name == "bool" and isinstance(value, bool):
        return Lit(value, type_)
    if name == "float":
        return Lit(float.fromhex(_text_of(value)), type_)
    if name == "bytes":
        return Lit(bytes.fromhex(_text_of(value)), type_)
    if name == "str":
        return Lit(_text_of(value), type_)
    if name == "int":
        number = int(_text_of(value))
        return Lit(number if type_ is None else _in_range(number, type_), type_)
    msg = f"{value!r:.80} is no constant of type {kind:.80}"
    raise ValueError(msg)


def _in_range(number: int, type_: pa.DataType) -> int:
    """A typed constant, in the integers that values of its type are stored as."""
    bits = 32 if pa.types.is_date32(type_) else 64
    least, most = -(2 ** (bits - 1)), 2**64 if pa.types.is_uint64(type_) else 2 ** (bits - 1)
    if not least <= number < most:
        msg = f"{number} is beyond {type_}"
        raise ValueError(msg)
    return number


def _type_to_text(type_: pa.DataType) -> str:
    return str(type_)


def _type_from_text(text: str) -> pa.DataType:
    if text.startswith("timestamp[") and ", tz=" in text:
        unit, zone = text.removeprefix("timestamp[").removesuffix("]").split(", tz=")
        return pa.timestamp(unit, tz=zone)
    return pa.type_for_alias({"float": "float32", "double": "float64", "date32[day]": "date32"}.get(text, text))

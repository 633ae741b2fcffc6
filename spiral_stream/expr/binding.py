"""What an expression means on a given schema: every operand typed, every conversion written down.

The bound tree is what dialects lower and fingerprints hash. Its rules, equal on every engine:

* A literal takes the type of the column it is compared with: ``0.7`` becomes float32(0.7) on a float32 column.
  Integer, date and time columns keep its exact value: ``i >= 2.5`` is ``i > 2``, and a bound out of range always or never met.
* NaN compares as in IEEE 754 and NumPy: ``== < <= > >=`` are false, ``!=`` is true, so ``~(d >= x)`` keeps NaN rows and
  ``d < x`` does not. ``-0.0 == 0.0``.
* A missing operand makes a comparison or arithmetic null; ``& | ~`` are three-valued; a filter passes rows that are true.
* Arithmetic on integers is int64 and wraps; with a float, or ``/``, it is float64. ``/`` is true
  division (by zero: inf or NaN). ``//`` and ``%`` take integers, are floored, and null by zero.
* ``hash`` of an integer is that of its value, whatever its width. It takes no dates and times, and no floats.
* Text compares by code point; ``len`` of text counts code points. ``expr.lower()`` is of Unicode 14 (`letters`), and
  ``expr.str.lower()`` of ASCII.
* What else there is stands in `functions`: one entry per function.
"""

import difflib
import math
from fractions import Fraction
from functools import cache
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa

from spiral_stream.errors import PlanError
from spiral_stream.expr.functions import FUNCTIONS
from spiral_stream.expr.nodes import (
    ARITHMETIC,
    COMPARISONS,
    TEXT_MAPS,
    TEXT_TESTS,
    Alias,
    Call,
    Cast,
    Col,
    Expr,
    Lit,
)
from spiral_stream.host_dtypes import numpy_dtype

BOOL: Final = pa.bool_()
INT: Final = pa.int64()
FLOAT: Final = pa.float64()
_TICKS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY: Final = 86_400
_ORDERED: Final = ("int", "float", "text", "binary", "time", "date")


def bind(expr: Expr, schema: pa.Schema) -> Expr:
    """Return the expression with every literal and conversion typed by ``schema``.

    Binding a bound expression changes nothing.

    Raises:
        PlanError: a column is unknown (near matches are named), or types do not fit.
    """
    bound, kind = _bind(expr, schema)
    if kind is not None:
        return bound
    assert isinstance(bound, Lit)  # all else has a type
    if bound.value is None:
        _refuse(expr, "None has no type of its own", "Use a column, or a constant with a value")
    if type(bound.value) is int and not -(2**63) <= bound.value < 2**63:
        _refuse(expr, f"{bound.value} does not fit int64", "Use a smaller number or a float")
    return Lit(bound.value, pa.scalar(bound.value).type)


def bind_predicate(expr: Expr, schema: pa.Schema) -> Expr:
    """`bind`, for an expression that filters rows.

    Raises:
        PlanError: as `bind`, or the value is not boolean.
    """
    bound, kind = _bind(expr, schema)
    if kind is None or not pa.types.is_boolean(kind):
        msg = f"filter: {expr} is {kind or 'a constant'}, not a condition. Compare it with something"
        raise PlanError(msg)
    return bound


def type_of(expr: Expr, schema: pa.Schema) -> pa.DataType:
    """Return the Arrow type of the expression's value on ``schema``.

    Raises:
        PlanError: as `bind`.
    """
    kind = _bind(bind(expr, schema), schema)[1]
    assert kind is not None  # a bound expression is typed
    return kind


@cache
def kind_of(type_: pa.DataType) -> str:
    """One of bool, int, float, text, binary, time, date, list, struct, other."""
    t = pa.types
    table = {
        "bool": t.is_boolean,
        "int": t.is_integer,
        "float": lambda x: t.is_float32(x) or t.is_float64(x),
        "text": lambda x: t.is_string(x) or t.is_large_string(x),
        "binary": lambda x: t.is_binary(x) or t.is_large_binary(x),
        "time": t.is_timestamp,
        "date": t.is_date32,
        "list": lambda x: t.is_list(x) or t.is_large_list(x) or t.is_fixed_size_list(x),
        "struct": t.is_struct,
    }
    return next((name for name, holds in table.items() if holds(type_)), "other")


def _bind(expr: Expr, schema: pa.Schema) -> tuple[Expr, pa.DataType | None]:  # noqa: PLR0911  one return a kind of node
    if isinstance(expr, Col):
        return _column(expr, schema)
    if isinstance(expr, Lit):
        return expr, expr.type
    if isinstance(expr, Alias):
        source, kind = _bind(expr.source, schema)
        return Alias(source, expr.name), kind
    if isinstance(expr, Cast):
        return _cast(expr, schema)
    assert isinstance(expr, Call)
    args = tuple([_bind(a.source if isinstance(a, Alias) else a, schema) for a in expr.args])
    if expr.op in COMPARISONS:
        return _compare(expr, *args[0], *args[1]), BOOL
    if expr.op in ("and", "or", "not"):
        return Call(expr.op, tuple(_condition(expr, *arg) for arg in args)), BOOL
    if expr.op == "is_in":
        return _is_in(expr, args), BOOL
    if expr.op in ARITHMETIC or expr.op == "neg":
        return _arithmetic(expr, args)
    return _tabled(expr, args) if expr.op in FUNCTIONS else _function(expr, args)


def _column(expr: Col, schema: pa.Schema) -> tuple[Expr, pa.DataType]:
    if expr.name not in schema.names:
        near = difflib.get_close_matches(expr.name, schema.names, n=3)
        hint = f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
        *within, last = expr.name.split(".")
        fields = [
            f'col("{each.name}")["{last}"]'
            for each in schema
            if pa.types.is_struct(each.type) and within in ([], [each.name]) and each.type.get_field_index(last) >= 0
        ]
        if fields:
            hint = f"A field of a struct is {' or '.join(fields)}. "
        msg = f"expression: {expr.name!r} is not a column. {hint}There are {', '.join(schema.names)}"
        raise PlanError(msg)
    return _plain(expr, schema.field(expr.name).type)


def _plain(expr: Expr, stored: pa.DataType) -> tuple[Expr, pa.DataType]:
    """A stored value without its dictionary or view."""
    plain = stored.value_type if pa.types.is_dictionary(stored) else stored
    if pa.types.is_string_view(plain):
        plain = pa.string()
    return (expr if plain == stored else Cast(expr, plain)), plain


def _compare(expr: Call, left: Expr, lt: pa.DataType | None, right: Expr, rt: pa.DataType | None) -> Expr:
    op = expr.op
    if isinstance(left, Lit) and not isinstance(right, Lit):
        left, lt, right, rt, op = right, rt, left, lt, COMPARISONS[op]
    if isinstance(left, Lit) or lt is None:
        _refuse(expr, "compares two constants", "Compare a column")
    if isinstance(right, Lit):
        return _with_constant(expr, op, left, lt, right)
    assert rt is not None
    common = _common(lt, rt)
    if common is None or (kind_of(common) not in _ORDERED and not (kind_of(common) == "bool" and op in ("==", "!="))):
        _refuse(expr, f"compares {lt} with {rt}", "Cast one of them, or compare columns of like types")
    return Call(op, (_as(left, lt, common), _as(right, rt, common)))


def _with_constant(expr: Expr, op: str, left: Expr, type_: pa.DataType, constant: Lit) -> Expr:
    """``left op constant`` with the constant in the type of ``left``."""
    value, kind = constant.value, kind_of(type_)
    if value is None:
        _refuse(expr, "compares with None, which equals nothing", "Use .is_null() or ~(...).is_null()")
    temporal = constant.type is not None and kind_of(constant.type) in ("time", "date")
    if kind in ("int", "float") and type(value) in (int, float) and not temporal:
        assert isinstance(value, (int, float))
        if kind == "float":
            return _with_float(expr, op, left, type_, value)
        return _with_exact(op, left, type_, value)
    if kind in ("time", "date") and temporal:
        return _with_exact(op, left, type_, _in_units(expr, left, type_, constant))
    fits = {"bool": bool, "text": str, "binary": bytes}.get(kind)
    if fits is None or type(value) is not fits or (kind == "bool" and op not in ("==", "!=")):
        shown = str(constant) if temporal else repr(value)
        way_out = f"Compare it with {_example(kind)}"
        if pa.types.is_decimal(type_):
            way_out = f"Decimals are for SQL: {_by_sql(left, pa.float64())}, or where {left} ... in its text"
        _refuse(expr, f"{str(left)!r} is {type_}, compared with {shown}", way_out)
    if isinstance(value, str):
        _check_text(expr, value)
    return Call(op, (left, Lit(value, type_)))


def _with_float(expr: Expr, op: str, left: Expr, type_: pa.DataType, value: float) -> Expr:
    try:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value)) if pa.types.is_float32(type_) else float(value)
    except OverflowError:
        _refuse(expr, f"{value} is beyond {type_}", "Compare with float('inf') or a number in range")
    if math.isnan(rounded):
        return _always(left) if op == "!=" else _never(left)
    return Call(op, (left, Lit(rounded, type_)))


def _with_exact(op: str, left: Expr, type_: pa.DataType, value: float | Fraction) -> Expr:
    """Compare whole numbers of ``type_`` with any number, without rounding either."""
    lo, hi = _range(type_)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return _always(left) if op == "!=" else _never(left)
        floor, is_exact = (hi + 1 if value > 0 else lo - 1), False
    else:
        floor = math.floor(value)
        is_exact = floor == value
    if op in ("==", "!="):
        if is_exact and lo <= floor <= hi:
            return Call(op, (left, Lit(floor, type_)))
        return _always(left) if op == "!=" else _never(left)
    if not is_exact:
        op = {"<": "<=", ">=": ">"}.get(op, op)
    if lo <= floor <= hi:
        return Call(op, (left, Lit(floor, type_)))
    return _always(left) if (op in ("<", "<=")) == (floor > hi) else _never(left)


def _in_units(expr: Expr, left: Expr, type_: pa.DataType, constant: Lit) -> Fraction:
    """A date or time as a number of ``type_``'s units since 1970."""
    given = constant.type
    assert given is not None
    assert isinstance(constant.value, int)
    zones = [getattr(t, "tz", None) is not None for t in (type_, given)]
    if pa.types.is_timestamp(given) and zones[0] != zones[1]:
        way = "Give a datetime with tzinfo" if zones[0] else "Give a datetime without tzinfo"
        _refuse(expr, f"{str(left)!r} is {type_}, compared with {given}", way)
    seconds = (
        Fraction(constant.value * _DAY) if pa.types.is_date32(given) else Fraction(constant.value, _TICKS[given.unit])
    )
    return seconds / _DAY if pa.types.is_date32(type_) else seconds * _TICKS[type_.unit]


def _is_in(expr: Call, args: tuple[tuple[Expr, pa.DataType | None], ...]) -> Expr:
    (left, type_), options = args[0], args[1:]
    if type_ is None or isinstance(left, Lit):
        _refuse(expr, "tests a constant", "Test a column")
    distinct: dict[str, Lit] = {}
    for option, _ in options:
        if not isinstance(option, Lit):
            _refuse(expr, "lists an expression", "List constants, or join == with |")
        single = _with_constant(expr, "==", left, type_, option)
        if isinstance(single, Call) and single.op == "==":
            bound = single.args[1]
            assert isinstance(bound, Lit)
            if bound.value == 0 and kind_of(type_) == "float":
                bound = Lit(0.0, type_)  # one zero
            distinct[repr(bound.value)] = bound
    return Call("is_in", (left, *distinct.values())) if distinct else _never(left)


def _condition(expr: Expr, arg: Expr, type_: pa.DataType | None) -> Expr:
    if isinstance(arg, Lit) and (isinstance(arg.value, bool) or type_ == BOOL):
        return Lit(arg.value, BOOL)
    if type_ is None or not pa.types.is_boolean(type_):
        _refuse(expr, f"{str(arg)!r} is {type_ or 'a constant'}, not a condition", "Put comparisons in parentheses")
    return arg


def _arithmetic(expr: Call, args: tuple[tuple[Expr, pa.DataType | None], ...]) -> tuple[Expr, pa.DataType]:
    kinds = []
    for arg, type_ in args:
        if isinstance(arg, Lit):
            kinds.append("float" if type(arg.value) is float else "int" if type(arg.value) is int else "other")
        else:
            kinds.append("other" if type_ is None else kind_of(type_))
        if kinds[-1] not in ("int", "float") or (type_ is not None and kind_of(type_) in ("time", "date")):
            joined = ". Join texts with .concat(...)" if type_ is not None and kind_of(type_) == "text" else ""
            _refuse(expr, f"{str(arg)!r} is {type_ or 'no number'}", f"Arithmetic takes integers and floats{joined}")
    common = FLOAT if expr.op == "/" or "float" in kinds else INT
    if expr.op in ("//", "%") and common != INT:
        way_out = "Write (a / b).floor()" if expr.op == "//" else "Write a - (a / b).floor() * b"
        _refuse(expr, f"{expr.op} of a float", f"It takes integers. {way_out}, or / for floats")
    if common == INT and any(type_ == pa.uint64() for _, type_ in args):
        _refuse(expr, "uint64 does not fit int64, in which integers are computed", "Use .cast('float64')")
    return Call(expr.op, tuple(_operand(expr, arg, type_, common) for arg, type_ in args)), common


def _operand(expr: Expr, arg: Expr, type_: pa.DataType | None, common: pa.DataType) -> Expr:
    if not isinstance(arg, Lit):
        assert type_ is not None
        return _as(arg, type_, common)
    assert isinstance(arg.value, (int, float))
    lo, hi = _range(INT)
    if common == INT:
        if not lo <= arg.value <= hi:
            _refuse(expr, f"{arg.value} does not fit int64", "Use a smaller number or a float")
        return Lit(arg.value, INT)
    try:
        return Lit(float(arg.value), FLOAT)
    except OverflowError:
        _refuse(expr, f"{arg.value} does not fit float64", "Use a smaller number")


def _function(expr: Call, args: tuple[tuple[Expr, pa.DataType | None], ...]) -> tuple[Expr, pa.DataType]:
    source, type_ = args[0]
    if type_ is None:
        _refuse(expr, f"{expr.op} of a constant", "Give a column")
    kind = kind_of(type_)
    if expr.op == "is_null":
        return Call(expr.op, (source,)), BOOL
    takes = _TAKES.get(expr.op, ("text",))
    if kind not in takes:
        _refuse(expr, f"{str(source)!r} is {type_}", f"{expr.op} takes {' or '.join(_NAMES[k] for k in takes)}")
    if expr.op in TEXT_TESTS:
        part = args[1][0]
        if not isinstance(part, Lit) or not isinstance(part.value, str):
            _refuse(expr, f"{part} is not a text", "Give the text to look for")
        _check_text(expr, part.value)
        return Call(expr.op, (source, Lit(part.value, type_))), BOOL
    if expr.op == "hash":
        return Call(expr.op, (source, _seed(expr, args[1][0]))), INT
    assert expr.op in ("is_nan", "len", *TEXT_MAPS)
    return Call(expr.op, (source,)), {"is_nan": BOOL, "len": INT}.get(expr.op, type_)


def _tabled(expr: Call, args: tuple[tuple[Expr, pa.DataType | None], ...]) -> tuple[Expr, pa.DataType]:
    """A function of the table: its values of one type, and its constants."""
    function = FUNCTIONS[expr.op]
    least, most = function.arity
    if not least <= len(args) <= most:
        _refuse(expr, f"{len(args):,} values", f"{expr.op} takes {least} to {most:,}")
    values, rest = args[: function.values], args[function.values :]
    if all(isinstance(value, Lit) for value, _ in values):
        _refuse(expr, f"{expr.op} of a constant", "Give a column")
    constants = [
        _constant_of(expr, constant, kind) for (constant, _), kind in zip(rest, function.constants, strict=False)
    ]
    given = [constant.value for constant in constants]
    wrong = function.check(*given)
    if wrong is not None:
        _refuse(expr, *wrong)
    if function.widens:
        call, common = _arithmetic(Call(expr.op, expr.args[:1]), values)
        assert isinstance(call, Call)
        integer = common == INT and "int" not in function.takes
        return (call.args[0] if integer else Call(expr.op, (*call.args, *constants))), common
    bound, kind = _of_one_type(expr, values, function.takes)
    gives = function.gives(kind, *given)
    if gives is None:
        names = [kind.field(at).name for at in range(kind.num_fields)]
        found = "has several such fields" if str(given[0]) in names else f"has no field {given[0]!r}"
        _refuse(expr, f"{str(bound[0])!r} {found}", f"It has {', '.join(names)}")
    return _plain(Call(expr.op, (*bound, *constants)), gives)


def _of_one_type(
    expr: Call, values: tuple[tuple[Expr, pa.DataType | None], ...], takes: tuple[str, ...]
) -> tuple[list[Expr], pa.DataType]:
    """The values of a function in their common type, which constants take."""
    common: pa.DataType | None = None
    for value, kind in values:
        text = isinstance(value, Lit) and isinstance(value.value, str) and "text" in takes
        if not text and (kind is None or kind_of(kind) not in takes):
            wanted = " or ".join(_NAMES[each] for each in takes)
            shown = f"{str(value)!r} is {'a constant' if kind is None else kind}"
            _refuse(expr, shown, f"{expr.op} takes {wanted}")
        if isinstance(value, Lit) and isinstance(value.value, str):
            _check_text(expr, value.value)
        if kind is not None:
            common = kind if common is None else _common(common, kind)
            assert common is not None  # a function of several values takes texts
    assert common is not None
    return [
        Lit(value.value, common) if isinstance(value, Lit) else _as(value, kind or common, common)
        for value, kind in values
    ], common


def _constant_of(expr: Call, constant: Expr, kind: type) -> Lit:
    if not isinstance(constant, Lit) or type(constant.value) is not kind:
        _refuse(expr, f"{constant} is {'no text' if kind is str else 'no whole number'}", "Give a constant of Python")
    if isinstance(constant.value, str):
        _check_text(expr, constant.value)
    return Lit(constant.value, pa.string() if kind is str else INT)


def _seed(expr: Call, seed: Expr) -> Lit:
    if not isinstance(seed, Lit) or type(seed.value) is not int or not -(2**63) <= seed.value < 2**63:
        _refuse(expr, f"its seed is {seed}", "Give an integer of 64 bits")
    return Lit(seed.value, INT)


def _cast(expr: Cast, schema: pa.Schema) -> tuple[Expr, pa.DataType]:
    source, type_ = _bind(expr.source, schema)
    if isinstance(source, Lit):
        _refuse(expr, "casts a constant", "Write the constant as it should be; it takes the type of its column")
    assert type_ is not None
    if not _castable(type_, expr.type):
        _refuse(
            expr,
            f"cast from {type_} to {expr.type}",
            "Engines round and overflow differently there, so only casts that widen, and integers to floats, are allowed. "
            + (
                "Cast it to float32, which is exact, or write another column"
                if pa.types.is_float16(type_)  # DuckDB has none
                else f"DuckDB does the others: {_by_sql(expr.source, expr.type)}"
            ),
        )
    return _as(source, type_, expr.type), expr.type


def _by_sql(expr: Expr, kind: pa.DataType) -> str:
    """A cast as SQL text, for people; what DuckDB writes otherwise is left to them."""
    names = {"halffloat": "float", "int8": "tinyint", "string": "varchar", "large_string": "varchar"}
    plain = kind_of(kind) in ("int", "float", "text", "bool") or pa.types.is_float16(kind)
    name = names.get(str(kind), str(kind)) if plain else "..."
    return f'catalog.sql("select *, cast({expr if isinstance(expr, Col) else "..."} as {name}) as ... from ...")'  # noqa: S608  a text for people


def _castable(have: pa.DataType, want: pa.DataType) -> bool:
    if have == want:
        return True
    pair = (kind_of(have), kind_of(want))
    if pair == ("int", "int"):
        return _range(want)[0] <= _range(have)[0] and _range(have)[1] <= _range(want)[1]
    if pair == ("float", "float") or pa.types.is_float16(have):
        return pair[1] == "float" and want.bit_width > have.bit_width
    return pair in (("int", "float"), ("bool", "int"), ("bool", "float")) or (
        pair[0] == pair[1] and pair[0] in ("text", "binary")
    )


def _common(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type in which values of ``a`` and ``b`` are compared; None where there is none."""
    if a == b:
        return a
    kinds = {kind_of(a), kind_of(b)}
    if kinds == {"int"}:
        return None if pa.uint64() in (a, b) else INT
    if kinds <= {"int", "float"}:
        return FLOAT
    if kinds == {"text"}:
        return pa.large_string()
    return pa.large_binary() if kinds == {"binary"} else None


def _as(expr: Expr, have: pa.DataType, want: pa.DataType) -> Expr:
    return expr if have == want else Cast(expr, want)


@cache
def _range(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_integer(type_):
        return int((info := np.iinfo(numpy_dtype(type_))).min), int(info.max)
    bits = 31 if pa.types.is_date32(type_) else 63
    return -(2**bits), 2**bits - 1


def _never(expr: Expr) -> Expr:
    """False where ``expr`` has a value, null where it has none."""
    return Call("and", (Call("is_null", (expr,)), Lit(None, BOOL)))


def _always(expr: Expr) -> Expr:
    return Call("not", (_never(expr),))


def _check_text(expr: Expr, value: str) -> None:
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        _refuse(expr, f"{value!r} holds half a surrogate pair", "Give valid Unicode text")


_TAKES: Final = {"is_nan": ("float",), "len": ("list", "text", "binary"), "hash": ("int", "text", "binary")}
_NAMES: Final = {"float": "a floating-point column", "int": "an integer", "list": "a list", "text": "a text"}
_NAMES.update(binary="a binary value", time="a time", date="a date", struct="a struct")


def _example(kind: str) -> str:
    return {
        "bool": "True or False by == or !=, or use it as a condition itself",
        "int": "a number",
        "float": "a number",
        "text": "a text, as in == 'train'",
        "binary": "bytes",
        "time": "a datetime",
        "date": "a date",
        "struct": "nothing: only .is_null() is defined for this type. Compare a field of it: ...['name']",
    }.get(kind, "nothing: only .is_null() is defined for this type (.cast('float32') may help for float16)")


def _refuse(expr: Expr, found: str, way_out: str) -> NoReturn:
    msg = f"expression {expr}: {found}. {way_out}"
    raise PlanError(msg)

"""Lower expressions to SQL text: the filter language of Lance's scanner (DataFusion).

DataFusion orders NaN above every number and calls it equal to itself, so comparisons of
floats carry a guard. `SqlDialect` is what another engine's dialect can build on: the tests
have one of DuckDB's. Verified on duckdb 2.0 and pylance 14 by the conformance test.
"""

import string
from typing import Final

import pyarrow as pa

from spiral_stream.dialects.pushdown import Inexpressible
from spiral_stream.expr import FUNCTIONS, Alias, Call, Cast, Col, Expr, Lit, bind, kind_of, type_of

_SQL_OPS: Final = {"==": "=", "!=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ARROW_RS_TYPES: Final = {
    "bool": "Boolean",
    "float": "Float32",
    "double": "Float64",
    "string": "Utf8",
    "large_string": "LargeUtf8",
    "binary": "Binary",
    "large_binary": "LargeBinary",
    "date32[day]": "Date32",
}
_ARROW_RS_UNITS: Final = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def to_lance(expr: Expr, schema: pa.Schema) -> str:
    """Lower a predicate to the filter text of ``LanceDataset.scanner``.

    Raises:
        Inexpressible: Lance has no exact form.
        PlanError: the expression does not fit the schema.
    """
    return _Lance(schema).lower(bind(expr, schema))


def quoted(name: str) -> str:
    """Return a name as SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class SqlDialect:
    """What SQL dialects share. Every result is closed: it can be an operand of any operator."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def lower(self, expr: Expr) -> str:
        if isinstance(expr, Col):
            return self.column(expr.name)
        if isinstance(expr, Lit):
            return self.literal(expr)
        if isinstance(expr, Cast):
            return self.cast(self.lower(expr.source), type_of(expr.source, self.schema), expr.type)
        if isinstance(expr, Alias):
            return f"{self.lower(expr.source)} AS {quoted(expr.name)}"
        assert isinstance(expr, Call)
        return self.call(expr)

    def column(self, name: str) -> str:
        raise NotImplementedError

    def literal(self, literal: Lit) -> str:
        raise NotImplementedError

    def cast(self, value: str, have: pa.DataType, want: pa.DataType) -> str:
        raise NotImplementedError

    def arithmetic(self, expr: Call, args: list[str], *, is_integer: bool) -> str:
        raise NotImplementedError

    def length(self, value: str, kind: str) -> str:
        raise NotImplementedError

    def function(self, expr: Call, args: list[str]) -> str:
        """Return a call of `FUNCTIONS`, whose SQL is DuckDB's."""
        del expr, args
        raise Inexpressible

    def zeros_joined(self, value: str, type_: pa.DataType) -> str:
        """Return a compared float as text that makes -0.0 equal to 0.0."""
        del type_
        return value

    def call(self, expr: Call) -> str:  # noqa: PLR0911  one return a kind of operator
        args = [self.lower(arg) for arg in expr.args]
        if expr.op in _SQL_OPS:
            return self.compare(expr, args)
        if expr.op in ("and", "or"):
            return "(" + f" {expr.op.upper()} ".join(args) + ")"
        if expr.op == "is_in":
            return f"({args[0]} IN ({', '.join(args[1:])}))"
        if expr.op in ("starts_with", "ends_with", "contains"):
            return f"{expr.op}({', '.join(args)})"
        if expr.op in ("lower", "upper"):
            pair = (string.ascii_uppercase, string.ascii_lowercase)[:: 1 if expr.op == "lower" else -1]
            return f"translate({args[0]}, '{pair[0]}', '{pair[1]}')"
        if expr.op in FUNCTIONS:
            return self.function(expr, args)
        if expr.op == "hash":
            raise Inexpressible
        if expr.op == "len":
            return self.length(args[0], kind_of(type_of(expr.args[0], self.schema)))
        unary = {"not": "(NOT {})", "is_null": "({} IS NULL)", "is_nan": "isnan({})"}.get(expr.op)
        if unary is not None:
            return unary.format(args[0])
        return self.arithmetic(expr, args, is_integer=type_of(expr, self.schema) == pa.int64())

    def compare(self, expr: Call, args: list[str]) -> str:
        op = _SQL_OPS[expr.op]
        type_ = type_of(expr.args[0], self.schema)
        if kind_of(type_) != "float":
            return f"({args[0]} {'<>' if expr.op == '!=' else op} {args[1]})"
        if isinstance(expr.args[1], Lit):
            result = f"({args[0]} {op} {args[1]} AND NOT isnan({args[0]}))"
        else:
            a, b = (self.zeros_joined(arg, type_) for arg in args)
            guards = [
                f"NOT (isnan({x}) AND {y} IS NOT NULL)" for x, y in (args, args[::-1])
            ]  # where the other side is null the comparison stays null
            result = f"({a} {op} {b} AND {guards[0]} AND {guards[1]})"
        return f"(NOT {result})" if expr.op == "!=" else result


class _Lance(SqlDialect):
    def column(self, name: str) -> str:
        if "`" in name:
            raise Inexpressible
        return f"`{name}`"

    def literal(self, literal: Lit) -> str:
        value, type_ = literal.value, literal.type
        assert type_ is not None
        if value is None:
            return "CAST(NULL AS BOOLEAN)"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, bytes):
            return "x'" + value.hex() + "'"
        shown = text(value) if isinstance(value, str) else f"'{value!r}'"
        if isinstance(value, int):
            shown = f"arrow_cast({shown}, 'Int64')" if pa.types.is_temporal(type_) else shown
            if pa.types.is_date32(type_):
                shown = f"arrow_cast({shown}, 'Int32')"
        return f"arrow_cast({shown}, '{_arrow_rs_type(type_)}')"

    def cast(self, value: str, have: pa.DataType, want: pa.DataType) -> str:
        del have
        return f"arrow_cast({value}, '{_arrow_rs_type(want)}')"

    def arithmetic(self, expr: Call, args: list[str], *, is_integer: bool) -> str:
        if expr.op == "neg":
            zero = "arrow_cast('0', 'Int64')" if is_integer else "arrow_cast('-0.0', 'Float64')"
            return f"({zero} - {args[0]})"
        if expr.op not in ("//", "%"):
            return f"({args[0]} {expr.op} {args[1]})"
        divisor = expr.args[1]
        if not isinstance(divisor, Lit) or not isinstance(divisor.value, int) or divisor.value <= 0:
            raise Inexpressible  # DataFusion fails on a zero divisor
        a, b = args
        down = f"arrow_cast(({a} % {b}) < arrow_cast('0', 'Int64'), 'Int64')"  # from truncated to floored
        return f"({a} / {b} - {down})" if expr.op == "//" else f"({a} % {b} + {b} * {down})"

    def length(self, value: str, kind: str) -> str:
        if kind == "binary":
            raise Inexpressible
        return f"arrow_cast({'character_length' if kind == 'text' else 'array_length'}({value}), 'Int64')"

    def zeros_joined(self, value: str, type_: pa.DataType) -> str:
        # arrow-rs compares columns by IEEE total order, which tells the zeros apart; -0.0 + 0.0 is 0.0
        return f"({value} + arrow_cast('0', '{_arrow_rs_type(type_)}'))"


def text(value: str) -> str:
    """Return a text as SQL literal.

    Raises:
        Inexpressible: it holds a NUL.
    """
    if "\0" in value:
        raise Inexpressible
    return "'" + value.replace("'", "''") + "'"


def _arrow_rs_type(type_: pa.DataType) -> str:
    if pa.types.is_timestamp(type_):
        zone = "None" if type_.tz is None else f'Some("{type_.tz}")'
        return f"Timestamp({_ARROW_RS_UNITS[type_.unit]}, {zone})"
    if pa.types.is_integer(type_):
        return str(type_).replace("int", "Int").replace("uI", "UI")
    return _known(_ARROW_RS_TYPES, type_)


def _known(names: dict[str, str], type_: pa.DataType) -> str:
    if str(type_) not in names:
        raise Inexpressible
    return names[str(type_)]

"""A condition in SQL text as an expression: ``relation.filter("width >= 256 and lang in ('de', 'en')")``.

DuckDB parses the text, and nothing of it is run. What the tree says becomes the expression that one would build with `col`, with
the meaning that it has there; so plans, fingerprints and pushdown are those of the expression. What expressions cannot say is
refused, and belongs into `Catalog.sql`.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import reduce
from types import MappingProxyType
from typing import Any, Final, NoReturn, final

import pyarrow as pa

from spiral_stream.dialects.pushdown import all_of
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Call, Expr, Lit, bind_predicate, col, lit
from spiral_stream.relational.engine import syntax_trees
from spiral_stream.semantic import is_text

_COMPARE: Final = MappingProxyType(
    {
        "COMPARE_EQUAL": "==",
        "COMPARE_NOTEQUAL": "!=",
        "COMPARE_LESSTHAN": "<",
        "COMPARE_LESSTHANOREQUALTO": "<=",
        "COMPARE_GREATERTHAN": ">",
        "COMPARE_GREATERTHANOREQUALTO": ">=",
    }
)
_FUNCTIONS: Final[Mapping[str, Callable[..., Expr]]] = MappingProxyType(
    {
        "~~": Expr.like,
        "!~~": lambda text, pattern: ~text.like(pattern),
        "abs": Expr.abs,
        "contains": Expr.contains,
        "day": Expr.day,
        "ends_with": Expr.endswith,
        "floor": Expr.floor,
        "isnan": Expr.is_nan,
        "len": Expr.len,
        "length": Expr.len,
        "lower": Expr.lower,
        "month": Expr.month,
        "prefix": Expr.startswith,
        "regexp_matches": Expr.regexp,
        "replace": Expr.replace,
        "round": Expr.round,
        "starts_with": Expr.startswith,
        "struct_extract": Expr.__getitem__,
        "suffix": Expr.endswith,
        "trim": lambda text, characters=" ": text.strip(characters),  # SQL's takes spaces alone
        "upper": Expr.upper,
        "year": Expr.year,
        "||": Expr.concat,
        **{op: (lambda a, b, op=op: Call(op, (a, lit(b)))) for op in ("+", "*", "/", "//", "%")},
        "-": lambda a, *b: Call("-", (a, lit(b[0]))) if b else -a,
    }
)
_CASTS: Final = MappingProxyType(
    {
        "SMALLINT": pa.int16(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "REAL": pa.float32(),
        "DOUBLE": pa.float64(),
    }
)
_OF_CONSTANTS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "DATE": dt.date.fromisoformat,
        "TIMESTAMP": dt.datetime.fromisoformat,
        "TIMESTAMPTZ": dt.datetime.fromisoformat,
        "TIMESTAMP WITH TIME ZONE": dt.datetime.fromisoformat,
    }
)
_CLAUSES: Final = (
    "modifiers",
    "group_expressions",
    "group_sets",
    "having",
    "sample",
    "qualify",
)  # that may follow WHERE
_CALLED: Final = MappingProxyType(  # what the parser names otherwise
    {"~~*": "ILIKE", "!~~*": "NOT ILIKE", "like_escape": "LIKE ... ESCAPE", "not_like_escape": "NOT LIKE ... ESCAPE"}
)
_LONGEST: Final = 10_000  # characters; a list of identities may be long
_DEEPEST: Final = 200  # brackets in brackets


def condition(text: str, schema: pa.Schema) -> Expr:
    """Read a condition.

    Args:
        text: what stands after WHERE in DuckDB's dialect.
        schema: the columns that it may name, in any case of letters where that is clear.

    Raises:
        PlanError: it is no condition, names an unknown column, or says what expressions do not.
    """
    if len(text) > _LONGEST:
        msg = f"filter: the text has {len(text):,} characters, at most {_LONGEST:,} are read. Write it with col, or is_in([...])"
        raise PlanError(msg)
    tree = _parsed(text)
    return _Reading(text, schema.names).read(tree)


def _parsed(text: str) -> dict[str, Any]:
    """The syntax tree of a condition."""
    try:
        statements = syntax_trees(f"SELECT 1 WHERE\n{text}\n")
    except PlanError as error:
        raise _refused(text, str(error)) from error
    node = statements[0]["node"] if len(statements) == 1 else {}
    where: dict[str, Any] | None = node.get("where_clause")
    if where is None or node.get("type") != "SELECT_NODE" or any(node.get(each) for each in _CLAUSES):
        raise _refused(text, "it is more than a condition")
    return where


def _refused(text: str, why: str) -> PlanError:
    return PlanError(
        f'filter: {shown(text)}: {why}. Write a condition, such as "width >= 256", or an expression of col'
    )


_SAFE: Final = frozenset(
    ("COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "BETWEEN")
)  # the same in both, but for floats
_LISTED: Final = frozenset(("COMPARE_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"))


def rows_that_pass(where: Mapping[str, Any], schema: pa.Schema) -> Expr | None:
    """Return the parts of a WHERE that a scan may ask first, so that fewer rows are read; None if there are none.

    A part is taken if it means the same as text and as an expression: it compares whole numbers, texts and truth values.
    Whoever runs the text asks all of it again.

    Args:
        where: its syntax tree, of a SELECT that reads one relation.
        schema: of the relation.
    """
    parts = where["children"] if where.get("type") == "CONJUNCTION_AND" else [where]
    reading, found = _Reading("WHERE", schema.names), list[Expr]()
    for part in parts:
        with suppress(PlanError):
            if _is_safe(part):
                read = bind_predicate(reading.read(part), schema)
                kinds = [schema.field(name).type for name in read.columns()]
                if kinds and all(
                    is_text(each) or pa.types.is_integer(each) or pa.types.is_boolean(each) for each in kinds
                ):
                    found.append(read)
    return all_of(found)


def _is_safe(node: Mapping[str, Any]) -> bool:
    if node["class"] not in _SAFE and node["type"] not in _LISTED:
        return False
    if node["class"] == "COLUMN_REF" and len(node["column_names"]) > 1:
        return False
    below = (node.get(each) for each in ("left", "right", "input", "lower", "upper"))
    return all(map(_is_safe, [*(each for each in below if each is not None), *node.get("children", ())]))


@final
class _Reading:
    """A text, and the columns that it may name."""

    def __init__(self, text: str, names: list[str]) -> None:
        self._text, self._names, self._depth = text, names, 0

    def read(self, node: Mapping[str, Any]) -> Expr:
        """Return what a node of the tree says."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse("more brackets in brackets than are read")
        try:
            made = _BY_CLASS.get(node["class"])
            return made(self, node) if made is not None else self._refuse(node["class"].upper())
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self._refuse(f"{node.get('class', 'part')} as it is written here ({error})")
        finally:
            self._depth -= 1

    def column(self, node: Mapping[str, Any]) -> Expr:
        first, *fields = node["column_names"]
        alike = [name for name in self._names if name.lower() == first.lower()]
        if first not in self._names and len(alike) > 1:
            self._refuse(f"{first!r}, which may be {' or '.join(map(repr, alike))}")
        if first not in self._names and not alike:
            near = get_close_matches(first, self._names, n=3)
            hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
            msg = (
                f"filter: {shown(self._text)}: {first!r} is not a column. {hint}There are {', '.join(self._names)}. "
                f"A text stands in single quotes: '{first}'"
            )
            raise PlanError(msg)
        found: Expr = col(first if first in self._names else alike[0])
        return reduce(Expr.__getitem__, fields, found)

    def constant(self, node: Mapping[str, Any]) -> Expr:
        kind, text = node["literal"]["kind"], node["literal"]["text"]
        read: Mapping[str, Callable[[str], Any]] = {
            "INTEGER": int,
            "NUMERIC": float,
            "STRING": str,
            "BOOLEAN": lambda each: each == "true",
            "NULL_LITERAL": lambda _: None,
        }
        return lit(read[kind](text))

    def comparison(self, node: Mapping[str, Any]) -> Expr:
        if node["type"] not in _COMPARE:
            self._refuse(f"{node['type'].removeprefix('COMPARE_').replace('_', ' ')}")
        return Call(_COMPARE[node["type"]], (self.read(node["left"]), self.read(node["right"])))

    def conjunction(self, node: Mapping[str, Any]) -> Expr:
        op = {"CONJUNCTION_AND": "and", "CONJUNCTION_OR": "or"}[node["type"]]
        return reduce(lambda a, b: a & b if op == "and" else a | b, map(self.read, node["children"]))

    def between(self, node: Mapping[str, Any]) -> Expr:
        return self.read(node["input"]).between(self.read(node["lower"]), self.read(node["upper"]))

    def operator(self, node: Mapping[str, Any]) -> Expr:
        first, *rest = map(self.read, node["children"])
        if node["type"] == "COMPARE_IN":
            return first.is_in(rest)
        if node["type"] == "COMPARE_NOT_IN":
            return ~first.is_in(rest)
        if node["type"] in ("ARRAY_EXTRACT", "STRUCT_EXTRACT") and isinstance(rest[0], Lit):
            return first[rest[0].value]  # type: ignore[index]  # another key is refused there
        single: Mapping[str, Callable[[Expr], Expr]] = {
            "OPERATOR_IS_NULL": Expr.is_null,
            "OPERATOR_IS_NOT_NULL": lambda each: ~each.is_null(),
            "OPERATOR_NOT": Expr.__invert__,
        }
        if node["type"] not in single:
            self._refuse(node["type"].removeprefix("OPERATOR_").replace("_", " "))
        return single[node["type"]](first)

    def function(self, node: Mapping[str, Any]) -> Expr:
        name = node["function_name"].lower()
        if name not in _FUNCTIONS or node["distinct"] or node["filter"] is not None:
            self._refuse(_CALLED.get(name, f"{name}(...)"))
        args = [self.read(each.get("expression", each)) for each in node["arguments"]]
        first, *rest = args
        values = [each.value if isinstance(each, Lit) and each.type is None else each for each in rest]
        return _FUNCTIONS[name](first, *values)

    def cast(self, node: Mapping[str, Any]) -> Expr:
        kind, child = node["type_expr"]["type_name"].upper(), self.read(node["child"])
        if isinstance(child, Lit) and isinstance(child.value, str) and kind in _OF_CONSTANTS:
            return lit(_OF_CONSTANTS[kind](child.value))
        if kind not in _CASTS or node["try_cast"]:
            self._refuse(f"cast to {kind}")
        return child.cast(_CASTS[kind])

    def _refuse(self, what: str) -> NoReturn:
        way_out = 'catalog.sql("select * from ... where ...")'
        msg = f"filter: {shown(self._text)}: expressions have no {what}. Write it in a query: {way_out}"
        raise PlanError(msg)


_BY_CLASS: Final[Mapping[str, Callable[[_Reading, Mapping[str, Any]], Expr]]] = MappingProxyType(
    {
        "COLUMN_REF": _Reading.column,
        "CONSTANT": _Reading.constant,
        "COMPARISON": _Reading.comparison,
        "CONJUNCTION": _Reading.conjunction,
        "BETWEEN": _Reading.between,
        "OPERATOR": _Reading.operator,
        "FUNCTION": _Reading.function,
        "CAST": _Reading.cast,
    }
)

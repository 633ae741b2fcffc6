"""Expressions over columns.

Start at: `nodes`.
May not know: relations, engines: `dialects` lowers them.
"""

from spiral_stream.expr.binding import bind, bind_predicate, kind_of, type_of
from spiral_stream.expr.canonical import canonical, from_json, to_json
from spiral_stream.expr.functions import FUNCTIONS, ColumnFunction
from spiral_stream.expr.nodes import Alias, Call, Cast, Col, Expr, Lit, col, len_, lit, name_of
from spiral_stream.expr.parsing import parse

__all__ = [
    "FUNCTIONS",
    "Alias",
    "Call",
    "Cast",
    "Col",
    "ColumnFunction",
    "Expr",
    "Lit",
    "bind",
    "bind_predicate",
    "canonical",
    "col",
    "from_json",
    "kind_of",
    "len_",
    "lit",
    "name_of",
    "parse",
    "to_json",
    "type_of",
]

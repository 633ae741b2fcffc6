"""Parse a short text as an expression: ``len(tokens)``, ``frame_count``, ``width * height``, ```word count` / 2``.

Python's own grammar is used and nothing is run: the syntax tree may hold names,
numbers, ``+ - * / // %``, squares and cubes as ``** 2`` and ``** 3``, unary minus, parentheses and ``len(...)``. Backticks
stand around a name that is none in Python.
"""

import ast
import re
from dataclasses import dataclass
from typing import Final, NoReturn, final

from spiral_stream.errors import PlanError
from spiral_stream.expr.nodes import Call, Expr, col, lit

_OPERATORS: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_GRAMMAR: Final = (
    "An expression is made of column names, numbers, + - * / // %, ** 2 or ** 3, parentheses and len(column). "
    "Put backticks around a name such as `word count`"
)
_QUOTED: Final = re.compile(r"(?<![\w`])`([^`]+)`(?![\w`])")
_POWERS: Final = (2, 3)
_LONGEST: Final = 200  # characters; keeps the recursion far below CPython's limit of 1,000


def parse(text: str) -> Expr:
    """Read an expression as it is written in a bucket key.

    Args:
        text: for example ``"len(tokens)"``.

    Raises:
        PlanError: it is not such an expression; the message shows the place.
    """
    if len(text) > _LONGEST:
        msg = (
            f"expression of {len(text)} characters; at most {_LONGEST} are read. Add it as a column: .with_columns(...)"
        )
        raise PlanError(msg)
    source = re.sub(r"\s", " ", text.strip())
    reading = _Reading(source, _QUOTED.sub(lambda match: "_" * len(match[0]), source))
    try:
        tree = ast.parse(reading.plain, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        offset = (getattr(error, "offset", None) or 1) - 1
        reading.refuse(offset, getattr(error, "msg", None) or str(error))
    return reading.read(tree.body)


@final
@dataclass(frozen=True, slots=True)
class _Reading:
    """A text, and the same text with a name of underscores for each name in backticks, in one line each."""

    text: str
    plain: str

    def read(self, node: ast.expr) -> Expr:  # noqa: RET503  `refuse` never returns
        if isinstance(node, ast.Name):
            quoted = _QUOTED.match(self.text, self._marked_offset(node))
            return col(
                quoted[1] if quoted else self._of(node)
            )  # `ast` has other letters for some, such as the micro sign
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return lit(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            return self._power(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return Call(_OPERATORS[type(node.op)], (self.read(node.left), self.read(node.right)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.read(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            if len(node.args) == 1 and not node.keywords:
                return self.read(node.args[0]).len()
            self.refuse(self._marked_offset(node), "len takes one argument")
        self.refuse(self._marked_offset(node), f"{self._of(node)!r} is not allowed here")

    def _power(self, node: ast.BinOp) -> Expr:
        """A square or a cube, as the product that it is: `pow` of C libraries need not agree in the last bit."""
        base, times = self.read(node.left), node.right
        if not isinstance(times, ast.Constant) or times.value not in _POWERS or type(times.value) is not int:
            self.refuse(self._marked_offset(times), f"{self._of(times)!r} is no power that is read here; give 2 or 3")
        return base**times.value

    def _of(self, node: ast.expr) -> str:
        start = self._marked_offset(node)
        return self.text[start : start + len(ast.get_source_segment(self.plain, node) or "")]

    def _marked_offset(self, node: ast.expr) -> int:
        return len(self.plain.encode()[: node.col_offset].decode(errors="ignore"))

    def refuse(self, offset: int, why: str) -> NoReturn:
        msg = f"expression: {why}, at character {offset + 1}\n  {self.text}\n  {' ' * offset}^\n{_GRAMMAR}"
        raise PlanError(msg)

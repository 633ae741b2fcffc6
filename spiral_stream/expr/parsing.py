"""Parse a short text as an expression: ``len(tokens)``, ``frame_count``, ``width * height``.

Python's own grammar is used and nothing is run: the syntax tree may hold names,
numbers, ``+ - * / // %``, unary minus, parentheses and ``len(...)``.
"""

import ast
from typing import Final, NoReturn

from spiral_stream.errors import PlanError
from spiral_stream.expr.nodes import Call, Expr, col, lit

_OPERATORS: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_GRAMMAR: Final = "An expression is made of column names, numbers, + - * / // %, parentheses and len(column)"
_LONGEST: Final = 200  # characters; keeps the recursion far below CPython's limit of 1,000


def parse(text: str) -> Expr:
    """Read an expression as it is written in a bucket key.

    Args:
        text: for example ``"len(tokens)"``.

    Raises:
        PlanError: it is not such an expression; the message shows the place.
    """
    if len(text) > _LONGEST:
        msg = f"expression of {len(text)} characters; at most {_LONGEST} are read. Build it with col(...) instead"
        raise PlanError(msg)
    source = text.strip()
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        offset = (getattr(error, "offset", None) or 1) - 1
        _refuse(source, offset, getattr(error, "msg", None) or str(error))
    return _read(source, tree.body)


def _read(text: str, node: ast.expr) -> Expr:  # noqa: RET503  _refuse never returns
    if isinstance(node, ast.Name):
        return col(node.id)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return lit(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return Call(_OPERATORS[type(node.op)], (_read(text, node.left), _read(text, node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(text, node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        if len(node.args) == 1 and not node.keywords:
            return _read(text, node.args[0]).len()
        _refuse(text, _place(text, node), "len takes one argument")
    _refuse(text, _place(text, node), f"{ast.unparse(node)!r} is not allowed here")


def _place(text: str, node: ast.expr) -> int:
    line = text.splitlines()[node.lineno - 1]
    return len(line.encode()[: node.col_offset].decode(errors="ignore"))


def _refuse(text: str, offset: int, why: str) -> NoReturn:
    msg = f"expression: {why}, at character {offset + 1}\n  {text}\n  {' ' * offset}^\n{_GRAMMAR}"
    raise PlanError(msg)

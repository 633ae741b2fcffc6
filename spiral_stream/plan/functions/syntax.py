"""The source text of a function or class: its normal form, and the names that it uses.

The normal form is the syntax tree of the source file without docstrings,
annotations, ``pass`` and positions, written with the fields that every CPython
from 3.11 on knows. Functions are found by name and first line, lambdas by the
columns of their bytecode, classes by qualified name.
"""

import ast
import copy
import functools
import importlib.util
import linecache
import symtable
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = Function | ast.ClassDef
Chain = tuple[str, ...]  # the attributes behind a name: ("random", "default_rng") of np.random.default_rng
Use = tuple[str, Chain]  # a name, and what is read from it
_SILENT: Final = {"annotation", "returns", "ctx", "kind", "simple", "type_comment", "type_params"}


def function_tree(function: types.FunctionType) -> Function | None:
    """Return the normalised definition of a function or lambda.

    Returns:
        None if its file does not hold it: none was written, or it was edited since the import.
    """
    code = function.__code__
    text = _text(code.co_filename, function.__globals__)
    nodes = _functions(text).get((code.co_name, code.co_firstlineno), [])
    if len(nodes) > 1:  # several lambdas on a line: the body's span is that of one of the instructions
        spans = set(code.co_positions())
        nodes = [node for node in nodes if isinstance(node, ast.Lambda) and _span(node.body) in spans]
    return nodes[0] if len(nodes) == 1 else None


def class_tree(cls: type) -> ast.ClassDef | None:
    """Return the normalised definition of a class; the last one, where a file has several of its name.

    Returns:
        None for a class that no ``class`` statement in a file made: compiled, or by a call.
    """
    module = sys.modules.get(cls.__module__)
    text = _text(getattr(module, "__file__", None) or "", vars(module) if module else {})
    found = [node for name, node in _named_classes(_normalised(text), "") if name == cls.__qualname__]
    return found[-1] if found else None


def dump(node: Any) -> Any:
    """Return a normalised tree as JSON values: [kind, [field, value], ...] without empty fields."""
    if isinstance(node, list):
        return [dump(item) for item in node if not isinstance(item, ast.Pass)]
    if isinstance(node, ast.Constant):
        value = hex(node.value) if type(node.value) is int else node.value
        return ["Constant", type(node.value).__name__, value if isinstance(value, str) else repr(value)]
    if not isinstance(node, ast.AST):
        return node
    fields = [[name, dump(value)] for name, value in ast.iter_fields(node) if name not in _SILENT]
    return [type(node).__name__, *(pair for pair in fields if pair[1] not in (None, []))]


def assigned(tree: ast.ClassDef) -> set[str]:
    """Return the names that statements of a class body assign."""
    targets: list[ast.expr] = []
    for statement in tree.body:
        targets += statement.targets if isinstance(statement, ast.Assign) else []
        targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def local_imports(tree: Definition, package: str) -> dict[str, tuple[str, Chain]]:
    """Return the names that import statements inside a definition bind: to (module, attributes)."""
    out: dict[str, tuple[str, Chain]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                out[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0],
                    (),
                )
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            module = importlib.util.resolve_name(relative, package) if package else relative.lstrip(".")
            out |= {alias.asname or alias.name: (module, (alias.name,)) for alias in node.names}
    return out


def free_names(tree: Definition, more: Iterable[str]) -> dict[str, list[Chain]]:
    """Return the names a definition takes from outside, with the attributes read from each.

    A function's decorators and defaults are left out: their results are on the function.

    Args:
        tree: from `function_tree` or `class_tree`.
        more: further names to report, bound by imports inside.
    """
    scope = _Scope().visit(copy.deepcopy(tree))
    if isinstance(scope, Function):
        scope.args.defaults, scope.args.kw_defaults = [], [None] * len(scope.args.kwonlyargs)
    if not isinstance(scope, ast.Lambda | ast.ClassDef):
        scope.decorator_list = []
    table = symtable.symtable(ast.unparse(scope), "<definition>", "exec")
    chains: dict[str, set[Chain]] = {}
    for name, chain in uses(scope):
        chains.setdefault(name, set()).add(chain)
    return {name: sorted(chains.get(name, {()})) for name in {*_globals(table), *more}}


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and symbol.is_global():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


def uses(node: ast.AST) -> Iterator[Use]:
    """Yield the names in a piece of source, each with the attributes read from it."""
    attributes: Chain = ()
    inner = node
    while isinstance(inner, ast.Attribute):
        attributes, inner = (inner.attr, *attributes), inner.value
    if isinstance(inner, ast.Name):
        yield inner.id, attributes
    else:
        for child in ast.iter_child_nodes(inner):
            yield from uses(child)


def is_within(function: types.FunctionType, tree: ast.ClassDef, file: str | None) -> bool:
    """Whether a function was written inside a class statement of a file."""
    code = function.__code__
    return code.co_filename == file and tree.lineno <= code.co_firstlineno <= (tree.end_lineno or 0)


@functools.lru_cache(maxsize=64)
def _functions(text: str) -> dict[tuple[str, int], list[Function]]:
    """The functions of a file by the name and first line that their bytecode has."""
    out: dict[tuple[str, int], list[Function]] = {}
    for node in ast.walk(_normalised(text)):
        if isinstance(node, ast.Lambda):
            out.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            out.setdefault((node.name, line), []).append(node)
    return out


def _span(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _named_classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            inner = f"{prefix}{child.name}."
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}.<locals>."
        yield from _named_classes(child, inner)


def _text(filename: str, module_globals: dict[str, Any]) -> str:
    linecache.checkcache(filename)
    return "".join(linecache.getlines(filename, module_globals))


@functools.lru_cache(maxsize=64)  # by content, so that an edited file is parsed again
def _normalised(text: str) -> ast.Module:
    try:
        tree: ast.Module = _Normaliser().visit(ast.parse(text))
    except SyntaxError:  # no Python, or edited into something else: nothing can be found in it
        return ast.Module([], [])
    return tree


class _Normaliser(ast.NodeTransformer):
    """Take out what does not change what the code does."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._block(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._block(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):  # here it declares a field
                statement.annotation = ast.Constant(None)
        return self._block(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.annotation, ast.Constant) and node.annotation.value is None:
            return node
        plain = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
        return ast.copy_location(plain, node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:  # CPython 3.12.1 ends format specs with an empty text
        node.values = [each for each in node.values if not (isinstance(each, ast.Constant) and each.value == "")]
        return self.generic_visit(node)

    def _block(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        if not isinstance(node, ast.ClassDef):
            node.returns = None
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


class _Scope(ast.NodeTransformer):
    """Make a definition stand alone for `symtable`, with the same names in use."""

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:  # its binding is outside
        return ast.copy_location(ast.Pass(), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:  # unparse cannot quote every f-string before 3.12
        self.generic_visit(node)
        return ast.Tuple(node.values, ast.Load())

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        self.generic_visit(node)
        return ast.Tuple([node.value, *([node.format_spec] if node.format_spec else [])], ast.Load())

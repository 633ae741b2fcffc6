"""Whether a named function can be called with its arguments, told from its source, without importing it.

What the source does not tell passes: a function under a decorator, a class, and what a module takes from another package.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.machinery import BuiltinImporter
from typing import Any, Final

from spiral_assets.code_versions import bound_in, file_of
from spiral_assets.reading.wording import nearest

_HOPS: Final = 8  # modules through which a function is imported


def wrong_call(module: str, name: str, arguments: Mapping[str, Any], given: int) -> str | None:
    """Return what is wrong with a call; None if nothing is.

    Args:
        module: of the function.
        name: of the function.
        arguments: given by name.
        given: how many values are given before them.
    """
    if file_of(module) is None:
        if BuiltinImporter.find_spec(module.partition(".")[0]) is not None:
            return None
        return f"module {module!r} is not found. Correct the name, or install the package that has it"
    if name not in bound_in(module) and not _has_star(module):
        near = nearest(name, bound_in(module))
        return f"module {module!r} does not define {name!r}{near} Correct the name, or write the function"
    found = _definition(module, name)
    return None if found is None else _fits(f"{module}:{name}", found.args, arguments, given)


@lru_cache(512)
def _definition(module: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition of a function whose call is as it is written; follow imports of it."""
    for _ in range(_HOPS):
        if file_of(module) is None:
            return None
        nodes = bound_in(module).get(name, [])
        if not nodes:
            return None
        node = nodes[-1]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None if node.decorator_list else node
        if not isinstance(node, ast.ImportFrom):
            return None
        alias = next(each for each in node.names if (each.asname or each.name) == name)
        package = module.split(".")
        above = package[: len(package) - node.level] if node.level else []
        module, name = ".".join([*above, *([node.module] if node.module else [])]), alias.name
    return None


def _fits(where: str, said: ast.arguments, arguments: Mapping[str, Any], given: int) -> str | None:
    positional = [each.arg for each in (*said.posonlyargs, *said.args)]
    by_name = [each.arg for each in (*said.args, *said.kwonlyargs)]
    if given > len(positional) and said.vararg is None:
        form = _form(positional, given)
        return f"function {where} takes {len(positional)} values, and gets {given}. Write it with {given}: {form}"
    filled = set(positional[:given])
    for name in arguments:
        if name in filled:
            return f"function {where} gets {name!r} from Spiral. Leave the argument out, or give it another name"
        if name not in by_name and said.kwarg is None:
            free = [each for each in by_name if each not in filled]
            takes = f"It takes {', '.join(free)}" if free else "It takes none"
            return f"function {where} has no argument {name!r}{nearest(name, free)} {takes}. Correct the name"
    missing = [each for each in _needed(said) if each not in filled and each not in arguments]
    if missing:
        return f"function {where} needs the argument {missing[0]!r}. Give it: arguments: {{{missing[0]}: ...}}"
    return None


def _needed(said: ast.arguments) -> Iterator[str]:
    positional = [*said.posonlyargs, *said.args]
    yield from (each.arg for each in positional[: len(positional) - len(said.defaults)])
    yield from (each.arg for each, value in zip(said.kwonlyargs, said.kw_defaults, strict=True) if value is None)


def _form(positional: list[str], given: int) -> str:
    return f"def f({', '.join([*positional, *(f'value_{at}' for at in range(len(positional), given))])})"


@lru_cache(512)
def _has_star(module: str) -> bool:
    return "*" in bound_in(module)

"""What makes the code of a cache another: the plan's code and the library's format versions, both read as text.

Dagster compares the code versions of definitions, which every process of a run makes. The fingerprint that decides the
stored bytes needs the library and Arrow (0.3 CPU s), so the definition has a stand-in: a digest over

* the plan's function, and everything that it names in its module and in other modules of its package; comments,
  docstrings and layout do not count. A function that the plan only reaches by a name in a text is not seen;
* its arguments;
* the version numbers of formats, decoders and transforms in the library's source files, and the release of its JPEG codec.

A change of it makes a cache's asset unsynced, and a run compares fingerprints: an edit that changes no stored byte costs
one look. Nothing is imported, also no plan; a file of 200 lines costs 2 ms once per process.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import dagster as dg

from spiral_assets.named import SavedPlan, parts

LIBRARY: Final = "spiral_stream"
DECIDING: Final = ("cache", "decoders", "transforms")  # folders of the library whose rooms decide stored bytes
CODEC: Final = "simplejpeg"
_NUMBER: Final = re.compile(r"^\s*(\w*VERSION)\b.*=\s*(\d+)", re.MULTILINE)
_DIGITS: Final = 32
_FORMER: Final = {"tokenizer_equivalence.py": "proof.py"}  # rooms that had another name when versions were recorded

_Bound = dict[str, list[ast.stmt]]


def code_version_of(plan: Callable[..., Any]) -> str:
    """Return the code version of a plan or another function: 32 hex digits.

    Of a saved stream only the name counts, since its plan is data.

    Raises:
        DagsterInvalidDefinitionError: the plan's module or function is not found.
    """
    if isinstance(plan, SavedPlan):
        return _digest(["stream", plan.stream, *library_versions()])
    module, name, arguments = parts(plan)
    text = json.dumps(arguments, sort_keys=True, default=str)
    return _digest(["plan", *_texts(module, name), text, *library_versions()])


@lru_cache(1)
def library_versions() -> tuple[str, ...]:
    """Return the version numbers that the library's files state, each with its place."""
    (home,) = (Path(location) for location in _package(LIBRARY))
    found = [
        f"{folder}/{_FORMER.get(path.name, path.name)} {name} {number}"  # wherever in the folder a room lies
        for folder in DECIDING
        for path in sorted((home / folder).rglob("*.py"), key=lambda each: each.name)
        for name, number in _NUMBER.findall(path.read_text(encoding="utf-8"))
    ]
    try:
        found.append(f"{CODEC} {version(CODEC)}")
    except PackageNotFoundError:
        found.append(CODEC)
    return tuple(found)


def _texts(module: str, name: str) -> list[str]:
    """Return the source of a function and of everything that it names, sorted by place."""
    first = name.partition(".")[0]
    if first not in bound_in(module):
        msg = f"plan {module}:{name}: the module does not define {first!r}. Correct the name, or write the function"
        raise dg.DagsterInvalidDefinitionError(msg)
    todo, seen = [(module, first)], {}
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        at, named = path
        nodes = bound_in(at).get(named, [])
        seen[path] = "\n".join(_plain(node) for node in nodes)
        for node in nodes:
            todo += _reached(at, node)
    return [f"{at}:{named}\n{text}" for (at, named), text in sorted(seen.items())]


def _reached(module: str, node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield what a statement names: in its own module, and in other modules of its package."""
    bound = bound_in(module)
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in bound:
            yield module, each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            for origin in _imported(module, bound.get(each.value.id, [])):
                yield origin, each.attr
        elif isinstance(each, ast.ImportFrom):
            yield from _from(module, each)


def _imported(module: str, nodes: list[ast.stmt]) -> Iterator[str]:
    """Yield modules of the same package that import statements bind."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{origin}.{name}" for origin, name in _from(module, node) if file_of(f"{origin}.{name}"))


def _from(module: str, node: ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from the same package."""
    package = module.split(".")
    above = package[: len(package) - node.level] if node.level else []
    origin = ".".join([*above, *([node.module] if node.module else [])])
    if origin.partition(".")[0] == package[0] and file_of(origin):
        yield from ((origin, alias.name) for alias in node.names)


@lru_cache(512)
def bound_in(module: str) -> Mapping[str, list[ast.stmt]]:
    """Return the statements of a module by the names that they bind."""
    file = file_of(module)
    if file is None:
        msg = f"plan: module {module!r} is not found. Correct the name, or install the package that has it"
        raise dg.DagsterInvalidDefinitionError(msg)
    found: _Bound = {}
    for node in _statements(ast.parse(file.read_text(encoding="utf-8")).body):
        for name in _names(node):
            found.setdefault(name, []).append(node)
    return found


def _statements(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements at the top of a module, also those under conditions."""
    for node in nodes:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _statements([each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)])
        else:
            yield node


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]


def _plain(node: ast.stmt) -> str:
    """Return a statement's code without docstrings, comments and layout."""
    copy = ast.parse(ast.unparse(node))
    for each in ast.walk(copy):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(each):
            each.body = each.body[1:] or [ast.Pass()]
    return ast.unparse(copy)


@lru_cache(512)
def file_of(module: str) -> Path | None:
    """Return a module's source file, without importing its package."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None:
        return Path(loaded) if loaded.endswith(".py") else None
    top, *rest = module.split(".")
    for home in _package(top):
        path = Path(home).joinpath(*rest)
        for file in (path.with_suffix(".py") if rest else path, path / "__init__.py"):
            if file.is_file():
                return file
    return None


def _package(top: str) -> list[str]:
    """Return where a top-level package or module lies."""
    try:
        spec = find_spec(top)
    except ValueError:  # __main__
        return []
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


def _digest(parts_of_it: list[str]) -> str:
    return hashlib.sha256("\0".join(parts_of_it).encode()).hexdigest()[:_DIGITS]

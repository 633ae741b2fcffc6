"""Where in a YAML file something stands, and the error that says so."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import dagster as dg
import yaml
from dagster.components.core.decl import ComponentDecl
from dagster_shared.check import CheckError
from dagster_shared.yaml_utils.source_position import SourcePositionTree
from pydantic import ValidationError

from spiral_assets.reading.wording import worded

Loaded = dg.ComponentLoadContext | ComponentDecl[Any] | None


@final
@dataclass(frozen=True)
class Wrong:
    """What is wrong in the attributes of a component.

    Attributes:
        path: keys that lead to it, below ``attributes``.
        message: what was found, what would be right, the way out.
    """

    path: Sequence[str | int]
    message: str


def line_of(at: Loaded, path: Sequence[str | int] = ()) -> str:
    """Return ``file:line`` of an attribute of the component that is loaded; empty if it comes from no file.

    Args:
        at: the load of the component, or its declaration; None for a component that Python made.
        path: keys below ``attributes``; where there is no such key, the line of what it would lie in.
    """
    decl = at.component_decl if isinstance(at, dg.ComponentLoadContext) else at
    tree = getattr(decl, "source_tree", None)
    positions = getattr(tree, "source_position_tree", None)
    if not isinstance(positions, SourcePositionTree):
        return ""
    attributes = positions.children.get("attributes", positions)
    return str(attributes.lookup_closest_and_path(list(path), None)[0]) if path else str(positions.position)


def refuse(at: Loaded, wrong: Sequence[Wrong]) -> None:
    """Refuse a component, with the place of each thing that is wrong.

    Raises:
        DagsterInvalidDefinitionError: something is wrong.
    """
    if wrong:
        raise dg.DagsterInvalidDefinitionError("\n".join(_line(at, each) for each in wrong))


def need_single_keys(at: Loaded) -> None:
    """Refuse the file of a component that says a key twice: YAML takes the last one without a word.

    Raises:
        DagsterInvalidDefinitionError: says both lines.
    """
    file = line_of(at).rpartition(":")[0]
    if file and (said := _repeated(file, Path(file).stat().st_mtime_ns)):
        raise dg.DagsterInvalidDefinitionError(said)


@lru_cache(64)
def _repeated(file: str, written_ns: int) -> str | None:
    """Return what is said of the first key of a file that stands twice; None if there is none."""
    del written_ns  # another file is read anew
    todo = list(yaml.compose_all(Path(file).read_text(encoding="utf-8"), yaml.SafeLoader))[::-1]
    while todo:
        node = todo.pop()
        if isinstance(node, yaml.SequenceNode):
            todo += node.value[::-1]
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                first = lines.setdefault(str(key.value), line)
                if first != line:
                    return f"{file}:{line}: {key.value!r} stands twice, here and in line {first}. Remove one of them"
                todo.append(value)
    return None


@contextmanager
def placed(at: Loaded) -> Iterator[None]:
    """Give errors of a definition the place of its component, where they have none.

    Raises:
        DagsterInvalidDefinitionError: the definition is wrong.
    """
    try:
        yield
    except ValidationError as error:
        wrong = [Wrong(keys, said) for keys, said in worded(error.errors())]
        raise dg.DagsterInvalidDefinitionError("\n".join(_line(at, each) for each in wrong)) from error
    except (dg.DagsterError, CheckError) as error:
        where = line_of(at)
        if not where or where.rpartition(":")[0] in str(error):
            raise
        msg = f"{where}: {error}"
        raise dg.DagsterInvalidDefinitionError(msg) from error


def _line(at: Loaded, wrong: Wrong) -> str:
    where, keys = line_of(at, wrong.path), ".".join(map(str, wrong.path))
    return ": ".join(each for each in (where, keys, wrong.message) if each)

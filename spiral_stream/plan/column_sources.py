"""Which stored columns of which relations a column of a plan, or a field of its batches, is computed from.

The plan says it: no data is read. A column that SQL text gives is taken to come from the columns of its name, and, where there is
none, from every column that the text names; DuckDB is not asked.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, final

from spiral_stream.plan.combining import Aggregate, Join, Union
from spiral_stream.plan.functions.cached_functions import function_of, made_by, reads
from spiral_stream.plan.nodes import Collate, Deliver, Node, Scan, Sql, WithColumns
from spiral_stream.plan.tree import find
from spiral_stream.plan.verbs.maps import SampleColumns
from spiral_stream.plan.verbs.mix import Mix
from spiral_stream.transforms.python import Function


@final
@dataclass(frozen=True, slots=True)
class ColumnSources:
    """What a field of a batch is computed from.

    Attributes:
        columns: relation and column of each stored column, sorted.
        functions: of the maps on the way: name, file and line, in the order in which they are called.

    Examples:
        >>> stream.column_sources()["width"].columns
        (('photos', 'width'),)
    """

    columns: tuple[tuple[str, str], ...] = ()
    functions: tuple[tuple[str, str, int], ...] = ()


def field_sources(plan: Node, columns_of: Callable[[str], Collection[str]]) -> dict[str, ColumnSources]:
    """Return what each field of a plan's batches is computed from; of a plan without ``collate``, each column.

    Args:
        plan: up to any verb.
        columns_of: returns the columns of a relation that SQL text reads.
    """
    found, collate = _Sources(columns_of), find(plan, Collate)
    if collate is None:
        node = plan.source if isinstance(plan, Deliver) else plan
        return {name: found.of(node, name) for name in node.schema().names}
    return {name: found.of_several(collate.source, field.columns) for name, field in collate.fields}


@final
class _Sources:
    """What columns are computed from, found once per node and column."""

    def __init__(self, columns_of: Callable[[str], Collection[str]]) -> None:
        self._columns_of = columns_of
        self._found: dict[tuple[int, str], ColumnSources] = {}

    def of(self, node: Node, name: str) -> ColumnSources:
        """What a column that a node gives is computed from."""
        key = (id(node), name)
        if key not in self._found:
            self._found[key] = self._computed(node, name)
        return self._found[key]

    def of_several(self, node: Node, names: Iterable[str]) -> ColumnSources:
        """What several columns are computed from; names that the node does not have are of no column."""
        have = set(node.schema().names)
        return _merged(self.of(node, name) for name in names if name in have)

    def _computed(self, node: Node, name: str) -> ColumnSources:
        if isinstance(node, Scan):
            return ColumnSources(((node.relation, name),))
        if isinstance(node, Sql):
            return self._of_sql(node, name)
        if isinstance(node, Union | Mix):
            parts = node.parts if isinstance(node, Union) else [part.source for part in node.parts]
            return _merged(self.of_several(part, [name]) for part in parts)
        (source, *_) = node.inputs()
        if name in made_by(node) and not isinstance(node, SampleColumns):
            found, function = self.of_several(source, sorted(reads(node))), function_of(node)
            return (
                found if function is None else ColumnSources(found.columns, (*found.functions, _written_at(function)))
            )
        return self.of_several(*_read(node, name, source))

    def _of_sql(self, node: Sql, name: str) -> ColumnSources:
        words = set(re.findall(r"\w+", node.text))
        have = {relation: words & set(self._columns_of(relation)) for relation in node.relations}
        same = [(relation, name) for relation, columns in have.items() if name in columns]
        return ColumnSources(tuple(same or [(relation, each) for relation in have for each in sorted(have[relation])]))


def _read(node: Node, name: str, source: Node) -> tuple[Node, list[str]]:
    """The input of a node that a column is computed from, and the columns there."""
    if isinstance(node, Join) and name in (taken := node.taken()):
        return node.right, [taken[name]]
    if isinstance(node, Aggregate):
        return source, [next((column for column, _, measure in node.measures if measure == name), name)]
    if isinstance(node, WithColumns | SampleColumns) and name in node.names:
        return source, sorted(node.exprs[node.names.index(name)].columns())
    return source, [name]


def _merged(parts: Iterable[ColumnSources]) -> ColumnSources:
    columns, functions = set[tuple[str, str]](), dict[tuple[str, str, int], None]()
    for part in parts:
        columns.update(part.columns)
        functions.update(dict.fromkeys(part.functions))
    return ColumnSources(tuple(sorted(columns)), tuple(functions))


def _written_at(function: Function) -> tuple[str, str, int]:
    """Name, file and line of a function; no file of one that has no Python code."""
    code: Any = getattr(inspect.unwrap(function.function), "__code__", None)
    return (function.name, "", 0) if code is None else (function.name, code.co_filename, code.co_firstlineno)

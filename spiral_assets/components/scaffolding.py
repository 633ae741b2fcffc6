"""What ``dg scaffold defs`` writes: a component with example attributes to change, instead of an empty one."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import dagster as dg

Kind = TypeVar("Kind", bound=type)


def example(**attributes: Any) -> Callable[[Kind], Kind]:
    """Return the decorator that gives a component its example.

    Args:
        **attributes: what is written; a component with them can be loaded.
    """

    class _Example(dg.Scaffolder[Any]):
        attributes_of_it: Mapping[str, Any] = attributes

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            dg.scaffold_component(request, dict(self.attributes_of_it))

    return dg.scaffold_with(_Example)

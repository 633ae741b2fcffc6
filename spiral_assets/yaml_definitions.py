"""Definitions from a file of YAML documents, for a code location that is no ``dg`` project.

In a ``dg`` project the same documents lie in ``defs/<name>/defs.yaml``, and Dagster finds them.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import dagster as dg
import yaml


def definitions_from(path: Path) -> dg.Definitions:
    """Return the definitions of the components that a file declares.

    Args:
        path: of YAML documents, each with ``type`` and ``attributes``.

    Raises:
        DagsterInvalidDefinitionError: a document has no type, or a type that is no component.

    Examples:
        >>> from spiral_assets.yaml_definitions import definitions_from
        >>> size = Path("upkeep.yaml").write_text("type: spiral_assets.components.Upkeep")
        >>> [job.name for job in definitions_from(Path("upkeep.yaml")).jobs]
        ['remove_dead_caches']
    """
    return dg.Definitions.merge(*(dg.build_defs_for_component(each) for each in _components(path)))


def _components(path: Path) -> Iterator[dg.Component]:
    for number, document in enumerate(yaml.safe_load_all(path.read_text(encoding="utf-8")), 1):
        named = document.get("type", "") if isinstance(document, dict) else ""
        module, _, name = str(named).rpartition(".")
        kind = getattr(import_module(module), name, None) if module else None
        if not isinstance(kind, type) or not issubclass(kind, dg.Component):
            msg = (
                f"{path}: document {number} has type {named!r}. Give a component, as spiral_assets.components.Relation"
            )
            raise dg.DagsterInvalidDefinitionError(msg)
        yield kind.resolve_from_dict(document.get("attributes") or {})  # type: ignore[attr-defined]  # each is Resolvable

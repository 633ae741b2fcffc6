"""One file of YAML documents as Dagster's tree of components, so that they are read as those of a ``dg`` project are.

Templates, ``post_processing``, positions in errors, and what components ask of each other work alike.
"""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import dagster as dg
import yaml
from dagster._utils.warnings import suppress_dagster_warnings
from dagster.components.core.component_tree import ComponentTree, ComponentTreeException
from dagster.components.core.decl import (
    ComponentRootDecl,
    YamlFileDecl,
    build_component_decl_from_yaml_file,
)
from dagster.components.core.defs_module import ComponentPath, ComponentRootLoc, _add_defs_yaml_metadata
from dagster.components.resolved.core_models import post_process_defs
from dagster_shared.yaml_utils import parse_yamls_with_source_position


class FileTree(ComponentTree):
    """The components of one file.

    Attributes:
        is_location: whether the tree is all of its code location; Python merges a file with other definitions.
    """

    is_location: ClassVar[bool] = False

    @classmethod
    def of(cls, path: Path) -> "FileTree":
        """Return the tree of a file.

        Args:
            path: of YAML documents.
        """
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        return cls(defs_module=module, project_root=path.parent)

    @property
    def file(self) -> Path:
        """The file."""
        return Path(str(self.defs_module.__file__))

    @property
    def defs_module_path(self) -> Path:
        """The folder that the file lies in."""
        return self.file.parent

    def find_root_decl(self) -> ComponentRootDecl:
        """Return the declarations of the file."""
        return ComponentRootDecl(context=self.decl_load_context, loc=ComponentRootLoc(), decls=[self.documents()])

    def documents(self) -> YamlFileDecl:
        """Return the declaration of each document."""
        loc = ComponentPath.from_path(self.file)
        if self.state_tracker.get_cache_data(loc).component_decl is None:
            decl = build_component_decl_from_yaml_file(self.decl_load_context.for_component_loc(loc), self.file)
            self.state_tracker.set_cache_data(loc, component_decl=decl)
        found = self.state_tracker.get_cache_data(loc).component_decl
        assert isinstance(found, YamlFileDecl)
        return found


@suppress_dagster_warnings
def definitions_of_file(path: Path) -> dg.Definitions:
    """Return the definitions of a file.

    Args:
        path: of YAML documents.

    Raises:
        DagsterInvalidDefinitionError: something is wrong; says file and line.
    """
    tree = FileTree.of(path.absolute())
    _need_components(tree.file)
    try:
        return dg.Definitions.merge(*_made(tree))
    except ComponentTreeException as error:
        raise dg.DagsterInvalidDefinitionError(str(error.__cause__ or error)) from error


def _made(tree: FileTree) -> Iterator[dg.Definitions]:
    """Yield what each document defines, with what stands around its attributes: ``post_processing``, and the line."""
    file = tree.documents()
    for decl, position in zip(file.decls, file.source_positions, strict=True):
        made = tree.build_defs_at_path(decl.loc)
        update = partial(
            _add_defs_yaml_metadata,
            tree.file,
            tree.load_context,
            tree.load_structural_component_at_loc(decl.loc),
            position,
        )
        yield post_process_defs(made.with_definition_metadata_update(update), decl.get_asset_post_processor_lists())


def _need_components(path: Path) -> None:
    """Refuse a file that is no YAML, and documents that name no component."""
    text = path.read_text(encoding="utf-8")
    try:
        trees = parse_yamls_with_source_position(text, str(path))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        msg = f"{path}{line}: this is no YAML: {error.problem}. Correct it"
        raise dg.DagsterInvalidDefinitionError(msg) from error
    for number, tree in enumerate(trees, 1):
        named = tree.value.get("type", "") if isinstance(tree.value, dict) else ""
        if not _is_component(str(named)):
            msg = (
                f"{tree.source_position_tree.position}: document {number} has type {named!r}. Give a component, as "
                "spiral_assets.components.Relation"
            )
            raise dg.DagsterInvalidDefinitionError(msg)


def _is_component(named: str) -> bool:
    module, _, name = named.rpartition(".")
    try:
        kind = getattr(import_module(module), name, None) if module else None
    except ModuleNotFoundError:
        return False
    return isinstance(kind, type) and issubclass(kind, dg.Component)

"""What the components of one code location say of each other: keys given twice, circles of deps, streams that nobody saves.

Definitions of the others are built for it once, by Dagster's tree of components, which keeps them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, Protocol, final, runtime_checkable

import dagster as dg
from dagster._utils.env import using_dagster_dev
from dagster.components.core.component_tree import ComponentTree
from dagster.components.core.decl import ComponentDecl, PythonFileDecl, YamlDecl

from spiral_assets.conventions import RESOURCE, runs_key
from spiral_assets.reading.positions import Wrong, line_of, refuse
from spiral_assets.relations.sources import expanded

Path = tuple[str | int, ...]  # keys below ``attributes``

_LISTING_S: Final = 60
_NEAR: Final = 0.9  # likeness of two keys of which one is taken for a slip
_LIST: Final = "import sys, spiral_stream; print('\\n'.join(spiral_stream.connect(sys.argv[1]).streams()))"
_LOOKED: Final = "_spiral_looked_at"


@runtime_checkable
class Neighbour(Protocol):
    """What a component says for the others of its location."""

    def saved_streams(self) -> Sequence[str]:
        """Return the names of the streams that it saves."""
        ...

    def opened_streams(self) -> Sequence[tuple[Path, str]]:
        """Return the saved streams that it opens: the keys that lead to each, and its name."""
        ...

    def needed_assets(self) -> Sequence[tuple[Path, str]]:
        """Return the assets that the location must have: the keys that lead to each, and its key."""
        ...

    def catalog_name(self) -> str:
        """Return the name of its catalog."""
        ...

    def catalog_location(self) -> str | None:
        """Return where the catalog lies, from the component that says so."""
        ...


def need_sound_location(context: dg.ComponentLoadContext, defs: dg.Definitions) -> None:
    """Refuse what does not fit in a code location; the first of its components to be built looks at all of them.

    Args:
        context: of a component's load.
        defs: what that component defines.

    Raises:
        DagsterInvalidDefinitionError: says files and lines.
    """
    decl, tree = context.component_decl, context.component_tree
    if not isinstance(decl, YamlDecl) or getattr(tree, _LOOKED, False):
        return
    object.__setattr__(tree, _LOOKED, True)  # building the others comes here again
    try:
        parts = list(_parts(tree, decl, defs))
        _need_unique_keys(parts)
        _need_unique_names(parts)
        _need_no_circle(parts)
        _need_one_saver(parts)
        for part in parts:
            if isinstance(part.component, Neighbour):
                is_location = getattr(tree, "is_location", True)
                absent = [*_absent(part, parts), *_no_catalog(part.component, parts)] if is_location else []
                refuse(part.decl, [*absent, *_unsaved(part.component, parts)])
    except Exception:
        object.__setattr__(tree, _LOOKED, False)
        raise


@final
class _Part:
    """One component of the location: its declaration, itself, and the deps of each of its assets."""

    def __init__(self, decl: ComponentDecl[Any], component: dg.Component, defs: dg.Definitions) -> None:
        self.decl, self.component = decl, component
        self.where = line_of(decl) or str(getattr(decl.loc, "file_path", decl.loc))
        self.resources = dict(defs.resources or {})
        self.names = {
            (what, str(name))
            for what, each in [
                *(("job", each) for each in defs.jobs or ()),
                *(("sensor", each) for each in defs.sensors or ()),
                *(("schedule", each) for each in defs.schedules or ()),
            ]
            if (name := getattr(each, "name", None))
        }
        self.checks = [
            key
            for each in (*(defs.assets or ()), *(defs.asset_checks or ()))
            for key in getattr(each, "check_keys", ())
        ]
        self.deps: dict[dg.AssetKey, set[dg.AssetKey]] = {}
        for each in defs.assets or ():
            specs = each.specs if isinstance(each, dg.AssetsDefinition) else [each]
            for spec in specs:
                if isinstance(spec, dg.AssetSpec):
                    self.deps[spec.key] = {dep.asset_key for dep in spec.deps}


def _parts(tree: ComponentTree, of: ComponentDecl[Any], defs: dg.Definitions) -> Iterator[_Part]:
    for decl in list(tree.find_root_decl().iterate_all_component_decls()):
        if isinstance(decl, YamlDecl | PythonFileDecl):
            made = defs if decl.loc == of.loc else tree.build_defs_at_path(decl.loc)
            yield _Part(decl, tree.load_structural_component_at_loc(decl.loc), made)


def _need_unique_keys(parts: Sequence[_Part]) -> None:
    seen: dict[dg.AssetKey, str] = {}
    for part in parts:
        for key in part.deps:
            if key in seen:
                _refuse_second(
                    f"asset {key.to_user_string()!r}",
                    (part.where, seen[key]),
                    "Give one of the components another name, or put something before its keys: translation: {key_prefix: ...}",
                )
            seen[key] = part.where
    checks: dict[dg.AssetCheckKey, str] = {}
    for part in parts:
        for check in part.checks:
            if check in checks:
                what = f"check {check.name!r} of {check.asset_key.to_user_string()!r}"
                _refuse_second(what, (part.where, checks[check]), "Give your check another name")
            checks[check] = part.where


def _need_unique_names(parts: Sequence[_Part]) -> None:
    resources: dict[str, tuple[Any, str]] = {}
    named: dict[tuple[str, str], str] = {}
    for part in parts:
        for name, value in part.resources.items():
            first, where = resources.setdefault(name, (value, part.where))
            if first is not value:
                way_out = "Give the second Catalog a name, and its components catalog: <name>; or remove one"
                _refuse_second(f"resource {name!r}", (part.where, where), way_out)
        for what, name in sorted(part.names):
            where = named.setdefault((what, name), part.where)
            if where != part.where:
                way_out = "Give one another name (job: of a TrainingJob) or another Catalog (catalog: of an Upkeep), or remove it"
                _refuse_second(f"{what} {name!r}", (part.where, where), way_out)


def _refuse_second(what: str, lines: tuple[str, str], way_out: str) -> None:
    msg = f"{lines[0]}: {what} is defined twice, here and at {lines[1]}. {way_out}"
    raise dg.DagsterInvalidDefinitionError(msg)


def _need_one_saver(parts: Sequence[_Part]) -> None:
    """Refuse streams that two components of a catalog save: whoever runs last would decide what is read."""
    saved: dict[tuple[str, str], str] = {}
    for part in parts:
        if isinstance(part.component, Neighbour):
            for name in part.component.saved_streams():
                where = saved.setdefault((part.component.catalog_name(), name), part.where)
                if where != part.where:
                    _refuse_second(f"stream {name!r}", (part.where, where), "Give one of them another name")


def _need_no_circle(parts: Sequence[_Part]) -> None:
    where = {key: part.where for part in parts for key in part.deps}
    graph = {key: {dep for dep in deps if dep in where} for part in parts for key, deps in part.deps.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[dg.AssetKey] = error.args[1][::-1]
        names = " needs ".join(key.to_user_string() for key in circle)
        lines = ", ".join(dict.fromkeys(where[key] for key in circle))
        msg = f"{where[circle[0]]}: {names}: a circle of deps, at {lines}. Remove one of the deps"
        raise dg.DagsterInvalidDefinitionError(msg) from None


def _absent(part: _Part, parts: Sequence[_Part]) -> Iterator[Wrong]:
    """Yield the assets that the location should have, and deps that are nearly the key of one that it has."""
    if not isinstance(part.component, Neighbour):
        return
    known = {each.to_user_string() for other in parts for each in other.deps}
    needed = dict(part.component.needed_assets())
    for path, key in _deps_of(part.component):
        near = [] if key in known or path in needed else get_close_matches(key, known, 1, _NEAR)
        if near:
            yield Wrong(
                path,
                f"no component makes {key!r}; did you mean {near[0]!r}? Correct it, or, if another code location has it, "
                f'declare it in Python: dagster.AssetSpec("{key}")',
            )
    for path, key in needed.items():
        if key not in known:
            folder = key.partition("/")[0]
            there = ", ".join(sorted(each for each in known if each.partition("/")[0] == folder)) or "none"
            yield Wrong(
                path,
                f"no component saves {key!r}; there is {there}. Correct the name, add a TrainingStream, or, if another code "
                f'location has it, declare it in Python: dagster.AssetSpec("{key}")',
            )


def _deps_of(component: Any) -> Iterator[tuple[Path, str]]:
    yield from ((("deps", at), dep) for at, dep in enumerate(getattr(component, "deps", ())) if isinstance(dep, str))


def _no_catalog(component: Neighbour, parts: Sequence[_Part]) -> Iterator[Wrong]:
    """Yield that a catalog is named that the location does not have."""
    name, found = component.catalog_name(), {key for part in parts for key in part.resources}
    if name != RESOURCE and name not in found:
        known = ", ".join(sorted(key for key in found if runs_key(key) in found)) or "none"
        yield Wrong(
            ("catalog",), f"there is no Catalog called {name!r}; there is {known}. Correct it, or add the component"
        )


def _unsaved(component: Neighbour, parts: Sequence[_Part]) -> Iterator[Wrong]:
    """Yield the streams that no component saves and the catalog does not have."""
    if not component.opened_streams():
        return
    saved = {name for part in parts if isinstance(part.component, Neighbour) for name in part.component.saved_streams()}
    unknown = [(path, name) for path, name in component.opened_streams() if name not in saved]
    if not unknown or not using_dagster_dev():
        return
    found = _of_catalog(parts)
    if found is None:
        return
    for path, name in unknown:
        if name not in found:
            there = ", ".join(sorted(saved | found)) or "none"
            yield Wrong(
                path,
                f"stream {name!r} is saved by no TrainingStream here, and is not in the catalog; there is {there}. "
                "Correct the name, or save it",
            )


def _of_catalog(parts: Sequence[_Part]) -> set[str] | None:
    """Return the streams of the location's catalog; None if it cannot be told here: a store, or Python says where it lies."""
    said = [part.component.catalog_location() for part in parts if isinstance(part.component, Neighbour)]
    locations: list[str | None] = [each for each in said if each is not None]
    location = os.environ.get("SPIRAL_CATALOG") if not locations else locations[0] if len(locations) == 1 else None
    if location is None or "://" in expanded(location):
        return None
    if not os.path.isdir(expanded(location)):  # noqa: PTH112  opening it would make it
        return set()
    listed = subprocess.run(  # noqa: S603  our own program; a definition imports no part of the library
        [sys.executable, "-c", _LIST, expanded(location)],
        capture_output=True,
        text=True,
        timeout=_LISTING_S,
        check=False,
    )
    return set(listed.stdout.split()) if listed.returncode == 0 else None

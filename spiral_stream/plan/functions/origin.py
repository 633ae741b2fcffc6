"""Where code comes from: its module, the name that leads to it, the distribution that supplies it."""

import contextlib
import functools
import importlib.util
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_OURS: Final = {"spiral_stream": "spiral-stream"}  # top-level package: distribution
# The name that fingerprints have: our distribution was called so before, and what was recorded holds still.
_RECORDED: Final = {"spiral-stream": "spiral"}
_INSTALLED: Final = {".dist-info", ".egg-info", ".egg-link"}  # beside what they stand for


def top_level(dotted: str) -> str:
    """Return the top-level package of a dotted name."""
    return dotted.split(".", maxsplit=1)[0]


def is_users(package: str) -> bool:
    """Whether a top-level package is known by its content only: no installed version stands for it."""
    return package not in sys.stdlib_module_names and package not in _OURS and not installed(package)


@functools.cache
def installed(package: str) -> tuple[str, ...]:
    """``name==version`` of the distributions that supply a top-level package; none for editable installs.

    Local build tags ("+cpu", "+cu130") are left out: the same code runs on machines with other devices.
    """
    from importlib import metadata

    if package in sys.stdlib_module_names or (package not in _OURS and _stands_alone(package)):
        return ()
    try:
        names = [metadata.distribution(_OURS.get(package, package)).name]
    except metadata.PackageNotFoundError:
        names = suppliers().get(package, [])
    found = {name: metadata.distribution(name) for name in names}
    editable = ['"editable": true' in (each.read_text("direct_url.json") or "") for each in found.values()]
    if any(editable) and package not in _OURS:
        return ()
    return tuple(sorted(f"{_RECORDED.get(name, name)}=={each.version.split('+')[0]}" for name, each in found.items()))


def _stands_alone(package: str) -> bool:
    """Whether a package lies in a folder into which nothing was installed: scripts, a checkout."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a script has no spec
        return False
    if spec is None or not spec.has_location or spec.origin is None:
        return False
    folder = Path(spec.origin).parent if spec.submodule_search_locations is None else Path(spec.origin).parents[1]
    return folder.is_dir() and not any(each.suffix in _INSTALLED for each in folder.iterdir())


@functools.cache
def suppliers() -> Mapping[str, list[str]]:
    """The distributions that supply each top-level package: 0.3 CPU s, for the metadata of all of them is read."""
    from importlib import metadata

    return metadata.packages_distributions()


def home(thing: Any) -> str:
    """Return the module some code was written in; a script run by ``python -m`` has its module's name."""
    if isinstance(thing, functools.partial):
        return home(thing.func)
    if isinstance(thing, types.MethodType):
        return home(thing.__func__)
    scope = thing.__globals__ if isinstance(thing, types.FunctionType) else {}
    name = scope.get("__name__", getattr(thing, "__module__", None))
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if name == "__main__" and spec is not None else str(name)


def dotted_name(thing: Any) -> str:
    """Return the name a function or class goes by."""
    return f"{thing.__module__}.{thing.__qualname__}"


def found_name(value: Any) -> str | None:
    """Return the dotted name of a compiled function, a dtype or the like, if that name leads to it."""
    module = getattr(getattr(value, "__objclass__", value), "__module__", None)
    names = [getattr(value, attribute, None) for attribute in ("__qualname__", "__name__")]
    names.append(repr(value).removeprefix(f"{module}."))  # torch.float32
    for name in names:
        if isinstance(module, str) and isinstance(name, str) and lookup(module, name) is value:
            return f"{module}.{name}"
    return None


def lookup(module: str, qualname: str) -> Any:
    """Return what a name of an imported module leads to; None if it leads nowhere."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def cells(function: types.FunctionType) -> dict[str, Any]:
    """Return the values of a closure's variables by name; those not bound yet are left out."""
    out = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            out[name] = cell.cell_contents
    return out

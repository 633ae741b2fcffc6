"""Which code a saved plan may name, and how its names become functions and classes.

A saved plan may have been written by anybody, so opening one imports nothing and runs nothing that
this process does not trust already: modules of the user's own that are imported, and those on an
allow-list. That a library is imported is not enough (``subprocess`` always is). A name leads to what
a module defines itself: it walks through classes, never through modules, so ``mine:os.system`` leads
nowhere, and it reads dictionaries, so that no ``__getattr__`` runs.
"""

import importlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.errors import PlanError, TrustError, shown
from spiral_stream.plan.functions.code import code_fingerprint
from spiral_stream.plan.functions.origin import installed, is_users, top_level

TRUST_ENV: Final = "SPIRAL_TRUST"
AGAIN: Final = "Save the stream again"
_LIBRARIES: Final = ("stdlib", "platstdlib", "purelib", "platlib")
_PACKAGE_FOLDERS: Final = {"site-packages", "dist-packages"}


@final
class Trust:
    """The modules whose code saved plans may name, next to the user's own that are imported.

    Args:
        modules: modules, or names of them; each stands for those below it too. They are imported when a plan names them.

    Raises:
        PlanError: one is neither.
    """

    def __init__(self, modules: Iterable[object] = ()) -> None:
        names = [each.__name__ if isinstance(each, types.ModuleType) else each for each in modules]
        for name in names:
            if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
                msg = f'trust: {shown(name)} is no module. Give modules or names of modules, such as trust=["training.maps"]'
                raise PlanError(msg)
        self._names = frozenset(str(name) for name in names)

    def find(self, name: object, at: str) -> Any:
        """Return the function or class that a saved plan names ``module:qualname``.

        Args:
            name: as `stable_name` wrote it, if nobody changed it.
            at: where in the plan it stands, for messages.

        Raises:
            TrustError: its module is not trusted; says what would make it so.
            PlanError: it leads nowhere, or to code of another module.
        """
        module, colon, qualname = name.partition(":") if isinstance(name, str) else ("", "", "")
        if not (colon and all(part.isidentifier() for part in (*module.split("."), *qualname.split(".")))):
            msg = f"saved plan: {at}: {shown(name)} names no function or class; one is named module:name. {AGAIN}"
            raise PlanError(msg)
        found = _defined(self._module(module, f"{at}: {name:.200}"), qualname)
        if found is None or (getattr(found, "__module__", None), getattr(found, "__qualname__", None)) != (
            module,
            qualname,
        ):
            what = "nothing" if found is None else f"what is defined elsewhere ({found!r:.100})"
            msg = f"saved plan: {at}: the name {name:.200} leads to {what}. Define it in {module} again, or save the stream again"
            raise PlanError(msg)
        return found

    def _module(self, name: str, what: str) -> types.ModuleType:
        listed = any(f"{name}.".startswith(f"{each}.") for each in self._names)
        module = sys.modules.get(name)
        way_out = f'trust it: open_stream(..., trust=["{name}"]), or ${TRUST_ENV}={name}'
        if not listed and not is_users(top_level(name)):
            whose = ", ".join(installed(top_level(name))) or "Python itself or spiral"
            msg = f"saved plan: {what} is of {whose}, and a saved plan may name code of your own only. If you mean it, {way_out}"
            raise TrustError(msg)
        if not listed and not isinstance(module, types.ModuleType):
            msg = (
                f"saved plan: {what} is of a module that this process has not imported, and opening a plan imports "
                f"nothing. Import {name} before, or {way_out}"
            )
            raise TrustError(msg)
        if not listed and (name == "__main__" or _in_libraries(module)):
            msg = f"saved plan: {what} is of no module of your own, which alone a saved plan may name. If you mean it, {way_out}"
            raise TrustError(msg)
        if isinstance(module, types.ModuleType):
            return module
        try:
            return importlib.import_module(name)  # on the allow-list
        except ImportError as error:
            msg = f"saved plan: {what} cannot be imported ({error}). Put its module on the path, or {AGAIN.lower()}"
            raise PlanError(msg) from error


def check_code(found: Any, saved: str, name: str, at: str) -> None:
    """Refuse code that is not what it was when the plan was saved.

    Raises:
        PlanError: it changed, or cannot be read.
    """
    present = code_fingerprint(found)
    if present != saved:
        msg = (
            f"saved plan: {at}: {name} has changed since the stream was saved: its code was {saved:.40}, here it is {present} "
            "(own functions, classes and constants that it uses count, as do versions of installed packages). Restore it, or "
            "save the stream again"
        )
        raise PlanError(msg)


def _defined(module: types.ModuleType, qualname: str) -> Any:
    """Return what a module's own dictionary, or that of a class in it, holds under a name; bound as an attribute would be."""
    scope: dict[str, Any] = object.__getattribute__(module, "__dict__")  # a lazy module would import on any other look
    first, *rest = qualname.split(".")
    found: Any = scope.get(first)
    for part in rest:
        owner = found
        if not isinstance(owner, type):
            return None
        found = inspect.getattr_static(owner, part, None)
        if isinstance(found, staticmethod):
            found = found.__func__
        elif isinstance(found, classmethod):
            found = types.MethodType(found.__func__, owner)
    return found if callable(found) and not _is_proxy(found) else None


def _is_proxy(value: Any) -> bool:
    """Whether asking for an attribute may run code: such an object may claim any name, and fetch what it stands for."""
    looks = (inspect.getattr_static(type(value), name, None) for name in ("__getattr__", "__getattribute__"))
    return any(isinstance(look, types.FunctionType) for look in looks)


def _in_libraries(module: Any) -> bool:
    """Whether a module lies among installed ones, though no distribution says that it is its own."""
    file = object.__getattribute__(module, "__dict__").get("__file__")
    if not isinstance(file, str):
        return False
    path = Path(file)
    return bool(_PACKAGE_FOLDERS & set(path.parts)) or any(path.is_relative_to(folder) for folder in _folders())


@cache
def _folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[name] for name in _LIBRARIES if name in paths)

"""What griffe, which reads the code for the reference, cannot see: methods that a class forwards to an object it holds."""

from typing import Any

import griffe


class Forwarded(griffe.Extension):
    """Shows ``name = forwarded("attribute", Class.method)`` as the method that it calls."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Put the methods in place of such attributes, once all of the package is read."""
        for kind in _classes(pkg):
            for name, member in list(kind.members.items()):
                value = None if member.is_alias else getattr(member, "value", None)
                if (
                    isinstance(value, griffe.ExprCall)
                    and str(value.function) == "forwarded"
                ):
                    kind.set_member(name, _method(pkg, value.arguments[1]))


def _classes(module: griffe.Module) -> list[griffe.Class]:
    found = [each for each in module.members.values() if not each.is_alias]
    inner = [
        kind for each in found if isinstance(each, griffe.Module) for kind in _classes(each)
    ]
    return [*(each for each in found if isinstance(each, griffe.Class)), *inner]


def _method(package: griffe.Module, named: Any) -> griffe.Function:
    return package.modules_collection[named.canonical_path]

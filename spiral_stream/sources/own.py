"""Which class a saved source of a user's own is: an entry point of an installed package, or a class of this process.

A catalog's text only says a kind. It never says which module to import: an entry point was chosen by whoever installed
the package, and other classes count only once the process has imported them by itself.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.source import Source

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "spiral.sources"  # of entry points; each is called as the KIND of the class that it leads to


def own_source(kind: str) -> type[Source] | None:
    """Return the class of this kind; None if no installed package and no imported module has one.

    Raises:
        SourceError: two classes have the kind, or the entry point does not lead to one.
    """
    found = {_name_of(each): each for each in _imported(kind)}
    for point in _entry_points(tuple(sys.path)).get(kind, ()):
        if point.value.replace(":", ".") not in found:
            each = _loaded(point)
            found[_name_of(each)] = each
    if len(found) > 1:
        msg = (
            f"source kind {shown(kind)}: two classes have it, {' and '.join(sorted(found)[:2])}. Give one another KIND"
        )
        raise SourceError(msg)
    return next(iter(found.values()), None)


def need_own_source(source: Source, taken: Mapping[str, type[Source]]) -> None:
    """Refuse a source of a user's own that could not be opened again after it is saved.

    Args:
        source: to be saved.
        taken: kinds of the library.

    Raises:
        SourceError: says what its class lacks.
    """
    kind, name = type(source), type(source).__name__
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        msg = f"{name}: a source is saved by its fields. Make the class a frozen dataclass: @dataclass(frozen=True)"
        raise SourceError(msg)
    own = vars(kind).get("KIND")
    if not isinstance(own, str) or not own or own in taken:
        said = (
            f"its KIND is {shown(own)}, which is {taken[own].__name__}'s"
            if own in taken
            else "it has no KIND of its own"
        )
        msg = f'{name}: {said}. A catalog finds the class again by it: KIND: ClassVar[str] = "{name.lower()}"'
        raise SourceError(msg)
    found = own_source(own)
    if found is not kind:
        other = "no class that is imported" if found is None else _name_of(found)
        msg = f"{name}: its KIND {own!r} leads to {other}, not to {_name_of(kind)}. Define the class at the top of a module"
        raise SourceError(msg)


def classes_of(saved: Iterable[str]) -> tuple[type[Source], ...]:
    """Return the classes of users' own that saved sources need here: who pickles them takes them to another process.

    Args:
        saved: sources as JSON texts.
    """
    own = {
        each for each in _below(Source) if not each.__module__.startswith("spiral_stream.") and vars(each).get("KIND")
    }
    if not own:
        return ()
    texts = list(saved)
    named = [each for each in own if any(f'"kind": {json.dumps(each.KIND)}' in text for text in texts)]
    return tuple(each for each in named if own_source(each.KIND) is each)


def need_json(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse fields that JSON does not hold.

    Raises:
        SourceError: names the field.
    """
    for field, value in fields.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            msg = (
                f"{name}: its field {field!r} is {shown(value)}, which JSON does not hold. Use text, numbers, booleans, None, "
                "and lists or tuples of them"
            )
            raise SourceError(msg) from error


def unknown_kind(kind: object, known: str) -> SourceError:
    """Return the error for a kind that nothing has."""
    return SourceError(
        f"source kind {shown(kind)} is unknown. Import the module of its class, or install the package that has it as entry "
        f"point in the group {GROUP}; this version knows {known}"
    )


def _imported(kind: str) -> list[type[Source]]:
    """Classes of this process with a KIND of their own; of those with one name, the one that was defined last."""
    found = {_name_of(each): each for each in _below(Source) if vars(each).get("KIND") == kind}
    return [each for each in found.values() if not inspect.isabstract(each)]


def _below(kind: Any) -> Iterator[type[Source]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> "Mapping[str, tuple[EntryPoint, ...]]":
    """Entry points of the group, by name; listing them costs some ms.

    Args:
        path: ``sys.path``, so that a package that appears is seen.
    """
    from importlib.metadata import entry_points

    del path
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _loaded(point: "EntryPoint") -> type[Source]:
    where = f"entry point {point.name!r} of {point.dist.name if point.dist else 'a package'} in the group {GROUP}"
    try:
        found = point.load()
    except Exception as error:  # an installed package may fail in any way
        msg = f"{where}: {point.value} cannot be imported: {cut(str(error))}. Repair or update the package"
        raise SourceError(msg) from error
    if not (isinstance(found, type) and issubclass(found, Source) and getattr(found, "KIND", None) == point.name):
        msg = f"{where}: {point.value} is no source of this KIND. Name the entry point as the KIND of its class"
        raise SourceError(msg)
    return found

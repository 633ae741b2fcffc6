"""A source as part of a definition: its kind and place are known at once, and it is made when an asset's body runs.

A source is declared as a mapping, ``{"kind": "parquet", "path": "..."}``, or as a function that returns one: a `Named`
function gets the catalog. Variables of the environment (``$NAME``) and ``~`` are put in when it is made, so that one
definition serves several machines.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets.named import Named

if TYPE_CHECKING:
    import spiral_stream as spiral

    Made = Callable[["spiral.Catalog"], "spiral.sources.Source"]

Declared = Mapping[str, Any] | Named | Callable[["spiral.Catalog"], "spiral.sources.Source"]

_VARIABLE: Final = re.compile(r"\$(\w+|\{\w+\})")
_LOCATION_FIELDS: Final = ("path", "uri", "url", "repo")  # fields that say where rows lie, the first that is there
_FUNCTION: Final = "function"


def declared(source: Declared) -> Declared:
    """Return a declared source; a mapping with ``function`` is a named function with ``arguments``.

    Raises:
        DagsterInvalidDefinitionError: it has neither a kind nor a function.
    """
    if not isinstance(source, Mapping):
        return source
    if _FUNCTION in source:
        others = sorted(set(source) - {_FUNCTION, "arguments"})
        if others:
            msg = f"source: {others[0]!r} is no part of a function. Give function and arguments"
            raise dg.DagsterInvalidDefinitionError(msg)
        return Named(source[_FUNCTION], dict(source.get("arguments") or {}))
    if not isinstance(source.get("kind"), str):
        msg = f"source {dict(source)!r} has no kind. Give one, such as kind: parquet, or function: module:function"
        raise dg.DagsterInvalidDefinitionError(msg)
    return dict(source)


def kind_of(source: Declared) -> str | None:
    """Return the kind of a declared source; None for a function, whose source is not known before it runs."""
    return str(source["kind"]) if isinstance(source, Mapping) else None


def place_of(source: Declared) -> str | None:
    """Return where a declared source lies, as it is written; None for a function."""
    if not isinstance(source, Mapping):
        return None
    return next((str(source[name]) for name in _LOCATION_FIELDS if name in source), None)


def made(source: Declared, catalog: "spiral.Catalog") -> "spiral.sources.Source":
    """Make a declared source.

    Raises:
        Failure: a variable of the environment is not set, or a function returns something else.
        SourceError: the kind is unknown, or its fields do not fit.
    """
    import spiral_stream as spiral

    if isinstance(source, Mapping):
        return spiral.sources.declared_source(expanded(source))
    found = source(catalog)
    if not isinstance(found, spiral.sources.Source):
        msg = f"source: {source} returned a {type(found).__name__}. Return a source, such as spiral.Parquet(path)"
        raise dg.Failure(msg, allow_retries=False)
    return found


def expanded(value: Any) -> Any:
    """Return a value with variables of the environment put into its texts.

    Raises:
        Failure: a variable is not set.
    """
    if isinstance(value, Mapping):
        return {name: expanded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [expanded(each) for each in value]
    return _VARIABLE.sub(_of_environment, value) if isinstance(value, str) else value


def _of_environment(found: re.Match[str]) -> str:
    name = found[1].strip("{}")
    value = os.environ.get(name)
    if value is None:
        msg = f"source: ${name} is not set in the environment of the run. Set it, or write the place itself"
        raise dg.Failure(msg, allow_retries=False)
    return value

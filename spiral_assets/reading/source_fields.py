"""Which kinds of sources YAML may declare, and which fields each has: in errors, and in the schema that editors and ``dg`` use.

The library decides both; a definition does not import it, so they stand here too, and a test holds them equal.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from spiral_assets.reading.calls import wrong_call
from spiral_assets.reading.positions import Wrong

# kind -> its fields; the first says where the rows lie, and each declaration has it. path and uri mean the same.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "csv": (
        "path",
        "schema",
        "column_names",
        "delimiter",
        "quote",
        "on_error",
        "base",
        "allow_outside",
        "newlines_in_values",
    ),
    "huggingface": ("path", "split", "base", "allow_outside", "origin"),
    "image_folder": ("path", "origin"),
    "jsonl": ("path", "schema", "on_error", "base", "allow_outside", "references"),
    "lance": ("uri", "version", "base", "allow_outside", "origin"),
    "mds": ("path", "columns", "arrays", "on_error", "schema"),
    "parquet": ("path", "base", "allow_outside", "hive", "origin"),
    "text_files": ("path", "pattern", "on_error"),
    "tokens": ("path", "dtype", "separator", "length", "index"),
    "video_folder": ("path", "origin"),
    "vortex": ("path", "base", "allow_outside", "origin"),
    "webdataset": ("path", "key", "columns", "sidecars", "on_error", "schema"),
}
SEMANTIC: Final = ("image/jpeg-ref", "video/h264-ref", "audio/ref", "application/bytes-ref")
_LOCATIONS: Final = frozenset({"path", "uri"})


def wrong_source(source: Mapping[str, Any]) -> Iterator[Wrong]:
    """Yield what is wrong in a declared source.

    Args:
        source: as YAML has it.
    """
    at = ("source",)
    if "function" in source:
        yield from wrong_function(at, source, 1)
        return
    kind = source.get("kind")
    if kind is None:
        yield Wrong(at, "it has no kind. Give one, such as kind: parquet, or function: module:function")
        return
    if kind not in FIELDS:
        near = get_close_matches(str(kind), FIELDS, 1)
        said = f"; did you mean {near[0]!r}?" if near else ""
        yield Wrong((*at, "kind"), f"{kind!r} is no kind of source{said} There are {', '.join(FIELDS)}. Correct it")
        return
    known = {*FIELDS[kind], *_LOCATIONS, "kind"}
    for name in source:
        if name not in known:
            near = get_close_matches(str(name), FIELDS[kind], 1)
            said = f"; did you mean {near[0]!r}?" if near else ""
            yield Wrong(
                (*at, name), f"it is no field of {kind}{said} It has {', '.join(FIELDS[kind])}. Correct the name"
            )
    locations = [name for name in ("path", "uri") if name in source]
    if not locations:
        first = FIELDS[kind][0]
        yield Wrong(at, f"it does not say where the rows lie. Give {first}: ...")
    for name in locations:
        if not isinstance(source[name], str | list) or not source[name]:
            yield Wrong((*at, name), f"{source[name]!r} is no place. Give the path of files or a folder, or a URI")


def wrong_function(at: tuple[str | int, ...], said: Any, given: int) -> Iterator[Wrong]:
    """Yield what is wrong with a function by its name, alone or with arguments.

    Args:
        at: keys that lead to it.
        said: ``module:function``, or a mapping with ``function`` and ``arguments``.
        given: how many values it gets before its arguments.
    """
    function, arguments = (said, {}) if isinstance(said, str) else (said.get("function"), said.get("arguments") or {})
    where = at if isinstance(said, str) else (*at, "function")
    if not isinstance(said, str) and (others := sorted(set(said) - {"function", "arguments"})):
        yield Wrong((*at, others[0]), f"{others[0]!r} is no part of a function. Give function and arguments")
        return
    module, colon, name = str(function).partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        yield Wrong(where, f"function {function!r} is not of the form module:function. Write package.module:function")
        return
    if not isinstance(arguments, Mapping):
        yield Wrong((*at, "arguments"), f"{arguments!r} is no mapping. Give the arguments by name")
        return
    if (wrong := wrong_call(module, name, arguments, given)) is not None:
        named = next((each for each in arguments if repr(each) in wrong), None)
        yield Wrong((*at, "arguments", named) if named is not None else where, wrong)


def source_schema() -> dict[str, Any]:
    """Return the JSON schema of a declared source, in addition to that it is an object."""
    kinds = [
        {
            "if": {"properties": {"kind": {"const": name}}, "required": ["kind"], "not": {"required": ["function"]}},
            "then": {
                "propertyNames": {"enum": sorted({*fields, *_LOCATIONS, "kind"})},
                "if": {"not": {"required": ["uri"]}},
                "then": {"required": ["path"]},
            },
        }
        for name, fields in FIELDS.items()
    ]
    kind = {"if": {"type": "string", "pattern": "{{"}, "else": {"enum": sorted(FIELDS)}}  # a template is not known yet
    one = {
        "if": {"type": "object", "not": {"required": ["function"]}},
        "then": {"required": ["kind"], "properties": {"kind": kind}},
        "else": {"if": {"type": "object"}, "then": {"propertyNames": {"enum": ["arguments", "function"]}}},
    }
    return {"allOf": [one, *kinds]}

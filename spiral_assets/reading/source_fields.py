"""Which kinds of sources YAML may declare, and which fields each has: in errors, and in the schema that editors and ``dg`` use.

The library decides both; a definition does not import it, so they stand here too, and a test holds them equal.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spiral_assets.reading.calls import wrong_call
from spiral_assets.reading.positions import Wrong
from spiral_assets.reading.wording import nearest

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
# Types of columns that are one word, as Arrow writes them; those with parameters are not looked at.
TYPES: Final = (
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "double",
    "float",
    "halffloat",
    "bool",
    "string",
    "large_string",
    "string_view",
    "binary",
    "large_binary",
    "binary_view",
    "date32[day]",
    "date64[ms]",
    "null",
)
_LOCATIONS: Final = frozenset({"path", "uri"})
_TRUTH, _NUMBER, _TEXT, _LIST, _MAPPING = "true or false", "a whole number", "a text", "a list", "a mapping"
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    _TRUTH: (bool,),
    _NUMBER: (int,),
    _TEXT: (str,),
    _LIST: (list, tuple),
    _MAPPING: (Mapping,),
}
# field -> what its value may be; all but path and uri may be null, too.
VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "schema": (_MAPPING,),
    "column_names": (_LIST,),
    "delimiter": (_TEXT,),
    "quote": (_TEXT,),
    "on_error": (_TEXT,),
    "base": (_TEXT,),
    "allow_outside": (_TRUTH,),
    "newlines_in_values": (_TRUTH,),
    "split": (_TEXT,),
    "origin": (_TRUTH,),
    "references": (_LIST, _MAPPING),
    "version": (_NUMBER,),
    "columns": (_LIST, _MAPPING),
    "arrays": (_MAPPING,),
    "hive": (_TRUTH,),
    "pattern": (_TEXT,),
    "dtype": (_TEXT,),
    "separator": (_NUMBER,),
    "length": (_NUMBER,),
    "index": (_TRUTH,),
    "key": (_TEXT,),
    "sidecars": (_MAPPING,),
}
_ON_ERROR: Final = ("raise", "skip")
_SCHEME: Final = re.compile(r"(s3|gs|gcs|az|abfss?|https?|file|hf):/?[^/]")  # s3:/shop, which names no store
_FILE: Final = ("__file__", "__index_in_file__", "storage_shard")  # columns of rows that are read once
# kind -> the columns that each relation of it has; those of other kinds are known when their files are read.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "image_folder": ("sample_id", "image_ref", "label_id", "class_name", "size_bytes", "storage_shard"),
    "text_files": ("text", "size_bytes", "__row_id__", *_FILE),
    "tokens": ("tokens", "start", "length", "__row_id__", *_FILE),
    "video_folder": ("sample_id", "clip_ref", "label_id", "class_name", "size_bytes", "storage_shard"),
}


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
        guess = nearest(kind, FIELDS)
        yield Wrong((*at, "kind"), f"{kind!r} is no kind of source{guess} There are {', '.join(FIELDS)}. Correct it")
        return
    known = {*FIELDS[kind], *_LOCATIONS, "kind"}
    for name in source:
        if name not in known:
            guess = nearest(name, FIELDS[kind])
            yield Wrong(
                (*at, name), f"it is no field of {kind}{guess} It has {', '.join(FIELDS[kind])}. Correct the name"
            )
        elif name in VALUES:
            yield from _wrong_value((*at, name), source[name], VALUES[name])
    yield from _wrong_location(source, FIELDS[kind][0])


def known_columns(source: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the columns of a declared source; None where its files say them.

    Args:
        source: as YAML has it.
    """
    kind, names = source.get("kind"), source.get("column_names")
    if kind == "csv" and isinstance(names, list | tuple) and source.get("schema") is None:
        return (*map(str, names), *_FILE)
    found = COLUMNS.get(str(kind))
    return found if found is None or not source.get("origin") else tuple(dict.fromkeys((*found, *_FILE)))


def known_type(kind: str) -> bool:
    """Whether a column can have a type.

    Args:
        kind: as YAML has it.
    """
    return kind in TYPES or kind in SEMANTIC or any(sign in kind for sign in "<([{")


def _wrong_value(at: tuple[str | int, ...], value: Any, may_be: tuple[str, ...]) -> Iterator[Wrong]:
    """Yield what is wrong with the value of a field."""
    types = tuple(each for words in may_be for each in _TYPES[words])
    if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        yield Wrong(at, f"{value!r} is wrong. Give {' or '.join(may_be)}")
    elif at[-1] == "on_error" and value is not None and value not in _ON_ERROR:
        guess = nearest(value, _ON_ERROR)
        yield Wrong(at, f"{value!r} is no choice{guess} Give raise, or skip to leave out rows that cannot be read")


def _wrong_location(source: Mapping[str, Any], first: str) -> Iterator[Wrong]:
    """Yield what is wrong with where the rows lie."""
    at = ("source",)
    locations = [name for name in ("path", "uri") if name in source]
    if len(locations) > 1:
        yield Wrong((*at, "uri"), "path and uri mean the same, and both are given. Leave one of them out")
    if not locations:
        yield Wrong(at, f"it does not say where the rows lie. Give {first}: ...")
    for name in locations:
        if not isinstance(source[name], str | list) or not source[name]:
            yield Wrong((*at, name), f"{source[name]!r} is no place. Give the path of files or a folder, or a URI")
        elif isinstance(source[name], str) and _SCHEME.match(source[name]):
            scheme = source[name].partition(":")[0]
            yield Wrong((*at, name), f"{source[name]!r} is no URI. Write it with two slashes: {scheme}://...")


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

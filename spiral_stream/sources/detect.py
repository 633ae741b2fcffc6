"""Which source reads a path, by the names of its files; and a source's options as texts of a command line (``delimiter=;``)."""

import dataclasses
import difflib
import glob
import json
import os
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.columnar.huggingface import tells_apart
from spiral_stream.sources.files.listing import PACKED, globbed, listed_below, shown_files
from spiral_stream.sources.image_folder import IMAGES, VIDEOS
from spiral_stream.sources.mds.index import INDEX_FILE
from spiral_stream.sources.mosaic import is_index_there
from spiral_stream.sources.serialize import library_kinds, plugin_class
from spiral_stream.sources.source import Source
from spiral_stream.storage.uri import WEB, is_object

_MISSING = object()


def options_of(kind: type[Source], location: str, given: Sequence[str]) -> dict[str, Any]:
    """Return what a source's constructor takes.

    A value is JSON. For a field of text it may be the text itself, without quotes.

    Args:
        kind: the source's class.
        location: the field that says where its rows lie, which is given otherwise.
        given: ``name=value`` each.

    Raises:
        SourceError: a name is no option of the source, or is given twice, or a value is of another type.
    """
    types_of = _types(kind)
    names = [name for name in types_of if name != location]
    found: dict[str, Any] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or name not in names:
            what = f"{shown(name)} is no option of {kind.KIND}" if mark else f"{shown(text)} is no name=value"
            msg = f"--option: {what}; it has {', '.join(names) or 'none'}. Correct it"
            raise SourceError(msg)
        if name in found:
            msg = f"--option: {name} is given twice. Give it once; several values are a JSON list"
            raise SourceError(msg)
        found[name] = _value(name, value, types_of[name])
    return found


def _types(kind: type[Source]) -> Mapping[str, tuple[Any, ...]]:
    """The types that each field takes."""
    try:
        hints = get_type_hints(kind)
    except Exception:  # noqa: BLE001  hints of a class of the user's may name what is not there
        hints = {}
    fields = [field for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]  # each is a dataclass
    return {field.name: _alternatives(hints.get(field.name, Any)) for field in fields}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(each for part in get_args(hint) for each in _alternatives(part))
    return (get_origin(hint) or hint,)


def _value(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = _MISSING
    if value is not _MISSING and any(_fits(value, kind) for kind in kinds):
        return float(value) if float in kinds and int not in kinds and type(value) is int else value
    if str in kinds or (Any in kinds and value is _MISSING):
        return text
    words = " or ".join(dict.fromkeys(_WORDS.get(kind, "a JSON value") for kind in kinds))
    msg = f"--option: {name}={text}: the value would be {words}. Correct it"
    raise SourceError(msg)


_WORDS = {
    bool: "true or false",
    dict: "a JSON object",
    float: "a number",
    int: "a whole number",
    list: "a JSON list",
    str: "a text",
    tuple: "a JSON list",
    type(None): "null",
}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is one of a type."""
    if kind is Any:
        return True
    if kind in (bool, str, type(None)):
        return type(value) is kind
    if kind in (int, float):
        return type(value) in (int, kind)
    if isinstance(value, dict):
        return kind is dict or (isinstance(kind, type) and issubclass(dict, kind))
    return isinstance(value, list) and (kind is tuple or (isinstance(kind, type) and issubclass(list, kind)))


_BY_SUFFIX: Final[Mapping[str, str]] = {  # in a folder of several kinds, the first counts
    ".lance": "lance",
    **dict.fromkeys((".tar", ".tgz"), "webdataset"),
    ".parquet": "parquet",
    ".vortex": "vortex",
    ".mds": "mds",
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".bin", ".npy"), "tokens"),
    ".txt": "text_files",
}
_SPLITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_SPLIT: Final = re.compile(rf"({'|'.join(sorted(_SPLITS, key=len, reverse=True))})(?![a-z])", re.IGNORECASE)
_VERSIONS: Final = "_versions"  # a folder of Lance datasets
_HUGGING_FACE: Final = ("state.json", "dataset_dict.json", "dataset_infos.json")
_WEB: Final = tuple(f"{scheme}://" for scheme in WEB)  # servers that list nothing
_LOOKED_AT: Final = 1000  # files of a folder
_SEVERAL: Final = 2
_MEDIA: Final = (*IMAGES, *VIDEOS)


def source_at(path: str, kind: str | None = None, options: Sequence[str] = ()) -> Source:
    """Return the source at a path.

    Args:
        path: a file, a folder, or a pattern.
        kind: what it is; None tells by the names of the files.
        options: further fields of the source, ``name=value`` each.

    Raises:
        SourceError: the kind is unknown or cannot be told, or it has no such option.
    """
    kinds = library_kinds()
    name = kind or suggested(path)
    found: type[Source] | None = kinds.get(name) or plugin_class(name)
    if found is None:
        near = difflib.get_close_matches(name, kinds, n=2, cutoff=0.5)
        msg = f"{shown(kind)} is no kind of source. Give one of {', '.join(sorted(kinds))}, or one of an installed package"
        msg += f"; near it: {', '.join(near)}" if near else ""
        raise SourceError(msg)
    field_name = dataclasses.fields(found)[0].name  # type: ignore[arg-type]  # each is a dataclass
    given = options_of(found, field_name, options)
    try:
        made: Source = found(path, **given)
    except TypeError as error:
        msg = (
            f"source kind {name!r} takes more than a path ({cut(str(error))}). Make it in Python: catalog.register(...)"
        )
        raise SourceError(msg) from error
    return made


def guessed(path: str) -> tuple[str, Mapping[str, str]]:
    """Return the kind of source that the names of files suggest, and the splits that they tell apart.

    Args:
        path: a file, a folder, a pattern, or the URI of one of these.

    Returns:
        the kind, and where the files of each split lie; no splits where all files are of one.

    Raises:
        SourceError: the names suggest no kind, or nothing lies below a URI.
    """
    is_folder = os.path.isdir(path) and not path.rstrip("/").endswith(".lance")  # noqa: PTH112
    names: list[str] | None = None
    if is_folder:
        kind = _of_folder(Path(path))
    else:
        kind = _by_name(path)
        if kind is None and is_object(path) and not path.startswith(_WEB) and not glob.has_magic(path):
            names = [each.name for each in shown_files(listed_below(path.rstrip("/"), "source"))]
            kind = _of_names(names, indexed=is_index_there(f"{path.rstrip('/')}/{INDEX_FILE}"))
    if kind is None:
        kinds = ", ".join(sorted(library_kinds()))
        msg = f"{cut(path)}: what kind of source this is cannot be told from its name. Give the kind: {kinds}"
        raise SourceError(msg)
    splits = _splits_of(path, kind, names, is_folder=is_folder)
    if len(splits) < _SEVERAL:
        return kind, {}
    if kind == "parquet":
        if is_folder:
            names = [str(each.relative_to(path)) for each in Path(path).rglob("*.parquet")]
        if names is not None and tells_apart([name for name in names if name.endswith(".parquet")]):
            return "huggingface", splits  # which asks for the split
    return kind, splits


def suggested(path: str) -> str:
    """The kind of source that the names of files suggest.

    Raises:
        SourceError: they suggest none, or files of several splits lie there.
    """
    found, splits = guessed(path)
    if not splits or found == "huggingface":
        return found
    one = next(iter(splits.values()))
    msg = (
        f"{cut(path)} holds files of several splits: {', '.join(sorted(splits))}. Give those of one, such as {cut(one)}; or "
        f"the kind, {found}, which takes all of them for one relation"
    )
    raise SourceError(msg)


def _splits_of(path: str, kind: str, names: Sequence[str] | None, *, is_folder: bool) -> Mapping[str, str]:
    """The splits that names of files say, each as it is spelt first with a place where its files are."""
    indexed = kind == "mds" and is_index_there(f"{path.rstrip('/')}/{INDEX_FILE}")
    if kind == "huggingface" or indexed or not (names is not None or is_folder or glob.has_magic(path)):
        return {}
    below = is_folder or names is not None
    root = path if below else os.path.dirname(re.split(r"[*?\[]", path)[0])  # noqa: PTH120
    walked: Iterable[str] = names or ()
    if names is None:
        walked = globbed("**", "source", path) if is_folder else globbed(path, "source")
    ends = _MEDIA if kind in ("image_folder", "video_folder") else tuple(s for s, k in _BY_SUFFIX.items() if k == kind)
    found: dict[str, str] = {}
    for name in sorted(walked):
        if not _plain(name).endswith(ends):
            continue
        parts = (name if below else os.path.relpath(name, root)).split("/")
        for at, part in enumerate(parts):
            said = _SPLIT.match(part)
            if said is not None and (at == len(parts) - 1 or said.end() == len(part)):
                ending = part[len(Path(_plain(part)).stem) :]
                rest = f"{said[0]}*{ending}" if at == len(parts) - 1 else part
                found.setdefault(_SPLITS[said[1].lower()], "/".join((root.rstrip("/"), *parts[:at], rest)))
                break
    return found


def _by_name(path: str) -> str | None:
    return _BY_SUFFIX.get(Path(_plain(path)).suffix)


def _plain(path: str) -> str:
    """A name in small letters, without the ending that says how the file is compressed."""
    name = path.rstrip("/").lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return name


def _of_folder(folder: Path) -> str | None:
    top = [name for name in (_VERSIONS, *_HUGGING_FACE) if (folder / name).exists()]
    walked = [path for _, path in zip(range(_LOOKED_AT), sorted(folder.rglob("*")), strict=False) if path.is_file()]
    names = [str(path.relative_to(folder)) for path in walked]
    return _of_names([*top, *names], indexed=is_index_there(str(folder / INDEX_FILE)))


def _of_names(names: Sequence[str], *, indexed: bool) -> str | None:
    """The kind of source whose files have these names, relative to its folder; indexed: an index of shards is among them."""
    if any(name.split("/")[0] == _VERSIONS for name in names):
        return "lance"
    if set(_HUGGING_FACE) & set(names):
        return "huggingface"
    if indexed:
        return "mds"
    kinds = {_by_name(name) for name in names}
    found = [kind for kind in dict.fromkeys(_BY_SUFFIX.values()) if kind in kinds]
    if found and found[0] != "text_files":
        return found[0]
    suffixes = {Path(name).suffix.lower() for name in names}
    if suffixes & set(IMAGES):
        return "image_folder"
    return "video_folder" if suffixes & set(VIDEOS) else found[0] if found else None

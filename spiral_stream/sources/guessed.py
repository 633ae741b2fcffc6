"""Which source a path is, by the names of its files."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.folder import IMAGES, VIDEOS
from spiral_stream.sources.options import options_of
from spiral_stream.sources.own import own_source
from spiral_stream.sources.saved import library_kinds
from spiral_stream.sources.source import Source

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
_PACKED: Final = (".bz2", ".gz", ".xz", ".zst")
_LOOKED_AT: Final = 1000  # files of a folder


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
    name = kind or _told(path)
    found: type[Source] | None = kinds.get(name) or own_source(name)
    if found is None:
        msg = f"{shown(kind)} is no kind of source. Give one of {', '.join(sorted(kinds))}, or one of an installed package"
        raise SourceError(msg)
    place = dataclasses.fields(found)[0].name  # type: ignore[arg-type]  # each is a dataclass
    given = options_of(found, place, options)
    try:
        made: Source = found(path, **given)
    except TypeError as error:
        msg = (
            f"source kind {name!r} takes more than a path ({cut(str(error))}). Make it in Python: catalog.register(...)"
        )
        raise SourceError(msg) from error
    return made


def _told(path: str) -> str:
    """The kind of source that the names of files suggest.

    Raises:
        SourceError: they suggest none.
    """
    found = _by_name(path) if not os.path.isdir(path) or path.rstrip("/").endswith(".lance") else _of_folder(Path(path))  # noqa: PTH112
    if found is None:
        kinds = ", ".join(sorted(library_kinds()))
        msg = f"{cut(path)}: what kind of source this is cannot be told from its name. Give the kind: {kinds}"
        raise SourceError(msg)
    return found


def _by_name(path: str) -> str | None:
    name = path.rstrip("/").lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return _BY_SUFFIX.get(Path(name).suffix)


def _of_folder(folder: Path) -> str | None:
    if (folder / "_versions").is_dir():
        return "lance"
    if any((folder / name).exists() for name in ("state.json", "dataset_dict.json", "dataset_infos.json")):
        return "huggingface"
    if (folder / "index.json").exists():
        return "mds"
    names = [path for _, path in zip(range(_LOOKED_AT), sorted(folder.rglob("*")), strict=False) if path.is_file()]
    kinds = {_by_name(path.name) for path in names}
    found = [kind for kind in dict.fromkeys(_BY_SUFFIX.values()) if kind in kinds]
    if found and found[0] != "text_files":
        return found[0]
    suffixes = {path.suffix.lower() for path in names}
    if suffixes & set(IMAGES):
        return "image_folder"
    return "video_folder" if suffixes & set(VIDEOS) else found[0] if found else None

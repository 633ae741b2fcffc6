"""Whether the files that a source of lines names are shards of Mosaic's writers, as their index.json says.

Such a folder holds more than lines: the index, meta files, both forms of a compressed shard; and its values are not quoted.
So its shards are read by the index, as `Mds` reads them, and a shard that is named alone is refused with that way out.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.files.listing import Paths, found_units, listed_units, need_one_compression
from spiral_stream.sources.import_source import ImportUnit
from spiral_stream.sources.mds.index import INDEX_FILE, Shard, is_index, shards_in
from spiral_stream.sources.mds.source import Mds
from spiral_stream.storage.file_object import look, object_bytes, read_parts
from spiral_stream.storage.store import ObjectStat

_SHARD: Final = re.compile(r"shard\.\d{5}\.")  # how the writers begin the name of a shard
_INDEX_MARK: Final = b'"shards"'  # which an index says near its beginning
_HEAD_BYTES: Final = 4096


def lines_units(
    paths: Paths, what: str, suffixes: Sequence[str], forms: Sequence[str], given: Mapping[str, Any]
) -> list[ImportUnit]:
    """Find the files that paths name: one unit per file, or per shard where an index describes them.

    Args:
        paths: as `absolute_paths` returns them.
        what: the source, for messages.
        suffixes: how the files of a folder end.
        forms: of shards that the source reads.
        given: what the user said of the form of the files, and an index says too; None where nothing is said.

    Raises:
        SourceError: as `listed_units`; or some files are shards, and others are not or what is given does not go with them.
    """
    try:
        units = found_units(paths, what, (*suffixes, INDEX_FILE))
    except SourceError:
        return listed_units(paths, what, suffixes)  # which says what was looked for
    indexes = {unit.path: data for unit in units if (data := _index_in(unit)) is not None}
    if indexes:
        return _of_folder(paths, what, units, indexes, forms, given)
    files = [unit for unit in units if not unit.path.endswith(INDEX_FILE) or unit.path.endswith(tuple(suffixes))]
    if not files:
        return listed_units(paths, what, suffixes)
    need_one_compression([unit.path for unit in files], what)
    for folder in dict.fromkeys(os.path.dirname(unit.path) for unit in files if _SHARD.match(_base(unit.path))):  # noqa: PTH120
        index = f"{folder}/{INDEX_FILE}"
        if is_index_there(index):
            raise _alone(what, index)
    return files


def shards_source(paths: Paths, on_error: str, schema: Any = None) -> Mds:
    """Return the source that reads the shards of a folder."""
    return Mds(str(paths), on_error=on_error, schema=schema)


def is_shard(unit: ImportUnit) -> bool:
    """Whether a unit is a shard that an index describes."""
    return bool(unit.others) and _base(unit.others[0]) == INDEX_FILE


def is_index_there(index: str) -> bool:
    """Whether a file, or an object, is there and is the index of shards."""
    try:
        return _index_at(index, look(index)) is not None
    except SourceError:  # not there; or nobody may ask, as a bucket says of what is not there
        return False


def _of_folder(
    paths: Paths,
    what: str,
    units: Sequence[ImportUnit],
    indexes: Mapping[str, bytes],
    forms: Sequence[str],
    given: Mapping[str, Any],
) -> list[ImportUnit]:
    """The shards of a folder, one unit each."""
    first, folder = next(iter(indexes)), f"{paths.rstrip('/')}/" if isinstance(paths, str) else ""
    if not folder or not all(index.startswith(folder) for index in indexes):
        raise _alone(what, first)
    index_uri = f"{folder}{INDEX_FILE}"  # one here says what lies below, too
    indexes = {index_uri: indexes[index_uri]} if index_uri in indexes else indexes
    listed: set[str] = set()
    for index, data in indexes.items():
        shards = shards_in(index, data)
        listed |= {f"{os.path.dirname(index)}/{name}" for shard in shards for name in _names_of(shard)}  # noqa: PTH120
        if other := next((shard.form for shard in shards if shard.form not in forms), None):
            msg = f"{what}: {cut(index)} lists shards of {other}. Read them with Mds({shown(paths)})"
            raise SourceError(msg)
    stray = next((unit.path for unit in units if _base(unit.path) != INDEX_FILE and unit.path not in listed), None)
    if stray is not None:
        msg = f"{what}: {cut(stray)} is none of the shards that {cut(first)} lists. Move it, or name it alone"
        raise SourceError(msg)
    if said := next((name for name, value in given.items() if value is not None and value != ()), None):
        msg = f"{what}: {said}= does not go with shards whose form {cut(first)} says. Leave it out"
        raise SourceError(msg)
    return list(shards_source(paths, "raise").import_units())


def _names_of(shard: Shard) -> list[str]:
    files = [shard.raw, shard.packed]
    if shard.lines is not None:
        files += [shard.lines.raw, shard.lines.packed]
    return [file.name for file in files if file is not None]


def _alone(what: str, index: str) -> SourceError:
    folder = os.path.dirname(index)  # noqa: PTH120
    msg = (
        f"{what}: {cut(index)} says how the shards beside it are written, which their lines do not. Give the folder alone: "
        f"{what}({shown(folder)}), or Mds({shown(folder)})"
    )
    return SourceError(msg)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _index_in(unit: ImportUnit) -> bytes | None:
    """What a file holds that is the index of shards; None if it is none."""
    if _base(unit.path) != INDEX_FILE:
        return None
    return _index_at(unit.path, unit.facts(unit.path) or look(unit.path))


def _index_at(path: str, seen: ObjectStat) -> bytes | None:
    head = b"".join(data for _, data in read_parts(path, seen, [(0, min(_HEAD_BYTES, seen.size))]))
    if _INDEX_MARK not in head:
        return None
    data = bytes(object_bytes(path, seen))
    return data if is_index(data) else None

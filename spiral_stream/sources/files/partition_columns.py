"""Columns that folders called ``key=value`` give the files below them, as Hive, Spark, DuckDB and Arrow lay tables out.

A key is int64 if its values in all files are whole numbers, else utf8; utf8 too if two of them, such as ``1`` and ``01``, are
one number. ``__HIVE_DEFAULT_PARTITION__`` is null. Values are
percent-decoded, as Spark and Arrow encode them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from spiral_stream.errors import SourceError, cut, shown

_PART: Final = re.compile(r"([^=/]+)=([^/]*)")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")  # fits int64
_WAY_OUT: Final = (
    "Move it, name the other files in a list or pattern, or give hive=False, which takes no columns from folders"
)


def has_keys(names: Sequence[str]) -> bool:
    """Whether any file lies in a folder called ``key=value``."""
    return any("=" in name and _keys_of(name) for name in names)


def hive_columns(root: str, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return the columns that the folders of files give them, each with one value per file.

    Args:
        root: the folder that all files lie below.
        names: of the files, relative to it.

    Raises:
        SourceError: a file has other keys than the first, or a key twice.
    """
    first = _keys_of(names[0])
    texts: dict[str, list[str | None]] = {key: [] for key in first}
    for name in names:
        found = _keys_of(name)
        if list(found) != list(first):
            msg = (
                f"Parquet: {cut(f'{root}/{name}')} has {_shown(found)} in its path, and {cut(f'{root}/{names[0]}')} has "
                f"{_shown(first)}. {_WAY_OUT}"
            )
            raise SourceError(msg)
        for key, value in found.items():
            texts[key].append(None if value == _NULL else unquote(value))
    return {key: _column(values) for key, values in texts.items()}


def need_equal(path: str, key: str, value: Any, ranges: Sequence[tuple[Any, Any] | None]) -> None:
    """Refuse a file that stores the key of a folder it lies in as a column too, unless all its values are the folder's.

    Args:
        path: of the file.
        key: of the folder.
        value: that the folder says.
        ranges: least and greatest value of each row group, None where its statistics do not say or there are nulls.

    Raises:
        SourceError: says what the file has.
    """
    for each in ranges:
        if each is None or {str(each[0]), str(each[1])} != {str(value)}:
            found = (
                "does not say what values it has"
                if each is None
                else f"has values from {shown(each[0])} to {shown(each[1])}"
            )
            msg = (
                f"Parquet: {cut(path)} lies in a folder {key}={value} and stores a column {key!r} too, which {found}. "
                "Give hive=False, which takes the stored column and none from folders, or rename the folder's key"
            )
            raise SourceError(msg)


def _keys_of(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in name.split("/")[:-1]:
        match = _PART.fullmatch(part)
        if match is None:
            continue
        key = unquote(match[1])
        if key in found:
            msg = f"Parquet: {cut(name)} has the key {key!r} twice in its path. {_WAY_OUT}"
            raise SourceError(msg)
        found[key] = match[2]
    return found


def _column(values: Sequence[str | None]) -> pa.Array:
    known = {value for value in values if value is not None}
    if known and all(_WHOLE.fullmatch(value) for value in known) and len(set(map(int, known))) == len(known):
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    return pa.array(values, pa.utf8())


def _shown(keys: Mapping[str, str]) -> str:
    return f"the keys {', '.join(keys)}" if keys else "no name=value folder"

"""Read the index.json of a folder of Mosaic's shards: the shards, their files, and the columns of their samples.

Version 2, as Mosaic's writers write it: MDS, or lines of JSON or of separated texts with a meta file that says where each
sample begins. Everything that is used is checked here, and compared with the files when they are read: an index is only a
claim.

Shards on an object store are found by one list, and read whole, shard by shard, while rows are imported. Payload of shards
that are not compressed is not copied: streams read it by range, as of local shards.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, final

import xxhash

from spiral_stream.arguments import is_integer
from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.files.listing import listed_below
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.file_object import look, maps, object_bytes
from spiral_stream.storage.store import ObjectStat
from spiral_stream.threads import Workers, thread_share

INDEX_FILE: Final = "index.json"
MOST_BYTES: Final = 1 << 32  # of a shard: its offsets have 32 bits
_VERSION: Final = 2
MDS: Final = "mds"
JSON: Final = "json"
_SEPARATORS: Final[Mapping[str, str | None]] = {"csv": ",", "tsv": "\t", "xsv": None}  # None: the index says it
_WRITTEN: Final = {"str": "str", "int": "str_int", "float": "str_float"}  # encodings of lines, as MDS calls them
_XXHASHES: Final = frozenset(("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"))
_HASHED: Final = 1 << 22  # bytes at a time


@final
@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a shard: its bytes as they are, or compressed."""

    name: str  # relative to the folder of the index
    size: int
    hashes: tuple[tuple[str, str], ...]  # algorithm, hex digits


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """How a shard of lines is written."""

    form: str  # "json", "csv", "tsv" or "xsv"
    newline: str  # after each sample, and after the header
    separator: str  # between values; "" of JSON
    raw: ShardFile  # its meta file: where each sample begins
    packed: ShardFile | None


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """What an index says of one shard."""

    raw: ShardFile
    packed: ShardFile | None  # compressed
    compression: str | None  # such as "zstd", without its level
    samples: int
    names: tuple[str, ...]  # of the columns
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]  # bytes of each value, None where they vary
    lines: Lines | None = None  # None: MDS

    @property
    def form(self) -> str:
        """The format, as the index calls it."""
        return MDS if self.lines is None else self.lines.form

    @property
    def said(self) -> str:
        """All that the index says, as text for a content key."""
        fields = asdict(self)
        if self.lines is None:
            del fields["lines"]
        return repr(fields)


@lru_cache(maxsize=32)
def shards_of(index: str, seen: ObjectStat) -> tuple[Shard, ...]:
    """Return the shards that an index lists; those of the indexes used last are kept, since every unit asks for them.

    Args:
        index: its path or URI.
        seen: what it is like.

    Raises:
        SourceError: it cannot be read, or is no index of shards.
    """
    return shards_in(index, object_bytes(index, seen))


def shards_in(index: str, data: bytes | memoryview) -> tuple[Shard, ...]:
    """Return the shards that the bytes of an index list.

    Raises:
        SourceError: it is no index of shards.
    """
    try:
        said = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise unsound(index, f" is no JSON that can be read ({cut(str(error))})") from error
    listed = said.get("shards") if isinstance(said, dict) else None
    if not isinstance(listed, list) or said.get("version") != _VERSION:
        version = said.get("version") if isinstance(said, dict) else None
        raise unsound(index, f" has version {shown(version)}; an index of version 2 with a list of shards is read")
    return tuple(_Entry(index, number, entry).shard() for number, entry in enumerate(listed))


def unsound(path: str, found: str) -> SourceError:
    """Return the error for a file of shards that is not as a writer wrote it.

    Args:
        path: of the file.
        found: what is wrong with it, as it follows the path.
    """
    return SourceError(f"Mds: {cut(path)}{found}. Write the folder again, or fetch it again")


@final
class _Entry:
    """One entry of an index, as it is checked."""

    def __init__(self, index: str, number: int, entry: object) -> None:
        self._index, self._number = index, number
        self._said: dict[str, Any] = entry if isinstance(entry, dict) else {}

    def shard(self) -> Shard:
        """Return what the entry says.

        Raises:
            SourceError: names what is wrong with it.
        """
        form = self._said.get("format")
        if form not in (MDS, JSON, *_SEPARATORS):
            raise self._wrong("format", f"one of {', '.join((MDS, JSON, *_SEPARATORS))}")
        if self._said.get("version") != _VERSION:
            raise self._wrong("version", "2")
        if form != MDS:
            return self._of_lines(form)
        names, encodings, sizes = (self._list(key) for key in ("column_names", "column_encodings", "column_sizes"))
        if not len(names) == len(encodings) == len(sizes) or not names:
            raise self._wrong("column_names", "a name, an encoding and a size for each column")
        if not all(isinstance(text, str) and text for text in (*names, *encodings)) or len(set(names)) < len(names):
            raise self._wrong("column_names", "names and encodings that are texts, each name once")
        if not all(size is None or (is_integer(size, 0) and size < MOST_BYTES) for size in sizes):
            raise self._wrong("column_sizes", "bytes, or null where they vary")
        fixed = tuple(size or None for size in sizes)  # Mosaic takes 0 for a size that varies
        raw, packed, algorithm, samples = self._data()
        return Shard(raw, packed, algorithm, samples, tuple(names), tuple(encodings), fixed)

    def _of_lines(self, form: str) -> Shard:
        if form == JSON:
            columns = self._said.get("columns")
            if not isinstance(columns, dict):
                raise self._wrong("columns", "names and their encodings")
            names, encodings = list(columns), list(columns.values())
        else:
            names, encodings = self._list("column_names"), self._list("column_encodings")
        if len(names) != len(encodings) or not names or not all(isinstance(each, str) and each for each in names):
            raise self._wrong("columns" if form == JSON else "column_names", "a name and an encoding for each column")
        if len(set(names)) < len(names) or not all(each in _WRITTEN for each in encodings if isinstance(each, str)):
            raise self._wrong(
                "columns" if form == JSON else "column_encodings", "each name once, with str, int or float"
            )
        newline = self._said.get("newline")
        separator = "" if form == JSON else _SEPARATORS[form] or self._said.get("separator")
        for key, text in (("newline", newline), ("separator", separator)):
            if not isinstance(text, str) or (not text and (key, form) != ("separator", JSON)):
                raise self._wrong(key, "a text")
        raw, packed, algorithm, samples = self._data()
        meta, packed_meta = self._file("raw_meta"), self._file("zip_meta") if self._said.get("zip_meta") else None
        lines = Lines(form, str(newline), str(separator), meta, packed_meta)
        written = tuple(_WRITTEN[each] for each in encodings)
        return Shard(raw, packed, algorithm, samples, tuple(names), written, (None,) * len(names), lines)

    def _data(self) -> tuple[ShardFile, ShardFile | None, str | None, int]:
        """The file of the samples, the same compressed and how, and how many there are."""
        samples, compression = self._said.get("samples"), self._said.get("compression")
        if not is_integer(samples, 0):
            raise self._wrong("samples", "a whole number")
        if not isinstance(compression, str | None):
            raise self._wrong("compression", 'null, or a name such as "zstd:7"')
        packed = self._file("zip_data") if self._said.get("zip_data") else None
        algorithm = None if compression is None else compression.partition(":")[0]
        return self._file("raw_data"), packed, algorithm, int(samples or 0)

    def _list(self, key: str) -> list[Any]:
        found = self._said.get(key)
        if not isinstance(found, list):
            raise self._wrong(key, "a list")
        return found

    def _file(self, key: str) -> ShardFile:
        said = self._said.get(key)
        if (
            not isinstance(said, dict)
            or not isinstance(said.get("basename"), str)
            or not is_integer(said.get("bytes"), 0)
        ):
            raise self._wrong(key, "a basename and its bytes")
        name, hashes = said["basename"], said.get("hashes") or {}
        parts = name.split("/")
        if not name or "\0" in name or name.startswith(("/", "~")) or ".." in parts:
            raise self._wrong(key, "the name of a file in the folder of the index")
        if said["bytes"] >= MOST_BYTES:
            raise self._wrong(key, "fewer than 4 GiB, which offsets of 32 bits can reach")
        if not isinstance(hashes, dict) or not all(isinstance(each, str) for each in hashes.values()):
            raise self._wrong(key, "hashes that are texts")
        return ShardFile(name, said["bytes"], tuple(hashes.items()))

    def _wrong(self, key: str, right: str) -> SourceError:
        found = shown(self._said.get(key, "nothing"))
        return unsound(self._index, f": shard {self._number} has {key} {found}; it would be {right}")


def need_hashes(path: str, file: ShardFile, data: memoryview) -> None:
    """Compare bytes with the hashes that an index has for them.

    Raises:
        SourceError: one differs, or its algorithm is not known.
    """
    for name, said in file.hashes:
        state = _hasher(name, path)()
        for at in range(0, len(data), _HASHED):
            state.update(data[at : at + _HASHED])
        if state.hexdigest() != said:
            found = f"its {name} is {state.hexdigest()}, and the index says {shown(said)}"
            raise unsound(path, f": {found}: it is damaged, or the index is of other files")


def _hasher(name: str, path: str) -> Callable[[], Any]:
    if name in _XXHASHES:
        found: Callable[[], Any] = getattr(xxhash, name)
        return found
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return lambda: hashlib.new(name, usedforsecurity=False)
    msg = f"Mds: {cut(path)}: the index has its hash {shown(name)}, an algorithm that is not known here. Take it out of the index"
    raise SourceError(msg)


def need_header(path: str, config: bytes, shard: Shard) -> None:
    """Compare the columns that a shard itself names with those of the index.

    Raises:
        SourceError: they differ, or cannot be read.
    """
    try:
        said: Mapping[str, Any] = json.loads(config)
        if shard.lines is not None and shard.lines.form == JSON:
            pairs = list(said["columns"].items())
            found: Sequence[Any] = [
                [name for name, _ in pairs],
                [_WRITTEN[each] for _, each in pairs],
                [None] * len(pairs),
            ]
        elif shard.lines is not None:
            names = said["column_names"]
            found = [names, [_WRITTEN[each] for each in said["column_encodings"]], [None] * len(names)]
        else:
            found = [said["column_names"], said["column_encodings"], [size or None for size in said["column_sizes"]]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unsound(path, f": the header of the shard cannot be read ({type(error).__name__})") from error
    wanted = [list(shard.names), list(shard.encodings), list(shard.sizes)]
    if found != wanted:
        one, other = next((a, b) for a, b in zip(found, wanted, strict=True) if a != b)
        raise unsound(path, f": the shard says columns {shown(one)}, and the index says {shown(other)}")


def is_index(data: bytes | memoryview) -> bool:
    """Whether the bytes of a file called `INDEX_FILE` are such an index, and not rows of JSON."""
    try:
        said = json.loads(bytes(data))
    except (ValueError, RecursionError):
        return False
    listed = said.get("shards") if isinstance(said, dict) else None
    return (
        isinstance(listed, list)
        and bool(listed)
        and all(isinstance(each, dict) and "raw_data" in each for each in listed)
    )


_THREADS: Final = 8  # at most, to read indexes


class IndexedShard(NamedTuple):
    """One shard of a folder."""

    folder: str  # of the index, relative to the path; "." for the path itself
    listing: str  # the path or URI of the index
    shard: Shard
    file: ShardFile  # the one that is there: the raw one where both are
    seen: tuple[ObjectStat, ...]  # what the file, the index and the meta file are like
    meta: ShardFile | None = None  # of lines: the one that is there


def found_shards(path: str) -> Iterator[IndexedShard]:
    """Yield the shards of a folder, or of the folders below it, as their indexes list them.

    Raises:
        SourceError: there is no index, or a shard is not there or has another size.
    """
    there = {each.name: each.facts for each in listed_below(path, "Mds")}
    names = [INDEX_FILE] if INDEX_FILE in there else [name for name in there if name.endswith(f"/{INDEX_FILE}")]
    if not names:
        msg = f"Mds: there is no {INDEX_FILE} in or below {cut(path)}. Give the folder that a writer wrote"
        raise SourceError(msg)
    names.sort()
    indexes = [f"{path}/{name}" for name in names]
    with (
        working("reading the indexes of MDS", "files"),
        Workers(thread_share().waiting(_THREADS), "spiral-indexes") as pool,
    ):
        found = list(pool.map(shards_of, indexes, [there[name] for name in names]))
    for name, index, shards in zip(names, indexes, found, strict=True):
        folder = name.removesuffix(INDEX_FILE)
        for shard in shards:
            file, facts = _there(index, folder, shard.raw, shard.packed, there)
            meta, seen = None, [facts, there[name]]
            if shard.lines is not None:
                meta, of_meta = _there(index, folder, shard.lines.raw, shard.lines.packed, there)
                seen.append(of_meta)
            yield IndexedShard(folder.rstrip("/") or ".", index, shard, file, tuple(seen), meta)


def _there(
    index: str, folder: str, raw: ShardFile, packed: ShardFile | None, there: Mapping[str, ObjectStat]
) -> tuple[ShardFile, ObjectStat]:
    """The file that is there, the raw one where both are, and what it is like.

    Raises:
        SourceError: neither is, or it has another size.
    """
    place = index.removesuffix(INDEX_FILE)

    def seen(name: str) -> ObjectStat | None:
        if f"{folder}{name}" in there or not maps(index):
            return there.get(f"{folder}{name}")
        try:  # behind a link to a folder, which no list follows, or under another spelling
            return look(f"{place}{name}")
        except NotThereError:
            return None

    file, facts = raw, seen(raw.name)
    if facts is None and packed is not None:
        file, facts = packed, seen(packed.name)
    if facts is None:
        raise unsound(index, f" lists {cut(file.name)}, which is not there")
    if facts.size != file.size:
        path = f"{place}{file.name}"
        raise unsound(path, f" has {facts.size:,} bytes, and the index says {file.size:,}")
    return file, facts

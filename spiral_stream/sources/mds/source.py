"""The folders of shards that Mosaic's writers write and its StreamingDataset reads: MDS, JSON, CSV, TSV and XSV.

A shard is one unit. Images and bytes of MDS shards that are not compressed stay where they are, and are read by offset;
those of compressed shards are copied. Numbers, texts, JSON and arrays become columns.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final, cast, final

import pyarrow as pa

from spiral_stream.arguments import check, class_door
from spiral_stream.errors import DamageError, SourceError, cut, shown
from spiral_stream.integrity.blocks import moment, need_sound
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.paths import absolute_folder, reference_to
from spiral_stream.sources.import_source import ON_ERROR, RAISE, ImportedSource, ImportUnit, Refused
from spiral_stream.sources.mds.columns import MdsColumns, declared_schema, described, found_columns
from spiral_stream.sources.mds.encodings import need_dtype
from spiral_stream.sources.mds.index import (
    JSON,
    IndexedShard,
    Shard,
    ShardFile,
    found_shards,
    need_hashes,
    shards_of,
    unsound,
)
from spiral_stream.sources.mds.lines import LineSamples
from spiral_stream.sources.mds.samples import MdsSamples
from spiral_stream.sources.mds.values import CHECKED
from spiral_stream.sources.schema import GIVE, columns
from spiral_stream.sources.tar.samples import (
    INLINE,
    REFERENCE,
    Columns,
    choice_of,
    declared_columns,
    need_columns,
)
from spiral_stream.storage.file_object import look, mapped, maps

LOOKED_AT: Final = 4  # shards, where only their samples say what a column holds
_BATCHES: Final = 1  # of each
_READ: Final = 1 << 20
_CODECS: Final = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}  # Mosaic's name -> pyarrow's
_VARINT: Final = 5  # bytes of the length before a block of Snappy, at most
Arrays = tuple[tuple[str, str], ...]


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class Mds(ImportedSource):
    """A folder with index.json and its shards, or a folder of such folders, whose samples follow each other.

    The index says how the shards are written: as MDS, or as lines of JSON, CSV, TSV or other separated values; these hold
    ``str``, ``int`` and ``float``, which become utf8, int64 (uint64 where a number needs it) and float64. Of MDS:

    | encoding | column |
    |---|---|
    | ``jpeg png pil`` | ``image/jpeg-ref``; ``pil`` is kept as PNG, pixel for pixel |
    | ``bytes`` | ``application/bytes-ref`` |
    | ``jpeg_array list[jpeg] list[png] list[pil]`` | lists of them |
    | ``str str_decimal`` | utf8 |
    | ``int int8 ... uint64 float16 float32 float64 str_int str_float`` | that number; 64 bits for those written as text |
    | ``ndarray:int32:3,4`` | list of 12 int32, in C order |
    | ``ndarray ndarray:int32`` | list; with ``<column>_shape`` where arrays have other than one dimension |
    | ``json`` | one for each top-level key: ``<column>_<key>``; or what the JSON is, where it is no object |

    Keys of JSON and shapes of arrays are those of the first samples of some shards; a later sample that has others is
    refused. ``pkl`` is refused. A dot in the name of a column becomes ``_``. Hashes that the index has are compared with the
    files.

    Args:
        path: the folder, or its URI on an object store.
        columns: which to keep: ``["image", "label"]``; or under which names: ``{"image": "jpg", "label": "cls"}``.
        arrays: columns of ``bytes`` that hold the values of one array, and their type: ``{"tokens": "int64"}``.
        on_error: what to do with a sample that cannot be read: ``"raise"``, or ``"skip"`` and count it.
        schema: the columns: a pyarrow Schema, or a dict of names and types such as ``{"image": "image/jpeg-ref", "label":
            "int64", "meta_width": "int64", "array": ("list", "int32"), "array_shape": ("list", "int64")}``. Other columns and
            keys are left out, and what a sample or its shard lacks is null. Payload is ``"image/jpeg-ref"`` or
            ``"application/bytes-ref"``, or a list of these, as in the table.

    Raises:
        SourceError: an argument is not of this form.

    Examples:
        >>> import json
        >>> kinds = {"column_names": ["id"], "column_encodings": ["int"], "column_sizes": [8]}
        >>> begin = 12 + len(json.dumps(kinds))  # what follows is one sample, as MDSWriter writes it
        >>> data = np.uint32([1, begin, begin + 8]).tobytes() + json.dumps(kinds).encode() + np.int64(7).tobytes()
        >>> raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
        >>> shard = {**kinds, "format": "mds", "compression": None, "raw_data": raw, "samples": 1, "version": 2}
        >>> Path("mds").mkdir()
        >>> size = Path("mds", "shard.00000.mds").write_bytes(data)
        >>> size = Path("mds", "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))
        >>> entry = catalog.register("from-mds", spiral.sources.Mds("mds"), identity="id")
        >>> catalog.table("from-mds").to_arrow()["id"].to_pylist()
        [7]
    """

    KIND: ClassVar[str] = "mds"

    path: str
    columns: Columns | Mapping[str, str] | Sequence[str] = None
    arrays: Arrays | Mapping[str, str] = ()
    on_error: str = RAISE
    schema: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_folder(self.path))
        object.__setattr__(self, "columns", need_columns("Mds", self.columns))
        object.__setattr__(self, "arrays", _need_arrays(self.arrays))
        check(self, "Mds", "=", SourceError, on_error=ON_ERROR)
        if self.schema is not None:
            object.__setattr__(self, "schema", declared_columns("Mds", self.schema, self.columns))

    @property
    def base(self) -> str:
        return self.path

    def import_units(self) -> Sequence[ImportUnit]:
        return [_unit(each, each.seen[0].size, each.seen[0].mark) for each in found_shards(self.path)]

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        first = {unit.others[0]: unit for unit in units}
        indexes = {index: _shards_of(unit) for index, unit in first.items()}
        shards = [_shard_of(unit, indexes[unit.others[0]]) for unit in units]
        inline = any(not _is_raw(unit, shard) for unit, shard in zip(units, shards, strict=True))
        form = INLINE if inline else REFERENCE if maps(units[0].path) else CHECKED
        if self.schema is not None:
            layouts = {(shard.form == JSON, shard.names, shard.encodings): shard for shard in shards}
            return declared_schema(self._declared(form), [self._columns(shard, form) for shard in layouts.values()])
        columns = self._columns(shards[0], form)
        for unit, shard in zip(units, shards, strict=True):
            _need_like(unit, shard, shards[0])
        found = found_columns(columns)
        step = max(1, len(units) // LOOKED_AT)
        for unit, shard in list(zip(units, shards, strict=True))[::step][:LOOKED_AT] if columns.says_little else ():
            with _samples(unit, shard) as samples:
                for spans in islice(samples.spans(), _BATCHES):
                    described(columns, spans, found, unit.path)
        return found.schema()

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        shard = _shard_of(unit, _shards_of(unit))
        columns = self._columns(shard, REFERENCE)
        uri = reference_to(unit.name) if _is_raw(unit, shard) else None
        with _samples(unit, shard) as samples:
            for spans in samples.spans():
                yield columns.batch(spans, schema, uri, refused)

    def _columns(self, shard: Shard, payload: pa.DataType) -> MdsColumns:
        choice = choice_of(need_columns("Mds", self.columns), self.schema)
        declared = None if self.schema is None else self._declared(payload)
        return MdsColumns(shard, choice, dict(cast("Arrays", self.arrays)), payload, declared)

    def _declared(self, payload: pa.DataType) -> pa.Schema:
        """The columns that the user declared."""
        return columns(self.schema, "Mds", payload=payload)


def _need_like(unit: ImportUnit, shard: Shard, first: Shard) -> None:
    if (shard.form == JSON) == (first.form == JSON) and (shard.names, shard.encodings) == (
        first.names,
        first.encodings,
    ):
        return
    here, there = (dict(zip(each.names, each.encodings, strict=True)) for each in (shard, first))
    msg = (
        f"Mds: {cut(unit.path)} has columns {shown(here)}, and the first shard has {shown(there)}. Register the folders as "
        f"relations of their own. Or read both: {GIVE[0].lower()}{GIVE[1:]}"
    )
    raise SourceError(msg)


def _need_arrays(arrays: object) -> Arrays:
    given = tuple(arrays.items()) if isinstance(arrays, Mapping) else arrays
    if not isinstance(given, list | tuple) or not all(isinstance(each, list | tuple) for each in given):
        msg = f'Mds: arrays={shown(arrays)}. Give the type of each, such as {{"tokens": "int64"}}'
        raise SourceError(msg)
    return tuple((str(name), need_dtype(str(name), *dtype)) for name, *dtype in given)


def _unit(found: IndexedShard, size: int, when: int) -> ImportUnit:
    shard, root = found.shard, os.path.dirname(found.listing)  # noqa: PTH120
    name = os.path.normpath(os.path.join(found.folder, shard.raw.name))  # noqa: PTH118
    key = content_key(name, found.file.name, size, when, shard.said)
    path = os.path.join(root, found.file.name)  # noqa: PTH118
    meta = () if found.meta is None else (os.path.join(root, found.meta.name),)  # noqa: PTH118
    return ImportUnit(name, path, size, key, (found.listing, *meta), found.seen, shard.samples)


def _shards_of(unit: ImportUnit) -> tuple[Shard, ...]:
    """The shards that the index of a unit lists."""
    index = unit.others[0]
    return shards_of(index, unit.facts(index) or look(index))


def _shard_of(unit: ImportUnit, shards: Sequence[Shard]) -> Shard:
    index = unit.others[0]
    root = os.path.dirname(index)  # noqa: PTH120
    for shard in shards:
        files = (shard.raw, shard.packed)
        if any(file is not None and os.path.join(root, file.name) == unit.path for file in files):  # noqa: PTH118
            return shard
    msg = f"Mds: {cut(index)} no longer lists {cut(unit.path)}: it was changed meanwhile. Register it again"
    raise SourceError(msg)


def _is_raw(unit: ImportUnit, shard: Shard) -> bool:
    return unit.path == os.path.join(os.path.dirname(unit.others[0]), shard.raw.name)  # noqa: PTH118,PTH120


@contextmanager
def _samples(unit: ImportUnit, shard: Shard) -> Iterator[MdsSamples | LineSamples]:
    """The samples of a shard, whose bytes are those that the index has hashes of."""
    since = moment()
    try:
        data = _bytes_of(unit, unit.path, (shard.raw, shard.packed), shard.compression)
        if shard.lines is None:
            yield MdsSamples(unit.path, data, shard)
        else:
            meta = _bytes_of(unit, unit.others[1], (shard.lines.raw, shard.lines.packed), shard.compression)
            yield LineSamples(unit.path, data, meta, shard)
    finally:
        _need_sound(unit.path, since)


def _bytes_of(
    unit: ImportUnit, path: str, files: tuple[ShardFile, ShardFile | None], compression: str | None
) -> memoryview:
    """The bytes of one file of a shard, raw; both forms are compared with their hashes.

    Raises:
        SourceError: it cannot be read, or holds other bytes than the index says.
    """
    raw, packed = files
    data = mapped(path, unit.facts(path) or look(path))
    if path != os.path.join(os.path.dirname(unit.others[0]), raw.name):  # noqa: PTH118,PTH120
        assert packed is not None
        need_hashes(path, packed, data)
        data = memoryview(_uncompressed(path, data, compression, raw.size))
    need_hashes(path, raw, data)
    return data


def _need_sound(path: str, since: int) -> None:
    """Refuse what was read of a shard that became shorter meanwhile: its end reads as zeros."""
    try:
        need_sound(since)
    except DamageError as error:
        raise unsound(path, " became shorter, or its disk failed, while it was read") from error


def _uncompressed(path: str, packed: memoryview, compression: str | None, most: int) -> bytes:
    """The bytes of a compressed file: as many as the index says, and never more."""
    if compression == "snappy":
        return _unsnapped(path, packed, most)
    reader, found = _reader(path, packed, compression), bytearray()
    try:
        while len(found) <= most and (part := reader.read(min(_READ, most + 1 - len(found)))):
            found += part
    except (OSError, ValueError) as error:
        raise _damaged(path, len(found), error) from error
    if len(found) != most:
        more = "more than " if len(found) > most else ""
        raise unsound(path, f" holds {more}{min(len(found), most):,} bytes, and the index says {most:,}")
    return bytes(found)


def _unsnapped(path: str, packed: memoryview, size: int) -> bytes:
    """The bytes of one block of Snappy, which says how many it holds before it is unpacked."""
    said, shift = 0, 0
    for letter in packed[:_VARINT]:
        said, shift = said | (letter & 0x7F) << shift, shift + 7
        if letter < 0x80:  # noqa: PLR2004
            break
    if said != size:
        raise unsound(path, f" holds {said:,} bytes, and the index says {size:,}")
    try:
        return bytes(pa.decompress(pa.py_buffer(packed), size, codec="snappy"))
    except (OSError, ValueError) as error:
        raise _damaged(path, 0, error) from error


def _damaged(path: str, at: int, error: Exception) -> SourceError:
    return unsound(path, f" cannot be uncompressed after {at:,} bytes ({cut(str(error))})")


def _reader(path: str, packed: memoryview, compression: str | None) -> Any:
    codec = _CODECS.get(compression or "")
    if codec is None:
        known = "zstd, gz, bz2, br and snappy"
        msg = f"Mds: {cut(path)} is compressed as {shown(compression)}; {known} are read. Write the folder again"
        raise SourceError(msg)
    return pa.input_stream(pa.py_buffer(packed), compression=codec)

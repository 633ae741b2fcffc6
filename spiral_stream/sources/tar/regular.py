"""Rows of a tar in which nothing is unusual, column by column: no call of Python's for each member, but for JSON.

The headers are walked in C (`_headers`), names are split by one regular expression, and a member's bytes are read only where they
become a column. Whatever is unusual is left to `rows`, which reads such a tar from its beginning and says what is wrong: a
member without bytes, a key that comes twice, a field that a row has twice, two fields that are one column, a text that is
not UTF-8, a number or JSON that does not fit its column, columns that a user declared.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import SourceError
from spiral_stream.sources.import_source import KEY
from spiral_stream.sources.json.columns import column_of
from spiral_stream.sources.json.types import is_nothing
from spiral_stream.sources.tar import _headers
from spiral_stream.sources.tar.rows import ROWS, FieldTargets
from spiral_stream.sources.tar.samples import REFERENCE, SEMANTICS, MemberKind
from spiral_stream.storage.open import FILES

_MOST_BYTES: Final = 256 << 20  # of members that become columns, which are held together
_FIRST: Final = r"(?s)^(?P<key>(?:.*/)?[^/.][^/.]*)\.(?P<field>[^/]*)$"
_LAST: Final = r"(?s)^(?P<key>(?:.*/)?[^/.][^/]*)\.(?P<field>[^/.]*)$"
_META: Final = r"(?s)^__[^/]*__(?:\n?\z|/)"
_NUMBER: Final = r"^[ \t\n\r\x0b\x0c]*-?[0-9]{1,18}[ \t\n\r\x0b\x0c]*$"

Int64 = NDArray[np.int64]


class _Members(NamedTuple):
    """The members of rows, in the order of the tar."""

    keys: pa.Array  # of each row, utf8
    fields: list[str]
    field: Int64  # of each member
    row: Int64
    start: Int64
    size: Int64


class _Unusual(Exception):  # noqa: N818  it ends a try and is no error
    """This tar is not read here."""


def regular_batches(
    path: str, uri: str, schema: pa.Schema, targets: FieldTargets, *, last: bool
) -> list[pa.RecordBatch] | None:
    """Return the rows of a plain tar on this machine as record batches; None if anything about it is unusual.

    Args:
        path: of the tar.
        uri: by which references name it.
        schema: `KEY` and the columns.
        targets: where its fields go; no columns are declared.
        last: whether names are split at their last dot.
    """
    try:
        file, facts = FILES.opened(path)
    except SourceError:
        return None
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # read-ahead would read what is passed over
        found = _headers.walk(file, facts.st_size)
        members = None if found is None else _members(*found, last=last)
        columns = None if members is None else dict(_columns(file, uri, members, targets))
        return None if members is None or columns is None else _batches(members.keys, columns, schema)
    except (_Unusual, pa.ArrowException, ValueError, RecursionError):
        return None
    finally:
        os.close(file)


def _members(names: bytes, ends: bytes, starts: bytes, sizes: bytes, *, last: bool) -> _Members:
    """The members that belong to rows."""
    offsets = pa.py_buffer(np.concatenate([np.zeros(1, np.int64), np.frombuffer(ends, np.int64)]))
    buffers = [None, offsets, pa.py_buffer(names)]
    given = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) // 8, buffers).cast(pa.large_utf8())
    split = pc.extract_regex(given, _LAST if last else _FIRST)
    belongs = pc.and_(pc.is_valid(split), pc.invert(pc.match_substring_regex(given, _META)))
    at = np.flatnonzero(belongs.to_numpy(zero_copy_only=False))
    if not len(at):
        raise _Unusual
    split = split.take(pa.array(at))
    key = split.field("key")
    begins = np.concatenate([[True], pc.not_equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)])
    keys, row = key.filter(pa.array(begins)), np.cumsum(begins) - 1
    coded = split.field("field").dictionary_encode()
    spelled = [name.lower() for name in coded.dictionary.to_pylist()]
    fields = list(dict.fromkeys(spelled))
    field = np.array([fields.index(name) for name in spelled])[coded.indices.to_numpy()]
    both = row * len(fields) + field
    if pc.count_distinct(keys).as_py() < len(keys) or len(np.unique(both)) < len(both):
        raise _Unusual
    where = np.frombuffer(starts, np.int64)[at], np.frombuffer(sizes, np.int64)[at]
    return _Members(keys.cast(pa.utf8()), fields, field, row, *where)


def _columns(file: int, uri: str, members: _Members, targets: FieldTargets) -> Iterator[tuple[str, tuple[Any, Int64]]]:
    """The values of each column and the rows that have them: Arrow's, or of JSON a list of what Python reads."""
    seen, held = set[str](), 0
    for code, name in enumerate(members.fields):
        wanted = targets.field(name)
        if wanted is None:
            continue
        at = np.flatnonzero(members.field == code)
        row, start, size = members.row[at], members.start[at], members.size[at]
        if wanted.kind in SEMANTICS:
            parts = [pa.array([uri] * len(at), pa.utf8()), pa.array(start), pa.array(size)]
            of_field = [(wanted.target, pa.StructArray.from_arrays(parts, fields=list(REFERENCE)), row)]
        else:
            held += int(size.sum())
            if held > _MOST_BYTES or (data := _headers.gather(file, start, size)) is None:
                raise _Unusual
            ends = np.cumsum(size)
            if wanted.kind is MemberKind.JSON:
                begins = (ends - size).tolist()
                values = [json.loads(data[a:b]) for a, b in zip(begins, ends.tolist(), strict=True)]
                of_field = list(_of_json(values, row, wanted.derived, wanted.target, targets))
            else:
                of_field = [(wanted.target, _scalars(data, ends, wanted.read_as), row)]
        for target, found, rows in of_field:
            if target is None:
                continue
            if target.column in seen:
                raise _Unusual
            seen.add(target.column)
            yield target.column, (found, rows)


def _scalars(data: bytes, ends: Int64, read_as: MemberKind) -> pa.Array:
    """Texts, or whole numbers."""
    offsets = pa.py_buffer(np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)]))
    found = pa.BinaryArray.from_buffers(pa.binary(), len(ends), [None, offsets, pa.py_buffer(data)]).cast(pa.utf8())
    if read_as is MemberKind.TEXT:
        return found
    if not pc.all(pc.match_substring_regex(found, _NUMBER)).as_py():
        raise _Unusual
    return pc.ascii_trim_whitespace(found).cast(pa.int64())


def _of_json(
    values: list[Any], rows: Int64, derived: str, target: Any, targets: FieldTargets
) -> Iterator[tuple[Any, list[Any], Int64]]:
    """The columns of JSON members: one for each key of objects."""
    if not any(isinstance(each, dict) for each in values):
        yield target, values, rows
        return
    if not all(isinstance(each, dict) for each in values):
        raise _Unusual
    for key in dict.fromkeys(key for each in values for key in each):
        where = targets.key(derived, target, key)
        if where is not None:
            yield where, [each.get(key) for each in values], rows


def _batches(keys: pa.Array, columns: Mapping[str, tuple[Any, Int64]], schema: pa.Schema) -> list[pa.RecordBatch]:
    """The record batches of some columns."""
    for name in columns.keys() - set(schema.names):
        values, _ = columns[name]
        if not isinstance(values, list) or not all(map(is_nothing, values)):
            raise _Unusual  # a column that no row had when the columns were taken from rows
    arrays = [keys if each.name == KEY else _column(each, columns.get(each.name), len(keys)) for each in schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return [rows.slice(at, ROWS) for at in range(0, len(rows), ROWS)]


def _column(field: pa.Field, found: tuple[Any, Int64] | None, count: int) -> pa.Array:
    """A column over all rows."""
    if found is None:
        return pa.nulls(count, field.type)
    values, rows = found
    if isinstance(values, list):
        values, wrong = column_of(field.name, values, field.type)
        if wrong:
            raise _Unusual
    if values.type != field.type:
        raise _Unusual
    if len(rows) == count:
        return values
    index = np.full(count, -1, np.int64)
    index[rows] = np.arange(len(rows))
    return values.take(pa.array(index, mask=index < 0))

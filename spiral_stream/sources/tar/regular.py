"""Rows of a tar in which nothing is unusual, column by column: no call of Python's for each member, but for JSON.

The headers are walked in C (`_headers`), names are split by one regular expression, and a member's bytes are read only where they
become a column. So are the first rows, which say what the columns are. Whatever is unusual is left to `rows`, which reads such a
tar from its beginning and says what is wrong: a member without bytes, a key that comes twice, a field that a row has twice, two
fields that are one column, a text that is not UTF-8, a number or JSON that does not fit its column, columns that a user
declared.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import SourceError
from spiral_stream.sources.import_source import KEY
from spiral_stream.sources.json.columns import column_of
from spiral_stream.sources.json.types import is_nothing
from spiral_stream.sources.tar import _headers
from spiral_stream.sources.tar.rows import ROWS, FieldTargets, Value
from spiral_stream.sources.tar.samples import REFERENCE, SEMANTICS, ColumnTarget, MemberKind, int64_of
from spiral_stream.storage.open import FILES

_ALL: Final = -1
_MOST_BYTES: Final = 256 << 20  # of members that become columns, which are held together
_FIRST: Final = r"(?s)^(?P<key>(?:.*/)?[^/.][^/.]*)\.(?P<field>[^/]*)$"
_LAST: Final = r"(?s)^(?P<key>(?:.*/)?[^/.][^/]*)\.(?P<field>[^/.]*)$"
_META: Final = r"(?s)^__[^/]*__(?:\n?\z|/)"
_NUMBER: Final = r"^[ \t\n\r\x0b\x0c]*-?[0-9]{1,18}[ \t\n\r\x0b\x0c]*$"

T = TypeVar("T")
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


class _Column(NamedTuple):
    """What one column has."""

    target: ColumnTarget
    kind: MemberKind
    values: Any  # Arrow's, or of JSON a list of what Python reads
    rows: Int64  # that have them
    first: int  # member that has one


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

    def read(file: int, size: int) -> list[pa.RecordBatch]:
        members, _ = _walked(file, size, last=last)
        columns = {each.target.column: each for each in _columns(file, uri, members, targets)}
        return _batches(members.keys, columns, schema)

    return _if_usual(path, read)


def deciding_values(path: str, uri: str, targets: FieldTargets, rows: int, *, last: bool) -> list[Value] | None:
    """Return values that say which columns the first rows of such a tar have, in the order of the columns.

    Args:
        path: of the tar.
        uri: by which references name it.
        targets: where its fields go; no columns are declared.
        rows: how many are looked at.
        last: whether names are split at their last dot.

    Returns:
        one value of each column, and all values of one of JSON; None if anything about the rows is unusual.
    """

    def read(file: int, size: int) -> list[Value]:
        columns = _columns(file, uri, _first_rows(file, size, rows, last=last), targets)
        in_order = sorted(columns, key=attrgetter("first"))
        return [Value(each.target, each.kind, value) for each in in_order for value in _deciding(each)]

    return _if_usual(path, read)


def _if_usual(path: str, read: Callable[[int, int], T]) -> T | None:
    """What is read of a tar by its descriptor and its size."""
    try:
        file, facts = FILES.opened(path)
    except SourceError:
        return None
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # read-ahead would read what is passed over
        return read(file, facts.st_size)
    except (_Unusual, pa.ArrowException, ValueError, RecursionError):
        return None
    finally:
        os.close(file)


def _walked(file: int, size: int, most: int = _ALL, *, last: bool) -> tuple[_Members, bool]:
    """The members of rows among the first members of a tar, and whether it has no others."""
    found = _headers.walk(file, size, most)
    if found is None:
        raise _Unusual
    return _members(*found, last=last), len(found[-1]) // 8 != most


def _first_rows(file: int, size: int, rows: int, *, last: bool) -> _Members:
    """The members of the first rows; that the last of them ends is seen by the row after it, or by the end of the tar."""
    most = 2 * rows + 1
    members, is_all = _walked(file, size, most, last=last)
    while not is_all and len(members.keys) <= rows:
        most *= 2
        members, is_all = _walked(file, size, most, last=last)
    wanted = members.row < rows
    return _Members(members.keys[:rows], members.fields, *(each[wanted] for each in members[2:]))


def _deciding(column: _Column) -> list[Any]:
    if column.kind is MemberKind.JSON:
        return list(column.values)
    if (
        column.kind is MemberKind.NUMBER and column.values.type == pa.utf8()
    ):  # a name: one that is no number makes it text
        names = column.values.to_pylist()
        return [next((name for name in names if int64_of(name) is None), names[0])]
    return [column.values[0].as_py()]


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


def _columns(file: int, uri: str, members: _Members, targets: FieldTargets) -> Iterator[_Column]:
    """The columns that anybody asks for; each comes once."""
    seen, held = set[str](), 0
    for code, name in enumerate(members.fields):
        wanted, at = targets.field(name), np.flatnonzero(members.field == code)
        if wanted is None or not len(at):
            continue
        row, start, size = members.row[at], members.start[at], members.size[at]
        if wanted.kind in SEMANTICS:
            parts = [pa.array([uri] * len(at), pa.utf8()), pa.array(start), pa.array(size)]
            of_field = [(wanted.target, pa.StructArray.from_arrays(parts, fields=list(REFERENCE)), 0)]
        else:
            held += int(size.sum())
            if held > _MOST_BYTES or (data := _headers.gather(file, start, size)) is None:
                raise _Unusual
            ends = np.cumsum(size)
            if wanted.kind is MemberKind.JSON:
                begins = (ends - size).tolist()
                values = [json.loads(data[a:b]) for a, b in zip(begins, ends.tolist(), strict=True)]
                of_field = list(_of_json(values, wanted.derived, wanted.target, targets))
            else:
                of_field = [(wanted.target, _scalars(data, ends, wanted.read_as), 0)]
        for target, found, first in of_field:
            if target is None:
                continue
            if target.column in seen:
                raise _Unusual
            seen.add(target.column)
            yield _Column(target, wanted.kind, found, row, int(at[first]))


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
    values: list[Any], derived: str, target: ColumnTarget | None, targets: FieldTargets
) -> Iterator[tuple[ColumnTarget | None, list[Any], int]]:
    """The columns of JSON members: one for each key of objects; and the first value that has it."""
    if not any(isinstance(each, dict) for each in values):
        yield target, values, 0
        return
    if not all(isinstance(each, dict) for each in values):
        raise _Unusual
    firsts: dict[str, int] = {}
    for at, each in enumerate(values):
        for key in each:
            firsts.setdefault(key, at)
    for key, first in firsts.items():
        where = targets.key(derived, target, key)
        if where is not None:
            yield where, [each.get(key) for each in values], first


def _batches(keys: pa.Array, columns: Mapping[str, _Column], schema: pa.Schema) -> list[pa.RecordBatch]:
    """The record batches of some columns."""
    for name in columns.keys() - set(schema.names):
        values = columns[name].values
        if not isinstance(values, list) or not all(map(is_nothing, values)):
            raise _Unusual  # a column that no row had when the columns were taken from rows
    arrays = [keys if each.name == KEY else _column(each, columns.get(each.name), len(keys)) for each in schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return [rows.slice(at, ROWS) for at in range(0, len(rows), ROWS)]


def _column(field: pa.Field, found: _Column | None, count: int) -> pa.Array:
    """A column over all rows."""
    if found is None:
        return pa.nulls(count, field.type)
    values, rows = found.values, found.rows
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

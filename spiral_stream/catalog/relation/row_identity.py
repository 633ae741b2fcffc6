"""Identities for rows without one: 128 bits of (content key of the unit, row in that unit).

Rows that a catalog imported have the content key of their file and their place in it instead, whatever files are kept together.

The column `ROW_ID` is computed whenever it is read and stored nowhere. It depends neither on the place of the files nor
on the order in which they are listed. A file that is written again has another content key, and its rows other
identities. Within a unit the upper 64 bits are a bijection of the row, so rows of one unit never share an identity; rows
of different units share one with probability 2**-128. Cost: about 0.1 us per row.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.entry import DESCRIPTION
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.errors import CatalogError, shown
from spiral_stream.seeding import combine, uncombine
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.change_detection import content_key

UInt64 = NDArray[np.uint64]

ROW_ID: Final = "__row_id__"  # utf8: 32 hex digits
_MADE: Final = b"spiral:made"  # marks the column in a relation's schema, where it is computed
_ARRAY_ROWS: Final = 1 << 20  # rows of one array: offsets of text have 31 bits
_BLOCK: Final = 1 << 14  # rows that are hashed together, in the processor's cache
_DIGITS: Final = 32
_IDENTITY: Final = re.compile("[0-9a-f]{32}")
_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


@final
@dataclass(frozen=True, slots=True)
class RowIdentity:
    """Gives every row an identity of its own: the column ``__row_id__``, 32 hex digits.

    It is made of the content key of the row's storage unit (a file, a fragment) and the row's place in the unit, and is
    stored nowhere. Rows of imported files take the key of their file and the place there. Rows of unchanged files keep it
    through ``catalog.refresh`` and when the folder moves. Rows of a file that was written again, or whose time changed, get
    another one.

    Examples:
        >>> prices = pa.table({"price": [1.5, 2.5]})
        >>> entry = catalog.register("prices", spiral.Arrow(prices), identity=spiral.RowIdentity())
        >>> catalog.table("prices").columns
        ['price', '__row_id__', 'storage_shard']
    """

    def __iter__(self) -> Iterator[str]:
        """The columns that tell rows apart, as a sequence of names would give them."""
        return iter((ROW_ID,))


FIELD: Final = pa.field(
    ROW_ID,
    pa.utf8(),
    metadata={DESCRIPTION: b"Identity of the row: of its storage unit's content and its place there", _MADE: b"row-id"},
)


def with_row_id(name: str, schema: pa.Schema) -> pa.Schema:
    """Return the columns of a source with `ROW_ID`.

    Raises:
        CatalogError: the source has such a column.
    """
    if ROW_ID in schema.names:
        msg = (
            f"register {name!r}: the source has a column {ROW_ID!r}, so RowIdentity() cannot make one. "
            f'Take the column itself: identity="{ROW_ID}", or rename it'
        )
        raise CatalogError(msg)
    return schema.append(FIELD)


def unmarked(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a source, where a stored `ROW_ID` is a column like any other."""
    at = schema.get_field_index(ROW_ID)
    if at < 0 or not is_made(schema.field(at)):
        return schema
    unmarked_metadata = {key: text for key, text in schema.field(at).metadata.items() if key != _MADE}
    return schema.set(at, schema.field(at).with_metadata(unmarked_metadata))


def is_made(field: pa.Field) -> bool:
    """Whether a relation's column is computed by this room."""
    return bool(field.name == ROW_ID and _MADE in (field.metadata or {}))


def arrow_with_row_ids(name: str, source: Arrow) -> Arrow:
    """Return rows in memory with their identities as a stored column: the catalog keeps a copy of such rows anyway.

    Raises:
        CatalogError: the rows have such a column.
    """
    with_row_id(name, source.table.schema)
    ids = RowIds([source.digest()], np.array([len(source.table)], np.uint64))
    table = source.table.append_column(ROW_ID, ids.of(np.arange(len(source.table), dtype=np.uint64)))
    return Arrow(table, source.base, source.allow_outside)


def row_ids(manifest: Manifest) -> "RowIds":
    """Return the identities of a relation's rows by physical ordinal."""
    runs = manifest.runs
    if runs is None:
        return RowIds(manifest.unit_keys.to_pylist(), manifest.unit_rows)
    return RowIds(runs.keys.to_pylist(), runs.rows, runs.firsts)


def repeated(manifest: Manifest) -> str | None:
    """Name two units that share a content key, so that their rows share identities; None if there are none."""
    keys = [key for key, rows in zip(manifest.unit_keys.to_pylist(), manifest.unit_rows, strict=True) if rows]
    key, times = Counter(keys).most_common(1)[0]
    if times == 1:
        return None
    names = [
        name
        for name, content_key in zip(manifest.unit_names.to_pylist(), manifest.unit_keys.to_pylist(), strict=True)
        if content_key == key
    ]
    return f"{shown(names[0])} and {shown(names[1])} are the same file twice: their content keys are equal"


@final
class RowIds:
    """The identities of the rows of some units. Thread-safe.

    Args:
        keys: content keys of the units, in physical order; U of them.
        rows: shape [U]: rows of each.
        firsts: shape [U]: what the first row of each counts as; by default 0.
    """

    def __init__(self, keys: "list[str]", rows: UInt64, firsts: UInt64 | None = None) -> None:
        self._keys, self._firsts = keys, firsts
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)
        self._words_U2 = np.zeros((len(keys), 2), np.uint64)
        self._known = np.zeros(len(keys), np.bool_)

    def of(self, physical: UInt64) -> pa.ChunkedArray:
        """Return the identities of rows: [P] utf8.

        Args:
            physical: shape [P]: physical ordinals.
        """
        pieces = [self._texts(physical[at : at + _ARRAY_ROWS]) for at in range(0, len(physical), _ARRAY_ROWS)]
        return pa.chunked_array(pieces, pa.utf8())

    def find(self, identity: str) -> UInt64:
        """Return the physical ordinals of the rows that have an identity, ascending: by arithmetic, a few ns per unit.

        Args:
            identity: a value of the column; any other text finds nothing.
        """
        if not _IDENTITY.fullmatch(identity):
            return np.empty(0, np.uint64)
        upper, lower = np.frombuffer(bytes.fromhex(identity), ">u8").astype(np.uint64)
        self._know(np.arange(len(self._keys)))
        rows = uncombine(self._words_U2[:, 0], upper)
        first = np.zeros_like(rows) if self._firsts is None else self._firsts
        units = np.flatnonzero((rows >= first) & (rows - first < np.diff(self._starts)))
        units = units[combine(self._words_U2[units, 1], rows[units]) == lower]
        return np.sort(self._starts[units] + (rows - first)[units])

    def words(self, physical: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the upper half of the identity of each row."""
        return self._words(physical)[:, 0].astype(np.uint64)

    def _texts(self, physical: UInt64) -> pa.StringArray:
        pairs_P16 = np.empty((len(physical), _DIGITS // 2), np.uint16)
        for at in range(0, len(physical), _BLOCK):
            block = slice(at, at + _BLOCK)
            np.take(_HEX, self._words(physical[block]).view(np.uint8), out=pairs_P16[block], mode="clip")
        ends = np.arange(0, _DIGITS * len(physical) + 1, _DIGITS, dtype=np.int32)
        return pa.StringArray.from_buffers(len(physical), pa.py_buffer(ends), pa.py_buffer(pairs_P16))

    def _words(self, physical: UInt64) -> NDArray[np.uint64]:
        """Shape [P] -> [P, 2], big-endian: the two halves of each identity."""
        units = np.searchsorted(self._starts, physical, side="right") - 1
        rows = physical - self._starts[units]
        if self._firsts is not None:
            rows += self._firsts[units]
        self._know(units)
        words_P2 = np.empty((len(rows), 2), ">u8")
        for half in range(2):
            words_P2[:, half] = combine(self._words_U2[units, half], rows)
        return words_P2

    def _know(self, units: NDArray[np.intp]) -> None:
        """Hash the keys of units that were not read before; 1 us each."""
        new = np.unique(units[~self._known[units]])
        for unit in new.tolist():
            both = bytes.fromhex(content_key("row-id", self._keys[unit]))
            self._words_U2[unit] = np.frombuffer(both, ">u8")
        self._known[new] = True

"""The rows of a relation that have an identity: found by the stored hashes of its rows, then compared by value.

Identities that are computed (`row_identity`) are found by arithmetic: nothing is read or kept.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.registering.measure import identity_pieces
from spiral_stream.catalog.relation.entry import STORAGE_SHARD
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.relation.row_identity import ROW_ID, row_ids
from spiral_stream.derived.kinds.identities import Identities, with_hash
from spiral_stream.errors import CacheError
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.semantic import is_inline, is_text

UInt64 = NDArray[np.uint64]


@final
class IdentityLookup:
    """Finds rows by the values of some columns. Thread-safe.

    What is not kept of the rows' hashes is made first: the columns are read once, as registration does.

    Args:
        relation: an open relation; it stays open.
        names: the columns, whose types are legal for identities.
        root: of derived data.

    Raises:
        CacheError: hashes are missing, and the folder cannot be written.
        SourceError: the source cannot be read.
    """

    def __init__(self, relation: OpenRelation, names: tuple[str, ...], root: Path) -> None:
        self._relation, self._names = relation, names
        self._identities = Identities(names, tuple(relation.schema.field(name).type for name in names))
        self._pieces = identity_pieces(relation.by_shard(), self._identities, root, unasked=True)

    def find(self, values: Mapping[str, Any]) -> UInt64:
        """Return the logical ordinals of the rows that have these values, ascending.

        Args:
            values: of all columns, each as `has_kind` demands.

        Raises:
            DamageError: a piece is not what was written.
            SourceError: the source cannot be read.
        """
        wanted = [values[name] for name in self._names]
        try:
            shards, offsets = with_hash(self._pieces, self._identities.hash_of(wanted))
        except (pa.ArrowException, OverflowError):  # an integer that the column's type cannot hold
            return np.empty(0, np.uint64)
        need_sound()
        ordinals = np.sort(self._relation.manifest.starts[shards] + offsets)
        return (
            _having(self._relation, ordinals, {name: values[name] for name in self._names})
            if len(ordinals)
            else ordinals
        )


@final
class RowIdLookup:
    """Finds rows by identities that are computed, and by other columns if they are given too. Reads and keeps nothing.

    Args:
        relation: an open relation whose `ROW_ID` is computed; it stays open.
        names: the columns, `ROW_ID` among them.
    """

    def __init__(self, relation: OpenRelation, names: tuple[str, ...]) -> None:
        self._relation, self._others = relation, tuple(name for name in names if name != ROW_ID)
        self._ids = row_ids(relation.manifest)

    def find(self, values: Mapping[str, Any]) -> UInt64:
        """Return the logical ordinals of the rows that have these values, ascending; as `IdentityLookup.find`."""
        ordinals = np.sort(self._relation.manifest.logical(self._ids.find(values[ROW_ID])))
        if not len(ordinals) or not self._others:
            return ordinals
        return _having(self._relation, ordinals, {name: values[name] for name in self._others})


def _having(relation: OpenRelation, ordinals: UInt64, values: Mapping[str, Any]) -> UInt64:
    """Those of the rows that have these values."""
    found, wanted = relation.fetch(ordinals, list(values)), list(values.values())
    rows = zip(*(found.column(name).to_pylist() for name in values), strict=True)
    same: UInt64 = ordinals[[list(row) == wanted for row in rows]]
    return same


def lookup(relation: OpenRelation, values: Mapping[str, Any], root: Path) -> IdentityLookup | RowIdLookup | None:
    """Open the look-up of rows by these columns; None where values of them are found by a scan only.

    Raises:
        SourceError: the source cannot be read.
    """
    if STORAGE_SHARD in relation.synthesised & set(values):
        return None
    if not all(has_kind(value, relation.schema.field(name).type) for name, value in values.items()):
        return None
    if ROW_ID in relation.synthesised & set(values):
        return RowIdLookup(relation, tuple(values))
    try:
        return IdentityLookup(relation, tuple(values), root)
    except CacheError:  # nothing can be written there
        return None


def has_kind(value: object, kind: pa.DataType) -> bool:
    """Whether a value is of the kind that a column of identities holds: an integer, text or bytes."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_integer(kind):
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_text(kind):
        return isinstance(value, str)
    return isinstance(value, bytes) and is_inline(kind)

"""Check that no two rows of a relation have the same identity.

The identities of each shard are kept as sorted hashes (`derived.kinds.identities`), so a shard that is known is not read again.
Whether two rows share one is found by merging those runs, and settled on the values.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.names import listed, suggestions
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.row_identity import is_made
from spiral_stream.derived.kinds.identities import Identities, apart, rows_of
from spiral_stream.derived.kinds.repeats import Run, repeats
from spiral_stream.derived.pieces import Pieces
from spiral_stream.errors import CatalogError, shown
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.semantic import is_inline, is_text

IDENTITY: Final = "sample_id"  # the column that `Catalog.register` looks for if none is named

FEW: Final = 1 << 16  # rows that Arrow compares sooner than files are written; of two million it takes twice as long

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]


def identity_columns(name: str, identity: object) -> tuple[str, ...]:
    """Return the columns that a user names as identity: one, or a sequence of several.

    Raises:
        CatalogError: it names none, or one twice.
    """
    columns = (identity,) if isinstance(identity, str) else tuple(identity) if isinstance(identity, Sequence) else None
    if columns is None or not all(isinstance(column, str) for column in columns):
        found = f"identity is {shown(identity)}, a {type(identity).__name__}"
        msg = (
            f'register {name!r}: {found}. Name the column that tells its rows apart: identity="id", or several: ["a", "b"]. '
            "Without one, give each row an identity: identity=spiral.RowIdentity()"
        )
        raise CatalogError(msg)
    if twice := [column for column in columns if columns.count(column) > 1]:
        msg = f"register {name!r}: identity names {shown(twice[0])} twice. Name each column once"
        raise CatalogError(msg)
    return columns


def check_columns(name: str, schema: pa.Schema, identity: Sequence[str]) -> None:
    """Refuse identities that are no columns, or of a type that identifies nothing.

    Raises:
        CatalogError: names the column and what would be right.
    """
    if not identity:
        msg = f"register {name!r}: identity names no column. Name one or several, or give identity=spiral.RowIdentity()"
        raise CatalogError(msg)
    for column in identity:
        if column not in schema.names:
            which = f"{shown(column)}, the default," if column == IDENTITY else shown(column)
            known = listed(schema.names) if column == IDENTITY else suggestions(column, schema.names)
            msg = (
                f"register {name!r}: identity {which} is not a column; {known} "
                'Name the column that tells its rows apart with identity="...", or give each row an identity: '
                "identity=spiral.RowIdentity()"
            )
            raise CatalogError(msg)
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (is_text(kind) or is_inline(kind) or pa.types.is_integer(kind)):
            msg = f"register {name!r}: identity {column!r} is {kind}; an identity is text, an integer or bytes"
            raise CatalogError(msg)


def are_distinct(rows: pa.Table, identity: Sequence[str]) -> bool:
    """Whether few rows in memory plainly have each an identity of its own, and none is null; False where that is not known."""
    keys = rows.select([each for each in identity if each in rows.column_names])
    if not 0 < len(rows) <= FEW or keys.num_columns < len(identity) or any(each.null_count for each in keys.columns):
        return False
    if any(pa.types.is_dictionary(kind) for kind in keys.schema.types):  # one may have a value twice
        return False
    if keys.num_columns == 1:
        return bool(pc.count_distinct(keys.column(0)).as_py() == len(rows))
    return bool(keys.group_by(keys.column_names).aggregate([]).num_rows == len(rows))


def duplicate(
    name: str,
    manifest: Manifest,
    fetch: Callable[[UInt64, Sequence[str]], pa.Table],
    identities: Identities,
    pieces: Pieces,
    known: frozenset[str] = frozenset(),
) -> str | None:
    """Say where an identity occurs twice; None if every row has its own.

    Args:
        name: of the relation.
        manifest: its shards, with the keys of their rows.
        fetch: physical rows and columns -> their values.
        identities: of the relation.
        pieces: of all shards.
        known: keys of shards whose identities are known to differ, within each and between them.

    Raises:
        CatalogError: an identity is null.
    """
    _refuse_nulls(name, manifest, pieces, identities)
    keys = manifest.content_keys.to_pylist()
    if known.issuperset(keys):
        return None
    fresh = np.array([key not in known for key in keys], np.bool_)
    looked = np.flatnonzero(~apart(pieces, fresh))  # known shards of other identities are not looked at
    runs = [_run(pieces, k, known=not fresh[k]) for k in looked.tolist()]

    def ordinals_of(shards: Int64, offsets: UInt64) -> UInt64:
        return manifest.physical(manifest.starts[looked[shards]] + offsets)

    def values(ordinals: UInt64) -> list[tuple[Any, ...]]:
        found = fetch(ordinals, identities.names)
        return list(zip(*(found.column(each).to_pylist() for each in identities.names), strict=True))

    found = repeats(runs, ordinals_of, values, pieces.verify)
    need_sound()
    if found is None:
        return None
    value = ", ".join(map(shown, values(np.array([found.first], np.uint64))[0]))
    both = f"{_describe(manifest, found.first)} and {_describe(manifest, found.last)}"
    return f"{', '.join(identities.names)} = {value} in {both}; {found.extra} rows repeat an identity"


def _run(pieces: Pieces, shard: int, *, known: bool) -> Run:
    hashes = pieces.mapped("hashes", shard) if known else pieces.array("hashes", shard)
    return Run(hashes, partial(rows_of, pieces, shard), known)


def _refuse_nulls(name: str, manifest: Manifest, pieces: Pieces, identities: Identities) -> None:
    columns = pieces.summary["null_column"]
    if not (columns >= 0).any():
        return
    first = int(columns[columns >= 0].min())
    shards = np.flatnonzero(columns == first)
    offsets = pieces.summary["null_row"][shards].astype(np.uint64)
    at = int(manifest.physical(manifest.starts[shards] + offsets).min())
    msg = (
        f"register {name!r}: identity {identities.names[first]!r} is null in {_describe(manifest, at)}. "
        "Fill it in, or name another column"
    )
    raise CatalogError(msg)


def _describe(manifest: Manifest, physical: int) -> str:
    logical = manifest.logical(np.array([physical], dtype=np.uint64))
    shard = int(manifest.shard_of(logical)[0])
    return f"shard {shown(manifest.shard_names[shard].as_py())} row {int(logical[0] - manifest.starts[shard])}"


def refuse_repeats(found: str | None, unique: bool, schema: pa.Schema) -> None:
    """Refuse identities that repeat, unless that is allowed.

    Raises:
        CatalogError: says where.
    """
    if found is None or not unique:
        return
    if any(map(is_made, schema)):
        msg = f"rows cannot have identities of their own: {found}. Remove one of the two, or touch it"
    else:
        msg = (
            f"identity repeats: {found}. Name a unique column or several (identity=[...]), give each row an identity of its "
            "own (identity=spiral.RowIdentity()), or pass unique=False for a relation that is only joined"
        )
    raise CatalogError(msg)

"""Columns of samples some of whose texts cannot be read: the others are computed as if those were not there.

What cannot be read has no tokens and no values; why is told beside. A function of the user sees readable samples
only, so that it need not know of the others.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.tokens import TokenKind
from spiral_stream.errors import renumbered
from spiral_stream.fields.ragged import Ragged
from spiral_stream.transforms.encoder import TextEncoder
from spiral_stream.transforms.python import Function


def encoded(encoder: TextEncoder, name: str, texts: pa.Array, refused: dict[int, str] | None) -> Ragged:
    """Tokens of a computed column.

    Args:
        encoder: of the column.
        name: the column's, for reasons.
        texts: S texts.
        refused: where given, gets the reason by place of texts that cannot be read, which then have no tokens.

    Raises:
        DataError: a text cannot be read, and ``refused`` is not given; ``row`` is its place.
    """
    if refused is None:
        return Ragged.of_flat(*encoder.encode(texts))
    kind = TokenKind("", name, encoder)
    rows = kind.keep_rows(pa.table({name: texts}), "")
    refused.update(rows.refused)
    lengths = rows.sizes // kind.item_bytes
    return Ragged.of_flat(rows.payload, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def reasons(refused: Mapping[int, str], count: int) -> pa.Array:
    """Why each of ``count`` samples cannot be read, as text; null for those that can."""
    if not refused:
        return pa.nulls(count, pa.utf8())
    return pa.array([refused.get(row) for row in range(count)], pa.utf8())


def run_on_readable(
    function: Function, table: pa.Table, keys: NDArray[np.uint64], refused: NDArray[np.bool_]
) -> pa.Array:
    """`Function.run` for the samples that are not refused; null for those that are.

    Args:
        function: the user's.
        table: S samples.
        keys: shape [S], uint64.
        refused: shape [S].
    """
    if not refused.any():
        return function.run(table, keys)
    if refused.all():
        return pa.nulls(len(table), function.kind)
    good = np.flatnonzero(~refused)
    with renumbered(good):
        values = function.run(table.take(pa.array(good)), keys[good])
    return values.take(pa.array(np.cumsum(~refused) - 1, mask=refused))

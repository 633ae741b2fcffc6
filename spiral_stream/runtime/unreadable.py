"""Columns of samples of which some have texts that cannot be read.

Unreadable samples get no tokens and null values; the reason is recorded in a separate column (`lineage.Refusal`). A
user's function is called with the readable samples only (`runtime.calling`), so it does not have to handle the others.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from spiral_stream.cache.tokens import TokenKind
from spiral_stream.fields.ragged import Ragged
from spiral_stream.transforms.encoder import TextEncoder


def encoded(encoder: TextEncoder, name: str, texts: pa.Array, refused: dict[int, str] | None) -> Ragged:
    """Tokenize a computed column.

    Args:
        encoder: the tokenizer.
        name: name of the text column, for the reasons.
        texts: S texts.
        refused: if given, unreadable texts get no tokens, and the reason is put here, by place.

    Raises:
        DataError: a text cannot be read, and ``refused`` is None; ``row`` is its place.
    """
    if refused is None:
        return Ragged.of_flat(*encoder.encode(texts))
    kind = TokenKind("", name, encoder)
    rows = kind.keep_rows(pa.table({name: texts}), "")
    refused.update(rows.refused)
    lengths = rows.sizes // kind.item_bytes
    return Ragged.of_flat(rows.payload, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def reasons(refused: Mapping[int, str], count: int) -> pa.Array:
    """Return the reasons as a column of text, one per sample: null for samples that can be read."""
    if not refused:
        return pa.nulls(count, pa.utf8())
    return pa.array([refused.get(row) for row in range(count)], pa.utf8())

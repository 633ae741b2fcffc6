"""Columns of samples of which some have texts that cannot be read.

Unreadable samples get no tokens and null values; the reason is recorded in a separate column (`lineage.Refusal`). A
user's function is called with the readable samples only (`runtime.columns.functions`), so it does not have to handle the others.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from spiral_stream.cache.kinds.chats import ChatKind
from spiral_stream.cache.kinds.tokens import TokenKind
from spiral_stream.errors import DataError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.transforms.text.chat_encoder import ChatEncoder
from spiral_stream.transforms.text.encoder import TextEncoder


def encoded(encoder: TextEncoder | ChatEncoder, texts: pa.Table, refused: dict[int, str] | None) -> Ragged:
    """Tokenize computed columns.

    Args:
        encoder: the tokenizer.
        texts: the columns of the transform, S rows: first the text, by the name that reasons give it.
        refused: if given, unreadable texts get no tokens, and the reason is put here, by place.

    Raises:
        DataError: a text cannot be read, and ``refused`` is None; ``row`` is its place.
    """
    name, *others = texts.column_names
    kind: TokenKind | ChatKind
    if isinstance(encoder, ChatEncoder):
        kind = ChatKind("", name, tuple(others), encoder)
    elif refused is None:
        return Ragged.of_flat(*encoder.encode(texts[name]))
    else:
        kind = TokenKind("", name, encoder)
    rows = kind.keep_rows(texts, "")
    if refused is not None:
        refused.update(rows.refused)
    elif rows.refused:
        row = min(rows.refused)
        raise DataError(rows.refused[row], row=row)
    begins = (np.cumsum(rows.sizes) - rows.sizes).astype(np.uint64)
    items = np.full(len(rows.sizes), kind.item_bytes, np.uint8)
    addresses = np.uint64(rows.payload.ctypes.data) + begins
    return Ragged(addresses, kind.lengths(rows.sizes), items, signed=False, owners=(rows.payload,))


def reasons(refused: Mapping[int, str], count: int) -> pa.Array:
    """Return the reasons as a column of text, one per sample: null for samples that can be read."""
    if not refused:
        return pa.nulls(count, pa.utf8())
    return pa.array([refused.get(row) for row in range(count)], pa.utf8())

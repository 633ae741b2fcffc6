"""The cache kind of conversations: the tokens of each row, and behind them its loss mask, a byte per token.

A payload is the tokens, little-endian, then the mask, then zeros up to a multiple of a token's size, so that tokens of
every row are aligned. The number of tokens follows from the size: of N tokens of b bytes it is ``b * (N + ceil(N / b))``.
Without a mask the payload is the tokens alone, as of text (`cache.kinds.tokens`).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.fingerprint import token_facts
from spiral_stream.cache.kinds.kind import Kind, Rows
from spiral_stream.fields.ragged import Ragged
from spiral_stream.sources.references.policy import Reach

Int64 = NDArray[np.int64]


class RowEncoder(Protocol):
    """Conversations to tokens and masks. Thread-safe."""

    masked: bool
    digest: str
    dtype: np.dtype[np.uint16] | np.dtype[np.uint32]

    def encode(
        self, rows: pa.Table
    ) -> tuple[list[NDArray[np.uint16] | NDArray[np.uint32]], list[NDArray[np.uint8]], dict[int, str]]:
        """Tokens and masks of S rows, and which of them are refused."""
        ...


@final
@dataclass(frozen=True, slots=True)
class ChatKind(Kind):
    """One column of conversations of one relation, with the columns that come with it, rendered by one encoder."""

    RUN_BYTES: ClassVar[int] = 1 << 20
    RUN_ROWS: ClassVar[int] = 1024

    relation: str
    column: str
    others: tuple[str, ...]  # prompt and tools
    encoder: RowEncoder

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *self.others)

    @property
    def form(self) -> str:
        return f"{np.dtype(self.encoder.dtype)}{' and loss mask' if self.masked else ''}"

    @property
    def title(self) -> str:
        return "tokens"

    def facts(self) -> dict[str, object]:
        facts = token_facts(self.relation, self.column, self.encoder.digest, self.item_bytes)
        return {**facts, "chat": list(self.others)}

    @property
    def item_bytes(self) -> int:
        """Bytes of one token."""
        return int(np.dtype(self.encoder.dtype).itemsize)

    @property
    def masked(self) -> bool:
        """Whether a loss mask lies behind the tokens."""
        return self.encoder.masked

    def lengths(self, sizes: Int64) -> Int64:
        """Return how many tokens payloads of these sizes have."""
        items = sizes // self.item_bytes
        return items * self.item_bytes // (self.item_bytes + 1) if self.masked else items

    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:  # noqa: ARG002  text is inline
        """Render and tokenize P conversations; see `Kind.keep_rows`."""
        ids, masks, refused = self.encoder.encode(table.select(list(self.columns)))
        parts = [self._payload(*row) for row in zip(ids, masks, strict=True)]
        sizes = np.fromiter((part.nbytes for part in parts), np.int64, len(parts))
        payload = np.concatenate([np.empty(0, self.encoder.dtype), *parts])
        return Rows(payload, sizes, refused, {}, table.nbytes)

    def _payload(self, ids: NDArray[np.uint16] | NDArray[np.uint32], mask: NDArray[np.uint8]) -> NDArray[np.generic]:
        if not self.masked:
            return ids
        padded = np.zeros(-(-len(mask) // self.item_bytes) * self.item_bytes, np.uint8)
        padded[: len(mask)] = mask
        return np.concatenate([ids, padded.view(ids.dtype)])


def mask_behind(tokens: Ragged) -> Ragged:
    """Return the loss masks of token sequences that lie as `ChatKind` keeps them."""
    addresses = tokens.addresses + (tokens.lengths * tokens.item_bytes).astype(np.uint64)
    items = np.ones(len(tokens), dtype=np.uint8)
    return Ragged(addresses, tokens.lengths, items, signed=False, owners=tokens.owners)

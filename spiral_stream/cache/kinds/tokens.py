"""The cache kind of text: the tokens of each row, in the narrowest integers.

The payload of a row is its tokens, little-endian, uint16 if the vocabulary fits and
uint32 otherwise; its length is the payload's size by the item size, which the cache
knows without reading a token. Null text and bytes that are not UTF-8 are refused rows.
Text is encoded in pieces of about a megabyte, since an encoder's working memory is a
multiple of its input.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.cache.fingerprint import token_facts
from spiral_stream.cache.kinds.kind import Kind, Rows
from spiral_stream.errors import SourceError
from spiral_stream.sources.references.policy import Reach

ENCODE_BYTES: Final = 1 << 20  # of text handed to the encoder at once


class Encoder(Protocol):
    """Text to tokens: a tokenizer with its options. Thread-safe."""

    @property
    def digest(self) -> str:
        """Content hash of the tokenizer, its options and the code's version."""
        ...

    @property
    def dtype(self) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
        """The integer type of the tokens."""
        ...

    def encode(self, texts: pa.Array) -> tuple[NDArray[np.uint16] | NDArray[np.uint32], NDArray[np.int64]]:
        """Tokens of S texts without nulls: values [N] of `dtype`, and offsets [S + 1] into them."""
        ...


@final
@dataclass(frozen=True, slots=True)
class TokenKind(Kind):
    """One text column of one relation, tokenized by one encoder."""

    RUN_BYTES: ClassVar[int] = ENCODE_BYTES
    RUN_ROWS: ClassVar[int] = 1024  # where texts of some bytes give way to texts of a megabyte, a run holds a gigabyte

    relation: str
    column: str
    encoder: Encoder

    @property
    def form(self) -> str:
        return str(np.dtype(self.encoder.dtype))

    @property
    def title(self) -> str:
        return "tokens"

    def facts(self) -> dict[str, object]:
        return token_facts(self.relation, self.column, self.encoder.digest, self.item_bytes)

    @property
    def item_bytes(self) -> int:
        """Bytes of one token."""
        return int(np.dtype(self.encoder.dtype).itemsize)

    def lengths(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens payloads of these sizes have."""
        return sizes // self.item_bytes

    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:  # noqa: ARG002  text is inline
        """Tokenize P texts; see `Kind.keep_rows`."""
        column = table[self.column]
        values: list[NDArray[np.uint16] | NDArray[np.uint32]] = []
        lengths = np.zeros(len(column), dtype=np.int64)
        refused: dict[int, str] = {}
        at = source_bytes = 0
        for chunk in column.chunks:
            texts, bad = _readable(chunk, self.column)
            refused.update({at + row: reason for row, reason in bad.items()})
            rows = np.delete(np.arange(at, at + len(chunk)), list(bad)) if bad else slice(at, at + len(chunk))
            found = np.empty(len(texts), dtype=np.int64)
            ends = _offsets(texts)
            for first, stop in _slices(ends):
                piece, offsets = self.encoder.encode(texts.slice(first, stop - first))
                values.append(piece[int(offsets[0]) : int(offsets[-1])])
                found[first:stop] = np.diff(offsets)
            lengths[rows] = found
            source_bytes += int(ends[-1] - ends[0])
            at += len(chunk)
        tokens = values[0] if len(values) == 1 else np.concatenate([np.empty(0, self.encoder.dtype), *values])
        payload = np.ascontiguousarray(tokens, dtype=self.encoder.dtype)
        return Rows(payload, lengths * self.item_bytes, refused, {}, source_bytes)


def _readable(chunk: pa.Array, name: str) -> tuple[pa.Array, dict[int, str]]:
    """The texts that can be read as large_utf8, and why each of the others cannot, by place."""
    chunk = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
    kind = chunk.type
    if not (_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        msg = f"{name}: a column of {kind} holds no text. Tokenize one of utf8, or cast it before"
        raise SourceError(msg)
    raw = chunk.cast(pa.large_binary())
    refused: dict[int, str] = {}
    if raw.null_count:
        nulls = np.flatnonzero(raw.is_null().to_numpy(zero_copy_only=False)).tolist()
        way_out = f"Filter the row out (~col({name!r}).is_null()), or fill it in"
        refused = dict.fromkeys(nulls, f"{name}: the text is null. {way_out}")
    texts = _decoded(raw)
    if texts is None:
        refused |= {row: _why(raw[row].as_py(), name) for row in _broken(raw, 0, len(raw))}
        texts = _decoded(raw.filter(_others(len(raw), refused)))
    elif refused:
        texts = texts.drop_null()
    assert texts is not None
    return texts, refused


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _decoded(raw: pa.Array) -> pa.Array | None:
    """The same bytes as text, or None if some are not UTF-8."""
    try:
        return raw.cast(pa.large_string())  # checks the bytes at about 10 GB/s; Arrow trusts those of a text column
    except pa.ArrowInvalid:
        return None


def _broken(raw: pa.Array, first: int, stop: int) -> list[int]:
    """The places of rows that are not UTF-8, by halving."""
    if first == stop or _decoded(raw.slice(first, stop - first)) is not None:
        return []
    if stop - first == 1:
        return [first]
    middle = (first + stop) // 2
    return _broken(raw, first, middle) + _broken(raw, middle, stop)


def _why(data: bytes, name: str) -> str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is 0x{data[error.start]:02x}"
        return f"{name}: the text is not UTF-8 ({found}). Write it again as UTF-8, or filter the row out"
    return f"{name}: the text is not UTF-8. Write it again as UTF-8, or filter the row out"


def _others(count: int, refused: dict[int, str]) -> pa.Array:
    mask = np.ones(count, dtype=np.bool_)
    mask[list(refused)] = False
    return pa.array(mask)


def _offsets(texts: pa.Array) -> NDArray[np.int64]:
    """Shape [S + 1]: where each text begins in the array's bytes."""
    lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _slices(ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Slices of neighbours with at most `ENCODE_BYTES` of text, or one longer text alone."""
    out, first, count = [], 0, len(ends) - 1
    while first < count:
        stop = int(np.searchsorted(ends, ends[first] + ENCODE_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), count)
        out.append((first, stop))
        first = stop
    return out

"""Turn text columns into token ids, many documents per call.

Documents are encoded by the compiled engine if it is proven to give the tokenizer's ids
(`spiral_stream.transforms.text.encoding_engine`), a quarter of a mebibyte at a time, without the interpreter's lock. The
tokenizers library encodes the rest: documents that hold the text of an added token or a code point that the proof
excludes, and all documents of a tokenizer without a proof. Both give the same ids. They differ only in speed: 70 to 130 MB
per CPU second against 2.5, for English and Python source.
"""

import itertools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, SourceError
from spiral_stream.extras import need
from spiral_stream.integrity.regular_files import regular_bytes
from spiral_stream.semantic import is_text
from spiral_stream.transforms.text.encoding_engine import Core, Proof, core_of, proof_next_to, prove
from spiral_stream.transforms.text.tokenize import Tokenize
from spiral_stream.transforms.text.tokenizer_identity import content_digest, encoder_digest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# S documents, N tokens of all of them; arrays are one-dimensional

Int64 = NDArray[np.int64]
Ids = NDArray[np.uint16] | NDArray[np.uint32]

CALL_BYTES: Final = 1 << 18  # of text for one call; it and its ids stay in the processor's cache
CALL_ROWS: Final = 512  # documents of one call of the tokenizers library, which makes an object for each


@final
class TextEncoder:
    """A tokenizer with the options of a `Tokenize`. Thread-safe.

    The first `encode` builds the engine. That takes about 1 s for 128,000 tokens, and some seconds more if there is no
    proof next to the file yet.
    """

    def __init__(
        self, tokenizer_json: bytes | str | os.PathLike[str], tokenize: Tokenize, *, fast: bool = True
    ) -> None:
        """Read the tokenizer and check the options against it.

        Args:
            tokenizer_json: the bytes or the path of a ``tokenizer.json``.
            tokenize: the options; its column and tokenizer name are not used.
            fast: False uses the tokenizers library alone; ids are the same.

        Raises:
            SourceError: the file cannot be read, or is no tokenizer.
            PlanError: the separator is no token, ``max_length`` leaves no room for text, or the special tokens are not
                placed around the text.
        """
        self._path = None if isinstance(tokenizer_json, bytes) else Path(tokenizer_json)
        self._data = read_tokenizer(tokenizer_json) if self._path else cast("bytes", tokenizer_json)
        self._tokenizer = open_tokenizer(self._data, str(self._path or "its bytes"))
        self._before, self._after = _around(self._tokenizer, tokenize)
        self._room = _room(tokenize, len(self._before) + len(self._after))
        self._dtype: np.dtype[Any] = np.dtype(np.uint16 if largest_id(self._tokenizer) < 1 << 16 else np.uint32)
        self._digest = encoder_digest(content_digest(self._data), tokenize)
        self._tokenize, self._fast = tokenize, fast
        self._lock = threading.Lock()
        self._engine: tuple[Core | None, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process reads the tokenizer itself."""
        return _again, (self._path or self._data, self._tokenize, self._fast, self._digest)

    @property
    def digest(self) -> str:
        """Content hash of the tokenizer, the options and the version of `Tokenize`. It is the same for both engines."""
        return self._digest

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids: uint16 if the vocabulary with its added tokens fits, else uint32."""
        return self._dtype

    @property
    def engine(self) -> str:
        """A text that says which engine encodes, and why."""
        return self._built()[1]

    def encode(self, texts: pa.Array | pa.ChunkedArray) -> tuple[Ids, Int64]:
        """Encode S documents.

        Args:
            texts: S documents of type utf8, binary, large_utf8 or large_binary, or a dictionary of them; none is null.

        Returns:
            values: shape [N], of `dtype`: the ids of all documents, end to end.
            offsets: shape [S + 1], int64: where each document begins in ``values``; last, where the last one ends.

        Raises:
            DataError: a document is null or not UTF-8; ``row`` is its place.
        """
        documents = _checked(texts)
        ids, counts = self._plain(documents)
        return self._framed(ids.astype(self._dtype, copy=False), counts)

    def _built(self) -> tuple[Core | None, str]:
        """Return the engine and the reason for the choice; built once."""
        with self._lock:
            if self._engine is None:
                self._engine = self._build()
            return self._engine

    def _build(self) -> tuple[Core | None, str]:
        if not self._fast:
            return None, "tokenizers: fast=False"
        proof: Proof = proof_next_to(self._path, self._data) if self._path else prove(self._data)
        if not proof.covered:
            return None, f"tokenizers: {proof.reason}"
        tokenizer = json.loads(self._data)
        return core_of(tokenizer, proof), f"compiled: {proof.reason}"

    def _plain(self, documents: pa.Array) -> tuple[NDArray[Any], Int64]:
        """Return all ids, and the number per document, before anything is added or cut."""
        core, _ = self._built()
        if core is None:
            return self.by_library(documents)
        parts = [core.encode(run, self._dtype) for run in _runs(documents)]
        ids = np.concatenate([np.empty(0, self._dtype), *(part for part, _ in parts)])
        counts = np.concatenate([np.empty(0, np.int64), *(part for _, part in parts)])
        odd = counts < 0
        if not odd.any():
            return ids, counts
        return _interleaved(odd, (ids, counts[~odd]), self.by_library(documents.filter(pa.array(odd))))

    def by_library(self, documents: pa.Array) -> tuple[NDArray[Any], Int64]:
        """Encode with the tokenizers library. It makes a list per document: 36 bytes per token, and little of its time."""
        ids, counts = [np.empty(0, self._dtype)], [np.empty(0, np.int64)]
        for at in range(0, len(documents), CALL_ROWS):
            texts = documents.slice(at, CALL_ROWS).to_pylist()
            found = [each.ids for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            sizes = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
            counts.append(sizes)
            ids.append(np.fromiter(itertools.chain.from_iterable(found), dtype=self._dtype, count=int(sizes.sum())))
        return np.concatenate(ids), np.concatenate(counts)

    def _framed(self, ids: NDArray[Any], counts: Int64) -> tuple[Ids, Int64]:
        """Cut each document to the length left for it, and put special tokens and separator around it."""
        lengths = counts if self._room is None else np.minimum(counts, self._room)
        ends = _offsets(lengths + (len(self._before) + len(self._after)))
        if lengths.sum() == ends[-1] == len(ids):
            return ids, ends
        out = np.empty(int(ends[-1]), dtype=self._dtype)
        out[ends[:-1, None] + np.arange(len(self._before))] = self._before
        out[ends[1:, None] + np.arange(-len(self._after), 0)] = self._after
        out[_indices(ends[:-1] + len(self._before), lengths)] = ids[_indices(_offsets(counts)[:-1], lengths)]
        return out, ends


def read_tokenizer(path: str | os.PathLike[str] | bytes) -> bytes:
    """Read a tokenizer file.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        return regular_bytes(Path(os.fsdecode(path)))
    except OSError as error:
        where = os.fsdecode(path)
        msg = f"tokenizer {where}: {error.strerror or error}. Give the path of a tokenizer.json, or register it again"
        raise SourceError(msg) from error


def open_tokenizer(data: bytes, where: str) -> "Tokenizer":
    """Open a tokenizer with the tokenizers library, without the truncation and padding that its file may ask for.

    Raises:
        SourceError: the bytes are no tokenizer.
        MissingExtraError: the tokenizers library is not installed.
    """
    need("tokenizers", "Tokenize")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        msg = f"tokenizer {where}: not of the tokenizers library ({error}). Give the tokenizer.json that Tokenizer.save wrote"
        raise SourceError(msg) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def largest_id(tokenizer: "Tokenizer") -> int:
    """Return the largest id of the vocabulary with its added tokens; ids may have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)


def _around(tokenizer: "Tokenizer", tokenize: Tokenize) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ids that come before and after the ids of every document."""
    before: list[int] = []
    after: list[int] = []
    if tokenize.special_tokens:
        plain, framed = (tokenizer.encode("a b", add_special_tokens=special) for special in (False, True))
        first = next((n for n, special in enumerate(framed.special_tokens_mask) if not special), len(framed.ids))
        before, after = framed.ids[:first], framed.ids[first + len(plain.ids) :]
        for text in ("", "a b", "c"):
            plain, framed = (tokenizer.encode(text, add_special_tokens=special) for special in (False, True))
            if before + plain.ids + after != framed.ids:
                msg = (
                    f"Tokenize: tokenizer {tokenize.tokenizer!r} does more than put special tokens around a text: "
                    f"{text!r} becomes {framed.ids}. Pass special_tokens=False, and separator= for a document's end"
                )
                raise PlanError(msg)
    if tokenize.separator is not None:
        after = [*after, _token(tokenizer, tokenize.separator)]
    return np.array(before, dtype=np.uint32), np.array(after, dtype=np.uint32)


def _token(tokenizer: "Tokenizer", text: str) -> int:
    found = tokenizer.token_to_id(text)
    if found is None:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        known = f"its special tokens are {', '.join(special[:12])}" if special else "it has no special tokens"
        msg = f"Tokenize: separator {text!r} is no token of the vocabulary; {known}. Name one of its tokens"
        raise PlanError(msg)
    return int(found)


def _room(tokenize: Tokenize, taken: int) -> int | None:
    """Return how many tokens of its text a document may keep."""
    if tokenize.max_length is None:
        return None
    if tokenize.max_length <= taken:
        msg = (
            f"Tokenize: max_length is {tokenize.max_length}, but special tokens and separator already take {taken}. "
            f"Give at least {taken + 1}, or pass special_tokens=False"
        )
        raise PlanError(msg)
    return tokenize.max_length - taken


def _again(tokenizer_json: bytes | Path, tokenize: Tokenize, fast: bool, digest: str) -> TextEncoder:
    """Read a tokenizer again, in another process."""
    encoder = TextEncoder(tokenizer_json, tokenize, fast=fast)
    if encoder.digest != digest:
        msg = (
            f"{tokenizer_json!s:.200} changed while it was used. Register the tokenizer again, and make the plan again"
        )
        raise SourceError(msg)
    return encoder


def _checked(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the documents as large_utf8, checked.

    Raises:
        DataError: a document is null or not UTF-8; ``row`` is its place.
    """
    array = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type) or is_text(array.type)):
        msg = f"tokenize: a column of {array.type}. Give one of text (utf8) or of bytes"
        raise DataError(msg)
    if array.null_count:
        row = int(pc.index(array.is_null(), value=True).as_py())
        msg = "tokenize: the text is null. Filter nulls out, or fill them before .sample(...)"
        raise DataError(msg, row=row)
    array = array.cast(pa.large_binary())
    try:
        return array.cast(pa.large_utf8())
    except pa.ArrowInvalid as error:
        raise _not_utf8(array) from error


def _not_utf8(documents: pa.Array) -> DataError:
    """Return the error for the first document that is not UTF-8."""
    for row, document in enumerate(documents):
        try:
            document.as_py().decode()
        except UnicodeDecodeError as error:
            found = error.object[error.start]
            msg = (
                f"tokenize: the text is not UTF-8: byte 0x{found:02X} at byte offset {error.start} ({error.reason}). "
                "Re-encode it, or filter the row out"
            )
            return DataError(msg, row=row)
    return DataError("tokenize: the texts are not UTF-8. Re-encode them")


def _runs(documents: pa.Array) -> Iterator[pa.Array]:
    """Runs of documents of about `CALL_BYTES` of text."""
    ends = _text_offsets(documents)
    at = 0
    while at < len(documents):
        stop = int(np.searchsorted(ends, ends[at] + CALL_BYTES, side="left"))
        stop = min(max(stop, at + 1), len(documents))
        yield documents.slice(at, stop - at)
        at = stop


def _text_offsets(documents: pa.Array) -> Int64:
    """Return where each document's bytes begin, shape [S + 1]."""
    offsets = np.frombuffer(documents.buffers()[1], dtype=np.int64)
    return offsets[documents.offset : documents.offset + len(documents) + 1]


def _interleaved(
    odd: NDArray[np.bool_], even_part: tuple[NDArray[Any], Int64], odd_part: tuple[NDArray[Any], Int64]
) -> tuple[NDArray[Any], Int64]:
    """Merge the ids of two parts, in the order of the documents."""
    counts = np.empty(len(odd), dtype=np.int64)
    counts[~odd], counts[odd] = even_part[1], odd_part[1]
    starts = _offsets(counts)[:-1]
    ids = np.empty(int(counts.sum()), dtype=even_part[0].dtype)
    for rows, (values, sizes) in ((~odd, even_part), (odd, odd_part)):
        ids[_indices(starts[rows], sizes)] = values
    return ids, counts


def _offsets(counts: Int64) -> Int64:
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def _indices(starts: Int64, counts: Int64) -> Int64:
    """Return ``counts[i]`` places from ``starts[i]`` on, for all i. It takes 8 bytes per token."""
    return np.repeat(starts - _offsets(counts)[:-1], counts) + np.arange(int(counts.sum()))

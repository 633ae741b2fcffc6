"""What peers encode raw text with: `encode_batch_fast` of the tokenizers library, 512 documents a call.

`encode_batch_fast` skips the offsets; ids become arrays at once, because a list of ids is 36 bytes a token.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from benchmarks.peers.documents import WINDOW, Texts

CHUNK = 512


class Encoder:
    """Documents to arrays of ids. Opened in the process that uses it."""

    def __init__(self, texts: Texts) -> None:
        self._path, self._tokenizer = str(texts.tokenizer), None

    def __call__(self, documents: list[str]) -> list[np.ndarray]:
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(self._path)
        encoded = self._tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint16) for encoding in encoded]

    def __getstate__(self) -> dict:
        return {"_path": self._path, "_tokenizer": None}


def pack(documents: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One array and its offsets: what travels between processes."""
    return np.concatenate(documents), np.cumsum([0, *map(len, documents)])


def unpack(ids: np.ndarray, offsets: np.ndarray) -> list[np.ndarray]:
    """The documents of `pack`."""
    return [ids[start:end] for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def regroup(chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[list[np.ndarray]]:
    """Windows of documents from packed chunks."""
    window: list[np.ndarray] = []
    for ids, offsets in chunks:
        window += unpack(ids, offsets)
        if len(window) >= WINDOW:
            yield window[:WINDOW]
            window = window[WINDOW:]

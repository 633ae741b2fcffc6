"""No loader at all: the peers' kernels on documents in memory, one thread. What ordinary libraries allow.

``padded``: windows, buckets and padding. ``concat``: NumPy concatenation of a shuffled window and a reshape, with or
without segments and positions. ``tokenizers``, ``tiktoken``: raw text to ids, and nothing else; the latter reads the
same vocabulary, merges and split, and `prepare` counts documents whose ids differ.
"""

import json
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.peers.documents import ROW, ROWS, Batch, Mapped, Task, Texts, bucketed, windows
from benchmarks.peers.encoding import Encoder

PACKAGES = ("tokenizers", "tiktoken", "numpy", "torch")
# the split of tokenizers' ByteLevel
SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tiktoken_of(texts: Texts) -> object:
    """The corpus's tokenizer as a tiktoken encoding."""
    import tiktoken
    from tokenizers import pre_tokenizers

    vocabulary = json.loads(texts.tokenizer.read_text())["model"]["vocab"]
    printable = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [chr(byte) for byte in range(256) if chr(byte) in printable]
    others = [letter for letter in printable if letter not in plain]
    hidden = [byte for byte in range(256) if chr(byte) not in plain]
    byte_of = {letter: ord(letter) for letter in plain} | dict(zip(others, hidden, strict=True))
    ranks = {bytes(byte_of[letter] for letter in entry): number for entry, number in vocabulary.items() if number > 0}
    return tiktoken.Encoding("corpus", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})


def prepare(texts: Texts, _task: Task, kernel: str) -> dict[str, int]:
    """For tiktoken: of how many documents the ids differ, among how many."""
    if kernel != "tiktoken":
        return {}
    documents, tokens, encoding = Mapped.texts(texts), Mapped.tokens(texts), tiktoken_of(texts)
    step = max(1, len(documents) // 5_000)
    sampled = range(0, len(documents), step)
    differ = sum(
        not np.array_equal(encoding.encode_to_numpy(bytes(documents[number]).decode()), tokens[number])
        for number in sampled
    )
    return {"documents compared": len(sampled), "with other ids": differ}


def batches(texts: Texts, task: Task, kernel: str) -> Iterator[Batch]:
    torch.set_num_threads(1)
    if kernel in ("tokenizers", "tiktoken"):
        return _encoded(texts, kernel)
    tokens = Mapped.tokens(texts)
    ids = np.array(tokens.values)
    documents = [ids[start:end] for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
    if kernel == "padded":
        return bucketed(([documents[number] for number in window] for window in windows(len(documents))), task.budget)
    return _concatenated(documents, with_segments=kernel == "concat-segments")


def _encoded(texts: Texts, kernel: str) -> Iterator[Batch]:
    documents = Mapped.texts(texts)
    encoding = Encoder(texts) if kernel == "tokenizers" else tiktoken_of(texts)
    for window in windows(len(documents)):
        for part in np.split(window, 16):
            strings = [bytes(documents[number]).decode() for number in part]
            found = encoding(strings) if kernel == "tokenizers" else map(encoding.encode_to_numpy, strings)
            yield {"tokens": torch.tensor(sum(map(len, found))), "documents": torch.tensor(len(part))}


def _concatenated(documents: list[np.ndarray], *, with_segments: bool) -> Iterator[Batch]:
    size = ROW * ROWS
    for window in windows(len(documents)):
        chosen = [documents[number] for number in window]
        values = np.concatenate(chosen)
        lengths = np.fromiter(map(len, chosen), np.int64, len(chosen))
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        for first in range(0, len(values) - size + 1, size):
            ids = values[first : first + size].astype(np.int64).reshape(ROWS, ROW)
            made = {"input_ids": torch.from_numpy(ids)}
            yield made | _from_starts(starts, first) if with_segments else made


def _from_starts(starts: np.ndarray, first: int) -> Batch:
    """Segments and positions of ``ROWS`` rows that begin at ``first`` of documents that begin at ``starts``."""
    begins = np.zeros(ROWS * ROW, np.int32)
    inside = starts[np.searchsorted(starts, first) : np.searchsorted(starts, first + ROWS * ROW)] - first
    begins[inside] = 1
    begins[::ROW] = 1
    begun = np.flatnonzero(begins)
    spans = np.diff(begun, append=len(begins))
    positions = np.arange(len(begins), dtype=np.int32) - np.repeat(begun, spans).astype(np.int32)
    segments = np.cumsum(begins, dtype=np.int32).reshape(ROWS, ROW)
    segments -= segments[:, :1] - 1
    return {"segment_ids": torch.from_numpy(segments), "positions": torch.from_numpy(positions.reshape(ROWS, ROW))}

"""What every system of the text benchmarks is asked for, where its tokens lie, and the peers' kernels.

A: token documents -> shuffled -> windows of 8,192, sorted by length -> batches of at most N padded tokens, in a drawn
order -> `input_ids`, `attention_mask`, `labels` (shifted, -100 where there is none), int64, width a multiple of 8.
B: the same documents -> rows of 2,048 with segment ids and positions, 64 rows a batch. C: A from raw text.
Only NumPy and torch are needed here: Mosaic's environment has nothing else of ours.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

WINDOW = 8_192
MULTIPLE = 8
ROW = 2_048
ROWS = 64
IGNORED = -100

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Texts:
    """The same documents in every system's own format, under one folder."""

    root: Path

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer.json"

    @property
    def ids(self) -> Path:
        """uint16, all documents end to end."""
        return self.root / "ids.npy"

    @property
    def offsets(self) -> Path:
        """int64: where each document begins in `ids`, and the end."""
        return self.root / "offsets.npy"

    @property
    def text(self) -> Path:
        """uint8, UTF-8 of all documents end to end."""
        return self.root / "text.npy"

    @property
    def text_offsets(self) -> Path:
        return self.root / "text_offsets.npy"

    @property
    def tables(self) -> Path:
        """Lance datasets `documents` and `tokens`; also a LanceDB database."""
        return self.root / "tables"


@dataclass(frozen=True)
class Task:
    """One workload."""

    kind: str  # "padded", "packed" or "raw"
    budget: int = 131_072  # padded tokens a batch


def cores() -> int:
    """How many cores this process may use; the harness has pinned it."""
    return len(os.sched_getaffinity(0))


class Mapped:
    """Documents end to end in a memory-mapped file."""

    def __init__(self, values: Path, offsets: Path) -> None:
        self.values = np.load(values, mmap_mode="r").view(np.ndarray)
        self.offsets = np.load(offsets)
        self.lengths = np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> np.ndarray:
        return self.values[self.offsets[document] : self.offsets[document + 1]]

    @classmethod
    def tokens(cls, texts: Texts) -> "Mapped":
        return cls(texts.ids, texts.offsets)

    @classmethod
    def texts(cls, texts: Texts) -> "Mapped":
        return cls(texts.text, texts.text_offsets)


def windows(count: int, seed: int = 17) -> Iterator[np.ndarray]:
    """Document numbers, [WINDOW], a new permutation each epoch, for ever; the short last window is dropped."""
    numbers = np.random.default_rng(seed)
    size = min(WINDOW, count)
    while True:
        order = numbers.permutation(count)
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]


def buckets(lengths: np.ndarray, budget: int, numbers: np.random.Generator) -> list[np.ndarray]:
    """Places in the window of each batch: neighbours in length, at most ``budget`` padded tokens, batches shuffled."""
    order = np.argsort(lengths, kind="stable")
    widths = -(-lengths[order] // MULTIPLE) * MULTIPLE
    batches, start = [], 0
    while start < len(order):
        rest = widths[start:]
        # sizes grow with every further row, so the last that fits is found by bisection
        fits = np.searchsorted(rest * np.arange(1, len(rest) + 1), budget, side="right")
        batches.append(order[start : start + max(1, int(fits))])
        start += len(batches[-1])
    numbers.shuffle(batches)
    return batches


def narrow(documents: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One batch of arrays of ids, uint16 [B, T], and their lengths: a twelfth of what `widened` makes of it."""
    lengths = np.fromiter(map(len, documents), np.int64, len(documents))
    ids = np.zeros((len(documents), -(-int(lengths.max()) // MULTIPLE) * MULTIPLE), np.uint16)
    for row, document in zip(ids, documents, strict=True):
        row[: len(document)] = document
    return ids, lengths


def widened(narrow_BT: np.ndarray, lengths: np.ndarray) -> Batch:
    """The fields of a batch.

    Tokens per CPU second at 131,072 and 2,000,000 a batch, with `narrow`: 287 M and 161 M; three int64 copies a row
    instead 226 M and 127 M, torch's `pad_sequence` 107 M and 59 M, one gather by index array 272 M and 118 M.
    """
    real = np.arange(narrow_BT.shape[1]) < lengths[:, None]
    ids, labels = narrow_BT.astype(np.int64), np.full(narrow_BT.shape, IGNORED, np.int64)
    np.copyto(labels[:, :-1], ids[:, 1:], where=real[:, 1:])
    made = {"input_ids": ids, "attention_mask": real.astype(np.int64), "labels": labels}
    return {name: torch.from_numpy(array) for name, array in made.items()}


def padded(documents: Sequence[np.ndarray]) -> Batch:
    """One batch of arrays of ids."""
    return widened(*narrow(documents))


def bucketed(documents: Iterator[list[np.ndarray]], budget: int) -> Iterator[Batch]:
    """Windows of documents in, batches out: what the user of a loader without formation writes."""
    numbers = np.random.default_rng(5)
    for window in documents:
        lengths = np.fromiter(map(len, window), np.int64, len(window))
        for places in buckets(lengths, budget, numbers):
            yield padded([window[place] for place in places])


def chunked(documents: Iterator[Any], size: int = WINDOW) -> Iterator[list[Any]]:
    """Lists of ``size`` from a stream of documents; a short rest is dropped."""
    window = []
    for document in documents:
        window.append(document)
        if len(window) == size:
            yield window
            window = []


def segments_of(ids_BT: np.ndarray, separator: int = 0) -> Batch:
    """Segment ids from 1 and positions of rows whose documents end in ``separator``; both int32 [B, T]."""
    ends = ids_BT == separator
    begins = np.zeros(ids_BT.shape, np.bool_)
    begins[:, 1:] = ends[:, :-1]
    places = np.arange(ids_BT.shape[1], dtype=np.int32)
    positions = places - np.maximum.accumulate(np.where(begins, places, np.int32(0)), axis=1)
    segments = np.cumsum(begins, axis=1, dtype=np.int32) + np.int32(1)
    return {"segment_ids": torch.from_numpy(segments), "positions": torch.from_numpy(positions)}

"""torch `DataLoader` with a batch sampler and `__getitems__`: one call of the dataset a batch, over a memory map.

Padded batches: the sampler forms windows and buckets, since it knows all lengths from the offsets; a batch is a
gather. ``workers``: none, in the consumer's process, which costs least CPU but nothing is read ahead; or a process per
core, which sends ids as uint16 through shared memory (finished int64 fields: 21 M tokens a CPU second instead of 41 M).
Raw text: a batch of the loader is 512 documents, encoded; windows are formed in the consumer.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.documents import (
    WINDOW,
    Batch,
    Mapped,
    Task,
    Texts,
    bucketed,
    buckets,
    cores,
    narrow,
    widened,
    windows,
)
from benchmarks.peers.encoding import CHUNK, Encoder, pack, regroup

PACKAGES = ("torch", "tokenizers")


class Tokens(Dataset):
    """Whole batches of token documents, uint16 and lengths."""

    def __init__(self, documents: Mapped) -> None:
        self.documents = documents

    def __len__(self) -> int:
        return len(self.documents)

    def __getitems__(self, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(map(torch.from_numpy, narrow([self.documents[number] for number in numbers])))


class Encoded(Dataset):
    """Encoded documents, as one array and its offsets."""

    def __init__(self, texts: Texts) -> None:
        self.documents = Mapped.texts(texts)
        self.encoder = Encoder(texts)

    def __len__(self) -> int:
        return len(self.documents)

    def __getitems__(self, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        ids = self.encoder([bytes(self.documents[number]).decode() for number in numbers])
        return tuple(map(torch.from_numpy, pack(ids)))


class Buckets:
    """A batch sampler: document numbers of each bucketed batch, for ever."""

    def __init__(self, lengths: np.ndarray, budget: int) -> None:
        self.lengths, self.budget = lengths, budget

    def __iter__(self) -> Iterator[np.ndarray]:
        numbers = np.random.default_rng(5)
        for window in windows(len(self.lengths)):
            for places in buckets(self.lengths[window], self.budget, numbers):
                yield window[places]


class Chunks:
    """A batch sampler: windows of document numbers in pieces, for ever."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[np.ndarray]:
        for window in windows(self.count):
            yield from np.split(window, WINDOW // CHUNK)


def _as_it_is(batch: tuple) -> tuple:
    return batch


def batches(texts: Texts, task: Task, workers: str) -> Iterator[Batch]:
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")  # 63 M tokens a CPU second; file descriptors 38 M
    options = {"num_workers": cores() if workers == "processes" else 0, "collate_fn": _as_it_is}
    if task.kind == "raw":
        encoded = Encoded(texts)
        chunks = DataLoader(encoded, batch_sampler=Chunks(len(encoded)), **options)
        yield from bucketed(regroup((ids.numpy(), offsets.numpy()) for ids, offsets in chunks), task.budget)
    else:
        documents = Mapped.tokens(texts)
        for ids, lengths in DataLoader(
            Tokens(documents), batch_sampler=Buckets(documents.lengths, task.budget), **options
        ):
            yield widened(ids.numpy(), lengths.numpy())

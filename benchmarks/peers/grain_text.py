"""Grain over document numbers: what it shuffles and batches are integers, documents come from the memory map at once.

Its per-element cost is that of an integer this way; a source of documents, one `__getitem__` each, was not tried. It has
no length buckets and no padding to the longest, so both are the peers' common functions; packing is its own.
"""

from collections.abc import Iterator

import grain
import numpy as np
import torch

from benchmarks.peers.documents import ROW, ROWS, WINDOW, Batch, Mapped, Task, Texts, bucketed, cores
from benchmarks.peers.encoding import CHUNK, Encoder

PACKAGES = ("grain", "tokenizers")


def batches(texts: Texts, task: Task, strategy: str = "") -> Iterator[Batch]:
    torch.set_num_threads(1)
    documents = Mapped.texts(texts) if task.kind == "raw" else Mapped.tokens(texts)
    order = grain.MapDataset.range(len(documents)).seed(17).shuffle().repeat()
    if task.kind == "packed":
        return _packed(order, documents, strategy)
    if task.kind == "raw":
        encoder = Encoder(texts)
        chunks = order.batch(CHUNK, drop_remainder=True, batch_fn=list).map(
            lambda numbers: encoder([bytes(documents[number]).decode() for number in numbers])
        )
        read = grain.ReadOptions(num_threads=cores(), prefetch_buffer_size=cores() + 2)
        return bucketed(_joined(chunks.to_iter_dataset(read)), task.budget)
    formed = order.batch(WINDOW, drop_remainder=True, batch_fn=list).map(
        lambda numbers: [documents[number] for number in numbers]
    )
    return bucketed(formed.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)), task.budget)


def _joined(chunks: Iterator[list[np.ndarray]]) -> Iterator[list[np.ndarray]]:
    window: list[np.ndarray] = []
    for chunk in chunks:
        window += chunk
        if len(window) >= WINDOW:
            yield window[:WINDOW]
            window = window[WINDOW:]


def _packed(order: grain.MapDataset, documents: Mapped, strategy: str) -> Iterator[Batch]:
    """Documents longer than a row are cut off for the fits, as ours are with ``oversize="truncate"``."""
    keep = None if strategy == "concat" else ROW
    elements = order.map(lambda number: {"tokens": documents[number][:keep]}).to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )
    experimental = grain.experimental
    if strategy == "concat":
        packed = experimental.ConcatThenSplitIterDataset(elements, length_struct={"tokens": ROW})
    else:
        fit = {"first_fit": experimental.FirstFitPackIterDataset, "best_fit": experimental.BestFitPackIterDataset}
        packed = fit[strategy](elements, length_struct={"tokens": ROW}, num_packing_bins=ROWS)
    for batch in packed.batch(ROWS, drop_remainder=True):
        yield {
            "input_ids": torch.from_numpy(batch["tokens"].astype(np.int64)),
            "segment_ids": torch.from_numpy(batch["tokens_segment_ids"]),
            "positions": torch.from_numpy(batch["tokens_positions"]),
        }

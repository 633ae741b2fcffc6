"""LanceDB `StreamingDataset` over the same Lance tables, a transform thread per core, 512 rows a read.

The transform takes the rows of a read at once: lists are split without copies, text is encoded. It has no length
buckets: the peers' common functions. Packed rows are its own, `pack_sequences`, with document ids; positions are found behind it.
"""

from collections.abc import Iterator
from itertools import count

import lancedb
import numpy as np
import pyarrow as pa
import torch
from lancedb.streaming import StreamingDataset

from benchmarks.peers.documents import ROW, ROWS, Batch, Task, Texts, bucketed, chunked, cores, segments_of
from benchmarks.peers.encoding import CHUNK, Encoder, unpack

PACKAGES = ("lancedb", "pylance", "tokenizers")


PADDING = 65_535


def _lists(rows: pa.RecordBatch) -> list[np.ndarray]:
    column = rows.column("tokens")
    return unpack(column.values.to_numpy(), column.offsets.to_numpy())


def batches(texts: Texts, task: Task) -> Iterator[Batch]:
    torch.set_num_threads(1)
    if task.kind == "packed":
        return _packed(texts)
    encoder = Encoder(texts)

    def encode(rows: pa.RecordBatch) -> list[np.ndarray]:
        return encoder(rows.column("text").to_pylist())

    raw = task.kind == "raw"
    table = lancedb.connect(texts.tables).open_table("documents" if raw else "tokens")

    def samples() -> Iterator[np.ndarray]:
        for epoch in count():
            yield from StreamingDataset(
                table, shuffle_seed=17, epoch=epoch, columns=["text" if raw else "tokens"],
                transform=encode if raw else _lists, read_batch_size=CHUNK, io_queue_depth=2,
                transform_parallelism=cores(), transform_queue_depth=4,
            )  # fmt: skip

    return bucketed(chunked(samples()), task.budget)


def _packed(texts: Texts) -> Iterator[Batch]:
    table = lancedb.connect(texts.tables).open_table("tokens")
    for epoch in count():
        blocks = StreamingDataset(
            table, shuffle_seed=17, epoch=epoch, columns=["tokens"], read_batch_size=CHUNK, io_queue_depth=2,
            pack_sequences=ROW, eos_id=0, pad_id=PADDING, blocks_per_epoch="auto",
        )  # fmt: skip
        for rows in chunked(iter(blocks), ROWS):
            ids = torch.stack([row["input_ids"] for row in rows])
            segments = torch.stack([row["doc_ids"] for row in rows]).add_(1).masked_fill_(ids == PADDING, 0)
            yield {"input_ids": ids, "segment_ids": segments, "positions": segments_of(ids.numpy())["positions"]}

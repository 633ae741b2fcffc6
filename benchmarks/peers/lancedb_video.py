"""LanceDB `StreamingDataset` over the table of segments, with its own transform threads; 8 rows a read."""

from collections.abc import Iterator
from functools import partial
from itertools import count, islice

import lancedb
import numpy as np
import pyarrow as pa
import torch
from lancedb.streaming import StreamingDataset

from benchmarks.peers.clip_kernels import Kernel, kernel, of_kernel
from benchmarks.peers.segments import BATCH, FRAMES, SIDE, Finisher, Footage, empty_batch, segment_of


def packages(clip: str) -> tuple[str, ...]:
    return ("lancedb", "pylance", "torch", *of_kernel(clip))


def _decode(rows: pa.RecordBatch, into: Kernel) -> list[tuple[np.ndarray, int]]:
    pictures = np.empty((rows.num_rows, FRAMES, SIDE, SIDE, 3), np.uint8)
    segments = [segment_of(row) for row in rows.to_pylist()]
    for segment, out in zip(segments, pictures, strict=True):
        into(segment, out)
    return [(picture, segment.number) for picture, segment in zip(pictures, segments, strict=True)]


def batches(footage: Footage, kind: str, at_once: int, clip: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    table = lancedb.connect(footage.tables).open_table(kind)
    finisher, pictures = Finisher(), empty_batch()
    for epoch in count():
        samples = iter(
            StreamingDataset(
                table, shuffle_seed=17, epoch=epoch, columns=table.schema.names, transform=partial(_decode, into=kernel(clip)),
                read_batch_size=8, io_queue_depth=2, transform_parallelism=at_once, transform_queue_depth=8,
            )
        )  # fmt: skip
        while len(batch := list(islice(samples, BATCH))) == BATCH:
            np.stack([picture for picture, _ in batch], out=pictures)
            yield finisher.finish(pictures), torch.tensor([number for _, number in batch])

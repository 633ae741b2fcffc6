"""LanceDB `StreamingDataset` with its own transform threads, one per core.

64 rows a read keep a read under 6 MB. Two reads in flight instead of four: 603 against 545 images per CPU second
in one interleaved trial, because four outgrow the allocator's cached blocks; 16 and 32 rows a read were no better.
"""

import random
from collections.abc import Iterator
from itertools import count, islice

import lancedb
import numpy as np
import pyarrow as pa
import torch
from lancedb.streaming import StreamingDataset

from benchmarks.peers.pixels import Finisher, crop_into
from benchmarks.peers.workload import BATCH, SIDE, Data, cores

PACKAGES = ("lancedb", "pylance", "simplejpeg", "opencv-python-headless")


def _decode(rows: pa.RecordBatch) -> list[tuple[np.ndarray, int]]:
    labels = rows.column("label_id").to_pylist()
    rng = random.Random(labels[0])
    pixels = np.empty((rows.num_rows, SIDE, SIDE, 3), np.uint8)
    for out, jpeg in zip(pixels, rows.column("image_ref"), strict=True):
        crop_into(jpeg.as_py(), out, rng)
    return list(zip(pixels, labels, strict=True))


def batches(data: Data) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    table = lancedb.connect(data.tables).open_table("imagenet_train")
    finisher, pixels = Finisher(), np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
    for epoch in count():
        samples = iter(
            StreamingDataset(
                table, shuffle_seed=17, epoch=epoch, columns=["image_ref", "label_id"], transform=_decode,
                io_queue_depth=2, transform_parallelism=cores(), transform_queue_depth=8,
            )
        )  # fmt: skip
        while len(batch := list(islice(samples, BATCH))) == BATCH:
            np.stack([image for image, _ in batch], out=pixels)
            yield finisher.finish(pixels), torch.tensor([label for _, label in batch])

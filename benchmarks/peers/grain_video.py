"""Grain over segments, with threads: decoding releases the GIL; a thread makes a whole batch."""

from collections.abc import Iterator

import grain
import numpy as np
import torch

from benchmarks.peers.clip_kernels import kernel, of_kernel
from benchmarks.peers.segments import BATCH, FRAMES, SIDE, Finisher, Footage


def packages(clip: str) -> tuple[str, ...]:
    return ("grain", "torch", *of_kernel(clip))


def batches(footage: Footage, kind: str, at_once: int, clip: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    into, segments = kernel(clip), footage.segments(kind)

    def decode(numbers: list[int]) -> tuple[np.ndarray, list[int]]:
        pictures = np.empty((len(numbers), FRAMES, SIDE, SIDE, 3), np.uint8)
        for number, out in zip(numbers, pictures, strict=True):
            into(segments[number], out)
        return pictures, numbers

    dataset = (
        grain.MapDataset.range(len(segments))
        .seed(17)
        .shuffle()
        .repeat()
        .batch(BATCH, drop_remainder=True, batch_fn=list)
        .map(decode)
        .to_iter_dataset(grain.ReadOptions(num_threads=at_once, prefetch_buffer_size=at_once + 1))
    )
    finisher = Finisher()
    for pictures, numbers in dataset:
        yield finisher.finish(pictures), torch.tensor([int(number) for number in numbers])

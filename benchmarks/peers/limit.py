"""No loader at all: the same kernels on bytes in memory, one thread a core. What ordinary libraries allow."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import lance
import numpy as np
import torch

from benchmarks.peers.pixels import Finisher, crop_into
from benchmarks.peers.workload import BATCH, SIDE, Data, cores

PACKAGES = ("simplejpeg", "opencv-python-headless")


def batches(data: Data) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rows = lance.dataset(data.tables / "imagenet_train.lance").head(8 * BATCH, columns=["image_ref", "label_id"])
    jpegs, labels = rows["image_ref"].to_pylist(), torch.from_numpy(rows["label_id"].to_numpy())
    slots = [np.empty((BATCH, SIDE, SIDE, 3), np.uint8) for _ in range(cores() + 1)]

    def decode(number: int) -> np.ndarray:
        slot, start, rng = slots[number % len(slots)], number % 8 * BATCH, random.Random(number)
        for out, jpeg in zip(slot, jpegs[start : start + BATCH], strict=True):
            crop_into(jpeg, out, rng)
        return slot

    finisher = Finisher()
    with ThreadPoolExecutor(cores()) as pool:
        waiting = [pool.submit(decode, number) for number in range(cores())]
        for number in count():
            pixels = waiting.pop(0).result()
            waiting.append(pool.submit(decode, number + cores()))
            start = number % 8 * BATCH
            yield finisher.finish(pixels), labels[start : start + BATCH]

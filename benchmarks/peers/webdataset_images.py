"""The webdataset library over tars: a shuffle buffer of 1,000 samples, whole batches made in a worker process per core."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from torch.utils.data import DataLoader

from benchmarks.peers.pixels import Finisher, crop_into
from benchmarks.peers.tar_shards import tars
from benchmarks.peers.workload import BATCH, SIDE, Data, cores

PACKAGES = ("webdataset", "torch", "simplejpeg", "opencv-python-headless")


def _batch(samples: list[dict[str, bytes]]) -> tuple[torch.Tensor, torch.Tensor]:
    rng = random.Random(hash(samples[0]["__key__"]))
    pixels = np.empty((len(samples), SIDE, SIDE, 3), np.uint8)
    for out, sample in zip(pixels, samples, strict=True):
        crop_into(sample["jpg"], out, rng)
    return torch.from_numpy(pixels), torch.tensor([int(sample["cls"]) for sample in samples])


def prepare(data: Data) -> None:
    tars(data)


def batches(data: Data, remote: str = "", kept: bool = False) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    paths = sorted(map(str, tars(data).glob("*.tar")))
    if remote:  # a web address per tar, read by curl as its documentation does
        paths = [f"pipe:curl -sf {remote}/{Path(path).name}" for path in paths]
    cache = {"cache_dir": os.environ["BENCH_CACHE"]} if kept else {}
    dataset = wds.WebDataset(paths, shardshuffle=len(paths), seed=17, empty_check=False, **cache)
    dataset = dataset.shuffle(1000).batched(BATCH, collation_fn=_batch, partial=False)
    loader = DataLoader(dataset, batch_size=None, num_workers=cores(), persistent_workers=True)
    finisher = Finisher()
    while True:
        for pixels, labels in loader:
            yield finisher.finish(pixels.numpy()), labels

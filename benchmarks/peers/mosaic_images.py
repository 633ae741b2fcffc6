"""Mosaic StreamingDataset over MDS shards of JPEGs, in an environment of its own: a worker process per core makes batches.

Its ``jpeg`` columns come as Pillow images that are not decoded yet; the bytes are taken from them, for the faster decoder.
"""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.peers.pixels import Finisher, crop_into
from benchmarks.peers.workload import BATCH, SIDE, Data, cores

PACKAGES = ("mosaicml-streaming", "torch", "simplejpeg", "opencv-python-headless")


def prepare(data: Data) -> None:
    out, unfinished = data.root / "mds", data.root / "mds-unfinished"
    if out.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    classes = sorted(path.name for path in (data.folder / "train").iterdir())
    with MDSWriter(out=str(unfinished), columns={"image": "jpeg", "label": "int", "sample_id": "str"}) as writer:
        for path in sorted((data.folder / "train").glob("*/*.jpg"), key=lambda path: path.name):
            label = classes.index(path.parent.name)
            writer.write({"image": path.read_bytes(), "label": label, "sample_id": path.stem})
    unfinished.rename(out)


def _batch(samples: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    rng = random.Random(os.getpid() + samples[0]["label"])
    pixels = np.empty((len(samples), SIDE, SIDE, 3), np.uint8)
    for out, sample in zip(pixels, samples, strict=True):
        crop_into(sample["image"].fp.getvalue(), out, rng)
    return torch.from_numpy(pixels), torch.tensor([sample["label"] for sample in samples])


def batches(data: Data, remote: str = "") -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    clean_stale_shared_memory()
    where = {"local": str(Path(data.root / "mds"))}
    if remote:
        where = {"remote": remote, "local": os.environ["BENCH_CACHE"]}
    dataset = StreamingDataset(**where, shuffle=True, shuffle_seed=17, batch_size=BATCH, num_canonical_nodes=1)
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=cores(), collate_fn=_batch, drop_last=True, persistent_workers=True
    )
    finisher = Finisher()
    while True:
        for pixels, labels in loader:
            yield finisher.finish(pixels.numpy()), labels

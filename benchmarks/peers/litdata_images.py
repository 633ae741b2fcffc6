"""LitData: JPEG bytes and labels in its own chunks; a worker process per core makes batches."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import litdata
import numpy as np
import torch
from litdata.streaming import downloader

from benchmarks.peers.pixels import Finisher, crop_into
from benchmarks.peers.workload import BATCH, SIDE, Data, cores

downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001  the server of a benchmark has no certificate

PACKAGES = ("litdata", "torch", "simplejpeg", "opencv-python-headless")


class Item:
    """What conversion stores of one image."""

    def __init__(self, folder: Path) -> None:
        self.classes = sorted(path.name for path in folder.iterdir())

    def __call__(self, path: str) -> dict:
        file = Path(path)
        return {"image": file.read_bytes(), "label": self.classes.index(file.parent.name)}


def prepare(data: Data) -> None:
    out, unfinished = data.root / "litdata", data.root / "litdata-unfinished"
    if out.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    images = sorted(map(str, (data.folder / "train").glob("*/*.jpg")), key=os.path.basename)
    litdata.optimize(
        Item(data.folder / "train"),
        images,
        str(unfinished),
        num_workers=1,
        chunk_size=256,
        reorder_files=False,
        verbose=False,
    )
    unfinished.rename(out)


def _batch(samples: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    rng = random.Random(os.getpid() + samples[0]["label"])
    pixels = np.empty((len(samples), SIDE, SIDE, 3), np.uint8)
    for out, sample in zip(pixels, samples, strict=True):
        crop_into(sample["image"], out, rng)
    return torch.from_numpy(pixels), torch.tensor([sample["label"] for sample in samples])


def batches(data: Data, remote: str = "") -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    far = {"cache_dir": os.environ["BENCH_CACHE"], "storage_options": {"endpoint_url": os.environ["S3_ENDPOINT_URL"]}}
    dataset = litdata.StreamingDataset(
        remote or str(data.root / "litdata"), shuffle=True, seed=17, **(far if remote else {})
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=cores(), collate_fn=_batch, drop_last=True
    )
    finisher = Finisher()
    while True:
        for pixels, labels in loader:
            yield finisher.finish(pixels.numpy()), labels

"""torch `DataLoader` over class folders, with worker processes.

``torchvision``: the plain way, `decode_image` and transforms v2 per sample. ``simplejpeg``: a dataset with
`__getitems__`, so that a worker makes a whole batch in one array. Workers send uint8; a process per core.
"""

import random
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from benchmarks.peers.pixels import Finisher, crop_into
from benchmarks.peers.workload import BATCH, SIDE, Data, cores

PACKAGES = ("torch", "torchvision", "simplejpeg", "opencv-python-headless")


class Batched(Dataset):
    """Fetches and decodes a list of indices in one call."""

    def __init__(self, folder: ImageFolder) -> None:
        self.samples = folder.samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rng = random.Random(torch.initial_seed() + indices[0])
        pixels = np.empty((len(indices), SIDE, SIDE, 3), np.uint8)
        for out, index in zip(pixels, indices, strict=True):
            with open(self.samples[index][0], "rb") as file:  # noqa: PTH123  the pathlib spelling costs 4 us more
                crop_into(file.read(), out, rng)
        return torch.from_numpy(pixels), torch.tensor([self.samples[index][1] for index in indices])


def _as_it_is(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch


def _decode(path: str) -> torch.Tensor:
    return decode_image(path, mode=ImageReadMode.RGB)


def batches(data: Data, kernels: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    options = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": cores()}
    if kernels == "torchvision":
        transform = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])
        folder = ImageFolder(str(data.folder / "train"), transform=transform, loader=_decode)
        loader = DataLoader(folder, persistent_workers=True, **options)
    else:
        batched = Batched(ImageFolder(str(data.folder / "train")))
        loader = DataLoader(batched, persistent_workers=True, collate_fn=_as_it_is, **options)
    finisher = Finisher()
    while True:
        for pixels, labels in loader:
            yield finisher.finish(pixels.numpy()), labels

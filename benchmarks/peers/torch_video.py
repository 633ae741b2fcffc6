"""torch `DataLoader` over segments, a process for each clip decoded at a time.

`__getitems__` makes a worker's whole batch in one uint8 array, which travels through shared memory; an endless batch
sampler keeps the workers busy across epochs. The last step, to float16, is done once, in the consumer, into reused slots.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.clip_kernels import kernel, of_kernel
from benchmarks.peers.segments import FRAMES, SIDE, Finisher, Footage, Segment, shuffled


def packages(clip: str) -> tuple[str, ...]:
    return ("torch", *of_kernel(clip))


class Clips(Dataset):
    """Fetches and decodes a list of numbers in one call."""

    def __init__(self, segments: list[Segment], clip: str) -> None:
        self.segments = segments
        self.clip = clip

    def __len__(self) -> int:
        return len(self.segments)

    def __getitems__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        into = kernel(self.clip)
        pictures = torch.empty((len(numbers), FRAMES, SIDE, SIDE, 3), dtype=torch.uint8)
        for out, number in zip(pictures.numpy(), numbers, strict=True):
            into(self.segments[number], out)
        return pictures, torch.tensor(numbers)


def _as_it_is(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch


def _alone(_worker: int) -> None:
    torch.set_num_threads(1)


def prepare(footage: Footage, _kind: str, clip: str) -> None:
    if clip.startswith("torchcodec-mappings"):
        from benchmarks.peers import torchcodec_clip

        torchcodec_clip.prepare(footage)


def batches(footage: Footage, kind: str, at_once: int, clip: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    kernel(clip)  # imported once, before the workers are forked
    segments = footage.segments(kind)
    loader = DataLoader(
        Clips(segments, clip), batch_sampler=shuffled(len(segments)), num_workers=at_once, collate_fn=_as_it_is,
        prefetch_factor=2 if at_once <= 4 else 1, worker_init_fn=_alone,
    )  # fmt: skip
    finisher = Finisher()
    for pictures, numbers in loader:
        yield finisher.finish(pictures.numpy()), numbers

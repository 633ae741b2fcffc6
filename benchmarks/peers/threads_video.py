"""A pool of threads over clips, no framework: every kernel releases the GIL while it decodes.

Two batches are under way while the third is consumed; each clip is written straight into its place.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from benchmarks.peers.clip_kernels import kernel, of_kernel
from benchmarks.peers.segments import Finisher, Footage, empty_batch, shuffled
from benchmarks.peers.torch_video import prepare as prepare  # noqa: PLC0414  the cell looks for it here


def packages(clip: str) -> tuple[str, ...]:
    return ("torch", *of_kernel(clip))


def batches(footage: Footage, kind: str, at_once: int, clip: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    into, segments, finisher = kernel(clip), footage.segments(kind), Finisher()
    slots = deque(empty_batch() for _ in range(3))
    order = shuffled(len(segments))
    with ThreadPoolExecutor(at_once) as pool:

        def submit() -> tuple:
            numbers, slot = next(order), slots.popleft()
            return numbers, slot, [pool.submit(into, segments[n], out) for n, out in zip(numbers, slot, strict=True)]

        waiting = deque([submit(), submit()])
        while True:
            numbers, slot, clips = waiting.popleft()
            for clip_done in wait(clips).done:
                clip_done.result()
            slots.append(slot)
            waiting.append(submit())
            yield finisher.finish(slot), torch.tensor(numbers)

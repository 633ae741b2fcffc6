"""SPDL: a source of numbers, a thread for each clip decoded at a time, clips written straight into their batch, order kept."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.segments import BATCH, Finisher, Footage, empty_batch, shuffled
from benchmarks.peers.spdl_clip import into


def packages(**_: str) -> tuple[str, ...]:
    return ("spdl_core", "spdl_io", "torch")


def batches(footage: Footage, kind: str, at_once: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    segments, finisher = footage.segments(kind), Finisher()
    slots = deque(empty_batch() for _ in range(5))

    def places() -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        for numbers in shuffled(len(segments)):
            slot = slots[0]
            slots.rotate(-1)
            yield from ((number, out, slot) for number, out in zip(numbers, slot, strict=True))

    def decode(place: tuple[int, np.ndarray, np.ndarray]) -> tuple[int, np.ndarray]:
        number, out, slot = place
        into(segments[number], out)
        return number, slot

    pipeline = (
        PipelineBuilder()
        .add_source(places())
        .pipe(decode, concurrency=at_once, output_order="input")
        .aggregate(BATCH)
        .add_sink(1)
        .build(num_threads=at_once)
    )
    with pipeline.auto_stop():
        for done in pipeline:
            yield finisher.finish(done[0][1]), torch.tensor([number for number, _ in done])

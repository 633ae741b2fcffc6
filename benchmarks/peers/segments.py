"""What every system is asked for in video, and where the films lie.

W3: a segment of an H.264 film -> 16 frames at even times -> shorter side 256 -> centre crop 224 -> float16 in [0, 1],
[B, 16, 3, 224, 224], batches of 32, shuffled. Frame k is the one shown at the middle of the k-th of 16 equal parts of
the segment. Peers get the same functions for what they lack: the order, the batch slot, the last step by table.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
import torch

BATCH = 32
FRAMES = 16
SHORTER = 256
SIDE = 224
SEGMENTS_EACH = 6  # of a film
# B clips, T frames, H W picture, C channels


@dataclass(frozen=True)
class Segment:
    """One sample: where it lies in time, in seconds, and how large its pictures are."""

    number: int
    path: str
    start: float
    duration: float
    width: int
    height: int
    fps: int

    @cached_property
    def times(self) -> list[float]:
        """The ``FRAMES`` wanted times, seconds from the file's first frame, ascending."""
        return [self.start + (2 * k + 1) * self.duration / (2 * FRAMES) for k in range(FRAMES)]

    @cached_property
    def ordinals(self) -> list[int]:
        """Which frames of the file are shown at those times; the films have constant rates."""
        return [int(time * self.fps + 1e-6) for time in self.times]

    @property
    def resized(self) -> tuple[int, int]:
        """Width and height with a shorter side of ``SHORTER``."""
        scale = SHORTER / min(self.width, self.height)
        return round(self.width * scale), round(self.height * scale)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The centre crop in the resized picture: top, left, bottom, right."""
        width, height = self.resized
        top, left = (height - SIDE) // 2, (width - SIDE) // 2
        return top, left, top + SIDE, left + SIDE


@dataclass(frozen=True)
class Footage:
    """The films and their segments, under one folder."""

    root: Path

    @property
    def films(self) -> Path:
        """Whole files, 20 to 60 s."""
        return self.root / "films"

    @property
    def cut(self) -> Path:
        """A file for each segment."""
        return self.root / "cut"

    @property
    def tables(self) -> Path:
        """Lance datasets `segments` and `cut`; also a LanceDB database."""
        return self.root / "tables"

    @property
    def facts(self) -> Path:
        """What was made."""
        return self.root / "footage.json"

    def segments(self, kind: str) -> list[Segment]:
        """All samples of ``kind``: "segments" of whole films, or "cut" out before."""
        import lance

        return [segment_of(row) for row in lance.dataset(str(self.tables / f"{kind}.lance")).to_table().to_pylist()]


def segment_of(row: dict) -> Segment:
    """The sample that a row of either table describes."""
    if "start_time_ms" in row:
        start, duration = row["start_time_ms"] / 1_000, row["duration_ms"] / 1_000
    else:
        start, duration = 0.0, row["frame_count"] / row["fps"]
    return Segment(row["number"], row["clip_ref"], start, duration, row["width"], row["height"], row["fps"])


def cores() -> int:
    """How many cores this process may use; the harness has pinned it."""
    return len(os.sched_getaffinity(0))


def shuffled(count: int) -> Iterator[list[int]]:
    """Batches of numbers below ``count``, a new order every epoch, for ever."""
    numbers = np.random.default_rng(17)
    while True:
        order = numbers.permutation(count).tolist()
        yield from (order[start : start + BATCH] for start in range(0, count - BATCH + 1, BATCH))


def empty_batch() -> np.ndarray:
    """A slot [B, T, H, W, C], uint8."""
    return np.empty((BATCH, FRAMES, SIDE, SIDE, 3), np.uint8)


_TABLE = (np.arange(256, dtype=np.float32) / np.float32(255)).astype(np.float16).view(np.uint16)


class Finisher:
    """Turns uint8 batches [B, T, H, W, C] into float16 [B, T, C, H, W] in [0, 1], in one of three reused slots."""

    def __init__(self) -> None:
        self._slots = [np.empty((BATCH, FRAMES, 3, SIDE, SIDE), np.float16) for _ in range(3)]
        self._turn = 0

    def finish(self, batch: np.ndarray) -> torch.Tensor:
        slot = self._slots[self._turn % len(self._slots)]
        self._turn += 1
        bits = slot.reshape(-1, 3, SIDE, SIDE).view(np.uint16)  # OpenCV's tables know 16-bit integers
        for picture, planes in zip(batch.reshape(-1, SIDE, SIDE, 3), bits, strict=True):
            for channel, plane in enumerate(cv2.split(picture)):
                cv2.LUT(plane, _TABLE, dst=planes[channel])
        return torch.from_numpy(slot)

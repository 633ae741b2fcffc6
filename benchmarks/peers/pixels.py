"""The fastest ordinary pixels a peer can be given, so that what is compared is the loader.

Measured per CPU second on photo-like JPEGs of 84 KB: decode simplejpeg 1,028, OpenCV 976, torchvision 975,
Pillow 712; crop and resize OpenCV bilinear 8,950 (without antialiasing; its area filter 2,630, torchvision
with antialiasing 3,310); normalise by OpenCV table into float16 planes 10,490, NumPy table 6,810, torch
float16 arithmetic 4,780. Batches travel as uint8 and are finished once, in the consumer, into reused slots.
"""

import math
import random

import cv2
import numpy as np
import simplejpeg
import torch

from benchmarks.peers.workload import BATCH, MEAN, SIDE, STD

cv2.setNumThreads(0)  # the loaders bring the threads

_TABLES = [
    ((np.arange(256) / 255 - mean) / std).astype(np.float16).view(np.uint16)
    for mean, std in zip(MEAN, STD, strict=True)
]


def crop_box(height: int, width: int, rng: random.Random) -> tuple[int, int, int, int]:
    """Torchvision's `RandomResizedCrop` box: area 0.08 to 1, ratio 3/4 to 4/3, ten tries; top, left, height, width."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def crop_into(jpeg: bytes | memoryview, out: np.ndarray, rng: random.Random) -> None:
    """Decode, crop, resize and maybe flip into ``out``, shape [SIDE, SIDE, 3], uint8."""
    image = simplejpeg.decode_jpeg(jpeg)
    top, left, height, width = crop_box(image.shape[0], image.shape[1], rng)
    cv2.resize(image[top : top + height, left : left + width], (SIDE, SIDE), dst=out)
    if rng.random() < 0.5:
        cv2.flip(out, 1, dst=out)


class Finisher:
    """Turns uint8 batches into normalised float16 [B, 3, H, W] in one of four reused slots."""

    def __init__(self) -> None:
        self._slots = [np.empty((BATCH, 3, SIDE, SIDE), np.float16) for _ in range(4)]
        self._turn = 0

    def finish(self, batch: np.ndarray) -> torch.Tensor:
        """``batch`` is [B, H, W, 3] or, as torchvision makes it, [B, 3, H, W]."""
        slot = self._slots[self._turn % len(self._slots)]
        self._turn += 1
        bits = slot.view(np.uint16)  # OpenCV's tables know 16-bit integers; the bits are those of float16
        for image, planes in zip(batch, bits, strict=True):
            for channel, plane in enumerate(image if len(image) == len(MEAN) else cv2.split(image)):
                cv2.LUT(plane, _TABLES[channel], dst=planes[channel])
        return torch.from_numpy(slot)

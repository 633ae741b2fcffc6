"""Crop + resize + flip + normalise of decoded pixels: our kernel beside torchvision's tensors and Pillow.

Every system gets the same decoded images, boxes and mirrors and ends in float16 [B, 3, 224, 224].
One thread, CPU seconds of the process; repetitions are interleaved, so that a noisy neighbour meets all.

    python -m benchmarks.kernels [--repeats 7]
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F  # noqa: N812  torchvision's own habit

from spiral_stream.seeding import mix64
from spiral_stream.transforms import _pixels
from spiral_stream.transforms.image.image import (
    Geometry,
    ImageProgram,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    compile_image,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHAIN = (RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(MEAN, STD))
SOURCES = ((256, 341), (375, 500))
BATCH = 64

Images = list[np.ndarray]


def aligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Memory that begins at a cache line, as a runtime's slots do: rows are then streamed past the caches."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def ours(program: ImageProgram, images: Images, keys: np.ndarray) -> Callable[[], np.ndarray]:
    out = aligned((len(images), *program.output_shape), program.dtype)

    def run() -> np.ndarray:
        program.run(images, keys, out)
        return out

    return run


def portable(images: Images, at: Geometry) -> Callable[[], np.ndarray]:
    """The path without AVX2: geometry left out, the pixels only."""
    count = len(images)
    place = [np.empty(count, kind) for kind in (np.uint64, np.int64, np.int32, np.int32)]
    _pixels.locate(images, *place)
    constants = np.array([1 / 255, *MEAN, *STD], np.float32)
    values = np.arange(256, dtype=np.float32) * constants[0]
    table = ((values - constants[1:4, None]) / constants[4:7, None]).astype(np.float16)
    out, boxes = aligned((count, 3, 224, 224), "float16"), at.boxes()

    def run() -> np.ndarray:
        _pixels.render(*place, boxes, out, 224, 224, 2, True, table, constants, portable=True)
        return out

    return run


def box_of(at: Geometry, i: int) -> tuple[int, int, int, int]:
    return int(at.top[i]), int(at.left[i]), int(at.crop_h[i]), int(at.crop_w[i])


def torchvision(images: Images, at: Geometry) -> Callable[[], np.ndarray]:
    """Contiguous uint8 tensors, as its decoder gives them."""
    tensors = [torch.from_numpy(image).permute(2, 0, 1).contiguous() for image in images]
    out = torch.empty(len(images), 3, 224, 224, dtype=torch.float16)

    def run() -> np.ndarray:
        for i, tensor in enumerate(tensors):
            x = F.resized_crop(tensor, *box_of(at, i), [224, 224], antialias=True)
            x = F.horizontal_flip(x) if at.flip[i] else x
            out[i] = F.normalize(F.to_dtype(x, torch.float32, scale=True), MEAN, STD, inplace=True)
        return out.numpy()

    return run


def pillow(images: Images, at: Geometry) -> Callable[[], np.ndarray]:
    """Pillow images, as torchvision's ImageFolder gives them, and torchvision's conversion."""
    opened = [Image.fromarray(image) for image in images]
    out = torch.empty(len(images), 3, 224, 224, dtype=torch.float16)

    def run() -> np.ndarray:
        for i, image in enumerate(opened):
            x = F.resized_crop(image, *box_of(at, i), [224, 224])
            x = F.horizontal_flip(x) if at.flip[i] else x
            out[i] = F.normalize(F.to_dtype(F.pil_to_tensor(x), torch.float32, scale=True), MEAN, STD, inplace=True)
        return out.numpy()

    return run


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--repeats", type=int, default=7)
    repeats = asked.parse_args().repeats
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, avx2 path: {_pixels.ACCELERATED}, batches of {BATCH}")
    for height, width in SOURCES:
        rng = np.random.default_rng(0)
        images = [rng.integers(0, 256, (height, width, 3), np.uint8) for _ in range(BATCH)]
        keys = mix64(np.arange(BATCH, dtype=np.uint64))
        program = compile_image(CHAIN, dtype="float16", layout="nchw")
        at = program.geometry(np.full(BATCH, height, np.int32), np.full(BATCH, width, np.int32), keys)
        systems = {
            "spiral, float16 nchw": ours(program, images, keys),
            "spiral, uint8 nhwc for a device": ours(program.on_device()[0], images, keys),
            "spiral, portable C": portable(images, at),
            "torchvision v2 tensors": torchvision(images, at),
            "Pillow + torchvision v2": pillow(images, at),
        }
        same = systems["torchvision v2 tensors"]().tobytes()
        assert systems["spiral, float16 nchw"]().tobytes() == same
        assert systems["spiral, portable C"]().tobytes() == same
        report(f"{width} x {height} -> RandomResizedCrop(224), flip, normalise", measure(systems, repeats))


def measure(systems: dict[str, Callable[[], np.ndarray]], repeats: int) -> dict[str, list[float]]:
    """Images a CPU second, ``repeats`` times each, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, run in systems.items():
            start, rounds = time.process_time(), 0
            while time.process_time() - start < 0.25:
                run()
                rounds += 1
            rates[name].append(rounds * BATCH / (time.process_time() - start))
    return rates


def report(title: str, rates: dict[str, list[float]]) -> None:
    print(f"\n{title}: images per CPU second\n\n| | min | median | max |\n|---|---|---|---|")
    for name, values in rates.items():
        print(f"| {name} | {min(values):,.0f} | {statistics.median(values):,.0f} | {max(values):,.0f} |")


if __name__ == "__main__":
    main()

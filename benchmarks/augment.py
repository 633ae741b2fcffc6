"""Augmentation of decoded images: Spiral's chains next to torchvision v2 of the same parameters, in CPU time of one thread.

    python -m benchmarks.augment

Each system transforms the same decoded 375 x 500 images, one call per image for torchvision (uint8 tensors, CHW) and one
per 16 images for Spiral. Repetitions are interleaved. The last row is torchvision's own transform within a chain of Spiral.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

import spiral_stream as sp
from spiral_stream.seeding import sample_keys
from spiral_stream.transforms.chain import as_steps, compile_chain

COUNT, REPEATS = 16, 7
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP, FLIP, NORMALIZE = sp.RandomResizedCrop(224), sp.RandomHorizontalFlip(), sp.Normalize(MEAN, STD)
FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
THEIRS = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]
CASES = {
    "crop, flip, normalize": ([CROP, FLIP, NORMALIZE], [*THEIRS, *FLOAT]),
    "+ ColorJitter": (
        [CROP, FLIP, sp.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE],
        [*THEIRS, v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *FLOAT],
    ),
    "+ RandomRotation (bilinear)": (
        [CROP, FLIP, sp.RandomRotation(20, interpolation="bilinear"), NORMALIZE],
        [*THEIRS, v2.RandomRotation(20, interpolation=v2.InterpolationMode.BILINEAR), *FLOAT],
    ),
    "+ RandAugment": ([CROP, FLIP, sp.RandAugment(), NORMALIZE], [*THEIRS, v2.RandAugment(), *FLOAT]),
    "SimCLR: jitter p=0.8, gray, blur 23 p=0.5": (
        [
            CROP,
            FLIP,
            sp.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            sp.RandomGrayscale(0.2),
            sp.GaussianBlur(23, p=0.5),
            NORMALIZE,
        ],
        [
            *(*THEIRS, v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8), v2.RandomGrayscale(0.2)),
            *(v2.RandomApply([v2.GaussianBlur(23)], 0.5), *FLOAT),
        ],
    ),
    "+ ColorJitter of torchvision, in Spiral": (
        [CROP, FLIP, v2.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE],
        [*THEIRS, v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *FLOAT],
    ),
}


def cpu_ms(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) * 1e3 / COUNT


def main() -> None:
    """Print a table of CPU milliseconds per image: median (min to max)."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    small = [rng.integers(0, 256, (24, 32, 3), dtype=np.uint8) for _ in range(COUNT)]
    images = [np.array(Image.fromarray(each).resize((500, 375), Image.Resampling.BICUBIC)) for each in small]
    tensors = [torch.from_numpy(each).permute(2, 0, 1).contiguous() for each in images]
    keys = sample_keys(0, 0, np.arange(2 * COUNT, dtype=np.uint64).reshape(COUNT, 2), np.uint64(0))
    print("| chain | Spiral, ms | torchvision v2, ms | ratio |\n|---|---:|---:|---:|")
    for name, (ours, theirs) in CASES.items():
        program = compile_chain(as_steps(ours), dtype="float32", layout="nchw")
        out = np.empty((COUNT, 3, 224, 224), np.float32)
        other = v2.Compose(theirs)

        def run(program: object = program, out: object = out) -> None:
            program.run(images, keys, out)  # type: ignore[attr-defined]  # a compiled chain

        def run_theirs(other: Callable[[torch.Tensor], torch.Tensor] = other) -> list[torch.Tensor]:
            return [other(each) for each in tensors]

        run(), run_theirs()
        pairs = [(cpu_ms(run), cpu_ms(run_theirs)) for _ in range(REPEATS)]
        a, b = ([each[i] for each in pairs] for i in range(2))
        told = [f"{statistics.median(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in (a, b)]
        print(f"| {name} | {told[0]} | {told[1]} | {statistics.median(b) / statistics.median(a):.1f} |", flush=True)


if __name__ == "__main__":
    main()

"""Augmentation of decoded images: Spiral's chains next to torchvision v2 and albumentations, in CPU time of one thread.

    python -m benchmarks.augment [SITE_PACKAGES]

Each system transforms the same decoded 375 x 500 images with the same parameters: one call per image for torchvision (uint8
tensors, CHW) and albumentations (uint8 arrays, HWC), and one per 16 images for Spiral. Repetitions are interleaved. The last
row is torchvision's own transform within a chain of Spiral.

albumentations is read from SITE_PACKAGES, the folder of another environment, since no extra brings it: its last version is of
2025 and is maintained no more, and what its authors maintain instead has a licence that this package cannot ask for (AGPL).
Without it, its column is empty.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

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
        [CROP, FLIP, sp.transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE],
        [*THEIRS, v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *FLOAT],
    ),
    "+ RandomRotation (bilinear)": (
        [CROP, FLIP, sp.transforms.RandomRotation(20, interpolation="bilinear"), NORMALIZE],
        [*THEIRS, v2.RandomRotation(20, interpolation=v2.InterpolationMode.BILINEAR), *FLOAT],
    ),
    "+ RandAugment": ([CROP, FLIP, sp.transforms.RandAugment(), NORMALIZE], [*THEIRS, v2.RandAugment(), *FLOAT]),
    "SimCLR: jitter p=0.8, gray, blur 23 p=0.5": (
        [
            CROP,
            FLIP,
            sp.transforms.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            sp.transforms.RandomGrayscale(0.2),
            sp.transforms.GaussianBlur(23, p=0.5),
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


def albumentations() -> dict[str, Callable[..., Any]]:
    """Return the chains of albumentations, by case; none where it is not installed."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask a server for its newest version
    sys.path += sys.argv[1:]
    try:
        import albumentations as A  # noqa: N812  its own name for it
        import cv2
        from albumentations.pytorch import ToTensorV2
    except ImportError:
        return {}
    cv2.setNumThreads(0)
    head, tail = [A.RandomResizedCrop((224, 224)), A.HorizontalFlip()], [A.Normalize(MEAN, STD), ToTensorV2()]
    wide = {"brightness": (0.2, 1.8), "contrast": (0.2, 1.8), "saturation": (0.2, 1.8), "hue": (-0.2, 0.2)}
    narrow = {"brightness": (0.6, 1.4), "contrast": (0.6, 1.4), "saturation": (0.6, 1.4), "hue": (-0.1, 0.1)}
    blur = A.GaussianBlur(blur_limit=(23, 23), sigma_limit=(0.1, 2.0), p=0.5)
    middles = {
        "crop, flip, normalize": [],
        "+ ColorJitter": [A.ColorJitter(**narrow, p=1)],
        "+ RandomRotation (bilinear)": [A.Rotate(20, border_mode=cv2.BORDER_CONSTANT, p=1)],
        "SimCLR: jitter p=0.8, gray, blur 23 p=0.5": [A.ColorJitter(**wide, p=0.8), A.ToGray(p=0.2), blur],
    }
    return {name: A.Compose([*head, *middle, *tail]) for name, middle in middles.items()}


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
    others = albumentations()
    print(
        "| chain | Spiral, ms | torchvision v2, ms | ratio | albumentations, ms | ratio |\n|---|---:|---:|---:|---:|---:|"
    )
    for name, (ours, theirs) in CASES.items():
        program = compile_chain(as_steps(ours), dtype="float32", layout="nchw")
        out = np.empty((COUNT, 3, 224, 224), np.float32)
        other, third = v2.Compose(theirs), others.get(name)
        works: list[Callable[[], object]] = [
            lambda program=program, out=out: program.run(images, keys, out),
            lambda other=other: [other(each) for each in tensors],
        ]
        if third is not None:
            works.append(lambda third=third: [third(image=each) for each in images])
        for work in works:
            work()
        rounds = [[cpu_ms(work) for work in works] for _ in range(REPEATS)]
        columns = list(zip(*rounds, strict=True))
        middle = [statistics.median(each) for each in columns]
        said = [f"{m:.2f} ({min(x):.2f} to {max(x):.2f})" for m, x in zip(middle, columns, strict=True)]
        rest = [f"{said[at]} | {middle[at] / middle[0]:.1f}" for at in range(1, len(said))]
        print(f"| {name} | {' | '.join([said[0], *rest, *(['- | -'] * (3 - len(said)))])} |", flush=True)


if __name__ == "__main__":
    main()

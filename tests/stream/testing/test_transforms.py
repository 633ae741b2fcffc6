"""The law of transforms holds for those of the library, and notices functions that break it."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tokenizers import Tokenizer, models

import spiral_stream as sp
from spiral_stream.testing import check_transform
from spiral_stream.transforms import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandAugment,
    RandomAffine,
    RandomErasing,
    RandomGrayscale,
    RandomRotation,
)
from spiral_stream.transforms.chain import PIXEL_TRANSFORMS
from spiral_stream.transforms.image.crop_and_resize import TRANSFORMS, CenterCropDown, FitToShape

ROWS = pa.table({"text": ["one", "two three", "", "vier 4", "fünf"] * 3, "n": [*range(14), None]})
CALLS = itertools.count()


def longer(texts: pa.Array, numbers: pa.Array) -> pa.Array:
    return pc.add(pc.utf8_length(texts), numbers)


def shorter(texts: pa.Array, numbers: pa.Array) -> pa.Array:
    return pc.subtract(pc.utf8_length(texts), numbers)


def noisy(text: str, number: int | None, rng: np.random.Generator) -> int:
    return len(text) + (number or 0) + int(rng.integers(0, 100))


def of_the_batch(texts: pa.Array, numbers: pa.Array) -> pa.Array:
    return pa.repeat(pc.sum(numbers), len(texts))


def of_the_call(texts: pa.Array, numbers: pa.Array) -> pa.Array:
    del numbers
    return pa.repeat(next(CALLS), len(texts))


def of_the_process(texts: pa.Array, numbers: pa.Array) -> pa.Array:
    del numbers
    return pa.array([hash(text) for text in texts.to_pylist()])


def of_the_keys(texts: pa.Array, numbers: pa.Array, keys: Any) -> pa.Array:
    return pa.array(keys[0:1].repeat(len(texts)) % 1000 + len(numbers) * 0, pa.int64())


@pytest.mark.parametrize(
    ("function", "options", "other"),
    [(longer, {}, shorter), (noisy, {"batched": False, "random": True}, None)],
)
def test_functions_keep_the_law(
    function: Callable[..., Any], options: dict[str, Any], other: Callable[..., Any] | None
) -> None:
    check_transform(function, ROWS, columns=["text", "n"], returns=pa.int64(), other=other, **options)


@pytest.mark.parametrize(
    ("function", "law", "options"),
    [
        (of_the_batch, "batches: rows", {}),
        (of_the_call, "pure: asked again", {}),
        (of_the_process, "process: another process gives other values", {}),
        (of_the_keys, "batches: rows", {"random": True}),
        (lambda texts, numbers: numbers, "process: .*is a lambda.*Define it", {}),
    ],
)
def test_functions_that_break_the_law_are_named(
    function: Callable[..., Any], law: str, options: dict[str, Any]
) -> None:
    rows = pa.table({"text": ROWS["text"].to_pylist(), "n": ROWS["n"].to_pylist()})
    with pytest.raises(AssertionError, match=law):
        check_transform(function, rows, columns=["text", "n"], returns=pa.int64(), **options)


def test_a_fingerprint_that_other_code_has_too_breaks_the_law() -> None:
    with pytest.raises(AssertionError, match="fingerprint: other code or options have the same one"):
        check_transform(longer, ROWS, columns=["text", "n"], returns=pa.int64(), version="1", other=longer)


def inverted(image: Any) -> Any:
    return 255 - image


CHAINS: list[tuple[Any, ...]] = [
    (sp.RandomResizedCrop(24), sp.RandomHorizontalFlip(), sp.Normalize((0.5,) * 3, (0.25,) * 3)),
    (sp.transforms.Resize(32), sp.transforms.CenterCrop(24)),
    (sp.transforms.Resize(28), sp.transforms.RandomCrop(20)),
    (sp.transforms.Resize(32), CenterCropDown(23)),
    (sp.transforms.Resize(20),),
    (
        *(
            sp.transforms.Resize((24, 24)),
            ColorJitter(0.4, 0.4, 0.4, 0.1),
            RandomGrayscale(0.5),
            GaussianBlur(3),
            RandomRotation(20),
        ),
        *(RandomErasing(0.5), Grayscale()),
    ),
    (sp.transforms.Resize((24, 24)), RandomAffine(10), RandAugment(), inverted),
]


def images() -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (30 + 3 * k, 50 - 2 * k, 3), np.uint8) for k in range(6)]


@pytest.mark.parametrize("chain", CHAINS, ids=len)
def test_every_image_transform_keeps_the_law(chain: tuple[Any, ...]) -> None:
    check_transform(chain, images(), other=(*chain[:-1], sp.transforms.Resize(7)) if len(chain) == 1 else chain[:-1])


def test_the_chains_have_every_image_transform() -> None:
    known = {*TRANSFORMS.values(), *PIXEL_TRANSFORMS.values()} - {FitToShape}  # whose size is that of a batch
    assert {type(step) for chain in CHAINS for step in chain if step is not inverted} == known


def test_tokenize_keeps_the_law(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    words = {text: number for number, text in enumerate(["[UNK]", "one", "two", "three", "vier"])}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(
        str(path)
    )  # one that needs no proof, which takes seconds
    check_transform(sp.Tokenize("text", str(path)), ROWS, other=sp.Tokenize("text", str(path), max_length=2))

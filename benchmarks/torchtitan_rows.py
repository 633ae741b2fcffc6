"""How long ranks wait for each other with the rows of torchtitan's own loader, which each rank packs of its own documents.

    make recipes                                                   # installs torchtitan beside .venv
    .recipes-venv/bin/python -m benchmarks.torchtitan_rows

The documents and the costs are those of `benchmarks.even_steps`. The loader is torchtitan's own `HuggingFaceTextDataset`, whose
tokenizer here gives as many tokens as a document has. It is run for each rank, and each microstep waits for the slowest.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torchtitan.hf_datasets import DatasetConfig, text_datasets

from benchmarks.even_steps import DOCUMENTS, ROWS, WIDTH, Lengths, drawn, real
from spiral_stream.sampling.dealing import wait_share


class Ones:
    """A tokenizer of texts that are document numbers; a row of the loader loses one token of each."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths

    def encode(self, text: str, **_: bool) -> list[int]:
        return [1] * (int(self.lengths[int(text)]) + 1)


def rows_of(lengths: Lengths, rank: int, world: int) -> tuple[list[list[float]], int]:
    """The linear and the quadratic cost of each row of a rank, and how many documents it read."""
    texts = datasets.Dataset.from_dict({"text": [str(k) for k in range(len(lengths))]})
    text_datasets.DATASETS["lengths"] = DatasetConfig(
        path="", loader=lambda _: texts, sample_processor=lambda sample: sample["text"]
    )
    loader = text_datasets.HuggingFaceTextDataset("lengths", None, Ones(lengths), WIDTH, rank, world)
    costs = []
    for inputs, _ in loader:
        begins = np.flatnonzero(inputs["positions"].numpy() == 0)
        pieces = np.diff(np.append(begins, WIDTH)).astype(np.float64)
        costs.append([float(pieces.sum()), float((pieces + pieces**2 / 1024).sum())])
    return costs, loader.state_dict()["sample_idx"]


def share(lengths: Lengths, world: int) -> None:
    ranks: list[Any] = []
    read: list[int] = []
    for rank in range(world):
        costs, documents = rows_of(lengths, rank, world)
        full = len(costs) // ROWS * ROWS
        ranks.append(np.array(costs[:full]).reshape(-1, ROWS, 2).sum(axis=1))
        read.append(documents)
    print(said(ranks, read), flush=True)


def said(ranks: Sequence[Any], read: Sequence[int]) -> str:
    steps = min(map(len, ranks))
    both = np.stack([each[:steps] for each in ranks], axis=1)
    linear, quadratic = (wait_share(both[..., k]) for k in (0, 1))
    microsteps = f"{steps} to {max(map(len, ranks))} microsteps"
    return f"{len(ranks)} ranks, {microsteps}, {min(read)} to {max(read)} documents read: {linear:.1%}, {quadratic:.1%}"


if __name__ == "__main__":
    packages = Path(np.__file__).parents[1]  # of .venv, whose files `benchmarks.even_steps` takes
    for name, lengths in (("drawn", drawn(DOCUMENTS)), ("real", real(DOCUMENTS, packages))):
        print(name, "p50, p90, p99, longest", *np.quantile(lengths, (0.5, 0.9, 0.99, 1)).astype(int))
        for world in (8, 64):
            begun = time.process_time()
            print(name, end=", ", flush=True)
            share(lengths, world)
            print(f"  {time.process_time() - begun:.0f} CPU s")

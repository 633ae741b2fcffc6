"""How a classifier is judged: right answers on samples that were not trained on, beside what guessing reaches."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch


@final
@dataclass(frozen=True, slots=True)
class Score:
    """Right answers on samples that were not trained on."""

    right: int
    samples: int
    most_frequent: int  # samples of the most frequent class

    @property
    def accuracy(self) -> float:
        return self.right / self.samples

    @property
    def chance(self) -> float:
        """What always naming the most frequent class would reach."""
        return self.most_frequent / self.samples

    @property
    def beats_chance(self) -> bool:
        """Whether the accuracy lies more than three standard deviations of guessing above chance."""
        deviation = math.sqrt(self.chance * (1 - self.chance) / self.samples)
        return self.accuracy > self.chance + 3 * deviation


@torch.no_grad()
def score(model: torch.nn.Module, batches: Iterable[Any], field: str) -> Score:
    """Judge a model on every sample of a stream.

    Args:
        model: gives a number a class.
        batches: with ``label``.
        field: what of a batch the model is given.
    """
    model.eval()
    right = 0
    labels = []
    for batch in batches:
        right += int((model(batch[field]).argmax(1) == batch["label"]).sum())
        labels.append(batch["label"].clone())  # a batch's memory is used again
    every = torch.cat(labels)
    return Score(right, len(every), int(torch.bincount(every).max()))

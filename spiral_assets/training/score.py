"""Score a classifier: accuracy on samples that were not trained on, compared with guessing."""

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
        """The accuracy of always naming the most frequent class."""
        return self.most_frequent / self.samples

    @property
    def beats_chance(self) -> bool:
        """Whether the accuracy lies more than three standard deviations of guessing above chance."""
        deviation = math.sqrt(self.chance * (1 - self.chance) / self.samples)
        return self.accuracy > self.chance + 3 * deviation


@torch.no_grad()
def score(model: torch.nn.Module, batches: Iterable[Any], field: str) -> Score:
    """Score a model on every sample of a stream.

    Args:
        model: returns one number per class.
        batches: each has a field ``label``.
        field: the field of a batch that the model takes.
    """
    model.eval()
    right = 0
    labels = []
    for batch in batches:
        right += int((model(batch[field]).argmax(1) == batch["label"]).sum())
        labels.append(batch["label"].clone())  # the memory of a batch is reused
    every = torch.cat(labels)
    return Score(right, len(every), int(torch.bincount(every).max()))

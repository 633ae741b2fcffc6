"""The image task: a network small enough for a CPU, its loss, and how it is judged."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch

from spiral_assets.training.loop import Learner

LEARNING_RATE = 2e-3
WIDTHS = (24, 48, 96, 96)  # channels after each halving


def network(classes: int) -> torch.nn.Module:
    """Four convolutions, each halving the sides, and a linear layer: 0.14 M weights."""
    before, layers = 3, list[torch.nn.Module]()
    for after in WIDTHS:
        layers += [torch.nn.Conv2d(before, after, 3, 2, 1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
        before = after
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(before, classes)
    )


@final
class Classifier(Learner):
    """Names the class of an image."""

    def __init__(self, classes: int) -> None:
        torch.manual_seed(0)
        self.model = network(classes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])


@final
@dataclass(frozen=True, slots=True)
class Score:
    """Right answers on images that were not trained on."""

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
def score(model: torch.nn.Module, batches: Iterable[Any]) -> Score:
    """Judge a model on every sample of a stream."""
    model.eval()
    right = 0
    labels = []
    for batch in batches:
        right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
        labels.append(batch["label"].clone())  # a batch's memory is used again
    every = torch.cat(labels)
    return Score(right, len(every), int(torch.bincount(every).max()))

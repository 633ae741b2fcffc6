"""The image task: a network small enough for a CPU, and its loss."""

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

    def losses(self, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.model(batch["image"]), batch["label"], reduction="none")

"""The video task: a network that sees movement and is small enough for a CPU, and its loss."""

from collections.abc import Iterator
from typing import Any, final

import torch

from spiral_assets.training.loop import Learner

LEARNING_RATE = 1.5e-3
WIDTHS = (16, 32, 64)  # channels after each halving of the sides


@final
class Movement(torch.nn.Module):
    """Convolutions over space, then over time (2+1 D), on what changes from frame to frame: 0.04 M weights.

    Differences between frames remove the background, so 150 clips are enough to learn how things move.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        last = WIDTHS[-1]
        self.body = torch.nn.Sequential(
            *self._layers(), torch.nn.AdaptiveAvgPool3d(1), torch.nn.Flatten(), torch.nn.Linear(last, classes)
        )

    def forward(self, frames_BTCHW: torch.Tensor) -> torch.Tensor:
        """Map uint8 frames, shape [B, T, 3, H, W], to one number per class, shape [B, K]."""
        clips = frames_BTCHW.float().div_(255).transpose(1, 2)
        found: torch.Tensor = self.body(torch.diff(clips, dim=2))
        return found

    @staticmethod
    def _layers() -> Iterator[torch.nn.Module]:
        before, side = 3, 5
        for after in WIDTHS:
            yield torch.nn.Conv3d(before, after, (1, side, side), (1, 2, 2), (0, side // 2, side // 2))
            yield torch.nn.BatchNorm3d(after)
            yield torch.nn.ReLU()
            yield torch.nn.Conv3d(after, after, (3, 1, 1), padding=(1, 0, 0))
            yield torch.nn.BatchNorm3d(after)
            yield torch.nn.ReLU()
            before, side = after, 3


@final
class MovementClassifier(Learner):
    """Names how things move in a clip."""

    UNIT = "clips"

    def __init__(self, classes: int) -> None:
        torch.manual_seed(0)
        self.model = Movement(classes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)

    def losses(self, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.model(batch["frames"]), batch["label"], reduction="none")

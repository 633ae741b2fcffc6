"""The demo's training loop: from the saved state on, with a checkpoint every few steps and a ledger of batches.

A `Learner` gives the loss of a batch. What must survive a kill is in `spiral_assets.training.run`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

import spiral_stream as spiral
from spiral_assets.training.run import TrainingRun


class Learner(ABC):
    """A model, its optimizer, and the loss of a batch."""

    UNIT: ClassVar[str] = "samples"  # unit of its reported speed
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    @abstractmethod
    def losses(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss of each sample [B], or of each token [B, T], with a gradient."""

    def counted(self, batch: dict[str, Any]) -> torch.Tensor | None:
        """Return which tokens count, [B, T]; None: all losses do."""
        del batch
        return None

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar with a gradient."""
        return mean(self.losses(batch), self.counted(batch))

    def size(self, batch: dict[str, Any]) -> int:
        """Return how many units a batch holds."""
        return len(batch["sample_id"])


def train(learner: Learner, run: TrainingRun, steps: int, save_every: int) -> None:
    """Train a learner to the end of a run, from its checkpoint on.

    Args:
        learner: the model, its optimizer and its loss.
        run: whose stream's fields hold ``sample_id``.
        steps: of the whole run, including those before a resume; they may span epochs.
        save_every: steps between checkpoints.
    """
    parts: dict[str, Any] = {"model": learner.model, "optimizer": learner.optimizer}
    run.resume(**parts)
    while run.step < steps:
        begun, before = run.stream.state_dict(), run.step
        for batch in run.stream:
            losses, mask = learner.losses(batch), learner.counted(batch)
            run.record(_learn(learner, mean(losses, mask)), learner.size(batch), batch, losses=losses, mask=mask)
            if run.step % save_every == 0 or run.step == steps:
                run.save(**parts)
            if run.step == steps:
                break
        if run.step == before and begun["batch"] == 0:
            msg = f"epoch {begun['epoch']} has no batch: a batch needs more samples than the stream has"
            raise spiral.errors.StreamError(msg)


def mean(losses: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the mean of losses, of those that count."""
    return losses.mean() if mask is None else losses[mask].mean()


def _learn(learner: Learner, loss: torch.Tensor) -> float:
    learner.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    learner.optimizer.step()
    return loss.item()

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
    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar with a gradient."""

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
            run.record(_learn(learner, batch), learner.size(batch), batch)
            if run.step % save_every == 0 or run.step == steps:
                run.save(**parts)
            if run.step == steps:
                break
        if run.step == before and begun["batch"] == 0:
            msg = f"epoch {begun['epoch']} has no batch: a batch needs more samples than the stream has"
            raise spiral.errors.StreamError(msg)


def _learn(learner: Learner, batch: dict[str, Any]) -> float:
    loss = learner.loss(batch)
    learner.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    learner.optimizer.step()
    return loss.item()

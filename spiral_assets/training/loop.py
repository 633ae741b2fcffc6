"""The training loop: from the saved state on, with a checkpoint every few steps and a ledger of batches.

A `Learner` gives the loss of a batch. Everything that must survive a kill is here.
"""

import os
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

import spiral_stream as spiral
from spiral_assets.training.checkpoint import Checkpoint
from spiral_assets.training.reporting import Reporter


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


class Training:
    """Train a learner from a stream for a number of steps.

    Args:
        learner: the model, its optimizer and its loss.
        stream: bound; its fields hold ``sample_id``.
        kept: the folder of the run.
        steps: of the whole run, including those before a resume; they may span epochs.
        save_every: steps between checkpoints.
    """

    def __init__(
        self, learner: Learner, stream: spiral.PreparedStream, kept: Checkpoint, steps: int, save_every: int
    ) -> None:
        self.learner, self.stream, self.kept = learner, stream, kept
        self.steps, self.save_every = steps, save_every
        self.progress: list[dict[str, Any]] = []  # of this process: one row per checkpoint
        self.resumed = False
        self._step = self._begun_at = 0

    def run(self, report: Reporter) -> dict[str, Any]:
        """Resume from the checkpoint, or begin, and train to the end.

        Returns:
            the stream's final state.
        """
        done = self.kept.load(self.learner.model, self.learner.optimizer, self.stream)
        self.resumed, self._step = done is not None, done or 0
        self._begun_at = self._step
        state = self.stream.state_dict()
        begins = "resumes" if self.resumed else "begins"
        report.log(f"process {os.getpid()} {begins} at epoch {state['epoch']}, batch {state['batch']}")
        while self._step < self.steps:
            self._epoch(report)
        state = self.stream.state_dict()
        self.kept.save(self.learner.model, self.learner.optimizer, state, self._step)
        return state

    def facts(self) -> dict[str, Any]:
        """Return figures about this process: steps, speed, waiting, cache hits."""
        unit = self.learner.UNIT
        rates = sorted(row[f"{unit}/s"] for row in self.progress)
        metrics = self.stream.metrics()
        return {
            "steps": self.steps,
            "steps_of_this_process": self._step - self._begun_at,
            f"{unit}_per_s": rates[len(rates) // 2] if rates else 0.0,
            "cache_hit_rate": 0.0 if metrics["cache_hit_rate"] is None else round(metrics["cache_hit_rate"], 4),
            "waited_for_data_s": round(metrics["consumer_waited_s"], 3),
            "bound_by": metrics["bound_by"],
            "resumed": self.resumed,
            "checkpoint": str(self.kept.folder.resolve()),
        }

    def _epoch(self, report: Reporter) -> None:
        """Train from the cursor to the end of its epoch, or of the run."""
        begun, units, losses = time.monotonic(), 0, list[float]()
        state = start = self.stream.state_dict()
        for batch in self.stream:
            losses.append(self._learn(batch))
            units += self.learner.size(batch)
            self.kept.enter(state, batch, self._step, self.steps)
            state = self.stream.state_dict()
            self._step += 1
            if self._step % self.save_every == 0 or self._step == self.steps:
                self.kept.save(self.learner.model, self.learner.optimizer, state, self._step)
                self._reached(report, state, losses, units / (time.monotonic() - begun))
                begun, units, losses = time.monotonic(), 0, []
            if self._step == self.steps:
                return
        if state is start and start["batch"] == 0:
            msg = f"epoch {start['epoch']} has no batch: a batch needs more samples than the stream has"
            raise spiral.StreamError(msg)

    def _learn(self, batch: dict[str, Any]) -> float:
        loss = self.learner.loss(batch)
        self.learner.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.learner.optimizer.step()
        return loss.item()

    def _reached(self, report: Reporter, state: dict[str, Any], losses: list[float], rate: float) -> None:
        """Report the steps since the last checkpoint."""
        loss = sum(losses) / len(losses)
        report.log(f"step {self._step}/{self.steps}, epoch {state['epoch']}, batch {state['batch']}: loss {loss:.3f}")
        row = {"step": self._step, "epoch": self.stream.epoch, "loss": round(loss, 4)}
        self.progress.append({**row, f"{self.learner.UNIT}/s": round(rate, 1)})

"""The folder of a training run: its state, complete or absent, and a ledger of delivered batches.

state.pt        model, optimizer, steps done and the stream's state (JSON), replaced atomically
ledger.jsonl    one line per batch: process, step, identities, digest of the tensors
result.json     the results
.lock           held by the one process that trains in this folder
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash

import spiral_stream as spiral


def digest(batch: Mapping[str, Any]) -> str:
    """Return 32 hex digits over the names, shapes, types and bytes of a batch's tensors."""
    found = xxhash.xxh3_128()
    for name, value in sorted(batch.items()):
        if isinstance(value, torch.Tensor):
            found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            found.update(value.numpy().data)
    return found.hexdigest()


def identities(batch: Mapping[str, Any]) -> list[list[str]]:
    """Return the samples of a batch, in order: [sample], or [stream, sample] in a mixture."""
    columns = [batch[name] for name in ("stream_id", "sample_id") if name in batch]
    return [list(each) for each in zip(*columns, strict=True)]


class Checkpoint:
    """The state of one training run in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "state.pt"
        self._ledger = folder / "ledger.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def exclusively(self, say: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other process trains in this folder.

        A process whose launcher died may still be training. The kernel frees the lock of a dead process.

        Args:
            say: is called with a line if it has to wait.
        """
        with (self.folder / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another process trains in {self.folder}; waiting for it to end")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def load(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, stream: spiral.PreparedStream
    ) -> int | None:
        """Load the saved state.

        Returns:
            the steps done so far; None if nothing is saved.

        Raises:
            ResumeError: the stream's plan or data changed since; the message says where.
        """
        if not self._file.exists():
            return None
        saved = torch.load(self._file, weights_only=True)
        stream.load_state_dict(json.loads(saved["stream"]))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return int(saved["step"])

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], step: int) -> None:
        """Replace the saved state. A kill leaves either the old state or the new one."""
        whole = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "stream": json.dumps(state),
            "step": step,
        }
        draft = self._file.with_suffix(f".{os.getpid()}")
        torch.save(whole, draft)
        draft.replace(self._file)

    def enter(self, state: dict[str, Any], batch: dict[str, Any], step: int, steps: int) -> None:
        """Record a delivered batch in the ledger.

        Args:
            state: of the stream, before the batch.
            batch: as delivered.
            step: its number in the run.
            steps: of the whole run.
        """
        line = {
            "pid": os.getpid(),
            "step": step,
            "steps": steps,
            "epoch": state["epoch"],
            "batch": state["batch"],
            "ids": identities(batch),
            "tensors": digest(batch),
        }
        with self._ledger.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def keep_result(self, facts: dict[str, Any]) -> None:
        """Write the results atomically."""
        draft = self.folder / f"result.{os.getpid()}"
        draft.write_text(json.dumps(facts, indent=1))
        draft.replace(self.folder / "result.json")

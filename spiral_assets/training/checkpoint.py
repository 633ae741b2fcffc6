"""What a training run keeps in its folder: its state, whole or absent, and a ledger of delivered batches.

state.pt        model, optimizer, steps done and the stream's cursor (JSON), replaced in one step
ledger.jsonl    a line a batch: process, place in the run, identities, digest of the tensors
result.json     what came out
.lock           held by the one process that trains here
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
    """The bytes of a batch's tensors, with their names and shapes, in 32 hex digits."""
    found = xxhash.xxh3_128()
    for name, value in sorted(batch.items()):
        if isinstance(value, torch.Tensor):
            found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            found.update(value.numpy().data)
    return found.hexdigest()


def identities(batch: Mapping[str, Any]) -> list[list[str]]:
    """Who is in a batch, in order: (sample), or (stream, sample) where streams are mixed."""
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
    def alone(self, say: Callable[[str], None]) -> Iterator[None]:
        """Be the only trainer here: one whose launcher died may still be at work; the kernel frees a dead one's lock."""
        with (self.folder / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another process trains in {self.folder}; going on when it ends")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def load(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, stream: spiral.PreparedStream
    ) -> int | None:
        """Go to the saved state.

        Returns:
            the steps done until then; None if nothing is saved.

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
        """Replace the saved state; a kill leaves the old one or the new one."""
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
        """Enter a delivered batch.

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
        """Write what came out, in one step."""
        draft = self.folder / f"result.{os.getpid()}"
        draft.write_text(json.dumps(facts, indent=1))
        draft.replace(self.folder / "result.json")

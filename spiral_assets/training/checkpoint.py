"""The folder of a training run: its state, complete or absent, and a ledger of delivered batches.

state.pt        model, optimizer, steps done and the stream's state (JSON), replaced atomically
ledger.jsonl    one line per batch: process, step, identities, digest of the tensors; ledger-00001.jsonl is of rank 1
progress/       loss and speed, one file per rank (`spiral_assets.training.progress`)
result.json     the results, and which samples the model saw
.lock           held by the one process that trains in this folder; of several ranks by the first
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

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


class Stateful(Protocol):
    """A part of a training that has a state: a model, an optimizer, a scheduler."""

    def state_dict(self) -> Any:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Go to a saved state."""
        ...


class Checkpoint:
    """The state of one training run in a folder.

    Args:
        folder: is made if it is not there.
        rank: whose ledger is written.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.ledger = folder / ("ledger.jsonl" if rank == 0 else f"ledger-{rank:05d}.jsonl")
        self._file = folder / "state.pt"
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

    def load(self, stream: spiral.PreparedStream, parts: Mapping[str, Stateful]) -> int | None:
        """Load the saved state.

        Args:
            stream: goes to the saved place.
            parts: name -> what has a state.

        Returns:
            the steps done so far; None if nothing is saved.

        Raises:
            ResumeError: the stream's plan or data changed since, or a part was not saved; the message says where.
        """
        if not self._file.exists():
            return None
        saved = torch.load(self._file, weights_only=True, map_location="cpu")
        missing = sorted(set(parts) - set(saved))
        if missing:
            msg = (
                f"{self._file}: {missing[0]!r} was not saved; it has {', '.join(sorted(saved))}. Save it, or begin anew"
            )
            raise spiral.errors.ResumeError(msg)
        stream.load_state_dict(json.loads(saved["stream"]))
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        return int(saved["step"])

    def save(self, stream: Mapping[str, Any], step: int, parts: Mapping[str, Stateful]) -> None:
        """Replace the saved state. A kill leaves either the old state or the new one.

        Args:
            stream: its state.
            step: steps done so far.
            parts: name -> what has a state.
        """
        states = {name: part.state_dict() for name, part in parts.items()}
        draft = self._file.with_suffix(f".{os.getpid()}")
        torch.save({**states, "stream": json.dumps(stream), "step": step}, draft)
        draft.replace(self._file)

    def enter(self, position: tuple[int, int], batch: Mapping[str, Any], step: int, steps: int | None) -> None:
        """Record a delivered batch in the ledger.

        Args:
            position: its epoch, and its number in the epoch.
            batch: as delivered.
            step: its number in the run.
            steps: of the whole run, if that is known.
        """
        line = {
            "pid": os.getpid(),
            "step": step,
            "steps": steps,
            "epoch": position[0],
            "batch": position[1],
            "ids": identities(batch),
            "tensors": digest(batch),
        }
        with self.ledger.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def keep_result(self, facts: Mapping[str, Any]) -> None:
        """Write the results atomically."""
        draft = self.folder / f"result.{os.getpid()}"
        draft.write_text(json.dumps(facts, indent=1))
        draft.replace(self.folder / "result.json")

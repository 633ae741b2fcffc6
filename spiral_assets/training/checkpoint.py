"""Model, optimizer and cursor in one file that is whole or absent; the ledger of delivered batches beside it."""

import json
import os
from pathlib import Path
from typing import Any

import torch

import spiral_stream as spiral


class Checkpoint:
    """The state of one training run in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "state.pt"
        self._ledger = folder / "ledger.jsonl"
        self._claim = folder / "process.json"
        folder.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Forget an earlier run."""
        for file in (self._file, self._ledger, self._claim, self.folder / "result.json"):
            file.unlink(missing_ok=True)

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, stream: spiral.PreparedStream) -> bool:
        """Go to the saved state; False if there is none."""
        if not self._file.exists():
            return False
        saved = torch.load(self._file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        stream.load_state_dict(json.loads(saved["stream"]))
        return True

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Replace the saved state; a kill leaves the old one or the new one."""
        draft = self._file.with_suffix(f".{os.getpid()}")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "stream": json.dumps(state)}, draft
        )
        draft.replace(self._file)

    def claim(self, state: dict[str, Any]) -> None:
        """Say which process trains now and where it began."""
        draft = self._claim.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"pid": os.getpid(), "epoch": state["epoch"], "batch": state["batch"]}))
        draft.replace(self._claim)

    def enter(self, state: dict[str, Any], identities: list[str]) -> None:
        """Enter a delivered batch: the state after it, and what it held."""
        line = {"pid": os.getpid(), "epoch": state["epoch"], "batch": state["batch"] - 1, "ids": identities}
        with self._ledger.open("a") as file:
            file.write(json.dumps(line) + "\n")

"""The loop over a stream, without Dagster: steps, checkpoints, the ledger, and a resume."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import spiral_stream as spiral
from spiral_assets.training.loop import Learner, train
from spiral_assets.training.run import TrainingRun

ROWS, BATCH = 20, 4
EPOCH = ROWS // BATCH


class Line(Learner):
    """Learns y = 2 x."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def losses(self, batch: dict[str, Any]) -> torch.Tensor:
        x = batch["x"].float()[:, None]
        return torch.nn.functional.mse_loss(self.model(x), 2 * x, reduction="none")[:, 0]


@pytest.fixture
def stream(tmp_path: Path) -> spiral.PreparedStream:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    rows = {"sample_id": [f"s{row}" for row in range(ROWS)], "x": [row / ROWS for row in range(ROWS)]}
    catalog.register("points", spiral.Arrow(pa.table(rows)), identity="sample_id")
    plan = catalog.table("points").sample(identity="sample_id", order=spiral.GlobalShuffle(seed=1))
    fields = {"x": spiral.Stack("x", dtype="float32"), "sample_id": spiral.List("sample_id")}
    return plan.collate(batch_size=BATCH, fields=fields).to_torch().bind(device="cpu", epoch=0)


def trained(stream: spiral.PreparedStream, folder: Path, steps: int) -> tuple[Line, TrainingRun, dict[str, Any]]:
    learner = Line()
    with TrainingRun(folder, stream, name="points", steps=steps) as run:
        train(learner, run, steps, save_every=3)
        return learner, run, stream.state_dict()


def ledger(folder: Path) -> list[tuple[int, int, list[list[str]]]]:
    lines = map(json.loads, (folder / "ledger.jsonl").read_text().splitlines())
    return [(line["epoch"], line["batch"], line["ids"]) for line in lines]


def test_a_resumed_run_sees_the_batches_and_reaches_the_weights_of_an_uninterrupted_one(
    stream: spiral.PreparedStream, tmp_path: Path
) -> None:
    with stream:
        start = stream.state_dict()
        whole, _, _ = trained(stream, tmp_path / "whole", 2 * EPOCH)
        stream.load_state_dict(start)
        _, first, _ = trained(stream, tmp_path / "parts", EPOCH + 2)
        stream.load_state_dict(start)
        learner, second, state = trained(stream, tmp_path / "parts", 2 * EPOCH)

    assert ledger(tmp_path / "parts") == ledger(tmp_path / "whole")
    assert (first.resumed, second.resumed) == (False, True)
    assert (second.facts()["steps"], second.facts()["processes"]) == (2 * EPOCH, 2)
    assert (state["epoch"], state["batch"]) == (2, 0)
    for one, other in zip(whole.model.parameters(), learner.model.parameters(), strict=True):
        assert torch.equal(one, other)

"""Runs that a launcher starts and starts again: torchrun's ranks by its variables alone, and Trainer killed at any step."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures import warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
ROWS, BATCH = 96, 4
LAUNCHED = """
import json, os, sys
from pathlib import Path
import spiral_stream as sp

folder = Path(sys.argv[1])
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
state = folder / "state.json"
with sp.connect(str(folder / "catalog")).open_stream("numbers") as stream:
    if state.exists():
        stream.load_state_dict(json.loads(state.read_text()))
    with stream.catalog.run("launched", stream) as run:
        for step, batch in enumerate(stream, 1):
            run.log(batch=batch, loss=batch["x"])
            if step == 3 and not restart:
                found = stream.state_dict()
                if rank == 0:
                    state.write_text(json.dumps(found))
            if step == 6 and not restart and rank == 1:
                os._exit(3)
            if step == 9 and not restart:
                __import__("time").sleep(60)  # torchrun ends it
"""
TRAINER = """
import os, signal, sys
from pathlib import Path
import torch
import transformers
import spiral_stream as sp
from spiral_stream.adapters import StreamTrainer

transformers.logging.set_verbosity_error()
folder, kill_at, attempt = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

class Model(torch.nn.Linear):
    def forward(self, x):
        return {"loss": (super().forward(x[:, None])[:, 0] - 2 * x).square().mean()}

class Watched(StreamTrainer):
    def compute_loss(self, model, inputs, *args, **options):
        self.record(loss=inputs["x"] * 0.5)
        if self.state.global_step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute_loss(model, inputs, *args, **options)

out = folder / "out"
args = transformers.TrainingArguments(
    str(out), max_steps=14, save_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no"
)
saved = transformers.trainer_utils.get_last_checkpoint(str(out)) if out.exists() else None
with sp.connect(str(folder / "catalog")).open_stream("numbers") as stream:
    run = stream.catalog.run("trained", stream, attempt=attempt, anew=saved is None)
    Watched(Model(1, 1), args, train_dataset=stream, run=run).train(resume_from_checkpoint=saved)
"""


def made(folder: Path) -> sp.Catalog:
    catalog = sp.connect(str(folder / "catalog"))
    rows = pa.table({"sample_id": range(ROWS), "x": np.arange(ROWS, dtype=np.float32)})
    catalog.register("numbers", sp.Arrow(rows), identity="sample_id")
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=3))
    catalog.save_stream("numbers", sampled.collate(batch_size=BATCH, fields={"x": sp.Stack("x")}).to_torch())
    return catalog


def recorded(catalog: sp.Catalog, name: str) -> list[tuple[int, int, int, int, float]]:
    table = catalog.table(f"runs.{name}").to_arrow()
    columns = (table[each].to_pylist() for each in ("epoch", "batch", "index", "sample_id", "loss"))
    return sorted(zip(*columns, strict=True))


def test_ranks_of_torchrun_are_one_attempt_and_a_restart_of_its_own_another(tmp_path: Path) -> None:
    """Nothing but the launcher's variables says which start a rank is of: no process group is made."""
    catalog = made(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(LAUNCHED)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    done = subprocess.run([*launcher, script, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "SpiralWarning" not in done.stderr
    first, second = catalog.run("launched").attempts()
    assert first.name.startswith("start-")
    assert (second.parent, second.alongside, first.alongside) == (first.name, (), ())
    assert [(leg.attempt, leg.first, leg.end, leg.world_size) for leg in catalog.run("launched").legs()] == [
        (first.name, 0, 6, 2),
        (second.name, 6, ROWS // BATCH, 2),
    ]
    assert sorted(row[3] for row in recorded(catalog, "launched")) == list(range(ROWS))


def test_ranks_of_which_nothing_says_the_start_are_refused(tmp_path: Path) -> None:
    made(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(LAUNCHED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29713"]
    done = subprocess.run([*launcher, script, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "or give each start an attempt= of its own, the same on all ranks" in done.stderr


@pytest.mark.parametrize("seed", range(2))
def test_a_trainer_that_is_killed_at_any_step_records_what_an_unbroken_one_does(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("transformers")
    catalog, draw = made(tmp_path), random.Random(seed)
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    reached = 0
    for life in range(20):
        kill_at = reached + draw.randint(0, 5)
        command = [sys.executable, script, str(tmp_path), str(kill_at), f"life-{life}"]
        done = warm.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if done.returncode == 0:
            break
        found = sorted(
            (tmp_path / "out").glob("checkpoint-*/spiral_stream.json"), key=lambda path: path.stat().st_mtime
        )
        reached = json.loads(found[-1].read_text())["stream"]["batch"] if found else 0
    assert done.returncode == 0
    with catalog.open_stream("numbers") as stream:
        ledger = [stream.ledger(number, 0) for number in range(14)]
    wanted: list[Any] = [
        (0, number, index, identity, identity * 0.5)
        for number, identities in enumerate(ledger)
        for index, identity in enumerate(identities)
    ]
    assert recorded(catalog, "trained") == wanted
    assert catalog.run("trained").seen().samples == 14 * BATCH

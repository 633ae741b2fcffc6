"""Two ranks under torchrun and Dagster: one is killed in mid-run, the retry goes on, and the page has the whole run."""

import json
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets.assets import training_asset
from spiral_assets.resources import CatalogResource, RunsResource
from spiral_assets.training.seen import samples_seen
from tests.fixtures.folded_pages import everything

ROWS, BATCH, STEPS = 66, 4, 20  # 16 batches: 8 steps of two ranks an epoch, and the last rows of it are dropped
SCRIPT = """
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import spiral_stream as spiral
from spiral_assets.training.run import TrainingRun

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, steps = Path(options["--folder"]), int(options["--steps"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
victim = {"rank": os.getpid, "launcher": os.getppid}[options["--kill"]]
stream = spiral.connect(options["--catalog"]).open_stream("points")
with stream, TrainingRun(folder, stream, name="points", steps=steps) as run:
    run.resume(model=model.module, optimizer=optimizer)
    while run.step < steps:
        for batch in stream:
            x = batch["x"][:, None]
            loss = ((model(x) - 2 * x) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.record(loss.item(), len(x), batch)
            if run.step % 4 == 0 or run.step == steps:
                run.save(model=model.module, optimizer=optimizer)
            if run.step == 10 and run.rank == 1 and not run.resumed:
                os.kill(victim(), signal.SIGKILL)
            if run.step == steps:
                break
    run.done({"weight": round(model.module.weight.item(), 3)})
dist.destroy_process_group()
"""
# Dagster's own Pipes client uses a preview feature and a deprecated name of Dagster's; nothing here can avoid it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
    pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated"),
]


@pytest.fixture
def catalog(tmp_path: Path) -> spiral.Catalog:
    made = spiral.connect(str(tmp_path / "catalog"))
    rows = {"sample_id": [f"s{row}" for row in range(ROWS)], "x": [row / ROWS for row in range(ROWS)]}
    made.register("points", spiral.Arrow(pa.table(rows)), identity="sample_id")
    plan = made.table("points").sample(order=spiral.GlobalShuffle(seed=1))
    fields = {"x": spiral.Stack("x", dtype="float32"), "sample_id": spiral.List("sample_id")}
    made.save_stream("points", plan.collate(batch_size=BATCH, fields=fields).to_torch())
    return made


def run(tmp_path: Path, kill: str, instance: dg.DagsterInstance, retries: int) -> dg.ExecuteInProcessResult:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    model = training_asset(
        "line",
        "points",
        {"steps": STEPS, "kill": kill},
        deps=["streams/points"],
        description="A line.",
        command=["python", str(script)],
        processes=2,
        retries=retries,
    )
    resources = {
        "catalog": CatalogResource(uri=str(tmp_path / "catalog")),
        "runs": RunsResource(root=str(tmp_path / "runs")),
        "pipes": dg.PipesSubprocessClient(),
    }
    return dg.materialize([model], instance=instance, resources=resources, raise_on_error=False)


def delivered(folder: Path) -> list[list[str]]:
    """What both ranks were trained on, in the order of the batches, as their ledgers have it."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in ("ledger.jsonl", "ledger-00001.jsonl"):
        for line in map(json.loads, (folder / name).read_text().splitlines()):
            found[line["epoch"], line["batch"]] = [sample for (sample,) in line["ids"]]
    return [found[place] for place in sorted(found)]


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["rank", "launcher"])
def test_a_killed_rank_or_launcher_is_retried_and_the_page_has_the_whole_run(
    catalog: spiral.Catalog, tmp_path: Path, kill: str
) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = run(tmp_path, kill, instance, retries=1)
        assert result.success
        assert [event.event_type_value for event in result.all_events].count("STEP_UP_FOR_RETRY") == 1
        (made,) = result.get_asset_materialization_events()
        facts: dict[str, Any] = everything(made.materialization.metadata)
        key = dg.AssetKey(["models", "line"])
        observed = instance.fetch_observations(key, limit=5).records

    assert (facts["steps"], facts["ranks"], facts["processes"], facts["epochs"]) == (STEPS, 2, 2, 3)
    seen = list(samples_seen(catalog, json.loads(Path(facts["checkpoint"], "result.json").read_text())["samples_seen"]))
    assert [samples for _, _, samples in seen] == delivered(Path(facts["checkpoint"]))
    assert len(seen) == 2 * STEPS
    rows = facts["progress"]
    assert rows[-1]["step"] == STEPS
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert facts["samples_per_s"] > 0
    assert facts["weight"] > 0
    picture = Path(facts["checkpoint"]) / "training_curve.svg"
    assert b"<svg" in picture.read_bytes()[:1000]
    assert re.search(r"!\[training_curve\]\(/logs/", facts["large_curve"])
    assert len(observed) == 1  # of the try that failed

"""A training asset records its run: one trained branch over a kill and a retry, a page of it, and a check of what it saw."""

import subprocess
import types
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets.assets import training_asset, training_process
from spiral_assets.checks import unseen_check
from spiral_assets.resources import CatalogResource, RunsResource, standard_resources
from spiral_assets.training.run import TrainingRun
from spiral_assets.yaml_definitions import definitions_from
from tests.fixtures import warm
from tests.fixtures.folded_pages import everything

ROWS, BATCH, STEPS = 96, 8, 30  # 12 steps an epoch
WRONG = 17  # its label is far off
SCRIPT = """
import os
import signal
import sys
from pathlib import Path

import torch

import spiral_stream as spiral
from spiral_assets.training.run import TrainingRun

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, steps, kill_at = Path(options["--folder"]), int(options["--steps"]), int(options["--kill-at"])
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
stream = spiral.connect(options["--catalog"]).open_stream("points")
with stream, TrainingRun(folder, stream, name="points", steps=steps) as run:
    run.resume(model=model, optimizer=optimizer)
    while run.step < steps:
        for batch in stream:
            losses = ((model(batch["x"][:, None]) - batch["y"][:, None]) ** 2)[:, 0]
            loss = losses.mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.record(loss.item(), len(losses), batch, losses=losses)
            if run.step % 4 == 0 or run.step == steps:
                run.save(model=model, optimizer=optimizer)
            if run.step == kill_at and not run.resumed:
                os.kill(os.getpid(), signal.SIGKILL)
            if run.step == steps:
                break
    run.done({})
"""
# Dagster's own Pipes client uses a preview feature and a deprecated name of Dagster's; nothing here can avoid it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
    pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated"),
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
]


@pytest.fixture(autouse=True)
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training processes are forked from one that has imported torch: two cold ones take 8 CPU s to import it."""
    programs = types.SimpleNamespace(**{**vars(subprocess), "Popen": warm.Popen})
    monkeypatch.setattr(training_process, "subprocess", programs)


@pytest.fixture
def catalog(tmp_path: Path) -> spiral.Catalog:
    made = spiral.connect(str(tmp_path / "catalog"))
    x = np.arange(ROWS) / ROWS
    y = 2 * x + np.random.default_rng(0).normal(0, 0.05, ROWS)
    y[WRONG] += 40
    rows = {
        "sample_id": [f"s{row}" for row in range(ROWS)],
        "x": x,
        "y": y,
        "file": [f"f{row // 32}" for row in range(ROWS)],
    }
    made.register("points", spiral.Arrow(pa.table(rows)), identity="sample_id", shard="file")
    fields = {name: spiral.Stack(name, dtype="float32") for name in "xy"} | {"sample_id": spiral.List("sample_id")}
    plan = made.table("points").sample(order=spiral.GlobalShuffle(seed=1)).collate(batch_size=BATCH, fields=fields)
    made.save_stream("points", plan.to_torch())
    for name, ids in (("held_out", ["s3", "s90", "t1"]), ("others", ["t1", "t2"])):
        made.register(name, spiral.Arrow(pa.table({"sample_id": ids})), identity="sample_id")
    made.register("elsewhere", spiral.Arrow(pa.table({"key": ["a"]})), identity="key")
    return made


@pytest.fixture
def location(catalog: spiral.Catalog, tmp_path: Path) -> dict[str, Any]:
    del catalog
    (tmp_path / "train.py").write_text(SCRIPT)
    return {
        "catalog": CatalogResource(uri=str(tmp_path / "catalog")),
        "runs": RunsResource(root=str(tmp_path / "runs")),
        "pipes": dg.PipesSubprocessClient(),
    }


def line(tmp_path: Path, *, kill_at: int = 0, record: bool = True) -> dg.AssetsDefinition:
    return training_asset(
        "line",
        "points",
        {"steps": STEPS, "kill_at": kill_at},
        deps=["streams/points"],
        description="A line.",
        command=["python", str(tmp_path / "train.py")],
        retries=1,
        record=record,
    )


def page(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (made,) = result.get_asset_materialization_events()
    return everything(made.materialization.metadata)


def test_a_killed_and_retried_training_is_one_trained_branch_and_its_page_shows_the_run(
    catalog: spiral.Catalog, location: dict[str, Any], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    def trained(kill_at: int) -> dict[str, Any]:
        model = line(tmp_path, kill_at=kill_at)
        checks = [unseen_check(model, name) for name in ("held_out", "others")]
        result = dg.materialize([model, *checks], instance=instance, resources=location, raise_on_error=False)
        found = {each.check_name: each for each in result.get_asset_check_evaluations()}
        assert [found[f"no_row_of_{name}_was_seen"].passed for name in ("held_out", "others")] == [False, True]
        assert "s3; s90. Leave them out" in str(found["no_row_of_held_out_was_seen"].description)
        return page(result)

    first = trained(kill_at=18)
    run = catalog.run("models.line")
    killed, retried = run.attempts()
    assert (killed.parent, retried.parent) == (None, killed.name)
    rows = catalog.table("runs.models.line").to_arrow()
    with catalog.open_stream("points") as stream:
        planned = [
            [epoch, batch, sample]
            for epoch in range(3)
            for batch in range(12)
            for sample in stream.ledger(batch, epoch)
        ]
    seen = [
        list(each) for each in zip(*(rows[name].to_pylist() for name in ("epoch", "batch", "sample_id")), strict=True)
    ]
    assert seen == planned[: STEPS * BATCH]
    assert rows["step"].to_pylist() == [step for step in range(STEPS) for _ in range(BATCH)]
    assert set(rows["attempt"].to_pylist()) == {killed.name, retried.name}

    assert [row["samples"] for row in first["seen"]] == [STEPS * BATCH]
    assert first["outliers"][0]["sample_id"] == f"s{WRONG}"
    sources = first["losses_by_source"]
    assert sources[0]["shard"] == "f0"
    assert sum(row["samples"] for row in sources) == STEPS * BATCH
    assert "loss_by_source" in first["loss_curves"]
    assert first["difference_to_run_before"] == "no run before it was recorded"

    again = trained(kill_at=0)  # a Dagster run of its own begins anew
    assert [each.parent for each in catalog.run("models.line").attempts()] == [None, killed.name, None]
    assert "all 30 batches" in again["difference_to_run_before"]
    assert f"`{retried.name}`" in again["difference_to_run_before"]


def test_a_run_that_is_not_to_be_recorded_is_not(
    catalog: spiral.Catalog, location: dict[str, Any], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    model = line(tmp_path, record=False)
    parts = [model, unseen_check(model, "others")]
    result = dg.materialize(parts, instance=instance, resources=location, raise_on_error=False)

    assert catalog.runs() == []
    assert "seen" not in page(result)
    (found,) = result.get_asset_check_evaluations()
    assert not found.passed
    assert "record: true" in str(found.description)


def test_a_relation_without_the_identity_is_refused_with_the_way_out(
    catalog: spiral.Catalog, location: dict[str, Any], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    with catalog.open_stream("points") as stream, TrainingRun(tmp_path / "run", stream, record="models.line") as run:
        run.resume()
        for batch in stream:
            run.record(1.0, BATCH, batch)
    check = unseen_check(line(tmp_path), "elsewhere")
    with pytest.raises(dg.Failure, match="Give the relation that column"):
        check(location["catalog"])


def test_a_batch_that_was_made_anew_is_said_once_and_stops_no_training(
    catalog: spiral.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(record: str | None) -> None:
        with catalog.open_stream("points") as stream, TrainingRun(tmp_path / "run", stream, record=record) as run:
            run.resume()
            for batch in stream:
                run.record(1.0, BATCH, {**batch})

    monkeypatch.setenv("SPIRAL_RECORD", "models.line")
    train(None)
    assert " ".join(capsys.readouterr().out.split()).count("no losses: log: batch= lost its key") == 1
    assert catalog.seen(catalog.run("models.line").legs()).samples == ROWS
    with pytest.raises(spiral.errors.RunError, match=r"keeps its key with run\.key"):
        train("models.line")


def test_yaml_names_relations_that_the_model_must_not_have_seen(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text("""
type: spiral_assets.components.TrainingJob
attributes:
  name: line
  command: [python, train.py]
  deps: [streams/points]
  unseen: [held_out]
""")
    resources = dg.Definitions(resources=standard_resources("catalog", "."))
    graph = dg.Definitions.merge(definitions_from(tmp_path / "line.yaml"), resources).resolve_asset_graph()
    (key,) = graph.asset_check_keys
    assert key.name == "no_row_of_held_out_was_seen"
    assert graph.get_check_spec(key).blocking


def test_a_catalog_that_cannot_be_written_stops_no_training_that_did_not_ask_for_a_record(
    catalog: spiral.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(record: str | None) -> int:
        with catalog.open_stream("points") as stream, TrainingRun(tmp_path / "run", stream, record=record) as run:
            run.resume()
            for batch in stream:
                run.record(1.0, BATCH, batch)
            run.save()
            return run.step

    (catalog.root / "runs").write_text("no folder")
    monkeypatch.setenv("SPIRAL_RECORD", "models.line")
    with pytest.warns(spiral.errors.SpiralWarning, match="records nothing"):
        assert train(None) == ROWS // BATCH
    assert "nothing is recorded" in capsys.readouterr().out
    with pytest.raises(spiral.errors.RunError, match="cannot be written"):
        train("models.line")

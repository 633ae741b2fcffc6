"""A run outside Dagster: results and what the model saw stay in its folder, and can be replayed."""

import json
import re
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
import torch

import spiral_stream as spiral
from spiral_assets.model_page import model_page
from spiral_assets.training.run import TrainingRun
from spiral_assets.training.seen import samples_seen

ROWS, BATCH = 22, 4


@pytest.fixture
def catalog(tmp_path: Path) -> spiral.Catalog:
    made = spiral.connect(str(tmp_path / "catalog"))
    save(made)
    return made


def save(catalog: spiral.Catalog, rows: int = ROWS, seed: int = 1) -> None:
    table = pa.table({"sample_id": [f"s{row}" for row in range(rows)], "x": [0.5] * rows})
    catalog.register("points", spiral.Arrow(table), identity="sample_id", replace=True)
    plan = catalog.table("points").sample(order=spiral.GlobalShuffle(seed=seed))
    fields = {"x": spiral.Stack("x", dtype="float32"), "sample_id": spiral.List("sample_id")}
    catalog.save_stream("points", plan.collate(batch_size=BATCH, fields=fields).to_numpy())


def train(catalog: spiral.Catalog, folder: Path, steps: int, model: torch.nn.Module | None = None) -> list[list[str]]:
    """Train to a step, and return what was delivered."""
    parts = {} if model is None else {"model": model}
    delivered = []
    with catalog.open_stream("points") as stream, TrainingRun(folder, stream, name="points") as run:
        run.resume(**parts)
        while run.step < steps:
            for batch in stream:
                delivered.append(list(batch["sample_id"]))
                run.record(1.0 / (run.step + 1), len(batch["sample_id"]))
                if run.step == steps:
                    break
        run.save(**parts)
        run.done({"weight": 1})
    return delivered


def test_what_a_model_saw_is_replayed_from_its_result(catalog: spiral.Catalog, tmp_path: Path) -> None:
    delivered = train(catalog, tmp_path / "run", 7) + train(catalog, tmp_path / "run", 13)

    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (told["steps"], told["processes"], told["weight"]) == (13, 2, 1)
    seen = list(samples_seen(catalog, told["samples_seen"]))
    assert [samples for _, _, samples in seen] == delivered
    assert [epoch for epoch, _, _ in seen] == [0] * 5 + [1] * 5 + [2] * 3


def test_the_code_on_a_models_page_replays_from_the_catalog_of_the_run(
    catalog: spiral.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delivered = train(catalog, tmp_path / "run", 7)
    _, page = model_page(dg.build_asset_context(), tmp_path / "run")
    code = re.sub(r"```\w*", "", str(page["replay"].value))

    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "another"))
    capsys.readouterr()
    exec(compile(code, "replay", "exec"), {})
    steps = capsys.readouterr().out.splitlines()
    assert len(steps) == 7
    assert all(str(sample) in line for samples, line in zip(delivered, steps, strict=True) for sample in samples)


def test_another_plan_or_other_data_is_refused_with_the_way_out(catalog: spiral.Catalog, tmp_path: Path) -> None:
    train(catalog, tmp_path / "run", 3)
    seen = json.loads((tmp_path / "run" / "result.json").read_text())["samples_seen"]

    save(catalog, rows=ROWS + 1)
    with pytest.raises(spiral.errors.ResumeError, match="Register the earlier data"):
        list(samples_seen(catalog, seen))
    save(catalog, seed=2)
    with pytest.raises(spiral.errors.ResumeError, match="Save the earlier plan"):
        list(samples_seen(catalog, seen))


def test_a_part_that_was_not_saved_is_named(catalog: spiral.Catalog, tmp_path: Path) -> None:
    train(catalog, tmp_path / "run", 3)

    with pytest.raises(spiral.errors.ResumeError, match="'model' was not saved"):
        train(catalog, tmp_path / "run", 4, torch.nn.Linear(1, 1))


def test_ranks_without_a_process_group_are_told_to_make_one(
    catalog: spiral.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(spiral.errors.StreamError, match="init_process_group"):
        train(catalog, tmp_path / "run", 1)

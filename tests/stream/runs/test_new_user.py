"""What somebody types who records a run for the first time: it works, or an error names the way out."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.commands.cli import app

ROWS: Final = 48
BATCHES: Final = 6


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    found = sp.connect(tmp_path / "catalog")
    tokens = [[k % 7] * (1 + k % 5) for k in range(ROWS)]
    table = pa.table({"id": range(ROWS), "x": np.arange(ROWS) / ROWS, "tokens": pa.array(tokens, pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "rows.parquet")
    found.register("rows", sp.Parquet(str(tmp_path / "rows.parquet")), identity="id")
    return found


def opened(catalog: sp.Catalog, form: str = "numpy", **fields: Any) -> Any:
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=1))
    plan = sampled.collate(batch_size=8, fields=fields or {"x": sp.Stack("x", dtype="float32")})
    return getattr(plan, f"to_{form}")()


# ---- nothing that was logged is lost


def test_closing_the_stream_writes_what_was_logged(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream:
        run = catalog.run("forgotten", stream)
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
    assert catalog.table("runs.forgotten").count() == ROWS
    assert catalog.run("forgotten").seen().samples == ROWS


@pytest.mark.parametrize("end", ["pass", "raise ValueError"])
def test_the_end_of_the_program_writes_what_was_logged(catalog: sp.Catalog, tmp_path: Path, end: str) -> None:
    program = f"""
import spiral_stream as sp
catalog = sp.connect("catalog")
def train():
    plan = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=1))
    stream = plan.collate(batch_size=8, fields={{"x": sp.Stack("x")}}).to_numpy()
    run = catalog.run("forgotten", stream)
    for batch in stream:
        run.log(batch=batch, loss=batch["x"])
    {end}
train()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ("ValueError" in done.stderr) == (end != "pass")
    assert catalog.table("runs.forgotten").count() == ROWS
    assert catalog.run("forgotten").seen().samples == ROWS


def test_a_run_that_is_open_is_read_as_it_stands(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream:
        run = catalog.run("live", stream)
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
        assert run.seen().samples == catalog.table("runs.live").count() == ROWS


def test_a_run_that_is_opened_in_each_epoch_goes_on(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream:
        for _ in range(3):
            with catalog.run("epochs", stream) as run:
                for batch in stream:
                    run.log(batch=batch, loss=batch["x"])
    assert catalog.run("epochs").seen().samples == catalog.table("runs.epochs").count() == 3 * ROWS
    last = catalog.sql('select max(step) as step from "runs.epochs"').to_arrow()["step"][0].as_py()
    assert last == 3 * BATCHES - 1


def test_another_run_of_the_stream_closes_the_first(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream:
        first = catalog.run("first", stream)
        loop = iter(stream)
        first.log(batch=next(loop), loss=1.0)
        loop.close()
        with catalog.run("second", stream) as second:
            for batch in stream:
                second.log(batch=batch, loss=batch["x"])
            with pytest.raises(sp.errors.RunError, match=r"catalog.run\('first', stream\), opened before the loop"):
                first.log(batch=batch, loss=1.0)
    assert catalog.run("first").seen().samples == catalog.table("runs.first").count() == 8
    assert catalog.run("second").seen().samples == catalog.table("runs.second").count() == ROWS - 8


# ---- what is refused says the way out


def test_a_run_is_opened_before_the_loop(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream:
        loop = iter(stream)
        next(loop)
        with pytest.raises(sp.errors.StreamError, match="Open the run before the loop begins"):
            catalog.run("late", stream)
        assert len(list(loop)) == BATCHES - 1


def test_nothing_is_logged_after_the_run_is_closed(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream:
        with catalog.run("closed", stream) as run:
            pass
        with pytest.raises(sp.errors.RunError, match="opened before the loop"):
            run.log(batch=next(iter(stream)), loss=1.0)


@pytest.mark.parametrize(
    ("values", "way_out"),
    [
        ({"id": 1.0}, "a name of letters, digits and _ of its own"),
        ({"loss": 1.0, "loss_sum": 2.0}, "a name of letters, digits and _ of its own"),
        ({"loss": 1.0, "loss_tokens": 2.0}, "a name of letters, digits and _ of its own"),
        ({"loss": [[1.0, 2.0], [3.0]]}, "an array, a tensor, a list, or one number"),
        ({"loss": 1.0, "mask": np.ones(8, np.bool_)}, "or no mask="),
    ],
)
def test_values_that_cannot_be_recorded_are_refused(catalog: sp.Catalog, values: Any, way_out: str) -> None:
    with opened(catalog) as stream, catalog.run("refused", stream) as run:
        batch = next(iter(stream))
        with pytest.raises(sp.errors.RunError, match=way_out):
            run.log(batch=batch, **values)
        run.log(batch=batch, loss=batch["x"])
    assert catalog.table("runs.refused").count() == 8


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_labels_are_no_mask(catalog: sp.Catalog, form: str) -> None:
    fields = {"ids": sp.Pad("tokens"), "labels": sp.ShiftedLabels("tokens")}
    with opened(catalog, form, **fields) as stream, catalog.run("masked", stream) as run:
        batch = next(iter(stream))
        with pytest.raises(sp.errors.RunError, match="labels != -100"):
            run.log(batch=batch, loss=batch["ids"] * 1.0, mask=batch["labels"])
        run.log(batch=batch, loss=batch["ids"] * 1.0, mask=batch["labels"] != -100)
    counted = catalog.sql('select sum(loss_tokens) as n from "runs.masked"').to_arrow()["n"][0].as_py()
    assert counted == int((batch["labels"] != -100).sum())


def test_a_value_may_be_named_as_a_sum(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream, catalog.run("sums", stream) as run:
        run.log(batch=next(iter(stream)), grad_sum=3.0, n_tokens=2)
    found = catalog.table("runs.sums").to_arrow()
    assert found["grad_sum"].to_pylist() == [3.0] * 8
    assert "grad" not in found.column_names


def test_an_attempt_has_a_legal_name(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream, pytest.raises(sp.errors.CatalogError, match="Rename it"):
        catalog.run("named", stream, attempt="monday 9/11")


@pytest.mark.parametrize("other", [lambda stream: stream.eval().take(1)[0], lambda stream: stream.batch(0)])
def test_a_batch_of_an_evaluation_is_not_logged(catalog: sp.Catalog, other: Callable[[Any], Any]) -> None:
    with opened(catalog) as stream, catalog.run("evaluated", stream) as run:
        batch = other(stream)
        with pytest.raises(sp.errors.RunError, match="Batches of an evaluation"):
            run.log(batch=batch, loss=1.0)


# ---- what a checkpoint and the command line know of a run


def test_a_state_finds_its_plan_in_the_run_that_saved_it(catalog: sp.Catalog, tmp_path: Path) -> None:
    with opened(catalog) as stream, catalog.run("saved", stream) as run:
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
        stream.seek(batch=3)
        state = json.loads(json.dumps(stream.state_dict()))
    assert catalog.seen(state).samples == 24
    (tmp_path / "state.json").write_text(json.dumps(state))
    place = ["--catalog", str(tmp_path / "catalog")]
    for words in (["seen", "saved"], ["seen", str(tmp_path / "state.json")], ["diff", "saved", "saved"]):
        done = CliRunner().invoke(app, [*words, *place])
        assert done.exit_code == 0, done.output
        assert all(line == line.rstrip() or len(line) < 200 for line in done.output.splitlines())


def test_the_table_outlives_the_relation(catalog: sp.Catalog) -> None:
    with opened(catalog) as stream, catalog.run("outlived", stream) as run:
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
    assert catalog.table("runs.outlived").count() == ROWS
    catalog.drop("rows")
    assert catalog.table("runs.outlived").filter(sp.col("loss") >= 0.5).count() == ROWS // 2


# ---- Trainer


@pytest.mark.parametrize("accumulated", [1, 3])
def test_trainer_records_the_loss_of_a_batch_whatever_it_accumulates(
    catalog: sp.Catalog, tmp_path: Path, accumulated: int
) -> None:
    pytest.importorskip("transformers")
    import torch
    from transformers import TrainingArguments

    from spiral_stream.adapters import StreamTrainer

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": super().forward(x[:, None]).mean() * 0 + 6.0}

    args = TrainingArguments(
        str(tmp_path / "out"), max_steps=2, gradient_accumulation_steps=accumulated, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    with opened(catalog, "torch") as stream, catalog.run("trained", stream) as run:
        trainer = StreamTrainer(Model(1, 1), args, train_dataset=stream, run=run)
        trainer.train()
    assert set(catalog.table("runs.trained").to_arrow()["loss"].to_pylist()) == {6.0}
    assert catalog.table("runs.trained").count() == 2 * accumulated * 8


def test_trainer_records_nothing_of_an_evaluation(catalog: sp.Catalog, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import torch
    from transformers import TrainingArguments

    from spiral_stream.adapters import StreamTrainer

    class Recording(StreamTrainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            losses = model(inputs["x"][:, None])[:, 0] ** 2
            self.record(loss=losses)
            return (losses.mean(), {"loss": losses.mean(), "x": losses}) if return_outputs else losses.mean()

    args = TrainingArguments(
        str(tmp_path / "out"), max_steps=2, eval_strategy="steps", eval_steps=1, eval_on_start=True, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, label_names=["x"],
    )  # fmt: skip
    with opened(catalog, "torch") as stream, opened(catalog, "torch") as other, catalog.run("evaluated", stream) as run:
        Recording(torch.nn.Linear(1, 1), args, train_dataset=stream, eval_dataset=other.eval(), run=run).train()
    assert catalog.table("runs.evaluated").count() == 16
    assert run.metrics()["duplicates"] == 0

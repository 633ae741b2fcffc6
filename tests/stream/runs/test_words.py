"""What a run says: what is printed is short, and an error names the way out that a user would type next."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    found = sp.connect(tmp_path / "catalog")
    table = pa.table({"sample_id": range(64), "x": np.arange(64, dtype=np.float32)})
    found.register("numbers", sp.Arrow(table), identity="sample_id")
    with stream_of(found) as stream, found.run("told", stream, attempt="a") as run:
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
        stream.set_epoch(3)
    return found


def stream_of(catalog: sp.Catalog, relation: str = "numbers") -> sp.PreparedStream:
    sampled = catalog.table(relation).sample(order=sp.GlobalShuffle(seed=3))
    return sampled.collate(batch_size=8, fields={"x": sp.Stack("x" if relation == "numbers" else "loss")}).to_numpy()


def test_a_run_is_printed_without_states_and_plans(catalog: sp.Catalog) -> None:
    run = catalog.run("told")
    assert "set_epoch" in str(run.history())
    assert "nothing" in str(run.attempts())
    for listed in (run.history(), run.legs(), run.attempts()):
        for text in (str(listed), repr(listed), *map(repr, listed), repr(listed[:1])):
            assert 20 < len(text) < 1_000
            assert "run_seed" not in text
        assert "<table" in listed._repr_html_()  # type: ignore[attr-defined]
    assert list(run.legs()) == run.legs()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda catalog, _: catalog.run("new", stream_of(catalog), every=0),
        lambda catalog, _: catalog.run("told", attempt="a"),
        lambda catalog, _: catalog.run("told", anew=True),
        lambda _, run: run.spikes(window=3),
        lambda _, run: run.spikes(limit=0),
        lambda _, run: run.outliers(limit=0),
        lambda _, run: run.outliers(least=0),
    ],
)
def test_a_wrong_argument_is_an_error_of_a_run(catalog: sp.Catalog, wrong: Any) -> None:
    with pytest.raises(sp.errors.RunError, match="Give "):
        wrong(catalog, catalog.run("told"))


@pytest.mark.parametrize(
    "verb",
    [
        lambda catalog: catalog.measure("runs.told").columns,
        lambda catalog: catalog.entry("runs.told").name,
        lambda catalog: catalog.explain("runs.told").to_dict(),
        lambda catalog: catalog.explain('"runs.told"').to_dict(),
        lambda catalog: catalog.verify("runs.told").rows,
        lambda catalog: catalog.page(catalog.root / "page.html", "runs.told").exists(),
        lambda catalog: catalog.measure("runs.told.a").columns,
    ],
)
def test_whatever_takes_a_relation_takes_a_run_that_nobody_has_read_yet(catalog: sp.Catalog, verb: Any) -> None:
    assert verb(sp.connect(catalog.root))


def test_a_state_over_a_run_that_moved_names_the_branch_that_does_not(catalog: sp.Catalog) -> None:
    with stream_of(catalog, "runs.told") as stream:
        state = stream.state_dict()
    with stream_of(catalog) as stream, catalog.run("told", stream, attempt="b", anew=True) as run:
        run.log(batch=next(iter(stream)), loss=1.0)
    said = r"a plan over a branch, runs\.told\.<attempt>, replays"
    with stream_of(catalog, "runs.told") as stream, pytest.raises(sp.errors.ResumeError, match=said):
        stream.load_state_dict(state)


def test_a_batch_without_a_key_names_what_a_trainer_writes(catalog: sp.Catalog) -> None:
    with stream_of(catalog) as stream, catalog.run("trained", stream) as run:
        batches = iter(stream)
        next(batches)
        batch = next(batches)
        with pytest.raises(
            sp.errors.RunError, match=r"compute_loss of a StreamTrainer write self\.record\(loss=losses\)"
        ):
            run.log(batch={**batch}, loss=1.0)
        with pytest.raises(
            sp.errors.RunError, match=r"compute_loss of a StreamTrainer write self\.record\(loss=losses\)"
        ):
            run.log(loss=1.0)


@pytest.mark.parametrize(
    ("of", "name", "said"),
    [
        ("relation", "measure", r"catalog\.measure\("),
        ("relation", "page", r"catalog\.page\("),
        ("catalog", "spikes", r'catalog\.run\("name"\)'),
        ("catalog", "record", r"\.log\(batch=batch, loss=losses\)"),
        ("stream", "set_proportions", r"\.decide\("),
        ("stream", "log", r"catalog\.run\("),
    ],
)
def test_names_of_other_libraries_are_answered(catalog: sp.Catalog, of: str, name: str, said: str) -> None:
    with stream_of(catalog) as stream:
        what = {"relation": catalog.table("numbers"), "catalog": catalog, "stream": stream}[of]
        with pytest.raises(AttributeError, match=said):
            getattr(what, name)


def test_a_weight_that_is_null_is_refused_with_what_leaves_it_out(catalog: sp.Catalog) -> None:
    weights = pa.table({"sample_id": range(4), "w": pa.array([1.0, None, 2.0, 0.0])})
    catalog.register("weights", sp.Arrow(weights), identity="sample_id")
    sampled = catalog.table("weights").sample(order=sp.orders.Weighted("w", seed=1))
    with pytest.raises(sp.errors.PlanError, match=r"missing or NaN.*filter the row out before sample"):
        sampled.collate(batch_size=2, fields={"id": sp.List("sample_id")}).to_numpy().take(1)

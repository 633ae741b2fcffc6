"""A plan over what a run measured: it reads one branch, which later attempts do not change, so that it replays."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as spiral

ROWS, BATCH = 120, 6
FIELDS = {"x": spiral.Stack("x", dtype="float32"), "id": spiral.List("id")}


def catalog_of(folder: Path) -> spiral.Catalog:
    made = spiral.connect(str(folder / "catalog"))
    x = np.random.default_rng(0).normal(size=ROWS)
    made.register("rows", spiral.Arrow(pa.table({"id": range(ROWS), "x": x})), identity="id")
    return made


@pytest.fixture
def catalog(tmp_path: Path) -> spiral.Catalog:
    return catalog_of(tmp_path)


def train(catalog: spiral.Catalog, steps: int, state: Any = None, scale: float = 1.0) -> tuple[str, dict[str, Any]]:
    """Record some steps; return the attempt, and the state after them."""
    plan = catalog.table("rows").sample(order=spiral.GlobalShuffle(seed=3)).collate(batch_size=BATCH, fields=FIELDS)
    with plan.to_numpy() as stream:
        if state is not None:
            stream.load_state_dict(state)
        with catalog.run("first", stream, anew=state is None) as run:
            while steps:
                for batch in stream:
                    run.log(batch=batch, loss=scale * np.abs(batch["x"]))
                    steps -= 1
                    if not steps:
                        break
            return run.attempt, stream.state_dict()


def by_loss(catalog: spiral.Catalog, records: str) -> spiral.Relation:
    """The rows that a branch measured, those with much loss more often."""
    judged = catalog.table(records).group_by("id").aggregate(loss=("loss", "avg"))
    order = spiral.orders.Weighted("loss", seed=5)
    return (
        catalog.table("rows")
        .join(judged, on="id")
        .filter("loss > 0.1")
        .sample(order=order)
        .collate(batch_size=BATCH, fields=FIELDS)
    )


def ids(stream: spiral.PreparedStream) -> list[list[int]]:
    with stream:
        return [list(batch["id"]) for batch in stream]


@settings(max_examples=4)
@given(first=st.integers(3, 45), more=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), min_size=1, max_size=3))
def test_a_plan_over_a_branch_replays_whatever_the_run_records_later(
    tmp_path_factory: pytest.TempPathFactory, first: int, more: list[tuple[bool, int]]
) -> None:
    catalog = catalog_of(tmp_path_factory.mktemp("branch"))
    attempt, state = train(catalog, first)
    plan = by_loss(catalog, f"runs.first.{attempt}")
    catalog.save_stream("hard", plan.to_numpy())
    expected = ids(plan.to_numpy())
    with plan.to_numpy() as stream:
        begun = stream.state_dict()

    for resumes, steps in more:
        train(catalog, steps, state if resumes else None, scale=7.0)
        assert catalog.table("runs.first").count() == (first * resumes + steps) * BATCH
        assert catalog.table(f"runs.first.{attempt}").count() == first * BATCH
        with catalog.open_stream("hard") as stream:
            stream.load_state_dict(begun)
            assert [list(batch["id"]) for batch in stream] == expected


def test_a_state_over_the_trained_branch_is_refused_once_the_run_went_on(catalog: spiral.Catalog) -> None:
    train(catalog, 40)
    moving = by_loss(catalog, "runs.first")
    with moving.to_numpy() as stream:
        state, before = stream.state_dict(), stream.data_versions["runs.first"]
        train(catalog, 40, scale=7.0)
        assert catalog.table("runs.first").count() == 40 * BATCH
        assert stream.data_versions["runs.first"] == before  # what is open stays as it is
    with (
        moving.to_numpy() as stream,
        pytest.raises(spiral.errors.ResumeError, match=r"runs\.first \(.* -> .*start a new epoch"),
    ):
        stream.load_state_dict(state)


def test_a_run_does_not_train_from_the_records_that_it_makes(catalog: spiral.Catalog) -> None:
    attempt, _ = train(catalog, 20)
    with (
        by_loss(catalog, "runs.first").to_numpy() as stream,
        pytest.raises(spiral.errors.RunError, match="another run"),
    ):
        catalog.run("first", stream)
    with by_loss(catalog, f"runs.first.{attempt}").to_numpy() as stream, catalog.run("second", stream) as run:
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
    assert catalog.table("runs.second").filter("epoch = 0").count() > 0


def test_the_oldest_come_first_and_new_rows_have_no_loss(catalog: spiral.Catalog) -> None:
    attempt, _ = train(catalog, 12)  # of 20 steps of the epoch
    last = catalog.sql(f'select id, max(step) as last_step from "runs.first.{attempt}" group by id')
    oldest = catalog.table("rows").join(last, on="id").sort("last_step").sample(order=spiral.Sequential())
    with oldest.collate(batch_size=BATCH, fields=FIELDS).to_numpy() as stream:
        order = [sample for batch in range(12) for sample in stream.ledger(batch)]
    steps = {row["id"]: row["last_step"] for row in last.to_arrow().to_pylist()}
    assert [steps[each] for each in order] == sorted(steps.values())

    new = catalog.table("rows").join(last, on="id", how="left").filter(spiral.col("last_step").is_null())
    assert new.count() == ROWS - 12 * BATCH

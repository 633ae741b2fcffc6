"""Wrong labels in rows that a classifier really learns: the run names them, and goes on without them from before.

By day 10,000 rows; at night 50,000, as a team would have them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spiral_stream as spiral
from tests.fixtures.poisoned import BATCH, SHARD_ROWS, Classifier, Poisoned, plan_of, poisoned, trained

SIZES = [10_000, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]


@pytest.mark.parametrize("rows", SIZES)
def test_scattered_wrong_labels_are_among_the_first_outliers(tmp_path: Path, rows: int) -> None:
    data = poisoned(tmp_path, rows, scattered=20)
    with plan_of(data, spiral.GlobalShuffle(seed=17)).to_torch() as stream:
        run = data.catalog.run("scattered", stream)
        for _ in trained(stream, run, Classifier(), epochs=3):
            pass
        run.close()

    found = run.outliers()

    assert len(set(found.table.column("sample_id").to_pylist()) & data.bad_ids) >= 18
    assert len(found) <= 25
    assert set(found.table.column("occurrences").to_pylist()) == {3}


@pytest.mark.parametrize("rows", SIZES)
def test_a_bad_shard_is_named_with_its_steps_and_the_run_goes_on_without_it(tmp_path: Path, rows: int) -> None:
    data = poisoned(tmp_path, rows, shard=rows // SHARD_ROWS * 7 // 10)
    states, curve, batches = dict[int, Any](), list[float](), list[Any]()
    with plan_of(data, order()).to_torch() as stream:
        run, model = data.catalog.run("clustered", stream), Classifier()
        for step, (batch, loss) in enumerate(trained(stream, run, model)):
            curve.append(loss)
            batches.append(taken(batch))
            if step % 20 == 19:
                states[step + 1] = stream.state_dict(), model.state()
        run.close()

    spike = run.spikes()[0]

    (at,) = {steps_of(data, batches)}
    assert (spike.first_step, spike.last_step) == at
    first = spike.shards.to_pylist()[0]
    assert (first["name"], first["rows"]) == (f"part-{rows // SHARD_ROWS * 7 // 10:04}", SHARD_ROWS)
    assert first["share"] > 0.95
    (without,) = spike.filters
    left = data.catalog.table("rows").filter(without.condition).to_arrow().column("sample_id").to_pylist()
    assert set(data.table.column("sample_id").to_pylist()) - set(left) == data.bad_ids

    state, trained_state = states[max(each for each in states if each <= spike.first_step)]
    with plan_of(data, order()).to_torch() as stream:
        stream.load_state_dict(state)
        for skip in spike.skips:
            stream.skip(**skip.arguments)
        again, model = data.catalog.run("clustered", stream), Classifier()
        model.load(trained_state)
        went_on = [(taken(batch), loss) for batch, loss in trained(stream, again, model)]
        again.close()

    begin = max(each for each in states if each <= spike.first_step)
    others = [k for k in range(begin, len(batches)) if not spike.first_step <= k <= spike.last_step]
    assert len(went_on) == len(others)
    for (batch, _), k in zip(went_on, others, strict=True):
        assert batch == batches[k]
    after = [loss for _, loss in went_on][spike.first_step - begin :][:5]
    assert max(after) < 0.5 * max(curve[spike.first_step : spike.last_step + 1])
    assert len(again.attempts()) == 2
    assert again.spikes().found[:1] == () or again.spikes()[0].score < 0.2 * spike.score


def order() -> Any:
    return spiral.orders.ShardAwareShuffle(seed=3, shuffle_block_size=4 * BATCH)


def taken(batch: Any) -> tuple[bytes, bytes, tuple[str, ...]]:
    """The bytes of a batch."""
    return batch["x"].numpy().tobytes(), batch["label"].numpy().tobytes(), tuple(batch["id"])


def steps_of(data: Poisoned, batches: list[Any]) -> tuple[int, int]:
    """The first and the last step that had a row with a wrong label."""
    found = [k for k, (_, _, ids) in enumerate(batches) if data.bad_ids & set(ids)]
    return found[0], found[-1]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_run_without_wrong_labels_names_few(tmp_path: Path) -> None:
    """What stands out of clean rows lies between the classes: its score is far below that of wrong labels."""
    data = poisoned(tmp_path, 10_000)
    with plan_of(data, spiral.GlobalShuffle(seed=17)).to_torch() as stream:
        run = data.catalog.run("clean", stream)
        for _ in trained(stream, run, Classifier(), epochs=2):
            pass
        run.close()

    assert np.median(run.outliers(lowest=0.1).table.column("score").to_numpy()) < 30

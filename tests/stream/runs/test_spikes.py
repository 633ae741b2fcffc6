"""Steps that stand out, and who carries them: against a count by hand, and whatever the order of the records."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as spiral
from tests.fixtures.run_tables import run_table, run_tables, spikes_in
from tests.stream.runs.test_outliers import same_digits

NEAR, FIRST, LEAST = 16, 8, 16


def after(before: list[float]) -> float:
    """What comes after some means: their median, along the trend of the later half over the earlier one."""
    width = len(before)
    half = width // 2
    slope = (float(np.median(before[width - half :])) - float(np.median(before[:half]))) / (width - half)
    return (
        float(np.median([value - slope * (k - (width - 1) / 2) for k, value in enumerate(before)]))
        + slope * (width + 1) / 2
    )


def scores_of(means: list[float], counts: list[int], window: int, lowest: float) -> list[float]:
    """The score of every step, one after the other."""
    out, errors, usual, lasts = list[float](), list[float](), list(means), 0
    for at, mean in enumerate(means):
        score = 0.0
        if at >= FIRST:
            ahead = after(usual[max(0, at - NEAR) : at])
            recent = errors[-window:]
            if len(recent) >= LEAST:
                middle = float(np.median(recent))
                away = [each - middle for each in recent]
                scale = max(1.4826 * float(np.median(np.abs(away))), float(np.quantile(away, 0.9)) / 1.2816)
                scale *= math.sqrt(max(1.0, float(np.median(counts[at - len(recent) : at])) / counts[at]))
                expected = ahead + middle
                scale = max(scale, 1e-3 * abs(expected))
                score = (mean - expected) / scale if scale > 0 else 0.0
            lasts = lasts + 1 if score >= lowest else 0
            if 0 < lasts <= window:
                usual[at] = float(np.median(usual[at - NEAR : at]))
            errors.append(usual[at] - ahead)
        out.append(score)
    return out


def scores_by_hand(table: pa.Table, window: int, lowest: float) -> list[tuple[int, float, float]]:
    """Step, mean and score of each."""
    steps: dict[int, list[float]] = {}
    for step, loss in zip(table.column("step").to_pylist(), table.column("loss").to_pylist(), strict=True):
        steps.setdefault(step, []).append(loss)
    finite = {step: [each for each in steps[step] if math.isfinite(each)] for step in sorted(steps)}
    known = [step for step, values in finite.items() if values]
    means, counts = [sum(finite[step]) / len(finite[step]) for step in known], [len(finite[step]) for step in known]
    scores = dict(zip(known, zip(means, scores_of(means, counts, window, lowest), strict=True), strict=True))
    out = []
    for step in sorted(steps):
        mean, score = scores.get(step, (math.nan, 0.0))
        out.append((step, mean, math.inf if len(finite[step]) < len(steps[step]) else score))
    return out


@settings(deadline=None)
@given(table=run_tables(), window=st.sampled_from([16, 20, 64]))
def test_scores_are_those_that_are_counted_by_hand(table: pa.Table, window: int) -> None:
    found = spikes_in(table, window=window, lowest=2.0).steps

    by_hand = scores_by_hand(table, window, 2.0)
    assert found.column("step").to_pylist() == [step for step, _, _ in by_hand]
    assert found.column("mean").fill_null(math.nan).to_pylist() == pytest.approx(
        [mean for _, mean, _ in by_hand], nan_ok=True
    )
    assert found.column("score").to_pylist() == pytest.approx([score for _, _, score in by_hand], rel=1e-6, abs=1e-6)


@settings(deadline=None)
@given(table=run_tables())
def test_shares_sum_to_one_and_rows_are_those_of_the_steps(table: pa.Table) -> None:
    rows = table.to_pylist()
    for spike in spikes_in(table, lowest=2.0, limit=100):
        inside = [row for row in rows if spike.first_step <= row["step"] <= spike.last_step]
        assert spike.rows == len(inside)
        assert spike.not_finite == sum(not math.isfinite(row["loss"]) for row in inside)
        assert spike.applied == all(row["applied"] for row in inside)
        assert set(spike.batches) == {(row["epoch"], row["batch"]) for row in inside}
        by_stream = {row["stream"]: row["rows"] for row in spike.streams.to_pylist()}
        assert by_stream == {name: sum(row["stream"] == name for row in inside) for name in by_stream}
        for shared in (spike.streams, spike.shards):
            assert sum(shared.column("rows").to_pylist()) == len(inside)
            shares = shared.column("share").to_pylist()
            if shares[0] is not None:
                assert sum(shares) == pytest.approx(1.0, abs=1e-6)
                assert shares == sorted(shares, reverse=True)
        lost = {row["sample_id"] for row in inside if not math.isfinite(row["loss"])}
        assert {row["sample_id"] for row in spike.samples.to_pylist() if row["not_finite"]} == lost


@settings(deadline=None)
@given(table=run_tables(), seed=st.integers(0, 99), batch=st.sampled_from([1, 7, 64]))
def test_neither_the_order_of_records_nor_their_parts_matter(table: pa.Table, seed: int, batch: int) -> None:
    mixed = table.take(np.random.default_rng(seed).permutation(len(table)))

    first, second = spikes_in(table, lowest=2.5), spikes_in(mixed, batch=batch, lowest=2.5)

    assert same_digits(first.steps.to_pylist()) == same_digits(second.steps.to_pylist())
    assert [each.steps_text for each in first] == [each.steps_text for each in second]
    for a, b in zip(first, second, strict=True):
        assert a.batches == b.batches
        assert sorted(map(str, same_digits(a.streams.to_pylist()))) == sorted(
            map(str, same_digits(b.streams.to_pylist()))
        )


@pytest.fixture(scope="module")
def quiet() -> pa.Table:
    """300 steps of 64 rows in shards of 64; the loss falls, and nothing stands out."""
    numbers = np.random.default_rng(3)
    step = np.repeat(np.arange(300), 64)
    loss = 2.0 * np.exp(-step / 60) + numbers.exponential(0.4, len(step))
    return run_table(step, np.arange(len(step)), loss, shard=np.arange(len(step)) // 64, epoch=step // 200)


def changed(table: pa.Table, rows: Any, by: float) -> pa.Table:
    loss = table.column("loss").to_numpy().copy()
    loss[rows] += by
    return table.set_column(table.column_names.index("loss"), "loss", pa.array(loss))


def test_a_falling_loss_has_no_spike(quiet: pa.Table) -> None:
    found = spikes_in(quiet)

    assert len(found) == 0
    assert str(found) == "run drawn: 0 spikes of loss in 300 steps"


def test_a_step_of_bad_rows_is_named_with_its_shard(quiet: pa.Table) -> None:
    table = changed(quiet, np.arange(250 * 64 + 5, 250 * 64 + 55), 8.0)

    (spike,) = spikes_in(table, shards=[f"part-{k:04}" for k in range(300)])

    assert (spike.first_step, spike.last_step, spike.peak_step) == (250, 250, 250)
    first = spike.shards.to_pylist()[0]
    assert (first["shard"], first["name"], first["share"] > 0.95) == (250, "part-0250", True)
    assert {row["row"] for row in spike.samples.to_pylist()[:50]} == set(range(250 * 64 + 5, 250 * 64 + 55))
    assert [each.arguments for each in spike.skips] == [{"batches": [250], "epoch": 1}]
    assert [str(each) for each in spike.filters] == [
        "catalog.table('rows').filter(col('storage_shard') != 'part-0250')"
    ]


def test_one_bad_row_is_named_and_its_shard_stays(quiet: pa.Table) -> None:
    table = changed(quiet, [250 * 64 + 5], 300.0)

    (spike,) = spikes_in(table, shards=[f"part-{k:04}" for k in range(300)])

    assert spike.culprits.column("sample_id").to_pylist() == ["s16005"]
    assert "1 sample carries most of it, of 64 rows" in str(spike.carriers())
    assert [str(each) for each in spike.filters] == [
        "catalog.table('rows').filter(~col('sample_id').is_in(['s16005']))"
    ]
    assert spike.skip_samples.arguments == {"identities": ["s16005"]}


def test_a_rise_of_all_rows_is_nobodys(quiet: pa.Table) -> None:
    step = quiet.column("step").to_numpy()
    table = quiet.set_column(
        quiet.column_names.index("shard"), "shard", pa.array(np.arange(len(step)) % 16, pa.int32())
    )

    (spike,) = spikes_in(changed(table, np.flatnonzero((step >= 100) & (step < 104)), 2.0))

    assert (spike.first_step, spike.last_step) == (100, 103)
    assert spike.carriers() == ["it is spread over its rows: no shard and no few samples carry it"]
    assert spike.filters == ()
    assert spike.skip_samples is None
    assert str(spike.skips[0]) == "stream.skip(batches=range(100, 104), epoch=0)"


def test_a_spike_of_many_steps_ends_where_it_ends(quiet: pa.Table) -> None:
    step = quiet.column("step").to_numpy()

    (spike,) = spikes_in(changed(quiet, np.flatnonzero((step >= 100) & (step < 115)), 2.0))

    assert (spike.first_step, spike.last_step) == (100, 114)


def test_a_spike_on_a_steep_slope_is_seen() -> None:
    """The loss falls to a tenth within 40 steps; a step on the way lies where the loss was 10 steps before."""
    step = np.repeat(np.arange(60), 64)
    loss = 3.0 * np.exp(-step / 16) + np.random.default_rng(0).normal(0.0, 0.1, len(step)) + 0.6 * (step == 36)

    (spike,) = spikes_in(run_table(step, np.arange(len(step)), loss))

    assert (spike.first_step, spike.last_step) == (36, 36)


def test_a_value_that_is_no_number_is_a_spike_even_in_the_first_step(quiet: pa.Table) -> None:
    (spike,) = spikes_in(changed(quiet, [7], math.nan))

    assert spike.score == math.inf
    assert spike.culprits.column("row").to_pylist() == [7]
    assert spike.streams.column("share").to_pylist() == [1.0]
    assert "1 of 64 values of loss are not finite" in spike.text("loss")


def test_a_step_that_was_not_applied_says_so(quiet: pa.Table) -> None:
    step = quiet.column("step").to_numpy()
    table = changed(quiet, np.arange(250 * 64, 250 * 64 + 50), 8.0)
    table = table.set_column(table.column_names.index("applied"), "applied", pa.array(step != 250))

    (spike,) = spikes_in(table)

    assert not spike.applied
    assert spike.text("loss").endswith("; not applied")


def test_a_small_last_step_is_no_spike(quiet: pa.Table) -> None:
    """The mean of two rows scatters more than the mean of 64."""
    end = run_table(np.full(2, 300), [90_000, 90_001], [1.6, 1.3])
    end = end.set_column(end.column_names.index("shard"), "shard", pa.array([0, 0], pa.int32()))

    assert len(spikes_in(pa.concat_tables([quiet, end], promote_options="permissive").unify_dictionaries())) == 0


def test_spikes_of_two_epochs_are_skipped_by_epoch(quiet: pa.Table) -> None:
    step = quiet.column("step").to_numpy()

    (spike,) = spikes_in(changed(quiet, np.flatnonzero((step >= 199) & (step < 201)), 4.0))

    assert [each.arguments for each in spike.skips] == [{"batches": [199], "epoch": 0}, {"batches": [200], "epoch": 1}]


def test_a_table_without_rows_says_so() -> None:
    found = spikes_in(run_table([], [], []))

    assert len(found) == 0
    assert "Train some steps" in str(found)


def test_a_tiny_run_says_so() -> None:
    found = spikes_in(run_table([0, 1, 2], [1, 2, 3], [0.5, 0.5, 90.0]))

    assert len(found) == 0
    assert "3 steps with a loss are too few: a step is compared with 24 before it. Train on" in str(found)


@pytest.mark.parametrize(
    ("knobs", "way_out"),
    [
        ({"value": "lss"}, "did you mean loss? Name one of them"),
        ({"limit": 0}, "Give how many spikes, from 1 to 1,000"),
        ({"window": 3}, "Give steps of the window before, from 16 to 100,000"),
        ({"lowest": 0}, "Give a score above 0"),
    ],
)
def test_wrong_arguments_name_the_way_out(quiet: pa.Table, knobs: dict[str, Any], way_out: str) -> None:
    with pytest.raises(spiral.SpiralError) as caught:
        spikes_in(quiet, **knobs)

    assert way_out in str(caught.value)
    assert str(caught.value).startswith("spikes: ")

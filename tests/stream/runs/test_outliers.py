"""Samples that stand out: against a count by hand, and whatever the order, the parts and the ranks of the records."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as spiral
from tests.fixtures.run_tables import outliers_in, run_table, run_tables, spikes_in

MIDDLE, SCALE, MOST = 16, 1_024, 100.0


def windows_by_hand(counts: list[int], least: int) -> list[list[int]]:
    """Steps, taken together until they have enough rows; the rest joins those before it."""
    out, here = [], []
    for at, _ in enumerate(counts):
        here.append(at)
        if sum(counts[k] for k in here) >= least:
            out.append(here)
            here = []
    if here and out:
        out[-1] += here
    elif here:
        out.append(here)
    return out


def scores_by_hand(table: pa.Table) -> dict[tuple[str, int], tuple[float, int]]:
    """Score and occurrences of every sample with evidence, by stream and row."""
    rows = table.to_pylist()
    found: dict[tuple[str, int], list[float]] = {}
    for stream in {row["stream"] for row in rows}:
        mine = [row for row in rows if row["stream"] == stream]
        steps = sorted({row["step"] for row in mine})
        values = [
            [math.inf if math.isnan(row["loss"]) else row["loss"] for row in mine if row["step"] == s] for s in steps
        ]
        middles = windows_by_hand([len(each) for each in values], MIDDLE)
        held = [[value for at in middle for value in values[at]] for middle in middles]
        centres = [middle_of(each) for each in held]
        scopes = windows_by_hand([len(each) for each in held], SCALE)
        scales = dict[int, float]()
        for scope in scopes:
            residuals = [v - centres[m] for m in scope if math.isfinite(centres[m]) for v in held[m]]
            scales |= dict.fromkeys(scope, scale_of(residuals))
        finite = [scales[m] for m, c in enumerate(centres) if math.isfinite(c) and math.isfinite(scales[m])]
        least = 0.01 * float(np.median(finite)) if finite else math.nan
        for m, middle in enumerate(middles):
            if len(held[m]) < MIDDLE or not math.isfinite(centres[m]) or not math.isfinite(scales[m]):
                continue
            scale = max(scales[m], least)
            for row in mine:
                if row["step"] in {steps[at] for at in middle}:
                    value = math.inf if math.isnan(row["loss"]) else row["loss"]
                    away = value - centres[m]
                    z = away / scale if scale > 0 else math.copysign(math.inf, away) if away else 0.0
                    found.setdefault((stream, row["row"]), []).append(max(-MOST, min(MOST, z)))
    return {key: (sum(zs) / (len(zs) + 1), len(zs)) for key, zs in found.items()}


def middle_of(values: list[float]) -> float:
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else (low + high) / 2


def scale_of(residuals: list[float]) -> float:
    if not residuals:
        return math.nan
    ordered, count = sorted(residuals), len(residuals)
    spread = 1.4826 * middle_of([abs(each) for each in residuals])
    for least, share, deviations in ((512, 0.99, 2.3263), (40, 0.95, 1.6449)):
        tail = ordered[math.ceil(share * count) - 1]
        if count >= least and math.isfinite(tail):
            return max(spread, tail / deviations)
    return spread


@settings(deadline=None)
@given(table=run_tables(), lowest=st.sampled_from([0.5, 3.0]))
def test_scores_are_those_that_are_counted_by_hand(table: pa.Table, lowest: float) -> None:
    expected = {key: each for key, each in scores_by_hand(table).items() if each[0] >= lowest - 1e-3}

    found = outliers_in(table, limit=100_000, lowest=lowest)

    rows = found.table.to_pylist()
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert {(row["stream"], row["row"]) for row in rows} >= {
        k for k, each in expected.items() if each[0] >= lowest + 1e-3
    }
    for row in rows:
        score, occurrences = expected[(row["stream"], row["row"])]
        assert (row["score"], row["occurrences"]) == (pytest.approx(score, abs=1e-3), occurrences)
        assert row["sample_id"] == f"s{row['row']}"
    assert found.standing_out == len(rows)


@settings(deadline=None)
@given(table=run_tables(), data=st.data())
def test_neither_the_order_of_records_nor_their_parts_nor_ranks_matter(table: pa.Table, data: st.DataObject) -> None:
    mixed = table.take(np.random.default_rng(data.draw(st.integers(0, 99))).permutation(len(table)))
    ranks = pa.array(np.random.default_rng(1).integers(0, 8, len(table)), pa.int32())
    mixed = mixed.set_column(mixed.column_names.index("rank"), "rank", ranks)

    first = outliers_in(table, lowest=0.5)
    second = outliers_in(mixed, batch=data.draw(st.sampled_from([1, 7, 64])), lowest=0.5)

    rounded = [same_digits(each.table.to_pylist()) for each in (first, second)]
    assert rounded[0] == rounded[1]
    assert same_digits(first.shards.to_pylist()) == same_digits(second.shards.to_pylist())


def same_digits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with means as far as sums of floats say the same in any order."""
    return [{k: float(f"{v:.9g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]


@pytest.fixture(scope="module")
def noisy() -> pa.Table:
    """Three passes over 6,000 rows in steps of 60, seven of which are always 9 higher."""
    numbers = np.random.default_rng(5)
    row = np.concatenate([numbers.permutation(6_000) for _ in range(3)])
    step = np.arange(len(row)) // 60
    loss = numbers.exponential(1.0, len(row)) + 4.0 / (1 + step / 50)
    return run_table(step, row, loss + 9.0 * (row % 900 == 17))


def test_samples_that_are_always_higher_come_first(noisy: pa.Table) -> None:
    found = outliers_in(noisy)

    assert {row["row"] for row in found.table.to_pylist()[:7]} == {17, 917, 1817, 2717, 3617, 4517, 5417}
    assert found.table.column("occurrences").to_pylist()[:7] == [3] * 7


def test_one_surprise_weighs_less_than_three(noisy: pa.Table) -> None:
    loss = noisy.column("loss").to_numpy().copy()
    loss[0] += 9.0
    once = noisy.column("row")[0].as_py()
    table = noisy.set_column(noisy.column_names.index("loss"), "loss", pa.array(loss))

    found = outliers_in(table, limit=1_000, lowest=0.5).table.column("row").to_pylist()

    assert once not in found or found.index(once) >= 7


def test_a_value_that_is_no_number_stands_out_and_moves_no_others(noisy: pa.Table) -> None:
    loss = noisy.column("loss").to_numpy().copy()
    at = np.flatnonzero(noisy.column("row").to_numpy() == 4)
    loss[at] = np.nan
    table = noisy.set_column(noisy.column_names.index("loss"), "loss", pa.array(loss))

    found = outliers_in(table)

    first = found.table.to_pylist()[0]
    assert (first["row"], first["not_finite"], first["mean"]) == (4, 3, None)
    assert {row["row"] for row in found.table.to_pylist()[1:8]} == {17, 917, 1817, 2717, 3617, 4517, 5417}


def test_a_stream_is_compared_with_itself() -> None:
    """All rows of one stream are higher than any of the other: none of them stands out."""
    numbers = np.random.default_rng(0)
    step = np.repeat(np.arange(100), 40)
    stream = np.tile(np.repeat(["low", "high"], 20), 100)
    loss = numbers.normal(1.0, 0.1, len(step)) + 5.0 * (stream == "high")

    assert len(outliers_in(run_table(step, np.arange(len(step)), loss, stream))) == 0


def test_a_shard_whose_rows_lie_higher_comes_first() -> None:
    numbers = np.random.default_rng(0)
    row = numbers.permutation(5_000)
    step = np.arange(5_000) // 50
    loss = numbers.exponential(1.0, 5_000) + 3.0 * (row // 50 == 31)

    found = outliers_in(run_table(step, row, loss, shard=row // 50))

    assert found.shards.to_pylist()[0]["shard"] == 31


def test_it_says_how_to_go_on_and_how_to_leave_them_out(noisy: pa.Table) -> None:
    found = outliers_in(noisy, limit=2)

    identities = found.table.column("sample_id").to_pylist()
    assert found.skip.arguments == {"identities": identities}
    assert f"stream.skip(identities={identities})" in str(found)
    (each,) = found.filters
    assert str(each) == f"catalog.table('rows').filter(~col('sample_id').is_in({identities}))"
    left = spiral.sources.passing(noisy, each.condition, ["sample_id"]).column("sample_id").to_pylist()
    assert set(left) == set(noisy.column("sample_id").to_pylist()) - set(identities)


def test_a_table_without_rows_says_so() -> None:
    found = outliers_in(run_table([], [], []))

    assert len(found) == 0
    assert found.skip is None
    assert "Train some steps" in str(found)


def test_too_few_values_say_so() -> None:
    found = outliers_in(run_table([0, 0, 1], [1, 2, 3], [0.5, 0.5, 90.0]))

    assert len(found) == 0
    assert "3 values of loss in 2 steps are too few to compare" in found.note
    assert "Train on" in found.note


@pytest.mark.parametrize(
    ("knobs", "way_out"),
    [
        ({"value": "los"}, "did you mean loss? Name one of them"),
        ({"limit": 0}, "Give how many samples, from 1 to 100,000"),
        ({"least": 0}, "Give how many occurrences, from 1 up"),
        ({"lowest": -1.0}, "Give a score above 0 and below 100"),
        ({"lowest": "high"}, "Give a score above 0 and below 100"),
    ],
)
def test_wrong_arguments_name_the_way_out(noisy: pa.Table, knobs: dict[str, Any], way_out: str) -> None:
    with pytest.raises(spiral.SpiralError) as caught:
        outliers_in(noisy, **knobs)

    assert way_out in str(caught.value)
    assert str(caught.value).startswith("outliers: ")


@pytest.mark.parametrize(("seed", "population"), [(1, 2_000), (2, 900_000)])
def test_what_spills_changes_no_answer(seed: int, population: int) -> None:
    """The engine has 4 GB, and 100 MB, which these rows do not fit."""
    draw = np.random.default_rng(seed)
    rows = 1_000_000
    step, row = np.repeat(np.arange(rows // 1_000), 1_000), draw.permutation(rows) % population
    loss = draw.exponential(1.0, rows).astype(np.float32) + 9 * (row % 997 == 3)
    table, stream = run_table(step, row, loss, stream=np.array(["a", "b"])[row % 2]), ("a", "b")
    found = []
    for limit in (4 * 10**9, 10**8):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SPIRAL_SQL_MEMORY_BYTES", str(limit))
            found.append((outliers_in(table, 65_536), spikes_in(table, 65_536)))
    (outliers, spikes), (again, spikes_again) = found

    assert outliers.sources.streams == stream
    assert len(outliers)
    assert (outliers.table, outliers.shards, outliers.standing_out) == (again.table, again.shards, again.standing_out)
    assert spikes.steps == spikes_again.steps

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream import GlobalShuffle, Sequential
from spiral_stream.errors import PlanError
from spiral_stream.orders import Population
from spiral_stream.sampling.orders.shuffle import permute_clumps, unpermute_clumps

quick = settings(deadline=None, max_examples=60, derandomize=True)


@quick
@given(size=st.integers(1, 3_000), clump_size=st.integers(1, 400), key=st.integers(0, 2**64 - 1))
def test_clumps_are_runs_from_zero_laid_end_to_end(size: int, clump_size: int, key: int) -> None:
    places = np.arange(size, dtype=np.uint64)

    values = permute_clumps(places, size, np.uint64(key), clump_size)

    runs = [list(range(at, min(at + clump_size, size))) for at in range(0, size, clump_size)]
    laid, at = [], 0
    while at < size:
        run = runs[int(values[at]) // clump_size]
        laid += run
        at += len(run)
    assert values.tolist() == laid
    assert np.array_equal(np.sort(values), places)
    assert np.array_equal(unpermute_clumps(values, size, np.uint64(key), clump_size), places)


def test_the_short_clump_lands_anywhere() -> None:
    keys = np.arange(4_000, dtype=np.uint64)

    first = permute_clumps(np.zeros(keys.size, dtype=np.uint64), np.full(keys.size, 21, dtype=np.uint64), keys, 10)

    counts = np.bincount(first.astype(np.int64) // 10, minlength=3)
    assert np.abs(counts - 4_000 / 3).max() < 4 * np.sqrt(4_000 * 2 / 9)


def test_a_global_shuffle_of_ten_billion_rows_needs_no_table() -> None:
    population = Population(np.array([10**10], dtype=np.uint64), np.zeros(1, dtype=np.uint64))
    arrangement = GlobalShuffle(3).arrange(population, 0)
    positions = np.arange(10**10 - 1_000, 10**10, dtype=np.uint64)

    rows = arrangement.rows(positions)

    assert int(rows.min()) < 10**8  # 1,000 uniform draws
    assert int(rows.max()) > 99 * 10**8
    assert np.array_equal(arrangement.positions(rows), positions)


def test_sequential_hands_out_copies() -> None:
    population = Population(np.array([10], dtype=np.uint64), np.zeros(1, dtype=np.uint64))
    positions = np.arange(10, dtype=np.uint64)

    rows = Sequential().arrange(population, 4).rows(positions)
    rows[0] = 7

    assert positions[0] == 0
    assert Sequential().run_seed == 0


@pytest.mark.parametrize("wrong", [{"seed": "1"}, {"seed": 1, "clump_size": 0}, {"seed": 1, "clump_size": 2.0}])
def test_a_wrong_parameter_is_refused_at_birth(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="Give an integer"):
        GlobalShuffle(**wrong)

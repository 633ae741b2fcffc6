"""Shares and drift: laws of the measures, and what chance alone gives."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog.statistics.drift import concentration, drift, explained, tenths, tenths_by_chance

codes = st.lists(st.integers(0, 6), min_size=10, max_size=80).map(np.array)


@given(codes=codes)
def test_effective_values_lie_between_one_and_their_number_and_the_index_is_the_chance_of_agreeing(
    codes: np.ndarray,
) -> None:
    found = concentration(codes)
    agree = np.mean(codes[:, None] == codes[None, :])

    assert found.values == len(set(codes.tolist()))
    assert 1 - 1e-9 <= found.effective <= found.values + 1e-9
    assert found.index == pytest.approx(agree)
    assert found.largest_rows == int((codes == found.largest).sum()) == max(np.bincount(codes))
    assert found.largest_rows <= found.ten_rows <= found.rows == len(codes)


@given(count=st.integers(1, 30), each=st.integers(1, 5))
def test_equal_shares_count_fully(count: int, each: int) -> None:
    found = concentration(np.repeat(np.arange(count), each))

    assert found.effective == pytest.approx(count)
    assert found.index == pytest.approx(1 / count)
    assert found.ten_rows == min(count, 10) * each


@given(codes=codes, seed=st.integers(0, 9))
def test_names_of_values_and_the_axis_s_unit_do_not_matter(codes: np.ndarray, seed: int) -> None:
    axis = np.random.default_rng(seed).permutation(len(codes)).astype(np.int64)
    renamed = np.array([3, 0, 6, 2, 5, 1, 4])[codes]
    one, other = drift(codes, axis), drift(renamed, axis * 10**15 + 1_767_225_600 * 10**9)

    assert one.explained == pytest.approx(other.explained, abs=1e-9)
    assert one.tenths == pytest.approx(other.tenths)
    assert one.tenths_by_chance == pytest.approx(other.tenths_by_chance)


def test_what_chance_gives_is_the_mean_over_random_orders() -> None:
    rng = np.random.default_rng(1)
    values = np.repeat(np.arange(6), [60, 20, 10, 7, 2, 1])
    axes = [rng.permutation(len(values)) for _ in range(4_000)]

    found = drift(values, axes[0])
    assert found.tenths_by_chance == pytest.approx(np.mean([tenths(values, axis) for axis in axes]), rel=0.01)
    assert found.explained_by_chance == pytest.approx(np.mean([explained(values, axis) for axis in axes]), rel=0.03)


def test_an_axis_that_values_follow_is_explained_and_one_that_stands_still_is_not_a_number() -> None:
    values = np.repeat([0, 1], 50)

    assert explained(values, values) == 1
    assert explained(np.tile([0, 1], 50), np.repeat(np.arange(50), 2)) == pytest.approx(0)
    assert np.isnan(explained(values, np.zeros(100)))
    assert tenths(values, np.arange(100)) == 0.5
    assert tenths_by_chance(np.array([100])) == 0


def test_a_catalog_tells_how_rows_of_a_relation_are_spread_and_move(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"id": range(40), "who": ["a"] * 20 + ["b"] * 20, "at": [*range(39), None]})
    catalog.register("rows", sp.Arrow(table), identity="id")

    spread, moved = catalog.concentration("rows", "who"), catalog.drift("rows", "who", "at")

    assert (spread.values, spread.largest_rows, spread.rows) == (2, 20, 40)
    assert moved.explained == pytest.approx(0.75, abs=0.02)

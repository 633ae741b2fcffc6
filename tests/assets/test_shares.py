import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.shares import Shares, explained

NAMES = st.sampled_from(["upload", "crawl", "archive", None])


@given(values=st.lists(NAMES, min_size=1, max_size=60))
def test_shares_count_every_row_once_the_most_frequent_first(values: list[str | None]) -> None:
    shares = Shares.of(pa.chunked_array([pa.array(values, pa.string())]))

    assert dict(zip(shares.names, shares.counts.tolist(), strict=True)) == {v: values.count(v) for v in set(values)}
    assert shares.counts.tolist() == sorted(shares.counts.tolist(), reverse=True)
    assert shares.largest == max(shares.counts) / len(values)
    assert 1 - 1e-9 <= shares.effective <= len(set(values)) + 1e-9


@given(count=st.integers(1, 9), each=st.integers(1, 5))
def test_equal_shares_have_as_many_effective_values_as_values(count: int, each: int) -> None:
    shares = Shares.of(pa.chunked_array([pa.array([f"s{k % count}" for k in range(count * each)])]))

    assert shares.effective == pytest.approx(count)
    assert shares.names == tuple(sorted(shares.names, key=str))


@given(rows=st.lists(st.tuples(st.integers(-1_000, 1_000), NAMES), max_size=60), shift=st.integers(-(10**6), 10**6))
def test_what_a_number_explains_is_a_share_that_no_shift_changes(
    rows: list[tuple[int, str | None]], shift: int
) -> None:
    column = pa.chunked_array([pa.array([name for _, name in rows], pa.string())])
    found = [
        explained(pa.chunked_array([pa.array([value + by for value, _ in rows], pa.int64())]), column)
        for by in (0, shift)
    ]

    assert -1e-9 <= found[0] <= 1 + 1e-9
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_a_number_that_the_value_decides_is_explained_and_one_that_it_does_not_touch_is_not() -> None:
    names = pa.chunked_array([["a", "b"] * 50])

    assert explained(pa.chunked_array([[1, 5] * 50]), names) == pytest.approx(1)
    assert explained(pa.chunked_array([[1, 1, 5, 5] * 25]), names) == 0
    assert explained(pa.chunked_array([[7] * 100]), names) == 0
    assert explained(pa.chunked_array([pa.array([None, 3, 4], pa.int64())]), pa.chunked_array([["a", "b", None]])) == 0
    assert np.isfinite(
        explained(pa.chunked_array([pa.array([], pa.int64())]), pa.chunked_array([pa.array([], pa.string())]))
    )


def test_no_rows_have_no_shares() -> None:
    shares = Shares.of(pa.chunked_array([pa.array([], pa.string())]))

    assert (shares.names, shares.largest, shares.effective) == ((), 0.0, 0.0)

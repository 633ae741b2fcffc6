"""Runs of hashes in C: the hashes are XXH64's, sorting is stable, and two runs are compared as sets would be."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.derived import _runs

WORDS = st.integers(0, 2**64 - 1)
FEW = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])


def words(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


@given(st.lists(st.binary(max_size=200), max_size=40), WORDS, WORDS)
def test_a_span_is_hashed_as_xxhash_does_with_the_columns_before_as_seed(
    values: list[bytes], before: int, tag: int
) -> None:
    ends = np.cumsum([0, *map(len, values)]).astype(np.int64)
    hashes = np.full(len(values), before, np.uint64)
    _runs.hash_spans(ends, b"".join(values), hashes, tag)

    assert hashes.tolist() == [xxhash.xxh64_intdigest(value, before ^ tag) for value in values]


@given(st.lists(WORDS, max_size=40), WORDS, WORDS)
def test_an_integer_is_hashed_as_its_eight_bytes(values: list[int], before: int, tag: int) -> None:
    hashes = np.full(len(values), before, np.uint64)
    _runs.hash_words(words(values), hashes, tag)

    assert hashes.tolist() == [xxhash.xxh64_intdigest(v.to_bytes(8, "little"), before ^ tag) for v in values]


@given(st.lists(WORDS | FEW, max_size=300), st.sampled_from([np.uint32, np.uint64]))
def test_sorting_keeps_equal_hashes_in_the_order_of_their_rows(values: list[int], kind: type) -> None:
    hashes, rows = words(values), np.empty(len(values), kind)
    _runs.sort(hashes, rows)

    assert rows.tolist() == sorted(range(len(values)), key=values.__getitem__)
    assert hashes.tolist() == sorted(values)


@pytest.mark.parametrize("distinct", [1, 3, 1_000, 2**62])
@pytest.mark.parametrize("shift", [0, 2, 40])
def test_many_rows_are_sorted_whatever_their_hashes_share(distinct: int, shift: int) -> None:
    hashes = np.random.default_rng(3).integers(0, distinct, 50_000, np.uint64) << np.uint64(shift)
    rows = np.empty(len(hashes), np.uint32)
    expected = np.argsort(hashes, kind="stable")
    found = hashes.copy()
    _runs.sort(found, rows)

    assert (rows == expected).all()
    assert (found == hashes[expected]).all()


@given(st.lists(st.integers(0, 60), max_size=80), st.sets(st.integers(0, 60)))
def test_the_places_of_common_hashes_are_all_that_a_set_has(run: list[int], wanted: set[int]) -> None:
    run.sort()
    out = np.empty(len(run), np.int64)
    count = _runs.common(words(run), words(sorted(wanted)), out)

    assert out[:count].tolist() == [at for at, value in enumerate(run) if value in wanted]


@given(st.lists(st.lists(WORDS | FEW, max_size=30), max_size=5), WORDS | FEW)
def test_a_cut_is_where_each_run_reaches_a_value(runs: list[list[int]], value: int) -> None:
    arrays = [words(sorted(run)) for run in runs]
    places = np.zeros(len(runs), np.int64)
    addresses = words([each.ctypes.data for each in arrays])
    _runs.cut(addresses, np.array([len(each) for each in arrays], np.int64), value, places)

    assert places.tolist() == [int(np.searchsorted(each, np.uint64(value))) for each in arrays]


def test_hashes_beyond_the_bits_and_arrays_of_unequal_length_are_refused() -> None:
    bits, out = np.zeros(1, np.uint64), np.empty(1, np.uint64)
    assert _runs.seen(words([63]), 0, 0, bits, out, True) == 0
    assert _runs.seen(words([63]), 0, 0, bits, out, False) == 1
    with pytest.raises(ValueError, match="a hash beyond the range"):
        _runs.seen(words([64]), 0, 0, bits, out, True)
    with pytest.raises(ValueError, match="a hash beyond the range"):
        _runs.seen(words([4]), 5, 0, bits, out, True)
    with pytest.raises(ValueError, match="arrays of unequal length"):
        _runs.hash_words(words([1, 2]), words([0]), 0)
    with pytest.raises(ValueError, match="a value beyond the data"):
        _runs.hash_spans(np.array([0, 9], np.int64), b"abc", words([0]), 0)
    with pytest.raises(ValueError, match="a place beyond its run"):
        _runs.cut(words([0]), np.zeros(1, np.int64), 1, np.ones(1, np.int64))

"""Laws, the specification and golden vectors of the keyed permutation."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spiral_stream.sampling import _permutation
from spiral_stream.sampling.orders.permutation import EXACT, LARGEST, permute, unpermute

WORD = 2**64
KEYS = st.integers(0, WORD - 1)
quick = settings(deadline=None, max_examples=60, derandomize=True)


def mix(x: int) -> int:
    x = half(x)
    return x ^ (x >> 31)


def half(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % WORD
    x ^= x >> 27
    return x * 0x94D049BB133111EB % WORD


def combine(key: int, value: int) -> int:
    g = 0x9E3779B97F4A7C15
    return mix(((key ^ mix((value + g) % WORD)) * g + g) % WORD)


def as_specified(index: int, size: int, key: int) -> int:
    """The docstring's algorithm in plain integers."""
    if size <= 128:
        return sorted(range(size), key=lambda j: (combine(key, j), j))[index]
    k = (size - 1).bit_length() // 2
    a, b = 2**k, -(-size // 2**k)
    while True:
        low, high = index % a, index // a
        for i in range(8):
            round_key = (mix(key) + i * 0x9E3779B97F4A7C15) % WORD
            if i % 2 == 0:
                high = (high + ((half((low + round_key) % WORD) >> 32) * b >> 32)) % b
            else:
                low = (low + (half((high + round_key) % WORD) >> (64 - k))) % a
        index = high * a + low
        if index < size:
            return index


@quick
@given(size=st.integers(0, 700) | st.integers(0, 40_000), key=KEYS)
def test_every_value_stands_at_one_place(size: int, key: int) -> None:
    places = np.arange(size, dtype=np.uint64)

    values = permute(places, size, np.uint64(key))

    assert np.array_equal(np.sort(values), places)
    assert np.array_equal(unpermute(values, size, np.uint64(key)), places)


@quick
@given(
    groups=st.lists(
        st.tuples(st.one_of(st.integers(1, 300), st.integers(1, LARGEST)), KEYS, st.integers(0, LARGEST - 1)),
        min_size=1,
        max_size=40,
    )
)
def test_each_element_follows_its_own_size_and_key_as_specified(groups: list[tuple[int, int, int]]) -> None:
    sizes = np.array([size for size, _, _ in groups], dtype=np.uint64)
    keys = np.array([key for _, key, _ in groups], dtype=np.uint64)
    index = np.array([at % size for size, _, at in groups], dtype=np.uint64)

    values = permute(index, sizes, keys)

    assert values.tolist() == [
        as_specified(int(at), int(size), int(key)) for at, size, key in zip(index, sizes, keys, strict=True)
    ]
    assert np.array_equal(unpermute(values, sizes, keys), index)


@quick
@given(
    size=st.sampled_from([1, 7, EXACT, EXACT + 1, 1_000, 50_000]),
    key=KEYS,
    picks=st.lists(st.integers(0, 49_999), max_size=60),
)
def test_a_value_does_not_depend_on_what_is_asked_with_it(size: int, key: int, picks: list[int]) -> None:
    index = np.array(picks, dtype=np.uint64) % np.uint64(size)
    whole = permute(np.arange(size, dtype=np.uint64), size, np.uint64(key))

    assert np.array_equal(permute(index, size, np.uint64(key)), whole[index.astype(np.int64)])


def test_chunks_of_mixed_and_single_groups_join_without_a_seam() -> None:
    rng = np.random.default_rng(5)
    sizes = np.repeat(rng.choice([3, 100, 129, 5_000, 2**40], 300), rng.integers(1, 400, 300)).astype(np.uint64)
    keys = sizes * np.uint64(977)
    index = rng.integers(0, 2**63, sizes.size, dtype=np.uint64) % sizes

    values = permute(index, sizes, keys)

    pieces = [permute(index[i : i + 1000], sizes[i : i + 1000], keys[i : i + 1000]) for i in range(0, sizes.size, 1000)]
    assert np.array_equal(values, np.concatenate(pieces))
    assert np.array_equal(unpermute(values, sizes, keys), index)


GOLDEN = {
    (8, 0): [6, 3, 0, 5, 4, 2, 7, 1],
    (128, 1): [33, 51, 113, 14, 63, 39, 99, 45],
    (129, 1): [72, 121, 113, 36, 87, 39, 49, 81],
    (1000, 18446744073709551615): [356, 56, 155, 473, 319, 538, 882, 249],
    (60000, 17): [57642, 42272, 28454, 13188, 56169, 6284, 42667, 13019],
    (1281167, 17): [1163736, 1017423, 518405, 39511, 326496, 261346, 584982, 913347],
    (10000000000, 9176): [
        2325609250,
        1447469698,
        2256218487,
        6441444342,
        6249476088,
        5123254697,
        4721750229,
        2121227365,
    ],
    (9223372036854775808, 5): [
        6411679192261576800,
        6778910345144431335,
        5153856805155489265,
        8181094491459612124,
        7861772219856250765,
        847351088871680221,
        2862826071542505745,
        3157092903889405198,
    ],
}


@pytest.mark.parametrize(("size", "key"), GOLDEN)
def test_golden_values_stay(size: int, key: int) -> None:
    assert permute(np.arange(8, dtype=np.uint64), size, np.uint64(key)).tolist() == GOLDEN[size, key]


def test_the_last_places_of_the_largest_size_stay_inside() -> None:
    last = np.arange(LARGEST - 1_000, LARGEST, dtype=np.uint64)

    values = permute(last, LARGEST, 3)

    assert int(values.max()) < LARGEST
    assert np.array_equal(unpermute(values, LARGEST, 3), last)


def test_arguments_stay_as_they_were() -> None:
    index = np.arange(1_000, dtype=np.uint64)
    sizes, keys = np.full(1_000, 1_000, dtype=np.uint64), index.copy()

    permute(index, sizes, keys)

    assert np.array_equal(index, np.arange(1_000, dtype=np.uint64))
    assert np.array_equal(keys, index)
    assert (sizes == 1_000).all()


@pytest.mark.parametrize("size", [0, 5, 200])
def test_an_index_past_the_size_is_refused(size: int) -> None:
    with pytest.raises(IndexError, match=rf"index {size} of a permutation of {size} values; an index lies in"):
        permute(np.array([size], dtype=np.uint64), size, 1)


def test_a_size_past_the_largest_is_refused() -> None:
    with pytest.raises(IndexError, match=r"size is at most 2\*\*63"):
        unpermute(np.array([0], dtype=np.uint64), np.array([LARGEST + 1], dtype=np.uint64), 1)


def walk_as_specified(index: int, size: int, key: int, rounds: int) -> int:
    """The network alone, for every size that it takes and any even number of rounds."""
    k = (size - 1).bit_length() // 2
    a, b = 2**k, -(-size // 2**k)
    while True:
        low, high = index % a, index // a
        for i in range(rounds):
            round_key = (mix(key) + i * 0x9E3779B97F4A7C15) % WORD
            if i % 2 == 0:
                high = (high + ((half((low + round_key) % WORD) >> 32) * b >> 32)) % b
            else:
                low = (low + (half((high + round_key) % WORD) >> (64 - k))) % a
        index = high * a + low
        if index < size:
            return index


@quick
@given(
    size=st.integers(3, 300) | st.integers(3, LARGEST) | st.sampled_from([2**k for k in range(2, 64)]),
    key=KEYS,
    at=st.integers(0, LARGEST - 1),
    rounds=st.sampled_from([2, 8, 10]),
)
def test_the_network_in_c_walks_as_specified_both_ways(size: int, key: int, at: int, rounds: int) -> None:
    index, out, back = (np.array([at % size], np.uint64) for _ in range(3))
    one, own = np.array([size], np.uint64), np.array([key], np.uint64)

    _permutation.walk(index, one, own, out, rounds, False)
    _permutation.walk(out, one, own, back, rounds, True)

    assert out.tolist() == [walk_as_specified(at % size, size, key, rounds)]
    assert back.tolist() == index.tolist()


@quick
@given(
    size=st.integers(129, 3_000) | st.integers(129, LARGEST),
    key=KEYS,
    count=st.integers(0, 150),
    seed=st.integers(0, 9),
)
def test_blocks_of_the_network_walk_like_single_elements(size: int, key: int, count: int, seed: int) -> None:
    index = np.random.default_rng(seed).integers(0, size, count, np.uint64)
    out, one, own = np.zeros_like(index), np.array([size], np.uint64), np.array([key], np.uint64)

    _permutation.walk(index, one, own, out, 8, False)

    assert out.tolist() == [walk_as_specified(int(at), size, key, 8) for at in index]


@pytest.mark.parametrize("at", [0, 31, 32, 69])
def test_an_index_past_the_size_is_refused_wherever_it_stands(at: int) -> None:
    index = np.arange(70, dtype=np.uint64)
    index[at] = 500

    with pytest.raises(ValueError, match="sizes from 3 to 2"):
        _permutation.walk(index, np.array([500], np.uint64), TWO[:1], np.zeros_like(index), 8, False)
    with pytest.raises(IndexError, match="index 500 of a permutation of 500 values"):
        permute(index, 500, np.uint64(3))


TWO = np.array([3, 4], np.uint64)
SIZES = np.array([200, 300], np.uint64)


@pytest.mark.parametrize(
    ("index", "sizes", "keys", "rounds"),
    [
        *[(TWO, SIZES, TWO, rounds) for rounds in (0, 1, 7, -2)],
        *[(TWO, np.array([200, bad], np.uint64), TWO, 8) for bad in (0, 1, 2, 2**63 + 1, 2**64 - 1)],
        *[(TWO, np.array([bad], np.uint64), TWO[:1], 8) for bad in (0, 2, 2**63 + 1)],
        (TWO, SIZES[[0, 0, 0]], TWO, 8),
        (TWO, SIZES, TWO[[0, 0, 0]], 8),
        (TWO, SIZES[:0], TWO, 8),
        (np.array([3, 300], np.uint64), SIZES, TWO, 8),
        (np.array([200, 3], np.uint64), SIZES, TWO, 8),
        (np.array([3, 2**64 - 1], np.uint64), SIZES[:1], TWO[:1], 8),
        (TWO.view(np.uint8)[:15], SIZES[:1], TWO[:1], 8),
        (TWO, SIZES.view(np.uint8)[:9], TWO[:1], 8),
    ],
)
@pytest.mark.parametrize("inverse", [False, True])
def test_the_network_refuses_what_it_cannot_walk(
    index: NDArray[Any], sizes: NDArray[Any], keys: NDArray[Any], rounds: int, inverse: bool
) -> None:
    with pytest.raises(ValueError, match="sizes from 3 to 2"):
        _permutation.walk(index, sizes, keys, bytearray(index.nbytes), rounds, inverse)


def test_the_network_refuses_a_place_of_another_size() -> None:
    with pytest.raises(ValueError, match="one size and key, or one per index"):
        _permutation.walk(TWO, SIZES, TWO, bytearray(8), 8, False)

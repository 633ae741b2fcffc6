"""Whether the keyed permutation can be told from a random one.

Every statistic is turned into a standard score under a uniformly random
permutation. `LIMIT` lets one in ten thousand of those fail, on either side, so
an order that is too even fails as well; keys are fixed, so results repeat.
"""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from spiral_stream.sampling.orders import permutation
from spiral_stream.sampling.orders.permutation import EXACT, permute

UInt64 = NDArray[np.uint64]
LIMIT = 3.89
SIZES = (60_000, 1_000_000, 2**20, 1_281_167)
KEYS = (0, 1, 0xDEADBEEF)
CELLS = 32


def chi2_score(observed: NDArray[np.integer], expected: NDArray[np.float64] | float, freedom: int) -> float:
    """Wilson and Hilferty's standard score of a chi-square statistic."""
    chi2 = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return ((chi2 / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def serial_pairs(values: UInt64) -> float:
    """Neighbours (2i, 2i + 1) over 32 x 32 equal ranges.

    All values occur once, so each range's count over both places is given: that
    takes 32 of the 1024 degrees of freedom.
    """
    size = values.size
    cells = values[: size // 2 * 2].astype(np.int64) * CELLS // size
    table = np.bincount(cells[0::2] * CELLS + cells[1::2], minlength=CELLS**2).reshape(CELLS, CELLS)
    held = np.bincount(np.arange(size) * CELLS // size, minlength=CELLS).astype(np.float64)
    expected = (np.outer(held, held) - np.diag(held)) / (size * (size - 1)) * (size // 2)
    return chi2_score(table, expected, CELLS**2 - CELLS)


def xor_differences(values: UInt64) -> float:
    """Distinct values of ``p(2i) ^ p(2i + 1)``, against throwing as many balls into bins of the exact chances."""
    size = values.size
    pairs = size // 2
    found = np.unique(values[0 : 2 * pairs : 2] ^ values[1 : 2 * pairs : 2]).size
    width = 1 << (size - 1).bit_length()
    spectrum = (np.arange(width) < size).astype(np.float64)
    for _ in range(2):  # the XOR convolution of [0, size) with itself, by two Walsh-Hadamard transforms
        for bit in range(width.bit_length() - 1):
            low, high = np.moveaxis(spectrum.reshape(-1, 2, 1 << bit), 1, 0)
            spectrum = np.stack((low + high, low - high), axis=1).reshape(-1)
        spectrum = spectrum**2 if spectrum.max() == size else spectrum / width
    balls = spectrum[1:] / (size * (size - 1)) * pairs
    empty = np.exp(-balls)
    variance = float((empty - empty**2).sum() - (balls * empty).sum() ** 2 / pairs)
    return (found - float((1 - empty).sum())) / math.sqrt(variance)


def batch_halves(values: UInt64) -> float:
    """Variance of how many of each 256 are from the first half, over the hypergeometric one."""
    size, batch = values.size, 256
    half = size // 2
    count = size // batch
    first = (values[: count * batch] < half).reshape(count, batch).sum(axis=1)
    share = half / size
    variance = batch * share * (1 - share) * (size - batch) / (size - 1)
    ratio = float(((first - batch * share) ** 2).mean()) / variance
    return (ratio - 1) / math.sqrt(2 / (count - 1))


STATISTICS = (serial_pairs, xor_differences, batch_halves)


def whole(size: int, key: int) -> UInt64:
    return permute(np.arange(size, dtype=np.uint64), size, np.uint64(key))


@pytest.mark.parametrize(
    ("size", "key"),
    [
        (size, key) if at == 2 - number % 3 else pytest.param(size, key, marks=pytest.mark.slow)
        for number, size in enumerate(SIZES)
        for at, key in enumerate(KEYS)
    ],
)
def test_no_statistic_tells_it_from_a_random_permutation(size: int, key: int) -> None:
    values = whole(size, key)

    scores = {statistic.__name__: statistic(values) for statistic in STATISTICS}

    assert all(abs(score) < LIMIT for score in scores.values()), scores


@pytest.mark.parametrize("size", SIZES)
def test_two_rounds_fail_every_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation, "ROUNDS", 2)

    values = whole(size, 1)

    assert np.array_equal(np.sort(values), np.arange(size))
    assert max(abs(statistic(values)) for statistic in STATISTICS) > 10 * LIMIT


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_random_permutation_passes(statistic: object, seed: int) -> None:
    values = np.random.default_rng(seed).permutation(60_000).astype(np.uint64)

    assert callable(statistic)
    assert abs(statistic(values)) < LIMIT


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_small_sizes_give_every_permutation_equally_often(size: int) -> None:
    groups = 2_000 * math.factorial(size)
    keys = np.arange(groups, dtype=np.uint64)

    values = permute(np.tile(np.arange(size, dtype=np.uint64), groups), size, np.repeat(keys, size))

    codes = values.reshape(groups, size) @ (size ** np.arange(size, dtype=np.uint64))
    legal = [sum(v * size**i for i, v in enumerate(order)) for order in itertools.permutations(range(size))]
    counts = np.array([int((codes == code).sum()) for code in legal])
    assert counts.sum() == groups
    assert size == 1 or abs(chi2_score(counts, 2_000.0, counts.size - 1)) < LIMIT


@pytest.mark.parametrize("size", [5, 40, EXACT, EXACT + 1, 200, 257])
def test_pairs_of_places_take_all_pairs_of_values_equally_often(size: int) -> None:
    keys = np.arange(300_000 if size > EXACT else 80_000, dtype=np.uint64)
    places = np.array([0, 1, size // 2, size - 1], dtype=np.uint64)
    values = permute(np.tile(places, keys.size), size, np.repeat(keys, 4)).reshape(keys.size, 4)
    for place in (1, 2, 3):
        table = np.bincount((values[:, 0] * np.uint64(size) + values[:, place]).astype(np.int64), minlength=size**2)

        seen = table.reshape(size, size)[~np.eye(size, dtype=bool)]
        assert seen.sum() == keys.size
        assert abs(chi2_score(seen, keys.size / seen.size, seen.size - 1)) < LIMIT


def test_neighbouring_keys_give_unrelated_orders() -> None:
    size = 100_000
    orders = np.stack([whole(size, key).astype(np.float64) for key in range(6)])

    correlations = np.corrcoef(orders)[np.triu_indices(6, 1)] * math.sqrt(size - 1)
    agreements = [int((a == b).sum()) for a, b in itertools.combinations(orders, 2)]

    assert np.abs(correlations).max() < LIMIT
    assert max(agreements) <= 8  # Poisson of mean 1: nine or more in one of 15 pairs has chance 2e-5

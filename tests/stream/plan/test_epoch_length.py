"""How many samples an epoch has, and the share of each stream."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.plan.epoch_length import size_and_shares
from spiral_stream.plan.verbs.mix import Mix, Part
from tests.fixtures.texts import make_catalog


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("epoch"), {"a": 20, "b": 10, "c": 5})


def mix(catalog: sp.Catalog, *parts: tuple[Any, ...], **options: Any) -> Mix:
    made = [Part(name, catalog.table(of).node if isinstance(of, str) else of, *rest) for name, of, *rest in parts]
    return Mix(tuple(made), **options)


@given(weights=st.lists(st.integers(1, 50), min_size=2, max_size=2), size=st.integers(1, 10**12))
def test_proportions_are_exact_shares_of_the_epoch(catalog: sp.Catalog, weights: list[int], size: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    node = mix(catalog, ("x", "a", shares[0]), ("y", "b", shares[1]), epoch_size=size)

    assert size_and_shares(node, [20, 10], None) == (size, [Fraction(repr(share)) for share in shares])


@given(
    repeats=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    totals=st.lists(st.integers(1, 99), min_size=3, max_size=3),
)
def test_repeats_are_counts(catalog: sp.Catalog, repeats: list[int], totals: list[int]) -> None:
    node = mix(catalog, *((f"s{i}", "a", None, repeat) for i, repeat in enumerate(repeats)))

    counts = [repeat * total for repeat, total in zip(repeats, totals, strict=True)]
    assert size_and_shares(node, totals, None) == (sum(counts), counts)


def test_a_nested_mixture_of_counts_is_as_large_as_they_are(catalog: sp.Catalog) -> None:
    inner = mix(catalog, ("p", "a", None, 2), ("q", "b", None, None, 7))
    node = mix(catalog, ("in", inner), ("c", "c", None, 3))

    assert size_and_shares(node, [20, 10, 5], None) == (62, [40, 7, 15])


def test_proportions_by_a_column_are_divided_by_its_mean(catalog: sp.Catalog) -> None:
    node = mix(catalog, ("x", "a", 0.5), ("y", "b", 0.5), epoch_size=30, by="size")

    assert size_and_shares(node, [20, 10], [Fraction(2), Fraction(4)]) == (30, [Fraction(1, 4), Fraction(1, 8)])


def test_nested_streams_share_their_parts_share(catalog: sp.Catalog) -> None:
    inner = mix(catalog, ("p", "a", 0.25), ("q", "b", 0.75))
    node = mix(catalog, ("in", inner, 0.5), ("c", "c", 0.5), epoch_size=80)

    assert size_and_shares(node, [20, 10, 5], None) == (80, [Fraction(1, 8), Fraction(3, 8), Fraction(1, 2)])

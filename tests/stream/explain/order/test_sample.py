from typing import Any

import pytest

from spiral_stream import Catalog, GlobalShuffle, HashBucketed, ShardAwareShuffle, ShuffleBuckets
from tests.stream.explain import pictures
from tests.stream.explain.pictures import explained
from tests.stream.explain.words import in_words


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return pictures.make_catalog(tmp_path_factory.mktemp("explain"))


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (ShardAwareShuffle(seed=1, sampling_granularity="row_group"), "moves whole between blocks      row_group"),
        (HashBucketed(1, 4, ShuffleBuckets(1)), "4 (~9.0 rows each), by xxh3-128 of the identity"),
        (GlobalShuffle(3), "GlobalShuffle(seed=3, clump_size=1)"),
    ],
)
def test_an_order_says_what_it_mixes(catalog: Catalog, order: Any, says: str) -> None:
    assert says in str(explained(catalog, order=order))


def test_a_shard_aware_order_is_compared_at_other_block_sizes(catalog: Catalog) -> None:
    order = ShardAwareShuffle(seed=1, shuffle_block_size=16)
    choices = in_words(explained(catalog, order=order))["sample"]["randomness"]

    assert [row["shuffle_block_size"] for row in choices] == ["   4", "-> 16", "   64"]

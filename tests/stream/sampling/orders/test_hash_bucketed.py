from collections.abc import Callable

import numpy as np
import pytest

from spiral_stream import HashBucketed, ShuffleBuckets
from spiral_stream.errors import PlanError
from spiral_stream.orders import Population
from spiral_stream.seeding import identity_hashes

Populate = Callable[..., Population]
NAMES = [f"clip-{i:05d}" for i in range(3_000)]


def identities(order: HashBucketed, population: Population, names: list[str], pass_number: int = 0) -> list[str]:
    rows = order.arrange(population, pass_number).rows(np.arange(population.total, dtype=np.uint64))
    return [names[int(row)] for row in rows]


def test_the_order_follows_identities_wherever_and_whenever_they_were_stored(populate: Populate) -> None:
    order = HashBucketed(123456, bucket_count=64)
    moved = [NAMES[i] for i in np.random.default_rng(0).permutation(len(NAMES))]
    one_shard = populate([(0, 3_000)], identities=NAMES)
    many_shards = populate([(i, 100) for i in range(30)], identities=moved)

    assert identities(order, one_shard, NAMES) == identities(order, many_shards, moved)


def test_buckets_are_the_leading_bits_and_come_whole(populate: Populate) -> None:
    order = HashBucketed(1, bucket_count=64)
    population = populate([(0, 3_000)], identities=NAMES)

    seen = identity_hashes("", identities(order, population, NAMES))[:, 0] >> np.uint64(58)

    changes = np.flatnonzero(np.diff(seen.astype(np.int64)))
    assert changes.size == 63
    assert len(set(seen[changes].tolist()) | {int(seen[-1])}) == 64


def test_bucket_order_and_the_order_inside_have_their_own_seeds(populate: Populate) -> None:
    population = populate([(0, 3_000)], identities=NAMES)

    def buckets(seed: int, bucket_seed: int, pass_number: int = 0) -> tuple[list[int], list[str]]:
        order = HashBucketed(seed, bucket_count=16, bucket_order=ShuffleBuckets(bucket_seed))
        names = identities(order, population, NAMES, pass_number)
        return (identity_hashes("", names)[:, 0] >> np.uint64(60)).tolist(), names

    assert buckets(1, 5)[0] == buckets(2, 5)[0]
    assert buckets(1, 5)[1] != buckets(2, 5)[1]
    assert buckets(1, 5)[0] != buckets(1, 6)[0]
    assert buckets(1, 5, 0)[0] != buckets(1, 5, 1)[0]


def test_bucket_order_defaults_to_the_same_seed() -> None:
    assert HashBucketed(5) == HashBucketed(5, 8192, ShuffleBuckets(5))
    assert HashBucketed(5).needs_index
    assert HashBucketed(5).run_seed == 5


def test_more_buckets_than_rows_is_an_order_too(populate: Populate) -> None:
    names = ["a", "b", "c"]
    population = populate([(0, 3)], identities=names)

    assert sorted(identities(HashBucketed(1), population, names)) == names


def test_a_population_without_an_index_is_refused_with_the_way_out() -> None:
    population = Population(np.array([3], dtype=np.uint64), np.zeros(1, dtype=np.uint64))

    with pytest.raises(PlanError, match=r"Prepare it with one .* or use ShardAwareShuffle"):
        HashBucketed(1).arrange(population, 0)


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        ({"seed": 1.5}, "seed is 1.5. Give an integer"),
        ({"bucket_count": 0}, "bucket_count is 0. Give an integer of at least 1"),
        ({"bucket_count": 1000}, "Give a power of two up to 16777216, such as 1024"),
        ({"bucket_count": 2**25}, "such as 16777216"),
        ({"bucket_order": "shuffle"}, r"Give ShuffleBuckets\(seed=...\)"),
    ],
)
def test_a_wrong_parameter_is_refused_at_birth(wrong: dict[str, object], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        HashBucketed(**{"seed": 1, **wrong})


def test_a_wrong_bucket_seed_is_refused_at_birth() -> None:
    with pytest.raises(PlanError, match=r"seed is None\. Give an integer"):
        ShuffleBuckets(None)

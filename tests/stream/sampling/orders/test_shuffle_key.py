"""The keys of shuffles cover what they say, and stay what they were."""

import numpy as np

from spiral_stream.orders import Population
from spiral_stream.sampling.orders.shuffle_key import shuffle_key
from spiral_stream.seeding import key


def population(stream: str, rows: int = 3) -> Population:
    return Population(np.array([rows], dtype=np.uint64), np.zeros(1, dtype=np.uint64), stream)


def test_every_part_of_a_key_counts_and_the_rows_do_not() -> None:
    own = shuffle_key("GlobalShuffle", 1, 7, population("a"), 0)
    others = [
        shuffle_key("Other", 1, 7, population("a"), 0),
        shuffle_key("GlobalShuffle", 2, 7, population("a"), 0),
        shuffle_key("GlobalShuffle", 1, 8, population("a"), 0),
        shuffle_key("GlobalShuffle", 1, 7, population("b"), 0),
        shuffle_key("GlobalShuffle", 1, 7, population("a"), 1),
        key("units", own),
        key("blocks", own),
    ]

    assert len({own, *others}) == 8
    assert shuffle_key("GlobalShuffle", 1, 7, population("a", rows=9), 0) == own


def test_keys_are_those_of_saved_runs() -> None:
    assert shuffle_key("GlobalShuffle", 1, 7, population("a"), 5) == key("GlobalShuffle", 1, 7, "a", 5)
    assert key("mixture", 1, 7, 5) == 10177642989223260954

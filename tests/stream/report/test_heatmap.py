"""Groups of shards: every shard counts once, whatever its group."""

import numpy as np
import pytest

from spiral_stream.report.heatmap import heat_of
from tests.fixtures.spreads import spread


@pytest.mark.parametrize("shards", [1, 2, 99, 100, 101, 2_000])
def test_shares_of_groups_average_to_those_of_the_whole(shards: int) -> None:
    made = spread(shards, 5, 60, "drift")
    heat = heat_of(made)

    assert heat.ratio.shape == (min(shards, 100), len(made.values))
    assert heat.groups[0] == "part-00000"
    assert heat.shards == shards
    sizes = np.diff(np.flatnonzero(np.diff(np.arange(shards) * len(heat.groups) // shards, prepend=-1)), append=shards)
    assert np.average(heat.ratio, axis=0, weights=sizes) == pytest.approx(np.ones(len(made.values)))


def test_few_of_many_values_are_shown_the_most_frequent_first() -> None:
    heat = heat_of(spread(3, 200, 5_000), values=40)

    assert (len(heat.values), heat.of_values) == (40, 200)


def test_a_shard_of_one_value_has_it_as_often_as_there_are_values() -> None:
    heat = heat_of(spread(4, 4, 10, "class"))

    assert np.sort(heat.ratio, axis=1).tolist() == [[0, 0, 0, 4]] * 4

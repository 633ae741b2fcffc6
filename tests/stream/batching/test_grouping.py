import numpy as np
import pytest

from spiral_stream.batching import OneStream, Setting
from spiral_stream.batching.grouping import targets
from spiral_stream.errors import PlanError


def test_targets_are_the_settings_own_and_a_chapter_may_begin_ahead() -> None:
    given = np.array([0.7, 0.3])
    shares, ahead = targets(OneStream(), Setting(1, 10, shares=given, ahead=np.array([0.5, -0.5])))

    assert (shares.tolist(), ahead.tolist()) == ([0.7, 0.3], [0.5, -0.5])
    shares[:] = 0
    assert given.tolist() == [0.7, 0.3]
    assert targets(OneStream(), Setting(1, 10, shares=given))[1].tolist() == [0, 0]


def test_a_composition_without_a_mixture_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        PlanError, match=r"composition=OneStream of a relation without streams. Leave the composition out"
    ):
        targets(OneStream(), Setting(1, 10))

"""Limits, skips and repeats of epochs are arithmetic: what they say is what laying lists end to end says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.errors import PlanError
from spiral_stream.sampling.extent import ENDLESS, Beginning, Extent, Fixed, Repeated, Rest, Stretch

Place = tuple[int, int]  # pass, position in it

PARTS = st.lists(
    st.one_of(
        st.builds(Beginning, st.integers(1, 12)),
        st.builds(Rest, st.integers(0, 6)),
        st.builds(Fixed, st.builds(Beginning, st.integers(1, 12)), st.none()),
        st.builds(Fixed, st.builds(Rest, st.integers(0, 6)), st.none()),
        st.builds(Repeated, st.integers(1, 3)),
    ),
    max_size=3,
)


def laid(parts: list[Stretch], epoch: int, size: int) -> list[Place]:
    """The positions of an epoch, as a list."""
    if not parts:
        return [(epoch, at) for at in range(size)]
    *inner, part = parts
    if isinstance(part, Beginning):
        return laid(inner, epoch, size)[: part.count]
    if isinstance(part, Rest):
        return laid(inner, epoch, size)[part.count :]
    if isinstance(part, Fixed):
        return laid([*inner, part.part], 0, size)
    assert isinstance(part, Repeated)
    assert part.times is not None
    return [place for turn in range(part.times) for place in laid(inner, epoch * part.times + turn, size)]


@given(parts=PARTS, epoch=st.integers(0, 4), size=st.integers(1, 9))
def test_an_extent_is_what_lists_say(parts: list[Stretch], epoch: int, size: int) -> None:
    extent, expected = Extent(tuple(parts)), laid(parts, epoch, size)
    if not expected:
        with pytest.raises(PlanError, match=r"skip: .* so none is left\."):
            extent.length(size)
        return

    assert extent.length(size) == len(expected)
    passes, offsets = extent.back(epoch, np.arange(len(expected), dtype=np.uint64), size)
    assert list(zip(passes.tolist(), offsets.tolist(), strict=True)) == expected
    for row in range(size):  # in pass n, row r stands at position (r + n) % size
        found = extent.on(epoch, lambda n, row=row: [(row + n) % size], size)  # type: ignore[misc]  # its default
        assert found == [at for at, (n, place) in enumerate(expected) if (place - n) % size == row]


@settings(max_examples=10)
@given(
    count=st.integers(1, 20),
    size=st.integers(1, 15),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 9),
    rest=st.booleans(),
)
def test_a_fixed_part_is_permuted_in_every_epoch(count: int, size: int, seed: int, epoch: int, rest: bool) -> None:
    part: Beginning | Rest = Rest(min(count, size) - 1) if rest else Beginning(count)
    extent = Extent((Fixed(part, seed),))
    length = extent.length(size)

    passes, offsets = extent.back(epoch, np.arange(length, dtype=np.uint64), size)

    assert not passes.any()
    own = range(size)[part.count :] if rest else range(size)[: part.count]
    assert sorted(offsets.tolist()) == list(own)
    assert [extent.on(epoch, lambda _, at=at: [at], size) for at in offsets.tolist()] == [[n] for n in range(length)]  # type: ignore[misc]


def test_an_endless_epoch_has_as_many_passes_as_can_be_counted() -> None:
    extent = Extent((Repeated(None),))

    assert extent.length(1_000) == 1_000 * ENDLESS
    assert extent.length(2**40) == 2**62
    passes, offsets = extent.back(0, np.array([999, 1_000, 10**9], np.uint64), 1_000)
    assert (passes.tolist(), offsets.tolist()) == ([0, 1, 10**6], [999, 0, 0])
    assert extent.on(0, lambda _: [3], 1_000)[:2] == [3, 1_003]

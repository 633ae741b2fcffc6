"""Places of ranks: dealt to the nodes in turn, each once."""

from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.batching.lanes import Lanes
from spiral_stream.sampling.assignment import batches_of
from spiral_stream.sampling.nodes import Nodes

numbers = st.integers(1, 6)


@given(nodes=numbers, each=numbers)
def test_each_rank_has_one_place_and_rank_0_the_first(nodes: int, each: int) -> None:
    found = Nodes(nodes * each, each)

    places = [found.turn_of(rank) for rank in range(nodes * each)]

    assert sorted(places) == list(range(nodes * each))
    assert [found.rank_at(place) for place in places] == list(range(nodes * each))
    assert places[0] == 0
    assert places == list(range(nodes * each)) or (nodes > 1 and each > 1)


@given(nodes=numbers, each=numbers, merge=numbers, times=numbers, first=st.integers(0, 100), steps=st.integers(1, 20))
def test_each_node_reads_its_own_lanes(nodes: int, each: int, merge: int, times: int, first: int, steps: int) -> None:
    lanes, found = Lanes(10**6, nodes * merge * times), Nodes(nodes * each, each)
    long = [10**6] * lanes.count
    read: list[set[int]] = [set() for _ in range(nodes)]
    for step in range(steps):
        for rank in range(nodes * each):
            begin = first + step * found.world_size * merge  # a run may resume at any batch
            for number in batches_of(found.turn_of(rank), begin, merge):
                turn = lanes.turn(number, long)
                assert turn is not None
                read[rank // each].add(turn[0])

    assert sum(map(len, read)) == len(set.union(*read))
    assert all(len(one) <= lanes.count // nodes for one in read)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import DataParallel, RuntimeParam
from spiral_stream.errors import PlanError
from spiral_stream.sampling.assignment import batches_of, owner


def test_the_seed_programs_assignment_is_a_value() -> None:
    one = DataParallel(rank=RuntimeParam("data_parallel_rank"), world_size=RuntimeParam("data_parallel_world_size"))

    assert one == DataParallel(RuntimeParam("rank"), RuntimeParam("world_size"), lanes=1)
    assert hash(one) == hash(DataParallel(RuntimeParam("rank"), RuntimeParam("world_size")))
    assert DataParallel(rank=2, world_size=4, lanes=48).lanes == 48


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        ({"rank": 4}, r"rank 4 of world_size 4; ranks count from 0. Give a rank in \[0, 4\)"),
        ({"rank": -1}, "rank is -1. Give an integer of at least 0"),
        ({"world_size": 0}, "world_size is 0. Give an integer of at least 1"),
        ({"world_size": "4"}, "world_size is '4'. Give an integer of at least 1"),
        ({"lanes": 0}, "lanes is 0. Give an integer of at least 1"),
        ({"rank": RuntimeParam("epoch")}, r"Give RuntimeParam\('data_parallel_rank'\) or an integer"),
        ({"world_size": RuntimeParam("rank")}, r"Give RuntimeParam\('data_parallel_world_size'\) or an integer"),
    ],
)
def test_a_wrong_assignment_is_refused_at_birth(wrong: dict[str, object], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        DataParallel(**{"rank": 0, "world_size": 4, **wrong})


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_each_batch_has_one_rank_and_one_step(world_size: int, merge: int, batch: int) -> None:
    step, rank = owner(batch, world_size, merge)

    held = [other for other in range(world_size) if batch in batches_of(other, step * world_size * merge, merge)]
    assert held == [rank]

import pytest

from spiral_stream import RuntimeParam
from spiral_stream.errors import BindError, PlanError
from spiral_stream.params import resolve


def test_short_names_stand_for_the_long_ones() -> None:
    assert RuntimeParam("rank") == RuntimeParam("data_parallel_rank")
    assert RuntimeParam("world_size").name == "data_parallel_world_size"
    assert RuntimeParam("epoch").name == "epoch"


def test_another_name_is_refused_with_the_list() -> None:
    with pytest.raises(PlanError, match="Give one of epoch, data_parallel_rank, data_parallel_world_size"):
        RuntimeParam("step")


def test_an_integer_stands_for_itself_and_a_parameter_for_what_is_bound() -> None:
    assert resolve(3, {}) == 3
    assert resolve(RuntimeParam("epoch"), {"epoch": 5}) == 5


def test_an_unbound_parameter_is_named_with_the_way_out() -> None:
    with pytest.raises(BindError, match=r"data_parallel_rank is not bound. Call bind\(data_parallel_rank=...\)"):
        resolve(RuntimeParam("rank"), {"epoch": 5})

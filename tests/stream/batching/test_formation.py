import pytest

from spiral_stream.batching.formation import DropPartial, KeepPartial, PadPartial, Tail, as_tail
from spiral_stream.errors import PlanError


@pytest.mark.parametrize("rule", [DropPartial, KeepPartial, PadPartial])
def test_a_bare_name_and_a_call_are_the_same_plan(rule: type[Tail]) -> None:
    assert as_tail(rule) == as_tail(rule()) == rule()
    assert hash(as_tail(rule)) == hash(rule())


def test_the_rules_differ() -> None:
    assert len({DropPartial(), KeepPartial(), PadPartial()}) == 3


@pytest.mark.parametrize("wrong", [None, "drop", True, Tail, int])
def test_anything_else_is_refused_with_the_way_out(wrong: object) -> None:
    with pytest.raises(PlanError, match=r"collate: last is .* Give DropPartial, KeepPartial or PadPartial"):
        as_tail(wrong)

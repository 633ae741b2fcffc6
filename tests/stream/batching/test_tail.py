import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import DropPartial, KeepPartial
from spiral_stream.batching import PadPartial, Tail, tail
from spiral_stream.batching.tail import as_tail
from spiral_stream.errors import PlanError

RULES = st.sampled_from([DropPartial(), KeepPartial(), PadPartial()])
LAWS = {"last": RULES, "total": st.integers(0, 40), "world": st.integers(1, 4), "merge": st.integers(1, 3)}


def admitted(last: Tail, total: int, world: int, merge: int, rank: int, first: int = 0) -> list[range]:
    """What a rank is admitted to, step by step, from batch ``first`` on."""
    out: list[range] = []
    while True:
        step = first + len(out) * world * merge
        begin = step + rank * merge
        due = tail.admits(last, step, world * merge, range(begin, begin + merge), lambda number: number < total)
        if due is None:
            return out
        out.append(due)


@given(**LAWS)
def test_ranks_make_as_many_steps_as_they_are_admitted_to(last: Tail, total: int, world: int, merge: int) -> None:
    for rank in range(world):
        assert tail.steps(last, total, world, merge, rank) == len(admitted(last, total, world, merge, rank))


@given(**LAWS)
def test_the_ranks_together_deliver_every_batch_up_to_the_end_once(
    last: Tail, total: int, world: int, merge: int
) -> None:
    ranks = [admitted(last, total, world, merge, rank) for rank in range(world)]
    seen = sorted(number for own in ranks for step in own for number in step)

    assert seen == list(range(tail.end(last, total, world * merge)))


@given(**LAWS, first=st.integers(0, 40))
def test_ranks_that_take_over_in_mid_epoch_make_the_steps_of_what_is_left(
    last: Tail, total: int, world: int, merge: int, first: int
) -> None:
    first = min(first, total)
    for rank in range(world):
        own = admitted(last, total, world, merge, rank, first)
        assert tail.steps(last, total - first, world, merge, rank) == len(own)


@given(**LAWS)
def test_each_rule_keeps_its_promise(last: Tail, total: int, world: int, merge: int) -> None:
    group, end = world * merge, tail.end(last, total, world * merge)
    steps = {tail.steps(last, total, world, merge, rank) for rank in range(world)}

    if isinstance(last, DropPartial):
        assert end % group == 0 <= total - end < group
    elif isinstance(last, PadPartial):
        assert end % group == 0 <= end - total < group
    else:
        assert end == total
    assert max(steps) - min(steps) <= isinstance(last, KeepPartial)


def test_batches_are_asked_for_no_further_than_a_rule_needs() -> None:
    """A run forms batches as far as somebody asks: `PadPartial` must not ask for more than a step's first batch."""
    asked: list[int] = []

    def exists(number: int) -> bool:
        asked.append(number)
        return True

    for last, wanted in ((DropPartial(), [15]), (PadPartial(), [8]), (KeepPartial(), [10, 11])):
        asked.clear()
        assert tail.admits(last, 8, 8, range(10, 12), exists) == range(10, 12)
        assert asked == wanted


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


@given(last=RULES, samples=st.integers(0, 99), batch_size=st.integers(1, 9))
def test_a_short_batch_counts_unless_it_is_dropped(last: Tail, samples: int, batch_size: int) -> None:
    short = samples % batch_size > 0 and not tail.drops_short(last)

    assert tail.batches(last, samples, batch_size) == samples // batch_size + short

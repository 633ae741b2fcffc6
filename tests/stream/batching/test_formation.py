import pytest

from spiral_stream.batching.budget import BatchBudget
from spiral_stream.batching.formation import Formation
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import DropPartial, KeepPartial, PadPartial, Tail, as_tail
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.errors import PlanError

TOKENS = WindowedBucket(window_size=64, budget=BatchBudget(max_tokens=500))
CLIPS = WindowedBucket(window_size=64, budget=BatchBudget(max_frames=100, max_bytes=19_000))


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


@pytest.mark.parametrize(
    ("formation", "most"),
    [(TOKENS, 500), (CLIPS, None), (WindowedBucket(), None), (Packed(max_tokens=64), 8 * 64)],
)
def test_a_formation_says_how_many_tokens_a_batch_may_hold(formation: Formation, most: int | None) -> None:
    assert formation.most_tokens(8) == most


@pytest.mark.parametrize(
    ("formation", "batch_size", "most"),
    [
        (WindowedBucket(window_size=64), None, 64),
        (WindowedBucket(window_size=64), 16, 16),
        (TOKENS, None, 64),
        (CLIPS, None, 12),  # 100 frames of 8
        (CLIPS, 10, 10),
        (WindowedBucket(window_size=64, budget=BatchBudget(max_bytes=9_000)), None, 9),
        (Packed(max_tokens=64, window_size=32), 4, 4),
    ],
)
def test_a_formation_says_how_many_samples_a_batch_may_hold(
    formation: Formation, batch_size: int | None, most: int
) -> None:
    assert formation.most_samples(batch_size, {"frames": 8, "bytes": 1_000}) == most


def test_only_without_a_budget_or_packed_are_samples_counted() -> None:
    assert [each.counts_samples for each in (WindowedBucket(), Packed(max_tokens=8), TOKENS, CLIPS)] == [
        True,
        True,
        False,
        False,
    ]

import pytest

from spiral_stream import BatchBudget, WindowedBucket
from spiral_stream.batching import Formation, Packed

TOKENS = WindowedBucket(window_size=64, budget=BatchBudget(max_tokens=500))
CLIPS = WindowedBucket(window_size=64, budget=BatchBudget(max_frames=100, max_bytes=19_000))


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

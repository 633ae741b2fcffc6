import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import DropPartial, KeepPartial
from spiral_stream.batching import PadPartial, Tail, tail
from spiral_stream.batching.fixed import FixedBatches
from spiral_stream.batching.lanes import Lanes
from spiral_stream.errors import PlanError
from tests.fixtures.examples import few

quick = few(50, 150, deadline=None, derandomize=True)
RULES = st.sampled_from([DropPartial(), KeepPartial(), PadPartial()])
BATCHES = st.builds(
    FixedBatches,
    lanes=st.builds(Lanes, st.integers(0, 300), st.sampled_from([1, 2, 3, 4, 6, 7, 48, 400])),
    batch_size=st.integers(1, 20),
    last=RULES,
)
WORLDS = st.sampled_from([1, 2, 3, 4, 6])


def as_decided(batches: FixedBatches) -> list[list[int]]:
    """docs/decisions/0024 in plain lists: whole batches by (k, lane), then the rests of all lanes; nothing dropped or filled."""
    total, size, lanes = batches.total, batches.batch_size, batches.lanes.count
    slices = [list(range(total * lane // lanes, total * (lane + 1) // lanes)) for lane in range(lanes)]
    whole = [
        rows[k * size : (k + 1) * size] for k in range(total + 1) for rows in slices if len(rows) >= (k + 1) * size
    ]
    rests = [row for rows in slices for row in rows[len(rows) // size * size :]]
    return whole + [rests[at : at + size] for at in range(0, len(rests), size)]


def delivered(batches: FixedBatches, world_size: int = 1, merge: int = 1, first: int = 0) -> int:
    """The number past the last batch that ranks deliver which take over at batch ``first``."""
    return first + tail.end(batches.last, batches.formed - first, world_size * merge)


def rank_steps(batches: FixedBatches, world_size: int, rank: int, merge: int = 1, first: int = 0) -> list[list[int]]:
    """The batch numbers of each step of a rank, from batch ``first`` on (docs/decisions/0025)."""
    end = delivered(batches, world_size, merge, first)
    steps = tail.steps(batches.last, batches.formed - first, world_size, merge, rank)
    starts = [first + (s * world_size + rank) * merge for s in range(steps)]
    return [list(range(start, min(start + merge, end))) for start in starts]


@quick
@given(batches=BATCHES)
def test_batches_are_those_of_the_decision(batches: FixedBatches) -> None:
    decided = as_decided(batches)
    if isinstance(batches.last, DropPartial):
        decided = [batch for batch in decided if len(batch) == batches.batch_size]

    found = [batches.positions(g).tolist() for g in range(delivered(batches))]

    assert len(found) == len(decided)
    assert [rows[: len(want)] for rows, want in zip(found, decided, strict=True)] == decided
    where = {row: g for g, rows in enumerate(decided) for row in rows}
    assert [batches.locate(row) for row in range(batches.total)] == [where.get(row) for row in range(batches.total)]


@quick
@given(batches=BATCHES, merge=st.integers(1, 3))
def test_elastic_the_ranks_interleave_to_one_sequence_on_any_world_size(batches: FixedBatches, merge: int) -> None:
    sequence = [batches.positions(g).tolist() for g in range(delivered(batches))]
    for world_size in (1, 2, 3, 4, 6):
        ranks = [rank_steps(batches, world_size, rank, merge) for rank in range(world_size)]

        taken = [g for step in range(len(ranks[0])) for rank in ranks for g in (rank[step] if step < len(rank) else [])]

        assert taken == list(range(delivered(batches, world_size, merge)))
        common = min(len(taken), len(sequence))
        assert [batches.positions(g).tolist() for g in taken[:common]] == sequence[:common]


@quick
@given(batches=BATCHES, first=st.integers(0, 30), before=WORLDS, after=WORLDS, merge=st.integers(1, 2))
def test_elastic_another_world_size_takes_over_at_any_batch(
    batches: FixedBatches, first: int, before: int, after: int, merge: int
) -> None:
    first = min(first * before, delivered(batches, before), batches.formed)
    ranks = [rank_steps(batches, after, rank, merge, first) for rank in range(after)]

    taken = sorted(g for rank in ranks for step in rank for g in step)

    assert delivered(batches, after, merge, first) >= first
    assert taken == list(range(first, delivered(batches, after, merge, first)))
    if not isinstance(batches.last, KeepPartial):
        assert len({len(rank) for rank in ranks}) == 1
    if isinstance(batches.last, DropPartial):
        assert delivered(batches) - len(taken) - first < after * merge


@quick
@given(batches=BATCHES, world_size=WORLDS, merge=st.integers(1, 3))
def test_cover_each_rule_keeps_its_promise(batches: FixedBatches, world_size: int, merge: int) -> None:
    steps = [rank_steps(batches, world_size, rank, merge) for rank in range(world_size)]
    seen = Counter(row for rank in steps for step in rank for g in step for row in batches.positions(g).tolist())
    sizes = {batches.positions(g).size for rank in steps for step in rank for g in step}
    lengths = {len(rank) for rank in steps}
    dropped = max(0, batches.total - delivered(batches, world_size, merge) * batches.batch_size)

    assert set(seen) <= set(range(batches.total))
    if isinstance(batches.last, DropPartial):
        assert len(lengths) == 1
        assert sizes <= {batches.batch_size}
        assert set(seen.values()) <= {1}
        assert dropped == batches.total - len(seen) < (world_size * merge) * batches.batch_size
    elif isinstance(batches.last, PadPartial):
        assert len(lengths) == 1
        assert sizes <= {batches.batch_size}
        assert len(seen) == batches.total
        assert dropped == 0
        assert sum(seen.values()) - batches.total < world_size * merge * batches.batch_size
    else:
        assert max(lengths) - min(lengths) <= 1
        assert len(seen) == sum(seen.values()) == batches.total
        assert dropped == 0


@quick
@given(total=st.integers(1, 100), batch_size=st.integers(1, 16), lanes=st.integers(1, 5))
def test_padding_goes_on_from_the_epochs_start(total: int, batch_size: int, lanes: int) -> None:
    batches = FixedBatches(Lanes(total, lanes), batch_size, PadPartial())
    real = [row for batch in as_decided(batches) for row in batch]

    laid = [row for g in range(delivered(batches, 6)) for row in batches.positions(g).tolist()]

    assert laid[:total] == real
    assert laid[total:] == [i % total for i in range(len(laid) - total)]


def test_ten_billion_rows_in_many_lanes_are_arithmetic() -> None:
    batches = FixedBatches(Lanes(10**10 + 7, 4_096), 256, KeepPartial())
    start_s = time.process_time()

    for g in (0, 4_095, 4_096, 10**7, delivered(batches) - 2, delivered(batches) - 1):
        assert {batches.locate(int(p)) for p in batches.positions(g)} == {g}

    assert delivered(batches) == -(-(10**10 + 7) // 256)
    assert time.process_time() - start_s < 5


def test_lanes_take_turns() -> None:
    batches = FixedBatches(Lanes(23, 2), batch_size=3, last=KeepPartial())

    assert [batches.positions(g).tolist() for g in range(delivered(batches))] == [
        [0, 1, 2],
        [11, 12, 13],
        [3, 4, 5],
        [14, 15, 16],
        [6, 7, 8],
        [17, 18, 19],
        [20, 21, 22],  # the second lane has 12 rows, one batch more
        [9, 10],  # the rest of the first
    ]


@pytest.mark.parametrize("last", [DropPartial(), KeepPartial()])
@pytest.mark.parametrize("batch", [-1, 8])
def test_a_batch_that_is_not_there_is_refused(last: Tail, batch: int) -> None:
    with pytest.raises(IndexError, match=rf"batch {batch} of an epoch of 8. Give a number in \[0, 8\)"):
        FixedBatches(Lanes(24, 2), 3, last).positions(batch)


def test_an_empty_epoch_has_nothing_to_pad_with() -> None:
    empty = FixedBatches(Lanes(0, 2), 3, PadPartial())

    assert empty.formed == delivered(empty, 4) == 0
    with pytest.raises(IndexError, match="batch 0 of an epoch of 0"):
        empty.positions(0)


@pytest.mark.parametrize("position", [-1, 24])
def test_a_position_past_the_epoch_is_refused(position: int) -> None:
    with pytest.raises(IndexError, match=r"Give one in \[0, 24\)"):
        FixedBatches(Lanes(24, 2), 3, KeepPartial()).locate(position)


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        ({"batch_size": 0}, r"batch_size is 0\. Give an integer of at least 1"),
        ({"batch_size": 256.0}, r"batch_size is 256\.0\. Give an integer of at least 1"),
        ({"last": DropPartial}, r"Give DropPartial\(\), KeepPartial\(\) or PadPartial\(\)"),
    ],
)
def test_a_wrong_parameter_is_refused_at_birth(wrong: dict[str, object], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        FixedBatches(**{"lanes": Lanes(10, 1), "batch_size": 2, "last": KeepPartial(), **wrong})

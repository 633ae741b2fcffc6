"""The steps of a rank, and where a batch is delivered first."""

from itertools import count, product, takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.cursor import Cursor, Segment
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.runtime.numbering.steps import Steps, delivered_at, first_delivery, steps_of
from tests.fixtures.inner import numbering_of

WORLD, MERGE = 2, 2


@pytest.fixture(params=[sp.DropPartial, sp.KeepPartial, sp.batching.PadPartial])
def numbering(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Of 27 rows in batches of 5: what numbers them under each tail rule."""
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Arrow(pa.table({"sample_id": [f"row-{i}" for i in range(27)]})), identity="sample_id")
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    fields = {"id": sp.List("sample_id")}
    with sampled.collate(batch_size=5, fields=fields, last=request.param).to_numpy() as stream:
        yield numbering_of(stream)


def bound(rank: int) -> Bound:
    return Bound(0, rank, WORLD, 0, MERGE)


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_rank_makes_the_steps_at_which_it_gets_batches(numbering: Any, rank: int) -> None:
    segment = Segment(3, 0, 0, WORLD, MERGE)
    due = [delivered_at(numbering, 3, segment, step, rank) for step in range(9)]

    assert steps_of(numbering, 3, bound(rank)) == sum(numbers is not None for numbers in due)


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("workers", [1, 3])
def test_runs_of_steps_are_the_steps(numbering: Any, rank: int, workers: int) -> None:
    segment, start = Segment(3, 0, 0, WORLD, MERGE), Cursor(3).enter(WORLD, MERGE)
    for worker in range(workers):
        steps = Steps(numbering, 3, start, rank)
        runs = list(steps.due(worker, workers))
        each = [delivered_at(numbering, 3, segment, step, rank) for step in range(worker, 9, workers)]

        assert [numbers for run in runs for numbers in run] == [numbers for numbers in each if numbers is not None]
        assert steps.ended(worker + workers * sum(map(len, runs)))
        assert not runs or not steps.ended(worker + workers * (sum(map(len, runs)) - 1))


class Ready:
    """A numbering of so many batches, of which some next ones can be drawn at once."""

    def __init__(self, total: int, ready: int, last: sp.batching.Tail) -> None:
        self.total, self.most, self.last = total, ready, last

    def exists(self, epoch: int, number: int) -> bool:
        return epoch == 0 and 0 <= number < self.total

    def ready(self, epoch: int, number: int) -> int:
        return max(0, min(self.most, self.total - number)) if epoch == 0 else 0


@given(
    world=st.integers(1, 5),
    merge=st.integers(1, 3),
    workers=st.integers(1, 4),
    total=st.integers(0, 300),
    ready=st.integers(0, 300),
    last=st.sampled_from([sp.DropPartial(), sp.KeepPartial(), sp.batching.PadPartial()]),
)
def test_several_steps_get_what_each_step_gets(
    world: int, merge: int, workers: int, total: int, ready: int, last: sp.batching.Tail
) -> None:
    numbering: Any = Ready(total, ready, last)
    start = Cursor(0, 3, 2).enter(world, merge)

    for turn, worker in product(range(world), range(workers)):
        runs = Steps(numbering, 0, start, turn).due(worker, workers)
        each = (delivered_at(numbering, 0, start.segments[-1], step, turn) for step in count(2 + worker, workers))
        assert [numbers for run in runs for numbers in run] == list(takewhile(lambda got: got is not None, each))


def test_a_batch_is_delivered_first_where_a_rank_has_it(numbering: Any) -> None:
    segment = Segment(3, 0, 0, WORLD, MERGE)
    for number in range(numbering.total(3)):
        found = first_delivery(numbering, 3, 3, [number], Cursor(), bound(0))
        had = [
            {"epoch": 3, "batch": number, "step": step, "rank": rank}
            for step in range(9)
            for rank in range(WORLD)
            if number in (delivered_at(numbering, 3, segment, step, rank) or ())
        ]

        assert found == (had[0] if had else None)


@pytest.mark.crossed
@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["fixed", "buckets"])
def test_what_pad_partial_repeats_ends_with_the_last_step(tmp_path: Path, world: int, kind: str) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Arrow(pa.table({"sample_id": range(22)})), identity="sample_id")
    formation = sp.WindowedBucket(window_size=4) if kind == "buckets" else None
    plan = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=1))
    made = plan.collate(
        batch_size=3, fields={"id": sp.List("sample_id")}, formation=formation, last=sp.batching.PadPartial
    )
    had: dict[int, list[int]] = {}
    for rank in range(world):
        with made.to_numpy() as stream:
            stream.bind(data_parallel_rank=rank, data_parallel_world_size=world)
            had.update({world * step + rank: batch["id"] for step, batch in enumerate(stream)})
    with made.to_numpy() as stream:
        stream.bind(data_parallel_rank=0, data_parallel_world_size=world)
        stream.skip(batches=[1], epoch=1)

        assert [stream.ledger(number) for number in range(len(had))] == [had[number] for number in range(len(had))]
        for number in (len(had), len(had) + 1, 10**6, 10**30):
            for look in (stream.ledger, stream.batch, lambda n: stream.show(1, batch=n)):
                with pytest.raises(IndexError, match=r"Give a number in \[0, "):
                    look(number)
        shown = stream.show(1_000, batch=0)
        assert len(shown.tiles) == sum(map(len, had.values()))

"""What one types first at a stream or a plan: `take`, ``stream[i]``, ``len``, a loop over the plan, `to_arrow`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import frozen, same
from tests.fixtures.drawn_streams import Drawn, catalogs, plans
from tests.fixtures.examples import few
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, sp.Catalog]:
    return catalogs(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def samples(tmp_path: Path) -> sp.Relation:
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("numbers", sp.Arrow(pa.table({"n": range(100)})), identity="n")
    return catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=17))


@pytest.fixture
def plan(samples: sp.Relation) -> sp.Relation:
    return samples.collate(batch_size=8, fields={"n": sp.List("n"), "x": sp.Stack("n", dtype="float32")})


def alike(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(map(same, found, expected))


@few(5, 125, suppress_health_check=[HealthCheck.too_slow])
@given(
    drawn=plans().filter(lambda drawn: drawn.counted),
    world=st.integers(1, 2),
    merge=st.integers(1, 2),
    count=st.integers(0, 4),
    before=st.integers(0, 3),
)
def test_take_returns_what_a_loop_gets_next(
    shelf: Mapping[str, sp.Catalog], drawn: Drawn, world: int, merge: int, count: int, before: int
) -> None:
    for rank in range(world):
        bound = {"rank": rank, "world_size": world, "merge": merge}
        with drawn.make(shelf, **bound) as stream:
            whole = [frozen(batch) for batch in stream]
        with drawn.make(shelf, **bound) as stream:
            run = iter(stream)
            had = [frozen(batch) for _, batch in zip(range(before), run, strict=False)]
            if len(had) == len(whole):  # the place is the next epoch, or no step is left for this rank
                run.close()
                continue
            state = stream.state_dict()
            taken = stream.take(count)  # while the loop reads, too
            assert alike(taken, whole[len(had) : len(had) + count])
            assert stream.state_dict() == state
            assert alike([*had, *map(frozen, run)], whole)


def test_take_leaves_place_and_metrics_alone(plan: sp.Relation) -> None:
    with plan.to_torch() as stream:
        first, second = stream.take(2)
        assert isinstance(first["x"], torch.Tensor)
        assert stream.metrics()["batches"] == 0
        assert stream.place == (0, 0)
        assert [batch["n"] for batch in stream][:2] == [first["n"], second["n"]]
        assert stream.take()[0]["n"] == stream.batch(0, epoch=1)["n"]
        stream.seek(epoch=1, batch=10)
        assert len(stream.take(5)) == 2  # to the epoch's end
        for wrong in (-1, 1.5, "3"):
            with pytest.raises(sp.errors.StreamError, match=r"take: .* Give"):
                stream.take(wrong)  # type: ignore[arg-type]  # that is refused


def test_a_number_in_brackets_is_a_batch_of_the_present_epoch(plan: sp.Relation) -> None:
    with plan.to_numpy() as stream:
        stream.set_epoch(2)
        assert same(stream[3], stream.batch(3, epoch=2))
        assert len(stream) == 12
        for number in (-1, 12):
            with pytest.raises(IndexError, match=rf"batch {number} of an epoch of 12. Give a number in \[0, 12\)"):
                stream[number]
        with pytest.raises(TypeError, match=r"a slice is no number. Give one, as in stream\[0\]; stream.take\(3\)"):
            stream[1:3]  # type: ignore[index]  # that is refused
        with pytest.raises(TypeError, match="Give an integer"):
            stream["x"]  # type: ignore[index]  # that is refused


def test_a_loop_over_a_plan_names_what_can_be_looped_over(samples: sp.Relation, plan: sp.Relation) -> None:
    with pytest.raises(TypeError, match=r"plan.to_torch\(\), or plan.to_numpy\(\)"):
        for _ in plan:
            pass
    with pytest.raises(TypeError, match=r"\.collate\(batch_size=.*\.to_torch\(\) or \.to_numpy\(\)"):
        list(samples)
    with pytest.raises(TypeError, match=r"\.batches\(1_000\), look at \.head\(\), or take \.to_arrow\(\)"):
        iter(samples.catalog.table("numbers"))  # type: ignore[attr-defined]  # the door's own catalog
    with pytest.raises(sp.errors.PlanError, match=r"plan.to_numpy\(\).to_arrow\(\)"):
        plan.to_arrow()


def test_a_stream_becomes_an_arrow_reader_of_one_batch_at_a_time(plan: sp.Relation) -> None:
    with plan.to_numpy() as stream:
        reader: Any = stream.to_arrow()
        first = reader.read_next_batch()
        assert first.num_rows == 8
        assert stream.state_dict()["batch"] == 1  # no further batch was handed over
        assert first["n"].to_pylist() == stream[0]["n"]
        table = reader.read_all()
        assert table.num_rows == 11 * 8
        assert table.schema.field("x").type == pa.float32()
        assert stream.epoch == 1

"""`seek`: a stream goes to any place of which only the number is known, and goes on as a run does there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import spiral_stream as sp
from spiral_stream.adapters import StreamLoader
from spiral_stream.testing import frozen, same
from tests.fixtures.drawn_streams import Drawn, catalogs, plans
from tests.fixtures.examples import few
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

Catalogs = Mapping[str, sp.Catalog]
FEW = few(5, 125, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Catalogs:
    return catalogs(tmp_path_factory.mktemp("texts"))


def epochs(stream: Any, count: int = 2) -> list[list[dict[str, Any]]]:
    with stream:
        return [[frozen(batch) for batch in stream] for _ in range(count)]


def next_of(stream: Any) -> Any:
    run = iter(stream)
    found = next(run, None)
    run.close()
    return None if found is None else frozen(found)


def alike(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(map(same, found, expected))


def place(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["epoch"], state["batch"], state["step"], state["segments"]


# ---- laws


@FEW
@given(drawn=plans(), data=st.data())
def test_after_seek_comes_what_a_run_passes_there(shelf: Catalogs, drawn: Drawn, data: st.DataObject) -> None:
    """By batch, by step of an epoch, and by step of the run; and a state saved there leads on as it does."""
    whole = epochs(drawn.make(shelf))
    run = [batch for epoch in whole for batch in epoch]
    for _ in range(4):
        step = data.draw(st.integers(0, len(run) - 1)) if run else 0
        epoch, within = (0, step) if step < len(whole[0]) else (1, step - len(whole[0]))
        expected = run[step] if run else None
        with drawn.make(shelf) as stream:
            if all(whole):
                stream.seek(step=step)
                assert place(stream.state_dict())[:3] == (epoch, within, within)
                assert same(next_of(stream), expected)
            stream.seek(epoch=epoch, batch=within)
            state = json.loads(json.dumps(stream.state_dict()))
            assert same(next_of(stream), expected)
            after = stream.state_dict()
            stream.seek(epoch=epoch, step=within)
            assert same(next_of(stream), expected)
            assert place(stream.state_dict()) == place(after)
        with drawn.make(shelf) as resumed:
            resumed.load_state_dict(state)
            assert place(resumed.state_dict()) == place(state)
            assert alike([frozen(batch) for batch in resumed], whole[epoch][within:])


@FEW
@given(
    drawn=plans().filter(lambda drawn: drawn.counted),
    world=st.integers(1, 3),
    merge=st.integers(1, 2),
    data=st.data(),
)
def test_ranks_seek_to_the_steps_that_a_run_of_theirs_passes(
    shelf: Catalogs, drawn: Drawn, world: int, merge: int, data: st.DataObject
) -> None:
    bound = [{"rank": rank, "world_size": world, "merge": merge} for rank in range(world)]
    whole = [epochs(drawn.make(shelf, **each)) for each in bound]
    steps = [len(epoch) for epoch in whole[0]]  # of rank 0, which never has fewer
    if not all(steps):
        return
    step = data.draw(st.integers(0, sum(steps)))
    epoch, within = (0, step) if step < steps[0] else (1, step - steps[0])
    epoch, within = (2, 0) if within == steps[min(epoch, 1)] else (epoch, within)
    states = set()
    for each, ran in zip(bound, whole, strict=True):
        with drawn.make(shelf, **each) as stream:
            stream.seek(step=step)
            states.add(json.dumps(place(stream.state_dict())))
            assert place(stream.state_dict())[:3] == (epoch, within * world * merge, within)
            if epoch < 2 and within < len(ran[epoch]):
                assert same(next_of(stream), ran[epoch][within])
    assert len(states) == 1


@FEW
@given(
    drawn=plans().filter(lambda drawn: drawn.counted),
    before=st.integers(1, 3),
    world=st.integers(1, 3),
    data=st.data(),
)
def test_a_batch_number_means_the_same_for_any_ranks(
    shelf: Catalogs, drawn: Drawn, before: int, world: int, data: st.DataObject
) -> None:
    """Ranks that seek to a batch deliver what those deliver that load the state of other ranks there."""
    with drawn.make(shelf, rank=0, world_size=before) as stream:
        states = [stream.state_dict() for _ in stream]
    if not states:
        return
    state = data.draw(st.sampled_from(states))
    for rank in range(world):
        with drawn.make(shelf, rank=rank, world_size=world) as loaded, drawn.make(shelf) as sought:
            sought.bind(rank=rank, world_size=world).seek(epoch=state["epoch"], batch=state["batch"])
            loaded.load_state_dict(state)
            assert place(sought.state_dict())[:2] == place(loaded.state_dict())[:2]
            again = json.loads(json.dumps(sought.state_dict()))
            expected = [frozen(batch) for batch in loaded]
            assert alike([frozen(batch) for batch in sought], expected)
            sought.load_state_dict(again)
            assert alike([frozen(batch) for batch in sought], expected)


# ---- a plain plan


def numbers(folder: Path, **collate: Any) -> sp.Relation:
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("numbers", sp.Arrow(pa.table({"n": range(100)})), identity="n")
    options = {"batch_size": 8, "fields": {"n": sp.List("n")}, **collate}
    return catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=17)).collate(**options)


def test_workers_follow(tmp_path: Path) -> None:
    with numbers(tmp_path).to_torch() as stream:
        wanted = [stream.batch(number, epoch=3)["n"] for number in range(5, 12)]
        loader: Any = StreamLoader(stream, num_workers=2, multiprocessing_context="forkserver")
        loader.seek(epoch=3, batch=5)
        assert [batch["n"] for batch in loader] == wanted
        stream.seek(step=3 * 12 + 5)
        assert [
            batch["n"] for batch in DataLoader(stream, None, num_workers=2, multiprocessing_context="forkserver")
        ] == wanted
        loader.close()


def test_a_far_step_is_arithmetic(tmp_path: Path) -> None:
    with numbers(tmp_path).to_numpy() as stream:
        stream.seek(step=12 * 10**8 + 7)
        assert (stream.epoch, stream.state_dict()["step"]) == (10**8, 7)
        assert next(iter(stream))["n"] == stream.batch(7, epoch=10**8)["n"]
        stream.seek(epoch=2)
        assert (stream.epoch, stream.state_dict()["batch"]) == (2, 0)
        stream.seek(epoch=np.int64(4), batch=np.int32(12))  # an epoch's end is the start of the next one
        assert (stream.epoch, stream.state_dict()["batch"]) == (5, 0)
        stream.seek(batch=3)
        assert (stream.epoch, stream.state_dict()["batch"]) == (5, 3)


def test_batches_keep_their_numbers_where_a_run_skips(tmp_path: Path) -> None:
    with numbers(tmp_path).to_numpy() as stream:
        wanted = stream.ledger(7)
        stream.skip(batches=[2, 3])
        stream.seek(epoch=0, batch=7)
        assert next(iter(stream))["n"] == wanted
        with pytest.raises(sp.errors.ResumeError, match=r"batch 3 of epoch 0 is skipped.*stream\.skipped"):
            stream.seek(epoch=0, batch=3)
        stream.seek(step=10 + 7)  # epoch 0 has 10 steps left of 12
        assert (stream.epoch, stream.state_dict()["batch"]) == (1, 7)


@pytest.mark.parametrize(
    ("wanted", "error", "way_out"),
    [
        ({}, sp.errors.BindError, "Give epoch=, epoch= and batch=, or step="),
        ({"batch": 1, "step": 1}, sp.errors.BindError, "two places"),
        ({"step": -1}, sp.errors.BindError, "step=-1. Give a whole number from 0 up"),
        ({"batch": 1.5}, sp.errors.BindError, "batch=1.5. Give a whole number from 0 up"),
        ({"step": True}, sp.errors.BindError, "Give a whole number from 0 up"),
        ({"epoch": -1}, sp.errors.BindError, "epochs count from 0"),
        (
            {"epoch": 0, "batch": 13},
            sp.errors.ResumeError,
            "batch 13 lies beyond the end of epoch 0, which has 12 batches",
        ),
        ({"epoch": 0, "step": 13}, sp.errors.ResumeError, "count steps over epochs with step= alone"),
        ({"step": 10**30}, sp.errors.BindError, "Give a whole number"),
    ],
)
def test_what_is_no_place_is_refused_and_changes_nothing(
    tmp_path: Path, wanted: dict[str, Any], error: type[Exception], way_out: str
) -> None:
    with numbers(tmp_path).to_numpy() as stream:
        stream.seek(epoch=1, batch=4)
        before = stream.state_dict()
        with pytest.raises(error, match=way_out):
            stream.seek(**wanted)
        assert stream.state_dict() == before


def test_a_loop_that_reads_keeps_its_place(tmp_path: Path) -> None:
    with numbers(tmp_path).to_numpy() as stream:
        for _ in stream:
            with pytest.raises(
                sp.errors.StreamError, match=r"seek: the stream is being read already\. Leave the loop first"
            ):
                stream.seek(step=3)
            break


@pytest.mark.parametrize("state", [1000, np.int64(1000), {"epoch": 1, "step": 20}])
def test_a_number_in_place_of_a_state_names_seek(tmp_path: Path, state: Any) -> None:
    with numbers(tmp_path).to_numpy() as stream:
        with pytest.raises(sp.errors.ResumeError, match=r"Without a state, stream\.seek\("):
            stream.load_state_dict(state)
        next(iter(stream))
        with pytest.raises(
            sp.errors.ResumeError, match=r"stream\.seek\(epoch=\.\.\., batch=\.\.\.\) goes to a place of your choice"
        ):
            stream.load_state_dict({**stream.state_dict(), "run_seed": 5})

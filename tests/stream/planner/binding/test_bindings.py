"""What a run leaves open: the plan's integers, explicit bindings, the process group, the environment, 0 of 1."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream
from spiral_stream import DataParallel, GlobalShuffle, RuntimeParam, Sequential
from spiral_stream.errors import BindError
from spiral_stream.plan.nodes import Sample, Scan
from spiral_stream.planner.binding.bindings import Bindings, Bound, settle
from tests.fixtures import warm

ROOT = Path(spiral_stream.__file__).parents[1]
SCAN = Scan("t", pa.schema([("id", pa.utf8())]), ("id",))
RANKS = DataParallel(RuntimeParam("rank"), RuntimeParam("world_size"))
SAMPLE = Sample(SCAN, ("id",), GlobalShuffle(seed=17), RuntimeParam("epoch"), RANKS)


def settled(sample: Sample = SAMPLE, **values: Any) -> Bound:
    return settle(Bindings().updated(**values), sample)


def test_alone_a_process_is_rank_0_of_1_in_epoch_0_with_the_orders_seed() -> None:
    assert settled() == Bound(epoch=0, rank=0, world_size=1, run_seed=17, merge=1)
    assert settled(replace(SAMPLE, order=Sequential())).run_seed == 0


@given(world=st.integers(1, 64), data=st.data(), epoch=st.integers(0, 99), merge=st.integers(1, 9))
def test_what_is_bound_is_what_a_run_goes_with(world: int, data: st.DataObject, epoch: int, merge: int) -> None:
    rank = data.draw(st.integers(0, world - 1))
    long = settled(epoch=epoch, data_parallel_rank=rank, data_parallel_world_size=world, merge=merge, run_seed=-5)
    short = settled(epoch=epoch, rank=np.int64(rank), world_size=np.uint8(world), merge=merge, run_seed=-5)

    assert long == short == Bound(epoch, rank, world, -5, merge)
    assert type(short.rank) is int


def test_the_environment_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")

    assert (settled().rank, settled().world_size) == (3, 8)
    assert (settled(rank=1, world_size=2).rank, settled(rank=1).world_size) == (1, 8)


def test_integers_of_the_plan_hold() -> None:
    fixed = replace(SAMPLE, epoch=4, assignment=DataParallel(1, 3))

    assert settled(fixed) == Bound(4, 1, 3, 17, 1)
    with pytest.raises(BindError, match=r"data_parallel_rank=2, but the plan fixes 1. Leave it unbound, or plan with"):
        settled(fixed, rank=2)


def test_a_later_binding_replaces_an_earlier_one() -> None:
    bindings = Bindings().updated(epoch=1, rank=0, world_size=2).updated(epoch=5)

    assert (bindings.epoch, bindings.data_parallel_world_size) == (5, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": 3}, "'ranks' is not a binding; there are epoch, data_parallel_rank, .*, mesh"),
        ({"epoch": -1}, "epoch=-1 is out of range; it counts from 0"),
        ({"epochs": 0}, "epochs=0 is out of range; it counts from 1"),
        ({"world_size": 0}, "data_parallel_world_size=0 is out of range; it counts from 1"),
        ({"merge": 0}, "merge=0 is out of range; it counts from 1"),
        ({"merge": None}, "merge=None is a NoneType. Give an integer"),
        ({"epoch": "3"}, "epoch='3' is a str. Give an integer"),
        ({"epoch": 1.0}, r"epoch=1.0 is a float. Give an integer"),
        (
            {"mesh": 3},
            "mesh is 3, which is no mesh of torch. Give a torch.distributed.device_mesh.DeviceMesh, or bind rank",
        ),
        ({"rank": True}, "data_parallel_rank=True is a bool. Give an integer"),
        ({"rank": 2, "world_size": 2}, r"rank=2 of data_parallel_world_size=2; .* Bind both, with a rank in \[0, 2\)"),
        ({"rank": 1}, r"rank=1 of data_parallel_world_size=1; ranks count from 0. Bind both"),
    ],
)
def test_a_wrong_binding_says_what_would_be_right(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        settled(**values)


def test_a_smaller_world_does_not_turn_several_processes_into_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")

    with pytest.raises(BindError, match=r"rank=5 of data_parallel_world_size=4; .*Bind both"):
        settled(world_size=4)


def test_an_environment_that_holds_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")

    with pytest.raises(BindError, match=r"RANK or WORLD_SIZE in the environment is not a number .*. Unset it or bind"):
        settled()


@pytest.mark.parametrize(("rank", "world"), [("-1", "1"), ("0", "0"), ("first", "2")])
def test_an_environment_that_has_no_such_rank_is_named_and_what_is_bound_wins(
    monkeypatch: pytest.MonkeyPatch, rank: str, world: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)

    with pytest.raises(BindError, match=r"environment.*Unset (it|both) or bind explicitly"):
        settled()
    assert (settled(rank=1, world_size=2).rank, settled(rank=1, world_size=2).world_size) == (1, 2)
    assert settled(rank=3, world_size=4, replication=2).rank == 1


# ---- real process groups

PROGRAM = """
import os
import sys
import torch.distributed as dist
import torch.distributed.tensor  # which meshes import: before the fork, as torch
from torch.distributed.device_mesh import init_device_mesh
from tests.stream.planner.binding.test_bindings import settled

store, world = sys.argv[1], int(sys.argv[2])
other = os.fork()  # after torch was imported, once for both
rank = 0 if other else 1
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
group = settled()
data, tensor = (init_device_mesh("cpu", (1, world), mesh_dim_names=names) for names in (("tp", "dp"), ("dp", "tp")))
meshes = [settled(mesh=mesh) for mesh in (data, tensor)]
words = "|".join(str((each.rank, each.world_size)) for each in (group, *meshes))
sys.stdout.write(words + "\\n")  # in one piece: both write here
dist.destroy_process_group()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def test_the_process_group_fills_in_before_the_environment(tmp_path: Path) -> None:
    world = 2
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "6", "WORLD_SIZE": "7", "OMP_NUM_THREADS": "1"}
    run = warm.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(world)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == [f"{(rank, world)}|{(rank, world)}|(0, 1)" for rank in range(world)]

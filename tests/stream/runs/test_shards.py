"""Processes that share the rows of a batch: each logs sums over its own tokens, and the table has those of all of them."""

import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import RunError
from tests.fixtures import warm
from tests.fixtures.recorded_plans import Plan, losses, plans, recorded, register, unbroken

pytestmark = pytest.mark.usefixtures("no_threads_left")

_COUNT = count()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    found = sp.connect(tmp_path_factory.mktemp("catalog"))
    register(found)
    return found


def sums_of(batch: Any, places: Any) -> Any:
    """The sum of each sample's tokens at some places, by hand: one per row, or per piece of a packed row."""
    numbers, mask = np.asarray(losses(batch)), np.asarray(batch["mask"])
    out = []
    for row, ids in enumerate(batch["id"]):
        for k in range(1 if isinstance(ids, str) else len(ids)):
            mine = np.isin(np.arange(mask.shape[1]), places) & (
                mask[row] == k + 1 if not isinstance(ids, str) else mask[row] != 0
            )
            out.append(float(numbers[row][mine].sum()))
    return np.array(out)


@settings(max_examples=25, deadline=None)
@given(
    plan=plans,
    shards=st.integers(2, 4),
    seed=st.integers(0, 2**16),
    every=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    lengths=st.lists(st.integers(3, 12), min_size=4, max_size=4),
    look=st.integers(0, 12),
)
def test_sums_and_counts_are_those_of_one_process_that_has_all_tokens(
    catalog: sp.Catalog, plan: Plan, shards: int, seed: int, every: list[int], lengths: list[int], look: int
) -> None:
    """Shards of drawn places, logged per token or as sums; parts of drawn lengths; some processes end before others."""
    name, draw = f"shards-{next(_COUNT)}", np.random.default_rng(seed)
    streams = [plan.open(catalog) for _ in range(shards)]
    runs = [
        catalog.run(name, stream, attempt="one", every=every[k], shard=(k, shards)) for k, stream in enumerate(streams)
    ]
    for number, batches in enumerate(zip(*streams, strict=True)):
        width = np.asarray(batches[0]["ids"]).shape[1]
        owner = draw.integers(0, shards, width)
        for k, (run, batch) in enumerate(zip(runs, batches, strict=True)):
            if number >= lengths[k]:
                continue
            places = np.flatnonzero(owner == k)
            values = losses(batch)[:, places] if draw.integers(2) else sums_of(batch, places)
            for _ in range(1 + int(draw.integers(2))):  # a repeated one counts once
                run.log(
                    batch=batch,
                    loss=values,
                    positions=places,
                    applied=number != 2 or k != 1,
                    **({} if k else {"rate": number}),
                )
        if number == look:
            for run in runs:
                run.flush()
            if look < min(lengths[:shards]):
                catalog.table(f"runs.{name}")
    for run, stream in zip(runs, streams, strict=True):
        run.close()
        stream.close()

    whole = min(lengths[:shards])
    wanted = {at: row for at, row in unbroken(catalog, plan, 1).items() if at[1] < whole}
    assert recorded(catalog, name) == wanted
    table = catalog.table(f"runs.{name}").to_arrow()
    assert table["rate"].to_pylist() == table["batch"].to_pylist()
    assert table["applied"].to_pylist() == [number != 2 for number in table["batch"].to_pylist()]
    means = [
        x / n if n else None
        for x, n in zip(*(table[each].to_pylist() for each in ("loss_sum", "loss_tokens")), strict=True)
    ]
    assert table["loss"].to_pylist() == [each if each is None else float(np.float32(each)) for each in means]


def plan_of(catalog: sp.Catalog, seed: int = 2) -> sp.Relation:
    sampled = catalog.table("a").sample(order=sp.GlobalShuffle(seed=seed))
    return sampled.collate(batch_size=4, fields={"ids": sp.Pad("tokens", length=12), "id": sp.List("sample_id")})


def test_equal_parts_of_a_row_need_no_places_and_a_mask_is_of_the_shard(catalog: sp.Catalog) -> None:
    for shards in (1, 3):
        for k in range(shards):
            with plan_of(catalog).to_torch() as stream:
                run = catalog.run(f"equal-{shards}", stream, attempt="one", shard=(k, shards))
                for batch in stream:
                    here = slice(12 // shards * k, 12 // shards * (k + 1))
                    run.log(batch=batch, loss=losses(batch)[:, here], mask=(batch["ids"] % 2 == 0)[:, here])
                run.close()
    assert recorded(catalog, "equal-3") == recorded(catalog, "equal-1")
    assert len(recorded(catalog, "equal-1")) == 140


def test_a_batch_that_lacks_a_shard_is_in_no_table(catalog: sp.Catalog) -> None:
    with plan_of(catalog).to_numpy() as behind, plan_of(catalog).to_numpy() as stream:
        first, second = (
            catalog.run("alone", each, attempt="one", shard=(k, 2)) for k, each in enumerate((behind, stream))
        )
        second.log(batch=next(iter(stream)), loss=np.zeros((4, 6)))
        second.close()
        with pytest.raises(
            RunError, match=r"no batch has all of its shards; there is 1 of 2\. Each process .* with its shard="
        ):
            catalog.table("runs.alone")
        first.log(batch=next(iter(behind)), loss=np.ones((4, 6)))
        first.close()
    assert catalog.table("runs.alone").count() == 4


def test_shards_of_other_samples_are_refused(catalog: sp.Catalog) -> None:
    for k in range(2):
        with plan_of(catalog, seed=2 + k).to_numpy() as stream:
            run = catalog.run("unlike", stream, attempt="one", shard=(k, 2))
            run.log(batch=next(iter(stream)), loss=np.zeros((4, 6)))
            run.close()
    with pytest.raises(RunError, match=r"shards 0 and 1 of its batches hold other samples.*bind\(replication=\.\.\.\)"):
        catalog.table("runs.unlike")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"loss": np.zeros((4, 12))},
            r"shard 0 of 2 of rows of 12 places is meant\. Give values of shape \[B, T / 2\]",
        ),
        ({"loss": np.zeros((4, 2)), "positions": [3, 3]}, r"do not ascend from 0 up\. Give them ascending"),
        ({"loss": np.zeros((4, 2)), "positions": [3, 12]}, r"of rows of 12 places is meant"),
        ({"loss": np.zeros((4, 3)), "positions": [3, 4]}, r"is of 3 places, and shard 0 of 2"),
        ({"loss": np.zeros(4), "mask": np.ones((4, 5))}, r"is of 5 places, and shard 0 of 2"),
        ({"loss": np.zeros(3)}, r"has 3 values; this batch has 4 rows"),
    ],
)
def test_what_is_no_shard_says_the_way_out(catalog: sp.Catalog, given: dict[str, Any], match: str) -> None:
    with plan_of(catalog).to_numpy() as stream:
        run = catalog.run(f"wrong-{next(_COUNT)}", stream, shard=(0, 2), attempt="one")
        batch = next(iter(stream))
        with pytest.raises(RunError, match=match):
            run.log(batch=batch, **given)
        run.log(batch=batch, loss=np.zeros(4))
        run.close()


def test_which_shard_is_a_pair_and_only_shards_have_places(catalog: sp.Catalog) -> None:
    with plan_of(catalog).to_numpy() as stream:
        for wrong in ((2, 2), (-1, 2), 1, "01", (0, 1000), (0.5, 2)):
            with pytest.raises(RunError, match=r"is no shard\. Give \(which, of how many\)"):
                catalog.run("pair", stream, shard=wrong)  # type: ignore[arg-type]  # what is refused
        run = catalog.run("pair", stream)
        with pytest.raises(RunError, match=r"this run has whole batches\. Open it with shard=\(i, n\)"):
            run.log(batch=next(iter(stream)), loss=np.zeros((4, 6)), positions=range(6))
        with (
            plan_of(catalog).to_numpy() as other,
            pytest.raises(RunError, match=r"records already.*each its shard= of the tokens"),
        ):
            catalog.run("pair", other, attempt=run.attempt)


PROGRAM = """
import os, sys
import spiral_stream as sp
from tests.fixtures.recorded_plans import losses
from tests.stream.runs.test_shards import plan_of

folder, rank = sys.argv[1], int(sys.argv[2])
shard = rank % 2
with plan_of(sp.connect(folder)).to_torch() as stream:
    stream.bind(rank=rank, world_size=4, replication=2)
    run = sp.connect(folder).run("four", stream, shard=(shard, 2), every=3)
    for step, batch in enumerate(stream):
        run.log(batch=batch, loss=losses(batch)[:, 6 * shard : 6 * shard + 6])
        if step == 9:
            state = stream.state_dict()
            if rank == 3:
                os._exit(1)  # what it logs after this is lost, and so are the batches that it shares
    run.close()
"""


def test_four_processes_two_by_two(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two data-parallel ranks of two context-parallel ones each; one dies after it has saved."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    command = [sys.executable, "-c", PROGRAM, str(catalog.root)]
    root = Path(__file__).parents[3]
    processes = [warm.Popen([*command, str(rank)], cwd=root) for rank in range(4)]
    assert [process.wait(120) for process in processes] == [0, 0, 0, 1]

    with plan_of(catalog).to_numpy() as stream:
        wanted = {}
        for number, batch in enumerate(stream):
            if number < 34 and (number % 2 == 0 or number < 20):  # whole steps; of rank 1, ten of them
                for index, (ids, each) in enumerate(zip(batch["id"], losses(batch), strict=True)):
                    tokens = int((batch["ids"][index] != 0).sum()) + (ids == "a000")  # whose first token is 0
                    wanted[0, number, index] = (ids, float(each.sum()), tokens)
    found = recorded(catalog, "four")
    assert found == wanted
    ranks = catalog.table("runs.four").to_arrow()
    assert {(n % 2, r) for n, r in zip(*(ranks[each].to_pylist() for each in ("batch", "rank")), strict=True)} == {
        (0, 0),
        (1, 1),
    }
    assert pa.compute.sum(ranks["loss_tokens"]).as_py() == sum(n for *_, n in wanted.values())

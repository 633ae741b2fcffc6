"""A prepared stream: epochs and cursor, states, world sizes, random access, evaluation, devices, the end."""

import gc
import json
import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.sampling.epoch import EpochOrder
from spiral_stream.testing import frozen, same
from tests.fixtures.streams import FIXED, ORDERS, ROWS, TAILS, identities, maker, our_threads, plan

pytestmark = pytest.mark.usefixtures("no_threads_left")

Make = Callable[..., Any]


def take(stream: Any, count: int) -> list[dict[str, Any]]:
    """The next ``count`` batches, and out of the loop."""
    run = iter(stream)
    out = [frozen(next(run)) for _ in range(count)]
    run.close()
    return out


def until_break(stream: Any) -> list[Any]:
    out = []
    for batch in stream:
        out.append(frozen(batch))
        if len(out) == len(stream):
            break
    return out


LOOPS: dict[str, Callable[[Any], list[Any]]] = {
    "break": until_break,
    "exhaustion": lambda stream: [frozen(batch) for batch in stream],
    "islice": lambda stream: [frozen(batch) for batch in islice(stream, len(stream))],
    "next": lambda stream: take(stream, len(stream)),
    "zip": lambda stream: [frozen(batch) for _, batch in zip(range(len(stream)), stream, strict=False)],
}


def alike(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(same(a, b) for a, b in zip(some, others, strict=True))


# ---- epochs and cursor


def test_exhaustion_moves_on_and_leaving_keeps_the_place(catalog: sp.Catalog) -> None:
    make = maker(catalog, batch_size=50)
    with make() as stream, make() as other:
        first, second = list(stream), list(stream)
        assert stream.epoch == 2
        assert identities(first) != identities(second)

        head = take(other, 2)
        assert other.epoch == 0
        assert len(other) == 4
        assert alike([*head, *other], first)
        assert alike(list(other), second)


@pytest.mark.parametrize("how", sorted(LOOPS))
def test_however_a_loop_ends_behind_the_last_batch_the_next_epoch_begins(catalog: sp.Catalog, how: str) -> None:
    with maker(catalog, batch_size=50)() as stream, maker(catalog, batch_size=50)() as other:
        for epoch in range(3):
            assert alike(LOOPS[how](stream), list(other))
            assert stream.epoch == epoch + 1
            assert stream.state_dict() == other.state_dict()
            stream.set_epoch(epoch + 1)  # it is there


def test_in_the_loop_everything_is_of_its_epoch_and_only_the_state_goes_on(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=50)() as stream, maker(catalog, batch_size=50)() as other:
        places = []
        for number, batch in enumerate(stream):
            state = stream.state_dict()
            places.append((state["epoch"], state["batch"]))
            stream.set_epoch(0)  # the batches are of epoch 0, so nothing happens
            assert stream.epoch == 0
            assert len(stream) == 4
            assert same(stream.batch(number), batch)
            assert stream.ledger(number) == batch["id"]
            assert stream.locate(batch["id"][0]) == {"epoch": 0, "batch": number, "step": number, "rank": 0}
        assert places == [(0, 1), (0, 2), (0, 3), (1, 0)]
        list(other)
        assert alike(list(stream), list(other))


def test_an_iterator_that_is_kept_at_the_last_batch_keeps_nothing_from_going_on(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=50)() as stream, maker(catalog, batch_size=50)() as other:
        kept = []
        for _ in range(3):
            run = iter(stream)
            kept.append(run)
            assert alike([frozen(next(run)) for _ in range(4)], list(other))
        assert [next(run, None) for run in kept] == [None] * 3
        assert stream.epoch == 3

        run = iter(stream)
        for _ in range(4):
            next(run)
        state = stream.state_dict()
        stream.bind(run_seed=1).set_epoch(7)
        assert next(run, None) is None
        assert stream.epoch == 7
        stream.bind(run_seed=None).load_state_dict(state)
        assert stream.state_dict()["epoch"] == 4


@pytest.mark.crossed
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("merge", [1, 2])
def test_ranks_agree_on_the_end_of_an_epoch_at_every_step(catalog: sp.Catalog, tail: str, merge: int) -> None:
    make, world = maker(catalog, batch_size=33, last=TAILS[tail]), 3
    ranks = [make().bind(rank=rank, world_size=world, merge=merge) for rank in range(world)]
    steps, states = [len(rank) for rank in ranks], []
    for rank, stream in enumerate(ranks):
        states.append([])
        for _, _ in zip(range(steps[rank]), stream, strict=False):
            states[-1].append(stream.state_dict())
        assert stream.epoch == 1
        second = [batch["id"] for batch in stream]
        with make().bind(rank=rank, world_size=world, merge=merge, epoch=1) as other:
            assert [batch["id"] for batch in other] == second
    for step in range(max(steps)):
        there = [own[step] for own in states if step < len(own)]
        assert all(each == there[0] for each in there)
        assert (there[0]["epoch"], there[0]["batch"] == 0) == ((1, True) if step == max(steps) - 1 else (0, False))
    for stream in ranks:
        stream.close()


def test_set_epoch_moves_to_the_start_unless_it_is_there(catalog: sp.Catalog) -> None:
    make = maker(catalog, batch_size=50)
    with make() as stream, make() as other:
        take(stream, 2)
        stream.set_epoch(0)
        assert len(list(stream)) == 2

        other.set_epoch(1)
        expected = list(other)
        stream.set_epoch(1)
        assert alike(take(stream, 1), expected[:1])
        stream.set_epoch(5)
        stream.set_epoch(1)
        assert alike(list(stream), expected)
        for bad in (-1, "1", 1.5, None, True, 2**31, 2**70):
            with pytest.raises(sp.errors.BindError, match=r"set_epoch: .*; epochs count from 0. Give an integer"):
                stream.set_epoch(bad)  # type: ignore[arg-type]  # what it refuses
        stream.set_epoch(np.int64(2))  # type: ignore[arg-type]  # as good as an integer
        assert stream.epoch == 2


def test_while_a_stream_is_read_it_is_not_moved_bound_or_read_twice(catalog: sp.Catalog) -> None:
    with maker(catalog)() as stream:
        state = stream.state_dict()
        run = iter(stream)
        next(run)

        stream.set_epoch(0)
        with pytest.raises(sp.errors.BindError, match="Leave the loop"):
            stream.bind(run_seed=1)
        with pytest.raises(sp.errors.StreamError, match="Leave the loop first"):
            stream.set_epoch(1)
        with pytest.raises(sp.errors.StreamError, match="Leave the loop first"):
            stream.load_state_dict(state)
        with pytest.raises(sp.errors.StreamError, match="being read already"):
            next(iter(stream))
        run.close()
        stream.bind(run_seed=1).set_epoch(1)


@pytest.mark.crossed
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_len_is_the_steps_of_the_whole_epoch_on_this_rank(
    catalog: sp.Catalog, tail: str, merge: int, world: int
) -> None:
    relation, counts = catalog.table("lance").project("sample_id"), []
    for rank in range(world):
        collated = relation.sample(order=ORDERS["global"]).collate(
            batch_size=33, last=TAILS[tail], fields={"id": sp.List("sample_id")}
        )
        with collated.to_numpy() as stream:
            stream.bind(rank=rank, world_size=world, merge=merge)
            steps = len(stream)
            assert len(take(stream, 1)) == 1
            assert len(stream) == steps
            rest = list(stream) if steps > 1 else []
            assert 1 + len(rest) == steps
            counts.append(steps)

    formed = ROWS // 33 if tail == "drop" else math.ceil(ROWS / 33)
    groups = formed // (world * merge) if tail == "drop" else math.ceil(formed / merge / world)
    assert max(counts) == groups
    assert min(counts) >= groups - (tail == "keep")


def test_a_plan_that_names_its_epoch_repeats_it(catalog: sp.Catalog) -> None:
    with maker(catalog, epoch=3)() as pinned, maker(catalog)() as free:
        free.set_epoch(3)
        expected = list(free)

        assert alike(list(pinned), expected)
        assert alike(list(pinned), expected)
        assert same(pinned.batch(2), expected[2])
        assert pinned.ledger(2) == expected[2]["id"]


# ---- states


def test_a_state_is_small_json_and_the_same_on_all_ranks(catalog: sp.Catalog) -> None:
    states = []
    for rank in range(3):
        with maker(catalog)().bind(rank=rank, world_size=3) as stream:
            take(stream, 3)
            states.append(json.dumps(stream.state_dict(), sort_keys=True))

    assert len(set(states)) == 1
    assert len(states[0]) < 1024
    assert json.loads(states[0])["batch"] == 9


def test_a_state_holds_what_was_delivered_not_what_was_prefetched(catalog: sp.Catalog) -> None:
    with maker(catalog, prefetch=6)() as stream:
        seen = []
        for step, _ in enumerate(stream):
            seen.append(stream.state_dict()["batch"])
            if step == 4:
                break

        assert seen == [1, 2, 3, 4, 5]


def test_the_state_after_the_last_batch_goes_on_with_the_next_epoch(catalog: sp.Catalog) -> None:
    make = maker(catalog, batch_size=50)
    with make() as stream:
        inside = [stream.state_dict() for _ in stream][-1]
        after = stream.state_dict()
        expected = list(stream)
    assert (inside["epoch"], inside["batch"]) == (1, 0)
    assert after == inside
    state = inside
    for _ in range(2):  # saved again where it was loaded
        with make() as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            state = resumed.state_dict()
            assert state == inside
            assert alike(list(resumed), expected)


def unsealed(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A state as it was before there were checksums."""
    return {name: value for name, value in {**state, **changes}.items() if name != "checksum"}


@pytest.mark.crossed
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", [1, 3])
def test_a_state_of_before_behind_the_last_batch_goes_on_with_the_next_epoch(
    catalog: sp.Catalog, tail: str, world: int
) -> None:
    make = maker(catalog, batch_size=33, last=TAILS[tail])
    with make().bind(rank=0, world_size=world) as stream, make().bind(rank=0, world_size=world) as old:
        steps = len(stream)
        state = stream.state_dict()
        place = {"batch": steps * world, "step": steps, "segments": [[0, 0, 0, world, 1]]}
        list(stream)
        old.load_state_dict(unsealed(state, **place))
        if tail != "drop" or world == 1:  # else a smaller world has more of that epoch
            assert old.state_dict() == stream.state_dict()
        assert alike(list(old), list(stream))
        for beyond in (1, 5, 10**6):
            past = {"batch": (steps + beyond) * world, "step": steps + beyond}
            with pytest.raises(
                sp.errors.ResumeError, match=r"lies beyond the end of epoch 0, which has \d+ batches. Pass what"
            ):
                old.load_state_dict(unsealed(state, **{**place, **past}))


@pytest.mark.crossed
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_run_that_changes_its_world_size_three_times_sees_the_same_batches(
    catalog: sp.Catalog, tail: str, lanes: int
) -> None:
    make = maker(catalog, last=TAILS[tail], lanes=lanes, batch_size=13)
    with make() as stream:
        whole = [frozen(batch) for batch in stream]
    state: dict[str, Any] | None = None
    merged: list[Any] = []
    for world, steps in ((1, 2), (2, 3), (3, 2), (1, 100)):
        runs, states = [], []
        for rank in range(world):
            with make().bind(rank=rank, world_size=world) as stream:
                if state is not None:
                    stream.load_state_dict(state)
                run = iter(stream)
                runs.append([frozen(batch) for _, batch in zip(range(steps), run, strict=False)])
                run.close()
                states.append(stream.state_dict())
        merged += [batch for step in zip(*runs, strict=True) for batch in step]
        assert all(each == states[0] for each in states)
        state = states[0]

    assert alike(merged, whole)


def test_a_state_shows_which_batches_each_step_was(catalog: sp.Catalog) -> None:
    make = maker(catalog)
    with make() as stream:
        take(stream, 3)
        state = stream.state_dict()
    with make().bind(rank=1, world_size=2) as stream:
        stream.load_state_dict(state)
        batch = take(stream, 1)[0]

        assert stream.locate(batch["id"][0]) == {"epoch": 0, "batch": 4, "step": 3, "rank": 1}
        assert stream.locate(stream.ledger(1)[0]) == {"epoch": 0, "batch": 1, "step": 1, "rank": 0}
        assert stream.ledger(4) == batch["id"]


def test_merge_concatenates_neighbours_and_keeps_the_place_in_batches(catalog: sp.Catalog) -> None:
    make = maker(catalog, last=sp.KeepPartial, batch_size=50)
    with make() as stream, make().bind(merge=2) as double:
        single = [frozen(batch) for batch in stream]
        pairs = take(double, 2)
        state = double.state_dict()
        rest = list(double)
        assert double.fingerprint == stream.fingerprint
    with make() as resumed:
        resumed.load_state_dict(state)
        assert alike(list(resumed), single[4:])

    assert [len(p["id"]) for p in [*pairs, *rest]] == [100, 100, 40]
    assert identities([*pairs, *rest]) == identities(single)
    assert pairs[0]["image"].tobytes() == single[0]["image"].tobytes() + single[1]["image"].tobytes()
    assert state["batch"] == 4


def test_resuming_costs_the_same_everywhere(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    make = maker(catalog, batch_size=2, prefetch=1)
    fetched: list[int] = []
    placed: list[int] = []
    fetch, places = OpenRelation.fetch, EpochOrder.stream_rows

    def counting(self: OpenRelation, ordinals: Any, columns: Any) -> Any:
        fetched.append(len(ordinals))
        return fetch(self, ordinals, columns)

    def placing(self: EpochOrder, epoch: int, positions: Any) -> Any:
        placed.append(len(positions))
        return places(self, epoch, positions)

    with make() as stream:
        states = [stream.state_dict() for _ in stream]
    monkeypatch.setattr(OpenRelation, "fetch", counting)
    monkeypatch.setattr(EpochOrder, "stream_rows", placing)
    costs = []
    for share in (0.01, 0.5, 0.98):
        fetched.clear()
        placed.clear()
        with make() as stream:
            stream.load_state_dict(states[int(share * len(states))])
            run = iter(stream)
            next(run)
            run.close()
        costs.append((sum(placed), sum(fetched)))

    # The batch asked for, and at most the two that the feeder had begun when the loop was left.
    assert all(2 <= positions <= 6 for positions, _ in costs)
    assert all(2 <= rows_read <= 6 for _, rows_read in costs)


# ---- states that belong elsewhere


def test_a_state_of_another_plan_is_refused_with_the_difference(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=16)() as stream, maker(catalog, batch_size=32)() as other:
        state = stream.state_dict()
        message = r"saved by plan \w{8}, this is plan \w{8}; they differ at .*batch_size.*16.*32.*Restore the old plan"
        with pytest.raises(sp.errors.ResumeError, match=message):
            other.load_state_dict(state)
        with pytest.raises(sp.errors.ResumeError, match=r"where they differ is unknown, because .*Restore the old"):
            stream.load_state_dict(unsealed(state, plan="0" * 32))


def test_a_state_of_another_run_seed_is_refused(catalog: sp.Catalog) -> None:
    make = maker(catalog)
    with make().bind(run_seed=5) as five, make().bind(run_seed=7) as seven, make() as free:
        fives, sevens = five.state_dict(), seven.state_dict()
        with pytest.raises(
            sp.errors.ResumeError, match=r"saved with run_seed 5, and 7 is bound.*Leave run_seed unbound"
        ):
            seven.load_state_dict(fives)

        free.load_state_dict(fives)
        assert free.state_dict()["run_seed"] == 5
        free.load_state_dict(sevens)
        assert alike(take(free, 1), take(seven, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spiral": 99}, "no state of version 1 .found 99"),
        ({"run_seed": None}, "run_seed is None, not an integer. Pass what state_dict"),
        ({"data": None}, "data versions are None. Pass what state_dict"),
        ({"batch": -1}, "whole numbers from 0 up. Pass what state_dict"),
        ({"batch": 1.5}, "whole numbers from 0 up. Pass what state_dict"),
        ({"segments": [[1]]}, "place cannot be read .*Pass what state_dict"),
        ({"epoch": "0"}, "whole numbers from 0 up. Pass what state_dict"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(
    catalog: sp.Catalog, change: dict[str, Any], message: str
) -> None:
    with maker(catalog)() as stream:
        take(stream, 2)
        before = stream.state_dict()
        with pytest.raises(sp.errors.ResumeError, match=message):
            stream.load_state_dict({**before, **change})
        with pytest.raises(sp.errors.ResumeError, match="no state of version"):
            stream.load_state_dict("a path")

        assert stream.state_dict() == before
        for name in ("epoch", "batch", "step", "segments", "run_seed", "data", "plan"):
            with pytest.raises(sp.errors.ResumeError):
                stream.load_state_dict({k: v for k, v in before.items() if k != name})


# ---- random access


@pytest.mark.parametrize("order", ORDERS)
def test_batch_ledger_and_locate_agree_with_iteration_on_every_rank(catalog: sp.Catalog, order: str) -> None:
    world = 2
    for rank in range(world):
        options = {"order": ORDERS[order], "last": sp.KeepPartial, "lanes": 2, "batch_size": 50}
        with maker(catalog, **options)().bind(rank=rank, world_size=world, epoch=1) as stream:
            for step, batch in enumerate(stream):
                number = step * world + rank
                assert same(stream.batch(number), batch)
                assert stream.ledger(number) == batch["id"]
                for identity in (batch["id"][0], batch["id"][-1]):
                    assert stream.locate(identity) == {"epoch": 1, "batch": number, "step": step, "rank": rank}


def test_random_access_reaches_other_epochs_and_says_where_there_is_nothing(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=50)() as stream:
        second = stream.ledger(0, epoch=1)
        dropped = set(catalog.table("lance").to_arrow()["sample_id"].to_pylist()) - {
            each for number in range(4) for each in stream.ledger(number)
        }
        place = stream.locate(second[0], epoch=1)

        assert place == {"epoch": 1, "batch": 0, "step": 0, "rank": 0}
        assert len(dropped) == 40
        assert stream.locate(min(dropped)) is None
        assert stream.batch(0, epoch=1)["id"] == second
        with pytest.raises(IndexError, match=r"batch 4 .*Give a number in \[0, 4\)"):
            stream.batch(4)
        with pytest.raises(IndexError, match=r"Give a number in"):
            stream.ledger(-1)
        with pytest.raises(KeyError, match="no row that the plan keeps has sample_id = 'nobody'"):
            stream.locate("nobody")
        stream.set_epoch(1)
        assert identities(stream)[:50] == second


def test_an_identity_of_two_columns_is_a_tuple_everywhere(catalog: sp.Catalog) -> None:
    names = ["sample_id", "label_id"]
    sampled = catalog.table("lance").sample(identity=names, order=ORDERS["buckets"])
    collated = sampled.collate(batch_size=20, fields={n: sp.List(n) for n in names})
    with collated.to_numpy() as stream:
        batch = next(iter(stream))
        pairs = list(zip(batch["sample_id"], batch["label_id"], strict=True))

        assert stream.ledger(0) == pairs
        assert stream.locate(pairs[3]) == {"epoch": 0, "batch": 0, "step": 0, "rank": 0}


# ---- evaluation


def test_eval_is_deterministic_drops_nothing_and_has_its_own_cursor(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=50)() as stream:
        stream.set_epoch(2)
        head = take(stream, 1)
        state = stream.state_dict()
        with stream.eval() as held:
            first, second = list(held), list(held)
            assert len(held) == 5
        with stream.eval().bind(run_seed=12345) as other_seed:
            assert alike(list(other_seed), first)

        assert alike(first, second)
        assert [len(batch["id"]) for batch in first] == [50, 50, 50, 50, 40]
        assert identities(first)[:50] == head[0]["id"]
        assert sorted(identities(first)) == sorted(catalog.table("lance").to_arrow()["sample_id"].to_pylist())
        assert not same(first[0]["image"], head[0]["image"])
        assert stream.state_dict() == state


def test_eval_drops_nothing_where_the_run_promised_its_steps(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=50, transforms=FIXED)() as stream, stream.bind(steps_per_epoch=2).eval() as held:
        assert len(held) == 5
        assert len(identities(held)) == ROWS


def test_eval_of_several_ranks_sees_every_sample_once(catalog: sp.Catalog) -> None:
    seen: list[str] = []
    with maker(catalog, batch_size=50, transforms=FIXED)() as stream:
        for rank in range(3):
            stream.bind(rank=rank, world_size=3)
            with stream.eval() as held:
                seen += identities(held)

    assert len(seen) == len(set(seen)) == ROWS


# ---- devices


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch on a machine without CUDA, whatever this one has."""
    module = pytest.importorskip("torch")
    monkeypatch.setattr(module.cuda, "is_available", lambda: False)
    return module


def test_cuda_that_is_not_there_is_told_when_the_stream_is_bound_or_begun(catalog: sp.Catalog, torch: Any) -> None:
    refusal = r"'image' asks for device 'cuda'.*no CUDA.*bind\(device=\"cpu\"\)"
    with plan(catalog.table("lance"), device="cuda").to_torch() as stream:
        assert len(stream) == 15
        assert "cuda" in str(stream.explain())
        before = stream.state_dict()
        for use in (lambda: stream.bind(epoch=3), lambda: iter(stream), lambda: stream.batch(0)):
            with pytest.raises(sp.errors.BindError, match=refusal):
                use()
        assert stream.state_dict() == before
        assert next(iter(stream.bind(device="cpu")))["image"].device.type == "cpu"
        with pytest.raises(sp.errors.BindError, match=r"asks for device 'cuda:3' and this machine has no CUDA"):
            stream.bind(device="cuda:3")
        assert stream.devices() == {"image": "cpu", "label": "cpu"}


def test_a_device_beyond_those_there_are_is_refused(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("torch")
    monkeypatch.setattr(module.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.cuda, "device_count", lambda: 2)
    with plan(catalog.table("lance")).to_torch() as stream:
        with pytest.raises(
            sp.errors.BindError, match=r"asks for device 'cuda:2' and this machine has 2 CUDA device\(s\)"
        ):
            stream.bind(device="cuda:2")
        assert stream.bind(device="cuda:1").devices()["image"] == "cuda:1"
        assert stream.bind(device="auto").devices()["image"] == "cuda"


def test_auto_is_the_host_where_there_is_no_cuda(catalog: sp.Catalog, torch: Any) -> None:
    rows = catalog.table("lance")
    fingerprint = plan(rows).to_torch().fingerprint
    for stream in (
        plan(rows, device="auto").to_torch(),
        plan(rows).to_torch(device="auto"),
        plan(rows, device="cuda").to_torch().bind(device="auto"),
        plan(rows, device="auto").to_numpy(),
    ):
        with stream:
            assert stream.devices()["image"] == "cpu"
            assert stream.fingerprint == fingerprint
            assert len(next(iter(stream))["image"]) == 16


@pytest.mark.parametrize("device", ["gpu7", "cuda:", "cuda:99999", "CUDA", "", "meta", 7, "x" * 10_000])
def test_no_device_is_refused_when_the_plan_is_made(catalog: sp.Catalog, device: Any) -> None:
    with pytest.raises(
        sp.errors.PlanError, match=r'collate \(field \'image\'\): device=.*Give "cpu", "cuda", .* or "auto"'
    ) as refused:
        plan(catalog.table("lance"), device=device)
    assert len(str(refused.value)) < 400
    with pytest.raises(sp.errors.BindError, match="bind: device="), plan(catalog.table("lance")).to_numpy() as stream:
        stream.bind(device=device)


def test_numpy_streams_refuse_devices_with_the_way_out(catalog: sp.Catalog) -> None:
    with maker(catalog, device="cuda")() as stream:
        assert len(stream) == 15
        with pytest.raises(sp.errors.BindError, match=r"host.*to_torch\(\), or bind\(device='cpu'\)"):
            next(iter(stream))
        assert our_threads() == []
        assert next(iter(stream.bind(device="cpu")))["image"].dtype == np.uint8


# ---- the end


def test_an_epoch_or_identity_that_cannot_be_is_said_wherever_it_is_given(catalog: sp.Catalog) -> None:
    with maker(catalog)() as stream:
        for epoch in (-1, 1 << 70, 1.5, "1"):
            for ask in (stream.count, lambda e: stream.batch(0, e), lambda e: stream.ledger(0, e)):
                with pytest.raises(sp.errors.BindError, match=r"epoch: .*; epochs count from 0. Give an integer"):
                    ask(epoch)
            with pytest.raises(sp.errors.BindError, match=r"locate: .*; epochs count from 0. Give an integer"):
                stream.locate(stream.ledger(0)[0], epoch)
        for identity in ((1, 2, 3), ()):
            with pytest.raises(KeyError, match=r"has . values; an identity here is \(sample_id\)"):
                stream.locate(identity)


def test_a_closed_stream_says_so(catalog: sp.Catalog) -> None:
    stream = maker(catalog)()
    with stream:
        run = iter(stream)
        next(run)
    assert our_threads() == []

    with pytest.raises(sp.errors.StreamError, match=r"closed while it was read. Make a new one"):
        next(run)
    for use in (lambda: next(iter(stream)), lambda: len(stream), stream.state_dict, stream.verify):
        with pytest.raises(sp.errors.StreamError, match=r"the stream is closed. Make a new one from its plan"):
            use()
    stream.close()


def fail_in_the_loop(stream: Any) -> None:
    for batch in stream:
        assert batch["id"]
        raise ZeroDivisionError


@pytest.mark.parametrize("how", ["never started", "broken off", "collected", "exhausted", "raised", "untouched"])
def test_threads_end_however_a_loop_ends(catalog: sp.Catalog, how: str) -> None:
    stream = maker(catalog, prefetch=4)()
    if how == "never started":
        iter(stream)
    elif how == "broken off":
        for _ in stream:
            break
    elif how == "collected":
        run = iter(stream)
        next(run)
        del run
        gc.collect()
    elif how == "exhausted":
        list(stream)
    elif how == "raised":
        with pytest.raises(ZeroDivisionError):
            fail_in_the_loop(stream)
    assert our_threads() == []
    stream.close()


def test_metrics_count_what_was_built(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=60)() as stream:
        assert stream.metrics()["bound_by"].startswith("unknown")
        list(stream)
        found = stream.metrics()

    assert (found["batches"], found["samples"], found["source_rows"], found["cached_rows"]) == (4, 240, 240, 0)
    assert found["queued"] == 0
    assert found["cache_hit_rate"] == 0
    assert found["bound_by"] in {"consumer", "fetch", "transform"}


# ---- epochs without a batch


@pytest.mark.parametrize("formation", [None, sp.WindowedBucket(window_size=ROWS + 9)])
def test_a_batch_size_above_the_rows_is_said_when_the_stream_is_prepared(catalog: sp.Catalog, formation: Any) -> None:
    sampled = catalog.table("lance").project("sample_id").sample(order=ORDERS["global"])
    options = {"batch_size": ROWS + 1, "fields": {"id": sp.List("sample_id")}, "formation": formation}
    says = rf"batch_size is {ROWS + 1} and an epoch has {ROWS} samples, so DropPartial .* at most {ROWS}, or last=KeepPartial"
    with sampled.collate(**options).to_numpy() as stream:
        with pytest.warns(sp.SpiralWarning, match=says):
            assert stream.fingerprint
        with pytest.warns(
            sp.SpiralWarning, match=r"rank 0 gets nothing in epoch 0: no batch is left .* Lower the batch size"
        ):
            assert list(stream) == []
    for last in (sp.KeepPartial, sp.batching.PadPartial):
        with sampled.collate(**options, last=last).to_numpy() as stream:
            assert len(list(stream)) == 1


@pytest.mark.parametrize(
    ("last", "merge", "says"),
    [
        (
            sp.DropPartial,
            1,
            r"3 batches do not make a step of 4 ranks with merge=1 \(4 batches a step\). Read with at most 3",
        ),
        (
            sp.DropPartial,
            4,
            r"3 batches do not .* ranks with merge=4 \(16 batches a step\). Lower merge or the batch size",
        ),
        (sp.KeepPartial, 1, r"its 3 batches go to the ranks before it"),
    ],
)
def test_a_rank_that_gets_no_batch_hears_why(catalog: sp.Catalog, last: Any, merge: int, says: str) -> None:
    make = maker(catalog, batch_size=ROWS // 3, last=last)
    with make().bind(rank=3, world_size=4, merge=merge) as stream:
        with pytest.warns(sp.SpiralWarning, match=f"rank 3 gets nothing in epoch 0: {says}"):
            assert list(stream) == []
        assert stream.epoch == 1

"""A run that goes on with another mixture: each stream from its own place, whatever the plans and wherever they change."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import ResumeError, StreamError
from spiral_stream.testing import frozen, same
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.legs import ORDER, SIZES, Leg, legs
from tests.fixtures.texts import SMALL_PLANS, ids_of, make_catalog

SLOW_SHARES: Final = pytest.mark.filterwarnings(
    "ignore:rebase. .* from a pass that its other rows:spiral_stream.SpiralWarning"
)
pytestmark = [SMALL_PLANS, SLOW_SHARES, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

FEW = few(3, 125, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("rebase"), SIZES, shortest=1)


class Run:
    """Legs one after the other, and what each stream delivered in order."""

    def __init__(self, catalog: sp.Catalog) -> None:
        self.catalog = catalog
        self.seen: dict[str, list[str]] = {}
        self.ranks: list[sp.PreparedStream] = []

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()

    def go(self, leg: Leg) -> None:
        """Read ``steps`` of a leg on all of its ranks."""
        earlier, self.ranks = self.ranks, [leg.plan(self.catalog) for _ in range(leg.world)]
        for number, rank in enumerate(self.ranks):
            rank.bind(data_parallel_rank=number, data_parallel_world_size=leg.world)
            if earlier:
                rank.rebase(earlier[number % len(earlier)])
        for each in earlier:
            each.close()
        if earlier and leg.saved:  # a fresh object knows from the state alone
            state = json.loads(json.dumps(self.ranks[0].state_dict()))
            for rank in self.ranks:
                rank.close()
            self.ranks = [leg.plan(self.catalog) for _ in range(leg.world)]
            for number, rank in enumerate(self.ranks):
                rank.bind(data_parallel_rank=number, data_parallel_world_size=leg.world).load_state_dict(state)
        self.read(leg.steps)
        places = [rank.state_dict() for rank in self.ranks]
        assert all((each["epoch"], each["batch"]) == (places[0]["epoch"], places[0]["batch"]) for each in places)

    def read(self, steps: int | None) -> None:
        """That many steps, but not past the epoch's end; None: to the end."""
        runs = [iter(rank) for rank in self.ranks]
        batches = [[frozen(batch) for batch in islice(run, steps)] for run in runs]
        if steps is not None and max(map(len, batches)) < steps:  # ranks may differ by one at the end; all have ended
            assert len({rank.epoch for rank in self.ranks}) == 1
        elif steps is not None and min(map(len, batches)) < steps:
            batches = [[*own, *map(frozen, run)] for own, run in zip(batches, runs, strict=True)]
        for run in runs:
            run.close()
        for step in range(max(map(len, batches))):
            for own in batches:
                if step < len(own):
                    self._note(own[step])

    def _note(self, batch: Mapping[str, Any]) -> None:
        pairs = zip(_flat(batch["stream_id"]), _flat(batch["sample_id"]), strict=True)
        for name, each in pairs:
            self.seen.setdefault(name, []).append(each)

    def reference(self, name: str, count: int) -> list[str]:
        """The first samples of a stream, pass by pass, as its order alone says."""
        with Leg({name: 1.0}, 1, "fixed", 0).plan(self.catalog) as alone:
            stream, out = stages_of(alone).streams[0], []
            while len(out) < count:
                arranged = stages_of(alone).order.arrange(stream.population, len(out) // stream.selected.total)
                rows = arranged.rows(np.arange(stream.selected.total, dtype=np.uint64))
                out += stream.selected.columns.fetch(rows, ["sample_id"])["sample_id"].to_pylist()
        return out[:count]


def _flat(values: Sequence[Any]) -> list[str]:
    return [each for entry in values for each in (entry if isinstance(entry, list) else [entry])]


def _stopped_early(leg: Leg) -> Leg:
    """A leg that drops what is short, and stops before a chapter's end, where it would."""
    formed = "buckets" if leg.formed == "whole" else leg.formed
    return replace(leg, size=leg.size + 150, steps=min(leg.steps, 5), formed=formed, world=1, last=sp.DropPartial)


EVEN = {"a": 0.4, "b": 0.3, "c": 0.2, "one": 0.1}


# ---- laws


@FEW
@given(first=legs(), others=st.lists(legs(), min_size=1, max_size=2))
@example(  # a stream that rests for one plan goes on where it stood
    first=Leg(EVEN, 100, "buckets", 7), others=[Leg({"a": 1.0}, 30, "fixed", 3), Leg(EVEN, 200, "fixed", 9, saved=True)]
)
@example(  # an epoch that is too short for what was left
    first=Leg({"a": 1.0}, 27, "fixed", 5), others=[Leg({"a": 1.0}, 4, "fixed", 0)]
)
@example(  # nothing delivered, twice
    first=Leg(EVEN, 100, "fixed", 0), others=[Leg(EVEN, 70, "packed", 0), Leg(EVEN, 50, "fixed", 2)]
)
def test_every_row_of_a_stream_is_used_evenly_and_none_twice_too_soon(
    catalog: sp.Catalog, first: Leg, others: list[Leg]
) -> None:
    run = Run(catalog)
    last = Leg(dict.fromkeys(SIZES, 0.25), 4_000, "whole", 0)  # long enough to deliver what all of them left
    for leg in (first, *others, last):
        run.go(leg)
    run.read(None)
    run.close()

    for name, seen in run.seen.items():
        counts = Counter(seen)
        rows = set(run.reference(name, SIZES[name]))
        assert set(counts) == rows
        assert max(counts.values()) - min(counts.values()) <= 1
        assert counts == Counter(run.reference(name, len(seen)))  # the first so many uses, each once


@FEW
@given(run_of=st.lists(legs(), min_size=2, max_size=3), last=st.sampled_from([sp.KeepPartial, sp.DropPartial]))
@example(  # what is dropped at the end of the chapter in which the run stops has not come
    run_of=[Leg(EVEN, 250, formed, 9) for formed in ("one stream", "packed", "apart", "stratified")],
    last=sp.DropPartial,
)
def test_what_came_and_what_is_left_are_all_uses_once(catalog: sp.Catalog, run_of: list[Leg], last: Any) -> None:
    run = Run(catalog)
    for number, leg in enumerate(run_of):
        seen = {name: Counter(ids) for name, ids in run.seen.items()}
        run.go(replace(leg, world=1) if last is sp.KeepPartial else _stopped_early(leg))
        for name, left_over in run.ranks[0].state_dict().get("rebase", {"streams": {}})["streams"].items():
            uses = run.reference(name, left_over["then"])
            left = Counter(uses[use] for first, count in left_over["left"] for use in range(first, first + count))
            assert number > 0
            assert seen.get(name, Counter()) + left == Counter(uses)
    run.close()


@FEW
@given(first=legs(), second=legs(), data=st.data())
def test_a_rebased_run_resumes_after_any_step(
    catalog: sp.Catalog, first: Leg, second: Leg, data: st.DataObject
) -> None:
    with first.plan(catalog) as old, second.plan(catalog) as new:
        for _ in islice(old, first.steps):
            pass
        old_state = json.loads(json.dumps(old.state_dict()))
        new.rebase(old)
        batches, states, ends = [], [new.state_dict()], []
        for _ in range(2):
            for batch in new:
                batches.append(frozen(batch))
                states.append(json.loads(json.dumps(new.state_dict())))
            ends.append(len(batches))  # before the loop has seen that there is no more
        assert sum(len(_flat(b["sample_id"])) for b in batches) >= 2 * second.size
    with first.plan(catalog) as again, second.plan(catalog) as other:
        again.load_state_dict(old_state)
        other.rebase(again)
        assert other.state_dict() == states[0]
    at = data.draw(st.integers(0, len(states) - 1), label="resumed after")
    with second.plan(catalog) as fresh:
        fresh.load_state_dict(states[at])
        assert fresh.state_dict()["rebase"] == states[at]["rebase"]
        rest = [frozen(batch) for batch in fresh]
        assert rest or at in ends
        assert all(same(a, b) for a, b in zip(rest, batches[at:], strict=False))


# ---- examples


def test_rows_that_wait_for_a_small_share_are_told(catalog: sp.Catalog) -> None:
    first = Leg({"a": 0.5, "b": 0.5}, 200, "buckets", 10)
    with first.plan(catalog) as old, Leg({"a": 0.9, "b": 0.1}, 10, "fixed", 0).plan(catalog) as new:
        for _ in islice(old, first.steps):
            pass
        with pytest.warns(
            sp.SpiralWarning, match=r"stream 'b' still owes (\d+) uses of rows .* come first, at 1 samples per epoch"
        ):
            new.rebase(old)


def test_an_epoch_that_had_not_begun_is_begun_by_the_new_plan(catalog: sp.Catalog) -> None:
    with Leg(EVEN, 100, "buckets", 0).plan(catalog) as old, Leg(EVEN, 60, "fixed", 0).plan(catalog) as new:
        new.rebase(old)
        assert new.epoch == 0
        list(old)
        assert old.epoch == 1
        new.rebase(old)
        assert new.epoch == 1
        next(iter(old))
        new.rebase(old)
        assert new.epoch == 2


def test_what_is_dropped_at_an_epochs_very_end_stays_out_and_a_step_before_it_is_left_over(
    catalog: sp.Catalog,
) -> None:
    leg = Leg(EVEN, 102, "fixed", 0, last=sp.DropPartial)  # 25 batches of 4, and 2 samples
    for steps, epoch, waiting in ((24, 1, 6), (25, 1, 0)):
        with leg.plan(catalog) as old, leg.plan(catalog) as new:
            for _ in islice(old, steps):
                pass
            new.rebase(old)
            carries = new.state_dict()["rebase"]["streams"].values()
            begun = [count for carry in carries for _, count in carry["left"]]
            assert new.epoch == epoch
            assert sum(begun) + 102 - sum(carry["then"] for carry in carries) == waiting


def test_a_state_without_a_rebase_takes_a_stream_back(catalog: sp.Catalog) -> None:
    leg = Leg(EVEN, 60, "fixed", 0)
    with leg.plan(catalog) as plain, leg.plan(catalog) as old, leg.plan(catalog) as new:
        first = frozen(next(iter(plain)))
        before = new.state_dict()
        next(iter(old))
        new.rebase(old)
        assert not same(frozen(next(iter(new))), first)
        new.load_state_dict(before)
        assert same(frozen(next(iter(new))), first)
        assert "rebase" not in new.state_dict()


def test_what_was_before_is_asked_of_the_plan_before(catalog: sp.Catalog) -> None:
    leg = Leg(EVEN, 60, "fixed", 0)
    with leg.plan(catalog) as old, leg.plan(catalog) as new:
        for _ in islice(old, 3):
            pass
        new.rebase(old)
        assert len(ids_of(list(new))) == 60
        with pytest.raises(IndexError, match=r"begins with epoch 1. Ask the mixture before it"):
            new.batch(0, epoch=0)


def test_ledger_and_locate_agree_after_it(catalog: sp.Catalog) -> None:
    with Leg(EVEN, 100, "buckets", 0).plan(catalog) as old, Leg(EVEN, 60, "stratified", 0).plan(catalog) as new:
        for _ in islice(old, 9):
            pass
        new.rebase(old)
        for number in range(new.count(1)):
            for identity in new.ledger(number, 1):
                found = new.locate(identity, 1)
                assert found is not None
                assert identity in new.ledger(found["batch"], 1)
                assert found["batch"] <= number


# ---- bad input


def test_what_has_no_place_to_carry_is_refused(catalog: sp.Catalog) -> None:
    fields = {"sample_id": sp.List("sample_id")}
    streams = [sp.Stream("a", catalog.table("a"), proportion=0.5), sp.Stream("b", catalog.table("b"), proportion=0.5)]
    mixed = sp.mix(streams, epoch_size=40)
    lanes = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=4)
    laned = mixed.sample(order=ORDER, assignment=lanes).collate(batch_size=4, fields=fields)
    alone = catalog.table("a").sample(order=ORDER).collate(batch_size=4, fields=fields)
    plain = mixed.sample(order=ORDER).collate(batch_size=4, fields=fields)
    with plain.to_numpy() as now:
        with (
            laned.to_numpy() as old,
            pytest.raises(ResumeError, match=r"has 4 lanes; .* Go on at the end of its epoch"),
        ):
            now.rebase(old)
        with (
            alone.to_numpy() as old,
            pytest.raises(ResumeError, match=r"earlier plan mixes nothing; .* end of its epoch"),
        ):
            now.rebase(old)
        with alone.to_numpy() as new, pytest.raises(ResumeError, match=r"this plan mixes nothing.*. Begin it with mix"):
            new.rebase(now)
        assert "rebase" not in now.state_dict()


def test_a_stream_that_is_read_is_not_rebased(catalog: sp.Catalog) -> None:
    leg = Leg(EVEN, 60, "fixed", 0)
    with leg.plan(catalog) as old, leg.plan(catalog) as new:
        run = iter(new)
        next(run)
        with pytest.raises(StreamError, match=r"the stream is being read already. Leave the loop first"):
            new.rebase(old)
        run.close()
        new.rebase(old)


def test_an_unreadable_rebase_is_said(catalog: sp.Catalog) -> None:
    leg = Leg(EVEN, 60, "fixed", 0)
    with leg.plan(catalog) as new:
        for broken in ({"epoch": 1}, {"epoch": 1, "streams": {"a": {"left": [3]}}}, [1]):
            with pytest.raises(ResumeError, match=r"rebase cannot be read .*. Pass what state_dict\(\) returned"):
                new.load_state_dict({**new.state_dict(), "rebase": broken})

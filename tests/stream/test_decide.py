"""A run that decides on the shares of its streams: what was delivered stays, and every stream goes on where it stood."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import ResumeError, StreamError
from tests.fixtures.decisions import FORMATIONS, SHARES, SIZES, Stretch, plan_of, stretches
from tests.fixtures.examples import few
from tests.fixtures.texts import SMALL_PLANS, make_catalog

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

SOME = few(6, 200, suppress_health_check=[HealthCheck.too_slow])
EPOCHS = 2  # that a law reads
MOST = {
    "fixed": 40,
    "buckets": 150,
    "budget": 120,
    "stratified": 170,
    "one stream": 150,
    "packed": 25,
}  # steps to a decision
ORDER = sp.GlobalShuffle(seed=5)


class Passes:
    """The order of each stream, pass by pass, as a plan says it that reads one stream after the other."""

    def __init__(self, plan: sp.Relation) -> None:
        self._plan, self._places = plan, list[dict[str, int]]()

    def use(self, stream: str, sample: str, number: int) -> int:
        while len(self._places) <= number:
            with self._plan.to_numpy() as plan:
                order = plan.order(len(self._places))
                names = order.rows(range(len(order)))["sample_id"].to_pylist()
            begins = {name: at for at, name in reversed(list(enumerate(each.split("-")[0] for each in names)))}
            self._places.append({name: at - begins[name.split("-")[0]] for at, name in enumerate(names)})
        return number * SIZES[stream] + self._places[number][sample]

    def sample(self, stream: str, use: int) -> str:
        number, place = divmod(use, SIZES[stream])
        self.use(stream, f"{stream}-0", number)
        return next(n for n, at in self._places[number].items() if at == place and n.split("-")[0] == stream)


@pytest.fixture(scope="module")
def passes(catalog: sp.Catalog) -> Passes:
    streams = [sp.Stream(name, catalog.table(name)) for name in SIZES]
    fields = {"sample_id": sp.List("sample_id")}
    return Passes(sp.concat(streams).sample(order=ORDER).collate(batch_size=1, fields=fields))


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("decide"), SIZES, shortest=1)


def names_of(batch: Mapping[str, Any]) -> list[str]:
    """The samples of a batch, row by row."""
    rows = batch["sample_id"]
    return [each for row in rows for each in (row if isinstance(row, list) else [row])]


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    pairs = [(np.asarray(one[k]), np.asarray(other[k])) for k in one if isinstance(one[k], np.ndarray)]
    return one["sample_id"] == other["sample_id"] and all(np.array_equal(a, b) for a, b in pairs)


class Ranks:
    """All ranks of a run in one process, step by step."""

    def __init__(self, catalog: sp.Catalog, formed: str, stretch: Stretch, state: str | None, held: ExitStack) -> None:
        self.streams = []
        for rank in range(stretch.world):
            stream = held.enter_context(plan_of(catalog, formed))
            if state is not None:
                stream.load_state_dict(json.loads(state))
            stream.bind(rank=rank, world_size=stretch.world, merge=stretch.merge)
            self.streams.append(stream)
        self.loops = [iter(stream) for stream in self.streams]

    def steps(self, most: int | None = None) -> Iterator[list[str]]:
        """The samples of each step of the epoch's rest, in the order of global batches."""
        for _ in range(most) if most is not None else iter(int, 1):
            parts = [names_of(batch) for loop in self.loops for batch in islice(loop, 1)]
            if not parts:
                return
            yield [each for part in parts for each in part]

    def decide(self, weights: Mapping[str, float]) -> tuple[int, int]:
        (found,) = {stream.decide(weights) for stream in self.streams}
        return found

    def state(self) -> str:
        (state,) = {json.dumps(stream.state_dict()) for stream in self.streams}
        return state


def run(catalog: sp.Catalog, formed: str, stretches: Sequence[Stretch]) -> tuple[list[str], list[tuple[int, int]], str]:
    """Run through stretches on their ranks, then to the end of epoch 1; the samples, where shares changed, and the last state."""
    seen, effective, state = list[str](), list[tuple[int, int]](), None
    with ExitStack() as held:
        ranks: Ranks | None = None
        for number, stretch in enumerate(stretches):
            if ranks is None or stretch.resumes:
                ranks = Ranks(catalog, formed, stretch, state, held)
            for names in ranks.steps(stretch.steps):
                seen += names
            effective.append(ranks.decide(stretch.weights))
            state = ranks.state()
            if number + 1 < len(stretches) and stretches[number + 1].resumes:
                for loop in ranks.loops:
                    loop.close()
        assert ranks is not None
        while all(stream.epoch < EPOCHS for stream in ranks.streams):
            for names in ranks.steps():
                seen += names
            state = ranks.state()
            ranks.loops = [iter(stream) for stream in ranks.streams]
        for loop in ranks.loops:
            loop.close()
    return seen, effective, state or ""


def alone(
    catalog: sp.Catalog, formed: str, stretches: Sequence[Stretch], effective: Sequence[tuple[int, int]]
) -> list[str]:
    """The same epochs on one rank that never stops, and knows at an epoch's beginning what is decided in it."""
    seen: list[str] = []
    with plan_of(catalog, formed) as stream:
        for epoch in range(EPOCHS):
            for stretch, (of, batch) in zip(stretches, effective, strict=True):
                if of == epoch:
                    assert stream.decide(stretch.weights, at=batch) == (epoch, batch)
            for batch in stream:
                seen += names_of(batch)
    return seen


class TestLaws:
    @pytest.mark.parametrize("formed", FORMATIONS)
    @SOME
    @given(data=st.data())
    def test_any_ranks_and_resumes_deliver_what_one_rank_without_a_stop_does(
        self, catalog: sp.Catalog, formed: str, data: st.DataObject
    ) -> None:
        drawn = data.draw(st.lists(stretches(MOST[formed]), min_size=1, max_size=3))

        seen, effective, _ = run(catalog, formed, drawn)

        if all(of < EPOCHS for of, _ in effective):
            assert seen == alone(catalog, formed, drawn, effective)

    @pytest.mark.parametrize("formed", FORMATIONS)
    @SOME
    @given(data=st.data())
    def test_batches_before_a_decision_are_those_of_the_undecided_run(
        self, catalog: sp.Catalog, formed: str, data: st.DataObject
    ) -> None:
        stretch = data.draw(stretches(MOST[formed]))
        with plan_of(catalog, formed) as planned, plan_of(catalog, formed) as decided:
            loop = iter(decided)
            had = list(islice(loop, stretch.steps))
            epoch, first = decided.decide(stretch.weights)
            rest = list(loop) if epoch == 0 else []

            all_of_it = had + rest
            for number, batch in enumerate(all_of_it[: first if epoch == 0 else None]):
                assert same(batch, planned.batch(number))
            if first and all_of_it:
                number = data.draw(st.integers(0, min(first, len(all_of_it)) - 1))
                assert same(decided.batch(number, epoch=0), planned.batch(number))
                assert decided.ledger(number, epoch=0) == planned.ledger(number)
            if rest:
                number = data.draw(st.integers(first, len(all_of_it) - 1))
                assert same(decided.batch(number, epoch=0), all_of_it[number])
                sample = decided.ledger(number, epoch=0)[0]
                assert decided.locate(sample, epoch=0)["batch"] <= number
                assert decided.count(0) == len(all_of_it)

    @SOME
    @given(data=st.data())
    def test_every_stream_goes_on_in_its_own_order_without_repeat_or_loss(
        self, catalog: sp.Catalog, passes: "Passes", data: st.DataObject
    ) -> None:
        size, batch_size = data.draw(st.integers(100, 9_000)), data.draw(st.integers(1, 40))
        streams = [sp.Stream(name, catalog.table(name), proportion=share) for name, share in SHARES.items()]
        plan = sp.mix(streams, epoch_size=size).sample(order=ORDER)
        fields = {"sample_id": sp.List("sample_id")}
        weights = st.tuples(*[st.integers(0, 5)] * len(SIZES)).filter(any)
        whole = size // batch_size - 1
        drawn = data.draw(st.lists(st.tuples(st.integers(0, max(0, whole)), weights), min_size=1, max_size=5))
        with plan.collate(batch_size=batch_size, fields=fields, last=sp.KeepPartial).to_numpy() as stream:
            at = dict(sorted(drawn))
            for number, each in at.items():
                stream.decide(dict(zip(SIZES, each, strict=True)), at=number)
            uses = [used(stream, passes, epoch) for epoch in range(EPOCHS)]
        begins = [number * batch_size for number in at]

        for k, name in enumerate(SIZES):
            streams_of, uses_of = (np.concatenate([each[i] for each in uses]) for i in (0, 1))
            before = uses_of[: begins[0]][streams_of[: begins[0]] == k]
            after = uses_of[begins[0] :][streams_of[begins[0] :] == k]
            left = np.setdiff1d(np.arange(len(before) + len(after) + len(before)), before)
            assert after.tolist() == left[: len(after)].tolist(), name
        last = uses[0][0][begins[-1] :]
        for found in (last, uses[1][0]):
            given_weights = np.array(list(at.values())[-1])
            counts = np.bincount(found, minlength=len(SIZES))
            assert (np.abs(counts - len(found) * given_weights / given_weights.sum()) < 1).all()


def used(stream: sp.PreparedStream, passes: "Passes", epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Stream and use of each position of an epoch."""
    order = stream.order(epoch)
    rows = order.rows(range(len(order)))
    names = [rows[column].to_pylist() for column in ("stream_id", "sample_id", "__pass__")]
    streams = np.array([list(SIZES).index(name) for name in names[0]])
    return streams, np.array([passes.use(*each) for each in zip(*names, strict=True)])


EVEN = {"a": 1, "b": 1, "c": 1}
NEVER_A = {"a": 0, "b": 1, "c": 3}


@pytest.fixture
def stream(catalog: sp.Catalog) -> Iterator[sp.PreparedStream]:
    with plan_of(catalog, "fixed") as made:
        yield made


def had(stream: sp.PreparedStream, steps: int) -> Iterator[Any]:
    """A loop that stands after some steps."""
    loop = iter(stream)
    for _ in range(steps):
        next(loop)
    return loop


class TestInTheLoop:
    def test_it_holds_from_the_next_step_on_and_the_loop_goes_on(self, stream: sp.PreparedStream) -> None:
        owners = []
        for step, batch in enumerate(stream):
            owners.append({name.split("-")[0] for name in names_of(batch)})
            if step == 9:
                assert stream.decide(NEVER_A) == (0, 10)

        assert len(owners) == stream.count(0)
        assert "a" in set.union(*owners[:10])
        assert "a" not in set.union(*owners[10:])

    def test_it_may_be_decided_again_before_the_next_batch(self, stream: sp.PreparedStream) -> None:
        loop = had(stream, 3)

        stream.decide(EVEN)
        stream.decide(NEVER_A)

        assert not any(name.startswith("a") for batch in loop for name in names_of(batch))
        assert len(stream.decided()) == 1

    def test_after_the_last_batch_it_holds_from_the_next_epoch_on(self, stream: sp.PreparedStream) -> None:
        loop = had(stream, stream.count())

        assert stream.decide(NEVER_A) == (1, 0)
        assert list(loop) == []
        assert not any(name.startswith("a") for batch in stream for name in names_of(batch))

    def test_a_loop_that_is_left_after_it_keeps_its_place(self, stream: sp.PreparedStream) -> None:
        loop = had(stream, 3)
        stream.decide(EVEN)
        loop.close()  # type: ignore[attr-defined]  # a loop over a stream

        assert stream.state_dict()["batch"] == 3
        assert len(list(stream)) == stream.count(0) - 3

    def test_no_second_loop_begins_before_the_first_goes_on(self, stream: sp.PreparedStream) -> None:
        loop = had(stream, 3)
        stream.decide(EVEN)

        with pytest.raises(StreamError, match="One loop at a time"):
            next(iter(stream))
        next(loop)

    def test_a_state_between_batches_has_it(self, stream: sp.PreparedStream, catalog: sp.Catalog) -> None:
        loop = had(stream, 3)
        stream.decide(NEVER_A)
        state = json.loads(json.dumps(stream.state_dict()))

        with plan_of(catalog, "fixed") as resumed:
            resumed.load_state_dict(state)
            assert [names_of(batch) for batch in resumed] == [names_of(batch) for batch in loop]

    def test_a_rank_that_had_all_of_its_epoch_goes_on_to_the_next_with_the_others(self, catalog: sp.Catalog) -> None:
        """Two ranks of which the second has no batch in the last step: 94 batches, three ranks."""
        with ExitStack() as held:
            ranks = Ranks(catalog, "fixed", Stretch(0, 3, 1, EVEN, resumes=False), None, held)
            assert len(list(ranks.steps(31))) == 31  # 93 batches; the last one is for rank 0
            assert ranks.decide(NEVER_A) == (0, 93)
            assert len(list(ranks.steps())) == 1
            assert json.loads(ranks.state())["epoch"] == 1
            for loop in ranks.loops:
                loop.close()  # type: ignore[attr-defined]  # a loop over a stream

    def test_batches_that_the_loop_had_count_from_where_it_began(self, stream: sp.PreparedStream) -> None:
        loop = had(stream, 3)
        stream.decide(EVEN)
        next(loop)

        assert stream.state_dict(delivered=4)["batch"] == 4


class TestReplay:
    def test_a_stream_without_the_state_replays_as_planned_and_with_it_as_decided(
        self, stream: sp.PreparedStream, catalog: sp.Catalog
    ) -> None:
        before = stream.state_dict()
        planned = [names_of(stream.batch(number)) for number in (4, 5, 30)]
        stream.decide(NEVER_A, at=5)
        state = stream.state_dict()
        decided = [names_of(stream.batch(number)) for number in (4, 5, 30)]

        with plan_of(catalog, "fixed") as other:
            assert [names_of(other.batch(number)) for number in (4, 5, 30)] == planned
            other.load_state_dict(state)
            assert [names_of(other.batch(number)) for number in (4, 5, 30)] == decided
            other.load_state_dict(before)
            assert [names_of(other.batch(number)) for number in (4, 5, 30)] == planned
        assert planned[0] == decided[0]
        assert planned[1] != decided[1]

    def test_states_without_decisions_are_as_they_were(self, stream: sp.PreparedStream) -> None:
        assert "decided" not in stream.state_dict()

    def test_a_long_record_lies_in_the_catalog(self, stream: sp.PreparedStream, catalog: sp.Catalog) -> None:
        for number in range(40):
            stream.decide({"a": 1 / 3, "b": number / 7, "c": 0.125}, at=number)
        state = stream.state_dict()

        assert isinstance(state["decided"], str)
        with plan_of(catalog, "fixed") as other:
            other.load_state_dict(json.loads(json.dumps(state)))
            assert names_of(other.batch(50)) == names_of(stream.batch(50))
            assert len(other.decided()) == 40

    def test_an_edited_record_is_refused(self, stream: sp.PreparedStream) -> None:
        stream.decide(EVEN, at=5)
        state = stream.state_dict()
        state["decided"] = {**state["decided"], "made": [[0, 5, 80, [1, 1, 2]]]}

        with pytest.raises(ResumeError, match="unchanged"):
            stream.load_state_dict(state)

    def test_seek_goes_to_batches_as_decided(self, stream: sp.PreparedStream) -> None:
        stream.decide(NEVER_A, at=5)
        stream.seek(batch=7)

        assert names_of(next(iter(stream))) == names_of(stream.batch(7))

    def test_skips_and_decisions_hold_together(self, stream: sp.PreparedStream, catalog: sp.Catalog) -> None:
        stream.skip(batches=[2, 3])
        loop = had(stream, 3)  # batches 0, 1 and 4
        assert stream.decide(NEVER_A) == (0, 5)
        stream_state = stream.state_dict()
        rest = [names_of(batch) for batch in loop]

        assert rest[0] == names_of(stream.batch(5, epoch=0))
        with plan_of(catalog, "fixed") as other:
            other.load_state_dict(stream_state)
            other.skip(batches=[6])
            assert [names_of(batch) for batch in other] == [rest[0], *rest[2:]]


class TestRebase:
    @pytest.mark.filterwarnings("ignore:rebase. stream:spiral_stream.SpiralWarning")
    @pytest.mark.parametrize("formed", ["fixed", "buckets", "packed"])
    def test_another_plan_takes_over_what_decided_streams_have_left(
        self, catalog: sp.Catalog, passes: Passes, formed: str
    ) -> None:
        with plan_of(catalog, formed, order=ORDER) as old, plan_of(catalog, "fixed", size=3_000, order=ORDER) as new:
            loop = iter(old)
            seen = [names_of(batch) for batch in islice(loop, 5)]
            epoch, batch = old.decide(NEVER_A)
            assert epoch == 0
            seen += [names_of(batch) for batch in islice(loop, batch - 5 + 3)]
            old.decide(EVEN)
            loop.close()  # type: ignore[attr-defined]  # a loop over a stream
            new.rebase(old)
            assert new.decided() == []
            later = [used(new, passes, epoch) for epoch in range(1, 4)]

        before = list(chain(*seen))
        streams, uses = (np.concatenate([each[i] for each in later]) for i in (0, 1))
        for k, name in enumerate(SIZES):
            after, had = uses[streams == k], sorted(each for each in before if each.split("-")[0] == name)
            assert len(np.unique(after)) == len(after)
            gone = np.setdiff1d(np.arange(len(had) + len(after)), after)
            assert sorted(passes.sample(name, use) for use in gone.tolist()) == had

    def test_the_run_goes_on_with_what_was_decided_where_the_data_changed(self, catalog: sp.Catalog) -> None:
        with plan_of(catalog, "fixed") as old, plan_of(catalog, "fixed") as new:
            had(old, 4)
            old.decide(NEVER_A)
            new.rebase(old.state_dict())

            assert new.decided()[0]["epoch"] == 1
            assert not any(name.startswith("a") for batch in new for name in names_of(batch))


class TestRefused:
    @pytest.mark.parametrize(
        ("shares", "way_out"),
        [
            ({"a": 1, "b": 1}, "0 where it rests"),
            ({**EVEN, "d": 1}, "'d' is no stream. Give the weight of every stream"),
            ({"a": 0, "b": 0, "c": 0}, "at least one of them above 0"),
            ({**EVEN, "a": -1}, "Give finite numbers of 0 or more"),
            ({**EVEN, "a": float("nan")}, "Give finite numbers of 0 or more"),
            ({**EVEN, "a": "much"}, "Give finite numbers of 0 or more"),
            ([1, 1, 1], "Give the weight of every stream"),
        ],
    )
    def test_shares_that_are_none(self, stream: sp.PreparedStream, shares: Any, way_out: str) -> None:
        with pytest.raises(StreamError, match=way_out):
            stream.decide(shares)
        assert stream.decided() == []

    def test_places_that_are_delivered_or_inside_a_step(self, stream: sp.PreparedStream) -> None:
        had(stream.bind(rank=0, world_size=2), 3)

        for at, way_out in (
            (5, "Load a state from before it"),
            (7, "Give 6 or 8"),
            (10**6, "Give a number below that"),
        ):
            with pytest.raises(StreamError, match=way_out):
                stream.decide(EVEN, at=at)
        with pytest.raises(StreamError, match="Give the number of a global batch"):
            stream.decide(EVEN, at="soon")  # type: ignore[arg-type]  # not a number

    def test_a_place_before_the_last_decision(self, stream: sp.PreparedStream) -> None:
        stream.decide(EVEN, at=9)

        with pytest.raises(StreamError, match="Decide from there on, or load a state from before it"):
            stream.decide(NEVER_A, at=8)

    def test_plans_whose_epochs_follow_from_their_streams(self, catalog: sp.Catalog) -> None:
        parts = [sp.Stream(name, catalog.table(name)) for name in SIZES]
        fields = {"sample_id": sp.List("sample_id")}
        for plan, way_out in (
            (sp.mix(parts), r"Give mix\(..., epoch_size=...\)"),
            (catalog.table("a"), "Begin it with mix"),
            (sp.concat([sp.Stream(name, catalog.table(name)) for name in SIZES]), "Use mix"),
        ):
            made = plan.sample(order=ORDER).collate(batch_size=4, fields=fields).to_numpy()
            with made as stream, pytest.raises(StreamError, match=way_out):
                stream.decide(EVEN)

    def test_several_lanes_in_mid_epoch(self, catalog: sp.Catalog) -> None:
        parts = [sp.Stream(name, catalog.table(name), proportion=share) for name, share in SHARES.items()]
        ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=2)
        sampled = sp.mix(parts, epoch_size=400).sample(order=ORDER, assignment=ranks)
        with sampled.collate(batch_size=4, fields={"sample_id": sp.List("sample_id")}).to_numpy() as stream:
            had(stream, 2)
            with pytest.raises(StreamError, match="Decide at an epoch's start"):
                stream.decide(NEVER_A)

    def test_a_thread_that_waits_for_a_batch(self, stream: sp.PreparedStream, catalog: sp.Catalog) -> None:
        fields = {"sample_id": sp.List("sample_id")}
        parts = [sp.Stream(name, catalog.table(name), proportion=share) for name, share in SHARES.items()]
        entered, goes_on = threading.Event(), threading.Event()

        def slow(batch: dict[str, Any]) -> dict[str, Any]:
            entered.set()
            goes_on.wait(60)
            return {"slow": np.zeros(len(batch["text"]), dtype=np.int64)}

        slow.__spiral_version__ = "1"  # type: ignore[attr-defined]  # it has events, which have no content
        mixed = (
            sp.mix(parts, epoch_size=60).sample(order=ORDER).map(slow, columns=["text"], returns={"slow": pa.int64()})
        )
        with mixed.collate(batch_size=4, fields={**fields, "slow": sp.List("slow")}).to_numpy() as made:
            loop = iter(made)
            reader = threading.Thread(target=next, args=(loop,))
            reader.start()
            entered.wait(60)
            try:
                with pytest.raises(StreamError, match="Call it in the loop, between batches"):
                    made.decide(EVEN)
            finally:
                goes_on.set()
                reader.join()
            assert made.decide(EVEN) == (0, 1)


class TestShown:
    def test_intended_rounded_and_realised_shares(self, stream: sp.PreparedStream) -> None:
        loop = had(stream, 10)
        stream.decide({"a": 1, "b": 1, "c": 2})
        next(loop)
        next(loop)
        (shown,) = stream.decided()

        assert (shown["epoch"], shown["batch"]) == (0, 10)
        assert [each["share"] for each in shown["streams"].values()] == [0.25, 0.25, 0.5]
        left = 1_500 - 160
        assert [each["rounded"] for each in shown["streams"].values()] == [335 / left, 335 / left, 670 / left]
        assert sum(each["samples"] for each in shown["streams"].values()) == 32
        assert sum(each["realised"] for each in shown["streams"].values()) == pytest.approx(1)

    def test_what_was_seen_is_what_the_loop_counted(self, stream: sp.PreparedStream) -> None:
        seen = [names_of(batch) for batch in islice(had(stream, 0), 9)]
        loop = iter(stream)
        stream.decide(NEVER_A)
        seen += [names_of(batch) for batch in islice(loop, 20)]
        counts = {name: sum(each.split("-")[0] == name for each in chain(*seen)) for name in SIZES}

        assert {each.stream: each.samples for each in stream.seen().streams} == counts

    def test_explain_lists_them(self, stream: sp.PreparedStream) -> None:
        assert "decided" not in stream.explain().to_dict()["mix"]
        stream.decide({"a": 1, "b": 1, "c": 2}, at=3)

        (made,) = stream.explain().to_dict()["mix"]["decided"]
        assert made["from"] == "batch 3 of epoch 0"
        assert made["decided"] == "a 25.000%, b 25.000%, c 50.000%"
        assert made["realised"] == "nothing yet"
        assert "nothing yet" in str(stream.explain())

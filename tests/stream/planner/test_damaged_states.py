"""Damaged states: refused by name and without a trace, or a place of the run, whose batches then come."""

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.planner.state.saved_state import sealed
from tests.fixtures.mutations import COUNTS, mutated_json, shown, survives
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized

pytestmark = pytest.mark.usefixtures("no_threads_left")

ORDER = sp.GlobalShuffle(seed=3)
BUCKETS = sp.WindowedBucket(window_size=2, budget=sp.BatchBudget(max_tokens=128))  # a chapter of 128 samples
KINDS = ("counted", "formed", "mixed", "rebased")


def plan(catalog: sp.Catalog, kind: str, share: float = 0.5) -> Any:
    rows = catalog.table("long") if kind in {"counted", "formed"} else mixed(catalog, {"a": share, "b": 1 - share}, 60)
    sampled = tokenized(rows, ORDER, stored=True, lanes=2 if kind == "formed" else 1)
    if kind == "counted":
        return sampled.collate(batch_size=8, fields=fields(), last=sp.KeepPartial)
    return sampled.collate(batch_size=None, formation=BUCKETS, fields=fields(), last=sp.KeepPartial)


class Run:
    """A run that stands in mid-epoch, and the same plan beside it that tells which batches there are."""

    def __init__(self, catalog: sp.Catalog, kind: str) -> None:
        self.stream, self.beside = (plan(catalog, kind).to_numpy(prefetch=1) for _ in range(2))
        if kind == "rebased":
            with plan(catalog, kind, 0.25).to_numpy() as earlier:
                for _ in islice(earlier, 3):
                    pass
                self.stream.rebase(earlier)
        steps = 140 if kind == "formed" else 5  # into the second chapter
        for _ in islice(self.stream, steps):
            pass
        self.state = json.loads(json.dumps(self.stream.state_dict()))
        assert self.state["batch"] == steps
        assert kind != "formed" or self.state["chapters"][0][1] == 1
        self.beside.load_state_dict(self.state)
        self.sound = self.next_of(self.state)

    def next_of(self, state: Any) -> tuple[int, int, list[str]]:
        """Where a state leads to, and the identities of the batch that comes there."""
        traces = self._traces()
        try:
            self.stream.load_state_dict(state)
        except sp.SpiralError:
            assert self._traces() == traces
            raise
        try:
            batches = iter(self.stream)
            ids = next(batches)["sample_id"]
            found = self.stream.state_dict()
            batches.close()
        finally:
            self.stream.load_state_dict(self.state)
        return found["epoch"], found["batch"], list(ids)

    def _traces(self) -> list[Any]:
        stream = self.stream
        return [stream.state_dict(), stream._run.opening, stream._run.bindings, stream._run.resumed_seed]

    def is_of_the_run(self, place: tuple[int, int, list[str]]) -> bool:
        """Whether these are the samples of the batch before a place."""
        epoch, batch, ids = place
        epoch, number = (epoch, batch - 1) if batch else (epoch - 1, self.beside.count(epoch - 1) - 1)
        planned = self.beside.ledger(number, epoch)
        return [each[-1] if isinstance(each, tuple) else each for each in planned] == ids

    def close(self) -> None:
        self.stream.close()
        self.beside.close()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("texts"), {"a": 60, "b": 30, "long": 300}, shortest=1)


@pytest.fixture(params=KINDS, scope="module")
def run(catalog: sp.Catalog, request: pytest.FixtureRequest) -> Iterator[Run]:
    made = Run(catalog, request.param)
    yield made
    made.close()


def damaged(state: Any, seed: int) -> Any:
    """A mutation: of the state as it is, of one as it was before there were checksums, or with a checksum made anew."""
    bare = {name: value for name, value in state.items() if name != "checksum"}
    if seed % 3 == 0:
        return mutated_json(state, seed)
    found = mutated_json(bare, seed)
    return found if seed % 3 == 1 or not isinstance(found, dict) else sealed(found)


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_state_is_refused_without_a_trace_or_is_a_place_of_the_run(run: Run, count: int) -> None:
    refused = 0
    for seed in range(count // len(KINDS)):
        state = damaged(run.state, seed)
        forged = seed % 3 == 2  # whoever makes the checksum anew answers for what no plan can tell
        followed = all(state.get(name) == run.state.get(name) for name in ("chapters", "rebase"))

        def parse(state: Any = state, *, told: bool = followed or not (forged or "rebase" in run.state)) -> Any:
            place = run.next_of(state)
            assert not told or run.is_of_the_run(place)
            return place

        refused += survives(parse, run.sound, says=shown(state), other_is_fine="checksum" not in state or forged)
    assert refused > count // len(KINDS) // 3


def test_a_sound_state_is_taken_after_one_with_forged_chapters(catalog: sp.Catalog) -> None:
    run = Run(catalog, "mixed")
    forged = sealed({**{n: v for n, v in run.state.items() if n != "checksum"}, "chapters": [[0, 1, 0]]})
    for _ in range(2):
        with pytest.raises(sp.errors.ResumeError, match=r"resume: .*unchanged"):
            run.next_of(forged)
        assert run.next_of(run.state) == run.sound
    run.close()


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, b"x", float("nan"), {"spiral": True}, {"spiral": 1.0}])
def test_what_is_no_state_is_refused(run: Run, value: Any) -> None:
    with pytest.raises(
        sp.errors.ResumeError, match=r"this is no state of version 1 .*. Pass what state_dict\(\) returned"
    ):
        run.next_of(value)


@pytest.mark.parametrize(
    "change",
    [
        *({"epoch": True}, {"epoch": 2**70}, {"epoch": 2**31}, {"batch": 2**70}, {"batch": False}, {"run_seed": True}),
        *(
            {"step": 4},
            {"batch": 6},
            {"segments": []},
            {"segments": [[0, 0, 0, 2, 1]]},
            {"segments": [[0, 0, 0, 0, 1]]},
        ),
        {"segments": [[0, 1, 1, 1, 1]]},
        {"segments": [[0, 3, 3, 1, 1], [0, 0, 0, 1, 1]]},
        *({"plan": "../../x"}, {"plan": "x\0"}, {"plan": 3}, {"data": [1]}, {"data": {"a": 1}}),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(run: Run, change: dict[str, Any]) -> None:
    bare = {name: value for name, value in run.state.items() if name != "checksum"}
    for state in ({**run.state, **change}, {**bare, **change}, sealed({**bare, **change})):
        with pytest.raises(sp.errors.ResumeError, match=r"(?i:pass what) state_dict\(\) returned") as refused:
            run.next_of(state)
        assert len(str(refused.value)) < 500


def test_a_checksum_outlives_json_and_the_order_of_names(run: Run) -> None:
    shuffled = dict(random.Random(1).sample(sorted(run.state.items()), len(run.state)))
    assert run.next_of(json.loads(json.dumps(shuffled, indent=1))) == run.sound
    assert run.next_of({**run.state, "mine": [1.5, None]}) == run.sound  # what a loop adds for itself
    assert len(json.dumps(run.state)) < 1024
    for edited in ({"run_seed": 4}, {"epoch": 1}, {"checksum": "0" * 16}, {"checksum": None}):
        if edited.items() <= run.state.items():
            continue
        with pytest.raises(sp.errors.ResumeError, match=r"edited or damaged|cannot be"):
            run.next_of({**run.state, **edited})

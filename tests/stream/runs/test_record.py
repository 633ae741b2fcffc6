"""The record law: however often a run is killed and resumed, its trained branch is what an unbroken run records."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from tests.fixtures.recorded_plans import Plan, losses, plans, recorded, register, unbroken


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    found = sp.connect(tmp_path_factory.mktemp("catalog"))
    register(found)
    return found


@dataclass(frozen=True)
class Life:
    """One start of a training: its ranks, the steps that it takes before it is killed, and after how many it saves."""

    world: int
    merge: int
    steps: int
    saved_after: int
    every: int
    behind: int  # batches that the loop has had before it logs the first


lives = st.lists(
    st.builds(
        Life,
        st.integers(1, 3),
        st.integers(1, 2),
        st.integers(1, 9),
        st.integers(0, 9),
        st.integers(1, 4),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=4,
)


@dataclass
class Trained:
    """The last state, and the batches that were delivered before it, by epoch and number."""

    state: Any
    batches: set[tuple[int, int]]


class Rank:
    """One process of a start of a training: its stream, its run, and the batches that it has had and not logged."""

    def __init__(
        self, catalog: sp.Catalog, plan: Plan, life: Life, k: int, name: str, attempt: str, state: Any
    ) -> None:
        self.stream = plan.open(catalog).bind(rank=k, world_size=life.world, merge=life.merge)
        if state is not None:
            self.stream.load_state_dict(json.loads(json.dumps(state)))
        self.run = catalog.run(name, self.stream, attempt=attempt, every=life.every, anew=state is None)
        self.batches = iter(self.stream)
        self.waiting: list[Any] = []

    def next(self) -> bool:
        """Take a batch; whether there is one."""
        had = next(self.batches, None)
        self.waiting += [] if had is None else [had]
        return had is not None

    def log(self, left: int = 0) -> None:
        """Log what waits, but for so many batches."""
        while len(self.waiting) > left:
            batch = self.waiting.pop(0)
            self.run.log(batch=batch, loss=losses(batch))

    def killed(self) -> None:
        """End without a word: what was not written is lost."""
        self.stream.close()


def live(catalog: sp.Catalog, plan: Plan, life: Life, name: str, attempt: str, so_far: Trained) -> Trained:
    """Train in one process per rank until the kill, of which nothing is left but what was written."""
    state, done, group = so_far.state, set(so_far.batches), life.world * life.merge
    epoch, first = (state["epoch"], state["batch"]) if state else (0, 0)
    ranks = [Rank(catalog, plan, life, k, name, attempt, state) for k in range(life.world)]
    for step in range(life.steps):
        had = [rank.next() for rank in ranks]
        if any(had):
            done |= {(epoch, first + step * group + each) for each in range(group)}
        for rank in ranks:
            rank.log(life.behind)
        if not any(had) or step + 1 == life.saved_after:
            for rank in ranks:
                rank.log()
            so_far = Trained([rank.stream.state_dict() for rank in ranks][0], set(done))  # noqa: RUF015  all of them save
        if not all(had):
            break
    for rank in ranks:
        rank.killed()
    return so_far


_COUNT = iter(range(1 << 30))


@settings(max_examples=12, deadline=None)
@given(plans, lives)
def test_the_trained_branch_is_what_an_unbroken_run_records(catalog: sp.Catalog, plan: Plan, done: list[Life]) -> None:
    name, trained = f"law-{next(_COUNT)}", Trained(None, set())
    for number, life in enumerate(done):
        trained = live(catalog, plan, life, name, f"life-{number}", trained)
    state = trained.state
    with plan.open(catalog) as stream:  # the last resume, of which nothing is trained
        if state is not None:
            stream.load_state_dict(state)
        catalog.run(name, stream, attempt="last", anew=state is None)
    wanted = unbroken(catalog, plan, 1 + (state["epoch"] if state else 0))
    before = {at: row for at, row in wanted.items() if at[:2] in trained.batches}

    if before:
        assert recorded(catalog, name) == before
    else:
        with pytest.raises(sp.errors.RunError, match="recorded nothing"):
            catalog.run(name).registered()

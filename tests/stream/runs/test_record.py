"""The record law: however often a run is killed and resumed, its trained branch is what an unbroken run records."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp

ROWS: Final = {"a": 140, "b": 60}
FORMATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fixed": {"batch_size": 4},
    "buckets": {"formation": sp.WindowedBucket(window_size=16, keys=[sp.BucketKey("len(tokens)")]), "batch_size": 4},
    "packed": {"formation": sp.batching.Packed(max_tokens=24, window_size=16), "batch_size": 2},
}
Rows = dict[tuple[int, int, int], tuple[str, float, int]]  # epoch, batch, index: identity, sum of its tokens, tokens


def documents(name: str, count: int, *, bad: bool) -> pa.Table:
    """Rows whose tokens say which row they are of; some hold a null, so that they cannot be read."""
    draw = np.random.default_rng(3)
    tokens = [(1000 * i + np.arange(1 + int(draw.integers(0, 9)))).tolist() for i in range(count)]
    if bad:
        tokens = [[*each, None] if i % 13 == 5 else each for i, each in enumerate(tokens)]
    ids = [f"{name}{i:03d}" for i in range(count)]
    return pa.table({"sample_id": ids, "tokens": pa.array(tokens, pa.list_(pa.int64()))})


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    found = sp.connect(tmp_path_factory.mktemp("catalog"))
    for name, count in ROWS.items():
        found.register(name, sp.Arrow(documents(name, count, bad=False)), identity="sample_id")
        found.register(f"{name}-bad", sp.Arrow(documents(name, count, bad=True)), identity="sample_id")
    return found


@dataclass(frozen=True)
class Plan:
    """A plan of documents."""

    formed: str
    mixed: bool
    filtered: bool
    bad: bool
    last: Any
    framework: str = "numpy"

    def open(self, catalog: sp.Catalog) -> sp.PreparedStream:
        ending = "-bad" if self.bad and self.formed != "buckets" else ""
        base: Any = catalog.table(f"a{ending}")
        if self.mixed:
            other = catalog.table(f"b{ending}")
            base = sp.mix([sp.Stream("x", base, proportion=0.6), sp.Stream("y", other, proportion=0.4)], epoch_size=110)
        if self.filtered:
            base = base.filter(sp.col("sample_id") != "a007")
        fields = {
            "id": sp.List("sample_id"),
            "ids": sp.Pad("tokens"),
            "mask": sp.fields.Segments("tokens"),
        }
        if self.formed != "packed":
            fields["mask"] = sp.PadMask("tokens")
        sampled = base.sample(order=sp.GlobalShuffle(seed=5))
        on_error = {"on_error": "skip", "error_budget": 30} if ending else {}
        collated = sampled.collate(fields=fields, last=self.last, **FORMATIONS[self.formed], **on_error)
        return collated.to_torch() if self.framework == "torch" else collated.to_numpy()  # type: ignore[no-any-return]  # of a relation


def losses(batch: Mapping[str, Any]) -> Any:
    """A number per token that says which token it is: [B, T]."""
    return batch["ids"] * 0.5


def rows_of(batch: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    """The samples of a batch by hand: identity, sum of its own tokens' numbers, and how many they are."""
    out = []
    numbers, mask = np.asarray(losses(batch)), np.asarray(batch["mask"])
    for row, ids in enumerate(batch["id"]):
        if isinstance(ids, str):
            mine = mask[row] != 0
            out.append((ids, float(numbers[row][mine].sum()), int(mine.sum())))
            continue
        for k, each in enumerate(ids):
            mine = mask[row] == k + 1
            out.append((each, float(numbers[row][mine].sum()), int(mine.sum())))
    return out


def unbroken(catalog: sp.Catalog, plan: Plan, epochs: int) -> Rows:
    """What one process delivers that is never interrupted, batch by batch."""
    out: Rows = {}
    with plan.open(catalog) as stream:
        for epoch in range(epochs):
            stream.set_epoch(epoch)
            for number, batch in enumerate(stream):
                for index, row in enumerate(rows_of(batch)):
                    out[epoch, number, index] = row
    return out


@dataclass(frozen=True)
class Life:
    """One start of a training: its ranks, the steps that it takes before it is killed, and after how many it saves."""

    world: int
    merge: int
    steps: int
    saved_after: int
    every: int
    behind: int  # batches that the loop has had before it logs the first


plans = st.builds(
    Plan,
    st.sampled_from(list(FORMATIONS)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([sp.DropPartial, sp.KeepPartial]),
    st.sampled_from(["numpy", "torch"]),
)
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
        self.run = catalog.run(name, self.stream, attempt=attempt, every=life.every)
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


def recorded(catalog: sp.Catalog, name: str) -> Rows:
    """What the table of a run says."""
    table = catalog.table(f"runs.{name}").to_arrow()
    columns = (table[each].to_pylist() for each in ("epoch", "batch", "index", "sample_id", "loss_sum", "loss_tokens"))
    out = {(e, b, i): (s, x, n) for e, b, i, s, x, n in zip(*columns, strict=True)}
    assert len(out) == len(table)  # nothing is there twice
    return out


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
        catalog.run(name, stream, attempt="last")
    wanted = unbroken(catalog, plan, 1 + (state["epoch"] if state else 0))
    before = {at: row for at, row in wanted.items() if at[:2] in trained.batches}

    if before:
        assert recorded(catalog, name) == before
    else:
        with pytest.raises(sp.errors.RunError, match="recorded nothing"):
            catalog.run(name).registered()

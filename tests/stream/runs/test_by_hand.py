"""History, record and count of what a loop did that a person wrote down: moves, edits and resumes, in many kinds of plans."""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from tests.fixtures.examples import few

pytestmark = pytest.mark.usefixtures("no_threads_left")

FILL: Final = -1.0
X: Final = {"x": sp.Stack("x")}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    found = sp.connect(tmp_path_factory.mktemp("catalog"))
    x = np.arange(50, dtype=np.float32)
    found.register("numbers", sp.Arrow(pa.table({"sample_id": range(50), "x": x})), identity="sample_id")
    texts = pa.table({"sample_id": range(100, 130), "x": 100 + np.arange(30, dtype=np.float32)})
    found.register("texts", sp.Arrow(texts), identity="sample_id")
    names = pa.table({"sample_id": range(0, 50, 2), "more": np.arange(25)})
    found.register("more", sp.Arrow(names), identity="sample_id")
    ours = pa.table({"row": range(40), "step": range(40), "epoch": ["e"] * 40, "x": x[:40]})
    found.register("ours", sp.Arrow(ours), identity=("row", "step", "epoch"))
    found.register("placed", sp.Arrow(pa.table({"index": range(40), "x": x[:40]})), identity="index")
    found.register("by-row", sp.Arrow(pa.table({"x": x[:40]})), identity=sp.RowIdentity())
    return found


def twice(x: float) -> list[float]:
    return [x, x + 0.5]


PLANS: Final = (
    "fixed", "filtered", "joined", "mixed", "ours", "placed", "by-row", "padded", "filled", "kept", "fanned", "buckets",
)  # fmt: skip


def plan(catalog: sp.Catalog, kind: str) -> Any:
    options: dict[str, Any] = {"batch_size": 4}
    fields: Mapping[str, Any] = X
    base: Any = catalog.table({"ours": "ours", "placed": "placed", "by-row": "by-row"}.get(kind, "numbers"))
    if kind == "filtered":
        base = base.filter(sp.col("x") > 6)
    if kind == "joined":
        base = base.join(catalog.table("more"), on="sample_id")
    if kind == "mixed":
        parts = [sp.Stream("n", base, proportion=0.5), sp.Stream("t", catalog.table("texts"), proportion=0.5)]
        base = sp.mix(parts, epoch_size=42)
    sampled = base.sample(order=sp.GlobalShuffle(seed=9))
    if kind == "fanned":
        sampled = sampled.flat_map(twice, name="y", columns=["x"], returns=pa.float64(), fan_out=2)
        fields = {"x": sp.Stack("y")}
    if kind == "padded":
        options["last"] = sp.batching.PadPartial
    if kind == "filled":
        options["last"] = sp.batching.PadPartial(value=FILL)
    if kind == "kept":
        options["last"] = sp.KeepPartial
    if kind == "buckets":
        options["formation"] = sp.WindowedBucket(window_size=16, keys=[sp.BucketKey("x")])
    return sampled.collate(fields=fields, **options).to_numpy()


class Loop:
    """A training that writes down by hand what it had: of the branch that it is on, in order."""

    def __init__(self, catalog: sp.Catalog, kind: str, name: str) -> None:
        self.catalog, self.kind, self.name, self.opened = catalog, kind, name, 0
        self.had: list[tuple[int, list[float]]] = []
        self.saved: list[tuple[Any, int]] = []
        self.open(None)

    def open(self, state: Any) -> None:
        self.stream = plan(self.catalog, self.kind)
        if state is not None:
            self.stream.load_state_dict(state)
        self.run = self.catalog.run(self.name, self.stream, attempt=f"a{self.opened}", every=2)
        self.opened += 1

    def go(self, steps: int) -> None:
        epoch = self.stream.epoch
        batches = iter(self.stream)
        for _ in range(steps):
            batch = next(batches, None)
            if batch is None:
                break
            self.run.log(batch=batch, loss=batch["x"])
            self.had.append((epoch, [float(each) for each in batch["x"] if each != FILL]))
        batches.close()

    def act(self, what: tuple[str, int]) -> None:
        verb, number = what
        with suppress(sp.errors.ResumeError, sp.errors.StreamError):  # skipped already, or beyond the epoch
            getattr(self, verb)(number)

    def epoch(self, number: int) -> None:
        self.stream.set_epoch(number % 4)

    def seek(self, number: int) -> None:
        if self.kind != "buckets":
            self.stream.seek(epoch=number % 3, batch=number % 5)

    def skip(self, number: int) -> None:
        self.stream.skip(batches=[self.stream.state_dict()["batch"] + 1 + number % 2])

    def mid(self, number: int) -> None:
        """Change shares while a loop stands at a batch."""
        epoch, batches = self.stream.epoch, iter(self.stream)
        for k in range(3):
            batch = next(batches, None)
            if batch is None:
                break
            self.run.log(batch=batch, loss=batch["x"])
            self.had.append((epoch, [float(each) for each in batch["x"] if each != FILL]))
            if k == 1 and self.kind == "mixed":
                self.stream.decide({"n": 1 + number % 3, "t": 1})
        batches.close()

    def eval(self, number: int) -> None:
        del number
        with self.stream.eval() as other:
            assert sum(1 for _ in other)

    def save(self, number: int) -> None:
        del number
        self.saved.append((json.loads(json.dumps(self.stream.state_dict())), len(self.had)))

    def back(self, number: int) -> None:
        if self.saved:
            self.stream.load_state_dict(self._rewound(number))

    def resume(self, number: int) -> None:
        if self.saved:
            self.stream.close()  # killed: what was logged since the last part is lost, and is not on the branch
            self.open(self._rewound(number))

    def _rewound(self, number: int) -> Any:
        state, count = self.saved[number % len(self.saved)]
        del self.had[count:]
        self.saved = [each for each in self.saved if each[1] <= count]
        return state

    def reopen(self, number: int) -> None:
        del number
        self.run.close()
        self.run = self.catalog.run(self.name, self.stream, attempt=f"a{self.opened}", every=2)
        self.opened += 1


actions = st.lists(
    st.tuples(
        st.sampled_from(["go", "go", "go", "epoch", "seek", "skip", "mid", "eval", "save", "back", "resume", "reopen"]),
        st.integers(1, 14),
    ),
    min_size=2,
    max_size=9,
)
_COUNT = iter(range(1 << 30))


def check(loop: Loop) -> None:
    loop.run.close()
    loop.stream.close()
    catalog, run = loop.catalog, loop.catalog.run(loop.name)
    wanted = Counter((epoch, x) for epoch, xs in loop.had for x in xs)
    if not wanted:
        return
    table = catalog.table(f"runs.{loop.name}").to_arrow()
    columns = [table[each].to_pylist() for each in ("epoch", "loss")]
    assert Counter(zip(*columns, strict=True)) == wanted
    legs = run.legs()
    seen = catalog.seen(run)
    assert seen.samples == wanted.total(), [(leg.attempt, leg.why, leg.epoch, leg.first, leg.end) for leg in legs]
    steps = {(e, s) for e, s in zip(table["epoch"].to_pylist(), table["step"].to_pylist(), strict=True)}
    assert len(steps) == len({s for _, s in steps}) == len([each for each in loop.had if each[1]])
    name = {"ours": "sample_row", "placed": "sample_index", "by-row": "row"}.get(loop.kind, "sample_id")
    for key, loss in zip(table[name].to_pylist(), table["loss"].to_pylist(), strict=True):
        assert key in (loss, loss - 0.5)
    times: Counter[Any] = Counter()
    identity = {"ours": "row", "placed": "index"}.get(loop.kind, "sample_id")
    if loop.kind not in ("by-row", "fanned"):
        for each in seen.identities().to_pylist():
            times[float(each[identity])] += each["times"]
        assert times == Counter(x for _, xs in loop.had for x in xs)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLANS)
@few(6, 60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(done=actions)
def test_what_is_recorded_is_what_was_written_down(catalog: sp.Catalog, kind: str, done: list[tuple[str, int]]) -> None:
    loop = Loop(catalog, kind, f"hand-{next(_COUNT)}")
    try:
        for each in done:
            loop.act(each)
        check(loop)
    finally:
        loop.stream.close()


def test_data_that_grew_is_recorded_by_the_version_that_was_read(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path / "catalog")
    rows = pa.table({"sample_id": range(40), "x": np.arange(40, dtype=np.float32)})
    import lance

    lance.write_dataset(rows, tmp_path / "rows.lance", max_rows_per_file=10)
    catalog.register("grows", sp.Lance(str(tmp_path / "rows.lance")), identity="sample_id")

    def opened() -> Any:
        sampled = catalog.table("grows").sample(order=sp.GlobalShuffle(seed=9))
        return sampled.collate(fields=X, batch_size=4).to_numpy()

    had = list[float]()

    def train(stream: Any, run: Any, steps: int) -> None:
        batches = iter(stream)
        for _ in range(steps):
            batch = next(batches)
            run.log(batch=batch, loss=batch["x"])
            had.extend(map(float, batch["x"]))
        batches.close()

    with opened() as stream:
        run = catalog.run("grown", stream, attempt="a")
        train(stream, run, 4)
        state = stream.state_dict()
        run.close()
    lance.write_dataset(
        pa.table({"sample_id": range(40, 80), "x": np.arange(40, 80, dtype=np.float32)}),
        tmp_path / "rows.lance",
        mode="append",
    )
    catalog.refresh("grows")
    with opened() as stream:
        run = catalog.run("grown", stream, attempt="b")
        stream.rebase(state)
        train(stream, run, 5)
        run.close()
    table = catalog.table("runs.grown").to_arrow()
    assert all(key == loss for key, loss in zip(table["sample_id"].to_pylist(), table["loss"].to_pylist(), strict=True))
    found = catalog.run("grown")
    attempts = found.attempts()
    assert [each.parent for each in attempts] == [None, "a"]
    assert Counter(table["loss"].to_pylist()) == Counter(had)
    assert catalog.seen(found).samples == len(had)


torch = pytest.importorskip("torch")


@pytest.mark.filterwarnings("ignore:lance is not fork-safe", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_that_live_over_epochs_give_keys_of_their_epoch(catalog: sp.Catalog, persistent: bool) -> None:
    from torch.utils.data import DataLoader

    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=9))
    name = f"workers-{persistent}"
    with sampled.collate(fields=X, batch_size=4, last=sp.KeepPartial).to_torch() as stream:
        run = catalog.run(name, stream)
        loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=persistent)
        had: Counter[tuple[int, float]] = Counter()
        for epoch in range(3):
            stream.set_epoch(epoch)
            for batch in loader:
                run.log(batch=batch, loss=batch["x"])
                had.update((epoch, each) for each in batch["x"].tolist())
        run.close()
        del loader
    table = catalog.table(f"runs.{name}").to_arrow()
    assert Counter(zip(table["epoch"].to_pylist(), table["loss"].to_pylist(), strict=True)) == had
    assert len(set(table["step"].to_pylist())) == 39
    assert catalog.seen(catalog.run(name)).samples == 150

"""A mixture whose relations grew, shrank or were replaced: each stream finishes the passes it had begun, with the rows of now."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import ResumeError
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.testing import check_elastic, check_replay
from tests.fixtures.examples import few

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:rebase. .* from a pass that its other rows:spiral_stream.SpiralWarning"),
]

FEW = few(4, 250, suppress_health_check=[HealthCheck.too_slow])
ORDERS: Final = (
    sp.orders.WindowShuffle(seed=2, window=4),
    sp.GlobalShuffle(seed=3),
    sp.HashBucketed(seed=7, bucket_count=4),
)
BUCKETS: Final = {"formation": sp.WindowedBucket(window_size=8, keys=[sp.BucketKey("digit")])}
Shards = dict[str, list[int]]  # the identities of each file


class Two:
    """Two relations of Parquet files, mixed."""

    def __init__(self, folder: Path, shards: dict[str, Shards]) -> None:
        self.folder = folder
        self.catalog = sp.connect(str(folder / "catalog"))
        for name, files in shards.items():
            (folder / name).mkdir()
            self.write(name, files)
            self.catalog.register(name, sp.Parquet(str(folder / name)), identity="id")

    def write(self, name: str, files: Shards) -> None:
        for old in (self.folder / name).glob("*.parquet"):
            if old.stem not in files:
                old.unlink()
        for file, ids in files.items():
            table = pa.table({"id": ids, "digit": [n % 10 for n in ids]})
            pq.write_table(table, self.folder / name / f"{file}.parquet")

    def change(self, name: str, files: Shards) -> None:
        self.write(name, files)
        self.catalog.refresh(name)

    def plan(self, order: Any = ORDERS[1], share: float = 0.5, *, formed: bool = False, least: int = 0) -> Any:
        streams = [sp.Stream(n, self.catalog.table(n), proportion=p) for n, p in (("x", share), ("y", 1 - share))]
        mixed = sp.mix(streams, epoch_size=12).filter(sp.col("digit") >= least)
        fields = {"id": sp.List("id"), "stream_id": sp.List("stream_id")}
        formation = BUCKETS if formed else {}
        return (
            mixed.sample(order=order).collate(batch_size=3, fields=fields, last=sp.KeepPartial, **formation).to_numpy()
        )


def delivered(stream: sp.PreparedStream, steps: int) -> dict[str, Counter[int]]:
    seen: dict[str, Counter[int]] = {"x": Counter(), "y": Counter()}
    while steps > 0:
        for batch in islice(stream, steps):
            steps -= 1
            for name, each in zip(batch["stream_id"], batch["id"], strict=True):
                seen[name][each] += 1
    return seen


def left(stream: sp.PreparedStream, k: int) -> tuple[Counter[int], int]:
    """What the record says is left of a stream's passes, and how many passes are over then."""
    stage, rebase = stream.stages.streams[k], Rebase.from_json(stream.state_dict()["rebase"])
    assert rebase is not None
    owed, rows = rebase.left_over(stage.name), stage.selected.total
    assert owed is not None
    passes = -(-owed.then // rows)  # the pass in which it goes on is finished too
    ranges = [*owed.left, (owed.then, passes * rows - owed.then)]
    uses = np.array([use for first, count in ranges for use in range(first, first + count)], dtype=np.int64)
    out: Counter[int] = Counter()
    for number in np.unique(uses // rows).tolist():
        at = (uses[uses // rows == number] % rows).astype(np.uint64)
        ordinals = stream.stages.order.arrange(stage.population, number).rows(at)
        out.update(stage.selected.columns.fetch(ordinals, ["id"])["id"].to_pylist())
    return out, passes


FILES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(
    lambda sizes: {f"s{k}": list(range(100 * k, 100 * k + size)) for k, size in enumerate(sizes)}
)


@FEW
@given(x=FILES, y=FILES, order=st.sampled_from(ORDERS), formed=st.booleans(), steps=st.integers(1, 14), data=st.data())
def test_every_pass_that_was_begun_ends_with_the_rows_of_now(
    x: Shards, y: Shards, order: Any, *, formed: bool, steps: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        two = Two(Path(folder), {"x": x, "y": y})
        with two.plan(order, formed=formed) as stream:
            seen = delivered(stream, steps)
            state = json.loads(json.dumps(stream.state_dict()))
        files = {name: ids for name, ids in x.items() if data.draw(st.booleans(), label=f"keep {name}")}
        loose = [n for name, ids in x.items() if name not in files for n in ids if data.draw(st.booleans())]
        files["new"] = [*loose, *range(900, 900 + data.draw(st.integers(1, 4), label="new rows"))]
        two.change("x", files)
        with two.plan(order, formed=formed) as other, pytest.raises(ResumeError, match="the data changed since"):
            other.load_state_dict(state)
        with two.plan(order, formed=formed) as new:
            new.rebase(state)
            owed, passes = left(new, 0)
            now = {n for ids in files.values() for n in ids}
            before = {n for ids in x.values() for n in ids}
            assert {n: owed[n] + seen["x"][n] for n in now & before} == dict.fromkeys(now & before, passes)
            fresh = [owed[n] for n in now - before]
            assert set(owed) <= now
            assert len(set(fresh)) == 1
            assert fresh[0] <= passes
            same, whole = left(new, 1)  # nothing happened to this stream
            rows = {n for ids in y.values() for n in ids}
            assert {n: same[n] + seen["y"][n] for n in rows} == dict.fromkeys(rows, whole)


@FEW
@given(x=FILES, order=st.sampled_from(ORDERS), steps=st.integers(1, 9))
def test_the_laws_hold_after_it(x: Shards, order: Any, steps: int) -> None:
    with TemporaryDirectory() as folder:
        two = Two(Path(folder), {"x": x, "y": {"s": [1, 2, 3]}})
        with two.plan(order) as stream:
            delivered(stream, steps)
            state = json.loads(json.dumps(stream.state_dict()))
        two.change("x", {**x, "new": [900, 901]})

        def make() -> sp.PreparedStream:
            new = two.plan(order)
            new.rebase(state)
            return new

        check_replay(make)
        check_elastic(make, (2,))


# ---- examples


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path, {"x": {"a": list(range(8)), "b": list(range(100, 104))}, "y": {"c": list(range(5))}})


@pytest.mark.parametrize(
    "change",
    [
        {"order": sp.GlobalShuffle(seed=4)},
        {"least": 2},
        {"order": sp.orders.WindowShuffle(seed=2, window=4), "least": 1, "share": 0.9},
    ],
    ids=["another order", "another filter", "both, and another share"],
)
def test_a_stream_finishes_its_pass_in_another_order_or_with_fewer_rows(two: Two, change: dict[str, Any]) -> None:
    with two.plan() as old, two.plan(**change) as new:
        seen = delivered(old, 3)
        new.rebase(old)
        for k, name in enumerate("xy"):
            owed, passes = left(new, k)
            rows = [
                n
                for n in ([*range(8), *range(100, 104)] if name == "x" else range(5))
                if n % 10 >= change.get("least", 0)
            ]
            assert {n: owed[n] + seen[name][n] for n in rows} == dict.fromkeys(rows, passes)


def test_a_stream_of_another_relation_needs_another_name(two: Two) -> None:
    swapped = sp.mix([sp.Stream(n, two.catalog.table(t)) for n, t in (("x", "y"), ("z", "x"))])
    plan = swapped.sample(order=ORDERS[1]).collate(batch_size=3, fields={"id": sp.List("id")})
    with two.plan() as old, plan.to_numpy() as new:
        delivered(old, 2)
        with pytest.raises(ResumeError, match="the rows of stream 'x' were those of x and are those of y"):
            new.rebase(old)


def test_a_filter_that_leaves_as_many_other_rows_is_noticed(two: Two) -> None:
    """Counts alone do not tell: four rows here, four other rows there."""
    two.change("x", {"a": list(range(8))})
    halves = []
    for keep in (sp.col("digit") < 4, sp.col("digit") >= 4):
        streams = [sp.Stream("x", two.catalog.table("x").filter(keep)), sp.Stream("y", two.catalog.table("y"))]
        plan = sp.mix(streams).sample(order=ORDERS[1])
        halves.append(
            plan.collate(batch_size=3, fields={"id": sp.List("id"), "stream_id": sp.List("stream_id")}).to_numpy()
        )
    with halves[0] as old, halves[1] as new:
        delivered(old, 2)
        new.rebase(old)
        owed, _ = left(new, 0)
        assert owed == Counter(range(4, 8))

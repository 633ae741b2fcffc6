"""A mixture whose relations grew, shrank or were replaced: each stream finishes the passes it had begun, with the rows of now."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import ResumeError
from spiral_stream.planner.state.rebase import Rebase
from tests.fixtures.examples import few
from tests.fixtures.grown_mixtures import ORDERS, Shards, Two
from tests.fixtures.inner import stages_of

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:rebase. .* from a pass that its other rows:spiral_stream.SpiralWarning"),
]

FEW = few(4, 250, suppress_health_check=[HealthCheck.too_slow])


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
    stage, rebase = stages_of(stream).streams[k], Rebase.from_json(stream.state_dict()["rebase"])
    assert rebase is not None
    owed, rows = rebase.left_over(stage.name), stage.selected.total
    assert owed is not None
    passes = -(-owed.then // rows)  # the pass in which it goes on is finished too
    ranges = [*owed.left, (owed.then, passes * rows - owed.then)]
    uses = np.array([use for first, count in ranges for use in range(first, first + count)], dtype=np.int64)
    out: Counter[int] = Counter()
    for number in np.unique(uses // rows).tolist():
        at = (uses[uses // rows == number] % rows).astype(np.uint64)
        ordinals = stages_of(stream).order.arrange(stage.population, number).rows(at)
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

"""Where two runs part, and what only one of them saw, is what lists and sets of identities say by hand."""

import json
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

import spiral_stream as sp
from tests.fixtures.examples import few
from tests.fixtures.seen_runs import Counted, Part, Plan, catalog_of, parts, plans, run
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

FEW = few(18, 300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return catalog_of(tmp_path_factory.mktemp("difference"))


@FEW
@given(plan=plans, shared=parts, one=parts, two=parts, other=st.none() | plans)
def test_runs_part_where_their_batches_do(
    catalog: sp.Catalog, plan: Plan, shared: list[Part], one: list[Part], two: list[Part], other: Plan | None
) -> None:
    counted = [Counted(), Counted()]
    shared = shared[:1]
    assume(run(catalog, plan, shared, counted[0]))
    assume(run(catalog, plan, shared, counted[1]))
    for each, more in zip(counted, (one[:2], two[:2]), strict=True):
        assume(run(catalog, plan, more, each))
        assume(each.state["epoch"] == 0)
    if other is not None:  # another plan altogether
        counted[1] = Counted()
        assume(run(catalog, other, two, counted[1]))
        assume(counted[1].state["epoch"] == 0)
    with plan.open(catalog) as stream, (other or plan).open(catalog) as second:
        catalog.save_stream("one", stream)
        catalog.save_stream("two", second)
    states = [json.loads(json.dumps(each.state)) for each in counted]
    found = catalog.diff(*states)
    batches = [each.batches for each in counted]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*batches, strict=False)))
    assert found.same == same
    assert found.batches == (len(batches[0]), len(batches[1]))
    for at, of in zip(found.parting, batches, strict=True):
        longest = max(map(len, batches))
        expected = len(set(of[same])) if same < len(of) else None
        assert (at is None) == (expected is None)
        assert same == longest or at is None or at.samples == len(of[same])
    rows = [set(each.samples) for each in counted]
    only = [dict.fromkeys("abc", 0) for _ in rows]
    for side, names in enumerate((rows[0] - rows[1], rows[1] - rows[0])):
        for name in names:
            only[side][name.split("-")[0]] += 1
    by_relation = {each.relation: each.only for each in found.sources}
    for name in "abc":
        assert by_relation.get(name, (0, 0)) == (only[0][name], only[1][name])
    for each in found.sources:
        for side, names in enumerate(each.examples):
            assert {json.loads(text) for text in names} <= rows[side] - rows[1 - side]
            assert len(names) == min(5, each.only[side])


def test_plans_of_saved_streams_are_compared_too(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path)
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    numbers = catalog.table("numbers")
    for name, base, size in (("old", numbers, 16), ("new", numbers.filter(sp.col("id") > 9), 8)):
        made = base.sample(order=sp.GlobalShuffle(seed=1)).collate(batch_size=size, fields={"id": sp.List("id")})
        catalog.save_stream(name, made.to_numpy())
    found = catalog.diff("old", "new")
    assert "collate.batch_size (16 -> 8)" in [str(each) for each in found.plan]
    assert found.same == 0
    assert sum(each.only[0] for each in found.sources) >= 9
    assert "collate.batch_size" in str(found)
    assert "<table" in found._repr_html_()
    assert catalog.diff("old", "old").alike


def test_epochs_that_are_not_recorded_are_not_compared(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path)
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    made = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=1))
    with made.collate(batch_size=16, fields={"id": sp.List("id")}).to_numpy() as stream:
        catalog.save_stream("train", stream)
        states = []
        for epoch in (0, 1):
            stream.seek(epoch=epoch, batch=2)
            states.append(stream.state_dict())
    found = catalog.diff(*states)
    assert found.same is None
    assert not found.alike
    assert "no epoch is recorded of both" in str(found)
    assert found.not_recorded

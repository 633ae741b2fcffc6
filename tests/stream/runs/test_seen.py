"""What a run saw is what a loop over its batches counts by hand, whatever was skipped, resumed or packed on the way."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

import spiral_stream as sp
from tests.fixtures.examples import few
from tests.fixtures.seen_runs import Counted, Part, Plan, catalog_of, parts, plans, run
from tests.fixtures.texts import SMALL_PLANS, make_catalog

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

FEW = few(24, 400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return catalog_of(tmp_path_factory.mktemp("seen"))


@FEW
@given(plan=plans, done=parts)
def test_what_a_run_saw_is_what_its_loop_counted(catalog: sp.Catalog, plan: Plan, done: list[Part]) -> None:
    counted = Counted()
    assume(run(catalog, plan, done, counted))
    with plan.open(catalog) as stream:
        stream.load_state_dict(json.loads(json.dumps(counted.state)))
        found = stream.seen()
        by_stream = Counter(name.split("-")[0] for name in counted.samples.elements())
        assert {each.stream: each.samples for each in found.streams if each.samples} == by_stream
        assert found.samples == found.applied == counted.samples.total()
        assert found.tokens == found.applied_tokens == counted.tokens
        assert found.batches == len(counted.batches)
        rows = found.identities().to_pylist()
        assert {row["sample_id"]: row["times"] for row in rows} == counted.samples
        assert bool(found.not_recorded) == bool(counted.state["epoch"])
        manifest = found.manifest()
        assert manifest.distinct == len(counted.samples)


@few(4, 60, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans, worlds=st.permutations([1, 2, 3]))
def test_the_root_is_the_same_whatever_ranks_delivered(catalog: sp.Catalog, plan: Plan, worlds: list[int]) -> None:
    roots = set()
    for world in worlds:
        counted = Counted()
        assume(run(catalog, plan, [Part(6 // world, world, (), ())], counted))
        assume(counted.state["epoch"] == 0)
        with plan.open(catalog) as stream:
            stream.load_state_dict(counted.state)
            roots.add(stream.seen().manifest().root)
    assert len(roots) == 1


# ---- examples


@pytest.fixture
def numbers(tmp_path: Path) -> sp.Catalog:
    catalog = sp.connect(tmp_path)
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    return catalog


def stop_at_sevens(number: Any) -> Any:
    if any(each % 7 == 0 for each in number.to_pylist()):
        msg = "a seven"
        raise ValueError(msg)
    return number


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_samples_that_could_not_be_read_are_not_seen(numbers: sp.Catalog, policy: Any) -> None:
    sampled = numbers.table("numbers").sample(order=sp.GlobalShuffle(seed=1))
    made = sampled.map(stop_at_sevens, name="made", columns=["id"], returns=pa.int64())
    fields = {"id": sp.List("id"), "made": sp.Stack("made")}
    with made.collate(batch_size=10, fields=fields, on_error=policy, error_budget=50).to_numpy() as stream:
        loop = iter(stream)
        had = [each for batch in (next(loop), next(loop), next(loop)) for each in batch["id"]]
        loop.close()
        found = stream.seen()
        bad = [each for number in range(3) for each in stream.ledger(number) if each % 7 == 0]
        assert found.streams[0].refused == len(bad) > 0
        assert found.samples == 30 - len(bad)
        assert set(found.identities()["id"].to_pylist()) == set(had) - set(bad)
        assert "could not be read" in str(found)


def test_ten_billion_samples_are_counted_by_arithmetic(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path)
    for name in ("a", "b"):
        catalog.register(name, sp.Arrow(pa.table({"id": range(100)})), identity="id")
    streams = [sp.Stream(name, catalog.table(name), proportion=share) for name, share in (("a", 0.75), ("b", 0.25))]
    plan = sp.mix(streams, epoch_size=10**10).sample(order=sp.GlobalShuffle(seed=1))
    with plan.collate(batch_size=1000, fields={"id": sp.List("id")}).to_numpy() as stream:
        stream.seek(batch=9_999_999)
        found = stream.seen()
        assert found.samples == 9_999_999_000
        assert abs(found.streams[0].samples - 0.75 * 9_999_999_000) < 100
        assert found.streams[1].passes == pytest.approx(0.25 * 9_999_999_000 / 100)


def test_tokens_that_only_the_text_tells_are_not_known(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path, {"a": 30}, shortest=1)
    made = catalog.table("a").sample(order=sp.Sequential()).map(sp.Tokenize("text", tokenizer="words") >> "made")
    with made.collate(batch_size=4, fields={"ids": sp.Pad("made")}).to_numpy() as stream:
        loop = iter(stream)
        next(loop)
        loop.close()
        found = stream.seen()
        assert (found.samples, found.tokens) == (4, None)
        assert "not known" in str(found)
        stream.materialize(lambda _: None)
        known = stream.seen().tokens
        assert known == int(catalog.table("a").to_arrow()["size"].to_numpy()[:4].sum()) - 4


def test_what_is_seen_prints_in_a_terminal_and_in_a_notebook(numbers: sp.Catalog) -> None:
    plan = (
        numbers.table("numbers")
        .sample(order=sp.GlobalShuffle(seed=1))
        .collate(batch_size=10, fields={"id": sp.List("id")})
    )
    with plan.to_numpy() as stream:
        stream.seek(epoch=2, batch=3)
        found = stream.seen()
    text = str(found)
    assert "epochs 0 to 1: not recorded" in text
    assert "30" in text
    assert "<table" in found._repr_html_()
    assert found.to_arrow()["samples"].to_pylist() == [30]

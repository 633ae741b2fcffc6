"""Kept values that would go stale: refused before they are kept, or found when they are opened."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.runtime.columns.recomputed import alike
from tests.fixtures import functions, kept
from tests.fixtures.linked import linked

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return linked(functions.make_catalog, tmp_path)


def sampled(catalog: sp.Catalog) -> Any:
    return catalog.table("d").sample(order=sp.Sequential())


def collated(plan: Any, *names: str) -> sp.PreparedStream:
    fields = {name: sp.List(name) for name in (*names, "id")}
    return plan.collate(batch_size=16, fields=fields).to_numpy()  # type: ignore[no-any-return]


PLANS: dict[str, Any] = {
    "map": (
        lambda plan, **o: plan.map(kept.from_environment, columns=["n"], name="m", returns=pa.int64(), **o),
        r"map \(from_environment\): column 'm' gives \d+ now, and \d+ is kept",
    ),
    "filter": (
        lambda plan, **o: plan.filter(kept.parity, columns=["n"], **o),
        r"filter \(parity\) gives (True|False) now, and (True|False) is kept",
    ),
    "flat_map": (
        lambda plan, **o: plan.flat_map(
            kept.parts, columns=["n"], name="p", returns=pa.int64(), fan_out=8, batched=False, **o
        ),
        r"flat_map \(parts\) gives \[.*\] now, and \[.*\] is kept",
    ),
    "records": (
        lambda plan, **o: plan.map(
            kept.columns,
            columns=["n"],
            returns={"x": pa.fixed_shape_tensor(pa.float32(), (2,)), "t": pa.utf8()},
            **o,
        ),
        r"map \(columns\): column 'x' gives \[.*\] now, and \[.*\] is kept",
    ),
    "failing": (
        lambda plan, **o: plan.map(kept.failing, columns=["n"], name="m", returns=pa.int64(), **o),
        r"the functions fail now \(map \(failing\): failed: ValueError: no more\), and their values are kept",
    ),
}


@pytest.mark.parametrize("kind", PLANS)
def test_values_that_differ_are_found_when_they_are_opened(
    catalog: sp.Catalog, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, says = PLANS[kind]
    with collated(plan(sampled(catalog)).cache()) as stream:
        stream.materialize(lambda _: None)
    with collated(plan(sampled(catalog)).cache()) as stream:
        want = [batch["id"] for batch in stream]

    monkeypatch.setenv("KEPT_TEST", "1")
    ways_out = r'version="2".*__spiral_version__ = "2".*stream\.materialize\(\).*or restore what it rested on'
    with collated(plan(sampled(catalog)).cache()) as stream:
        for read in (lambda: next(iter(stream)), lambda: stream.batch(0)):
            with pytest.raises(sp.errors.CacheError, match=rf"cache: d: sample id=\d+: {says}.*{ways_out}"):
                read()
    if kind != "failing":  # another version makes them again
        with collated(plan(sampled(catalog), version="2").cache()) as stream:
            stream.materialize(lambda _: None)
            list(stream)
    monkeypatch.delenv("KEPT_TEST")  # what it rested on is as it was
    with collated(plan(sampled(catalog)).cache()) as stream:
        assert [batch["id"] for batch in stream] == want


def test_one_process_looks_for_all_and_once(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr("spiral_stream.runtime.run.opened_plan.check_cached", lambda stages, seed: looked.append(seed))
    plan, _ = PLANS["map"]
    with collated(plan(sampled(catalog)).cache()) as stream:
        stream.materialize(lambda _: None)
        list(stream)
        list(stream)
        stream.batch(1)
        assert len(looked) == 1
    with collated(plan(sampled(catalog)).cache()).bind(rank=1, world_size=2) as stream:
        list(stream)
    assert len(looked) == 1


def test_a_slow_function_is_called_for_few_rows(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> Any:
        made = sampled(catalog).map(kept.slow, columns=["n"], name="m", returns=pa.int64())
        return collated(made.cache(), "m")

    with plan() as stream:
        stream.materialize(lambda _: None)
    monkeypatch.setenv("KEPT_TEST", "1")
    kept.CALLS.clear()
    monkeypatch.setattr("spiral_stream.runtime.columns.recomputed.monotonic", lambda: 0.6 * len(kept.CALLS))
    with plan() as stream:
        list(stream)

    assert kept.CALLS == [1, 1]  # the second ends past one second


def test_rows_that_cannot_be_read_here_are_told_and_not_checked(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = PLANS["map"]
    with collated(plan(sampled(catalog)).cache(), "m") as stream:
        stream.materialize(lambda _: None)
        want = [batch["m"] for batch in stream]

    def away(*_: Any) -> Any:
        raise sp.errors.SourceError("Parquet: the store does not answer")

    monkeypatch.setattr("spiral_stream.runtime.columns.recomputed.rows_through", away)
    says = r"values of from_environment are read and not checked.*does not answer.*opening the stream there"
    with collated(plan(sampled(catalog)).cache(), "m") as stream, pytest.warns(sp.SpiralWarning, match=says):
        assert [batch["m"] for batch in stream] == want


def test_sums_of_floats_may_differ_in_the_last_digits(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> Any:
        return collated(sampled(catalog).map(kept.noisy, columns=["n"], name="m", returns=pa.float64()).cache(), "m")

    with plan() as stream:
        stream.materialize(lambda _: None)
    monkeypatch.setenv("KEPT_TEST", "1")
    with plan() as stream:
        list(stream)
    monkeypatch.setenv("KEPT_TEST", "99999")
    with plan() as stream, pytest.raises(sp.errors.CacheError, match="is kept"):
        list(stream)


numbers = st.floats(-1e6, 1e6)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), numbers, st.just(float("nan")), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=8,
)


@given(value=values, noise=st.floats(-1e-5, 1e-5))
def test_a_value_is_like_itself_with_noise_in_its_floats(value: Any, noise: float) -> None:
    def noised(each: Any) -> Any:
        if isinstance(each, dict):
            return {name: noised(inner) for name, inner in each.items()}
        if isinstance(each, list):
            return [noised(inner) for inner in each]
        return each * (1 + noise) if isinstance(each, float) else each

    assert alike(value, noised(value))
    assert not alike(value, [value])


@given(items=st.lists(numbers, min_size=1, max_size=5), at=st.integers(0, 4), data=st.data())
def test_a_float_that_is_another_one_is_seen(items: list[float], at: int, data: st.DataObject) -> None:
    most = max(1e-3, float(np.abs(items).max()))
    other = list(items)
    other[at % len(items)] += data.draw(st.sampled_from([-1, 1])) * most * 0.01

    assert not alike(items, other)


# ---- refused before they are kept


def test_a_filter_takes_a_version_for_a_function_alone(catalog: sp.Catalog) -> None:
    plan = sampled(catalog)
    prints = [plan.filter(kept.parity, columns=["n"], version=each) for each in ("1", "1", "2")]
    assert collated(prints[0]).fingerprint == collated(prints[1]).fingerprint != collated(prints[2]).fingerprint
    with pytest.raises(
        sp.errors.PlanError, match=r"filter: version='1' stands for the code of a function.*Leave it out"
    ):
        plan.filter(sp.col("n") > 1, version="1")


def test_code_that_finds_names_at_run_time_is_refused_with_the_ways_out(catalog: sp.Catalog) -> None:
    plan = sampled(catalog)
    options: dict[str, Any] = {"columns": ["n"], "name": "m", "returns": pa.int64()}
    says = (
        r"cache: map \(found_by_name\) uses globals\(\.\.\.\) in tests\.fixtures\.kept\.found_by_name, which a reading of its "
        r'code does not follow.*Name what it uses.*or give map \(found_by_name\) version="1"'
    )
    with pytest.raises(sp.errors.PlanError, match=says):
        plan.map(kept.found_by_name, **options).cache()
    with collated(plan.map(kept.found_by_name, **options), "m") as stream:  # without keeping it is a plan as any other
        assert next(iter(stream))["m"] == [1 + n * 37 % 101 for n in range(16)]
    plan.map(kept.found_by_name, version="1", **options).cache()


def test_an_instance_of_a_class_is_told_what_helps_and_it_does(catalog: sp.Catalog) -> None:
    def plan(function: Any, **more: Any) -> Any:
        return sampled(catalog).map(function, columns=["n"], name="m", returns=pa.int64(), **more).cache()

    def made(function: Any, **more: Any) -> str:
        with collated(plan(function, **more), "m") as stream:
            (status,) = stream.caches()
            return status.fingerprint

    says = (
        r"is tests\.fixtures\.kept\.Model, an instance of a class.*frozen dataclass.*__spiral_version__ = \"1\" in class.*"
        r"version=\"1\" to the verb"
    )
    with pytest.raises(sp.errors.PlanError, match=says):
        plan(kept.Model(2))
    assert made(kept.Model(2), version="1") != made(kept.Model(2), version="2")
    assert made(kept.Versioned(2)) == made(kept.Versioned(2)) != made(kept.Versioned(3))
    with pytest.raises(
        sp.errors.PlanError, match=r"attribute 'handle' of the instance, a memoryview.*Set self.__spiral_version__"
    ):
        plan(kept.Locked(2))
    assert made(kept.Locked(2, "a")) == made(kept.Locked(2, "a")) != made(kept.Locked(2, "b"))


def test_a_version_on_a_class_stands_for_its_code(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> str:
        plan = sampled(catalog).map(kept.Versioned(2), columns=["n"], name="m", returns=pa.int64()).cache()
        with collated(plan, "m") as stream:
            (status,) = stream.caches()
            return status.fingerprint

    first = made()
    monkeypatch.setattr(kept.Versioned, "__call__", kept.Model.__call__, raising=False)
    assert made() == first
    monkeypatch.setattr(kept.Versioned, "__spiral_version__", "2")
    assert made() != first

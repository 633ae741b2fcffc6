"""A user's function that raises for a row: `on_error` covers it as it covers bytes that cannot be read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import frozen, same
from tests.fixtures import raising as own
from tests.fixtures.examples import few
from tests.fixtures.linked import linked
from tests.fixtures.raising_plans import ROWS, Case, PackedCase, assembled, cases, make_catalog

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

FEW = few(6, 150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("raising"))


def run(stream: Any) -> list[dict[str, Any]]:
    with stream:
        return read(stream)


def read(stream: Any) -> list[dict[str, Any]]:
    """Batches, up to an error that says that nothing is left of one."""
    out = []
    try:
        out.extend(frozen(batch) for batch in stream)
    except sp.errors.DataError as error:
        if "leaves nothing" not in str(error):
            raise
    return out


def equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(same(a, b) for a, b in zip(some, others, strict=True))


# ---- laws


@FEW
@given(case=cases(), made=st.booleans())
def test_batches_are_those_of_a_twin_that_does_not_raise(
    tmp_path_factory: pytest.TempPathFactory, case: Case, made: bool
) -> None:
    catalog = linked(make_catalog, tmp_path_factory.mktemp("case"))
    if made and case.kept and case.kind != "random":
        with case.stream(catalog) as stream:
            stream.materialize(lambda _: None)

    assert equal(run(case.stream(catalog)), case.expected(catalog))


@FEW
@given(case=cases(), data=st.data())
def test_batches_can_be_built_alone(catalog: sp.Catalog, case: Case, data: st.DataObject) -> None:
    whole = run(case.stream(catalog))
    with case.stream(catalog) as stream:
        for number in data.draw(st.permutations(range(len(whole))))[:6]:
            assert same(stream.batch(number), whole[number])


@FEW
@given(case=cases(), world=st.sampled_from([2, 3]), workers=st.sampled_from([1, 2]))
def test_ranks_and_workers_share_one_sequence(
    tmp_path_factory: pytest.TempPathFactory, case: Case, world: int, workers: int
) -> None:
    catalog = linked(make_catalog, tmp_path_factory.mktemp("case"))
    if case.kind in ("filter", "flat_map"):  # what decides who shares a batch runs on many ranks once it is kept
        case = Case(**{**vars(case), "kept": True})
        with case.stream(catalog) as stream:
            stream.materialize(lambda _: None)
    whole = run(case.stream(catalog))
    for rank in range(world):
        for worker in range(workers):
            with case.stream(catalog, rank=rank, world_size=world) as stream:
                due = range(rank + worker * world, len(whole), world * workers)
                batches = stream._worker_batches(worker, workers)
                for number, (batch, _) in zip(due, batches, strict=False):
                    assert same(whole[number], batch)
                batches.close()


@FEW
@given(case=cases())
def test_every_refused_row_is_counted_and_in_the_quarantine_once(
    tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    catalog = linked(make_catalog, tmp_path_factory.mktemp("case"))
    with case.stream(catalog) as stream:
        found = read(stream)
        whole, metrics, table = len(found) == stream.count(), stream.metrics(), stream.quarantine()
        stream.set_epoch(0)
        read(stream)  # again says nothing new
        assert stream.quarantine().equals(table) or not whole
    if whole:
        assert metrics["refused"] == len(table)
        assert {f"r{row}" for row in case.bad} == set(table["id"].to_pylist())
    assert set(table["id"].to_pylist()) <= {f"r{row}" for row in case.bad}
    assert all("bad: " in each for each in table["reason"].to_pylist())
    assert set(table["shard"].to_pylist()) <= {"s0", "s1", "s2"}


# ---- Packed


@FEW
@given(
    bad=st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=40).map(lambda rows: tuple(sorted(rows))),
    options=st.sampled_from([{}, {"oversize": "split"}, {"strategy": "concat_and_split"}]),
    size=st.integers(1, 4),
    kept=st.booleans(),
)
def test_packed_rows_hold_the_tokens_of_all_other_samples_once(
    tmp_path_factory: pytest.TempPathFactory, bad: tuple[int, ...], options: dict[str, Any], size: int, kept: bool
) -> None:
    catalog = linked(make_catalog, tmp_path_factory.mktemp("case"))
    case = PackedCase(bad, options, size, kept)
    if kept:
        with case.stream(catalog) as stream:
            stream.materialize(lambda _: None)
    batches = run(case.stream(catalog))

    tokens = np.concatenate([batch["ids"][batch["segments"] > 0] for batch in batches])
    counts = dict(zip(*(each.tolist() for each in np.unique(tokens, return_counts=True)), strict=True))
    assert counts == {row: row % 7 + 1 for row in range(ROWS) if row not in bad}
    named = {each for batch in batches for row in batch["id"] for each in row}
    assert named == {f"r{row}" for row in range(ROWS) if row not in bad}
    with case.stream(catalog) as stream:
        list(stream)
        assert sorted(stream.quarantine()["id"].to_pylist()) == sorted(f"r{row}" for row in bad)
        assert stream.metrics()["refused"] == len(bad)


def test_a_token_that_does_not_fit_leaves_its_place_in_packed_rows(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    lists = [[row] * 5 for row in range(20)]
    lists[4] = [1, 2**40, 3]
    catalog.register("d", sp.Arrow(pa.table({"id": range(20), "t": lists})), identity="id")
    plan = catalog.table("d").sample(order=sp.Sequential())
    fields = {"ids": sp.Pad("t", dtype="int32", pad_value=-1), "id": sp.List("id")}
    packed: dict[str, Any] = {"fields": fields, "formation": sp.batching.Packed(max_tokens=11), "batch_size": 2}
    with plan.collate(on_error="skip", error_budget=1, last=sp.KeepPartial, **packed).to_numpy() as stream:
        tokens = np.concatenate([batch["ids"].ravel() for batch in stream])
        assert sorted(tokens[tokens >= 0].tolist()) == sorted([row for row in range(20) if row != 4] * 5)
        assert stream.quarantine()["id"].to_pylist() == [4]
    with pytest.raises(sp.errors.PlanError, match=r'on_error="substitute" with Packed.*Use on_error="skip"'):
        plan.collate(on_error="substitute", **packed)


# ---- assemble


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_row_that_an_assembler_fails_on_is_left_out_and_told(tmp_path: Path, lanes: int) -> None:
    catalog = linked(make_catalog, tmp_path)
    with assembled(catalog, lanes) as stream:
        batches = [frozen(batch) for batch in stream]
        seen = [n for batch in batches for name in ("n", "other") for n in batch[name]]
        table, metrics = stream.quarantine(), stream.metrics()
        state = stream.state_dict()
    bad = [row for row in range(ROWS) if row % 11 == 3]
    assert len(seen) == len(set(seen))
    assert set(seen).isdisjoint(bad)
    assert len(seen) >= ROWS - len(bad) - lanes
    assert sorted(table["id"].to_pylist()) == sorted(f"r{row}" for row in bad)
    assert metrics["refused"] == metrics["skipped"] == len(bad)
    assert set(table["field"].to_pylist()) == {"PairsById"}
    assert all("push failed: ValueError: bad: " in each for each in table["reason"].to_pylist())
    assert table["shard"].null_count == 0
    assert state
    with assembled(catalog, lanes) as stream:
        list(stream)
        assert stream.quarantine().equals(table)  # what came again is there once


def test_an_assembler_of_tables_is_refused_with_the_way_out(catalog: sp.Catalog) -> None:
    plan = catalog.table("d").sample(order=sp.Sequential())
    returns = pa.schema([("id", pa.utf8()), ("n", pa.int64())])
    made = plan.assemble(own.Batched, columns=["id", "n"], returns=returns)
    with pytest.raises(
        sp.errors.PlanError, match=r'on_error="skip" after assemble, whose push sees many.*batched=False'
    ):
        made.collate(batch_size=4, fields={"n": sp.List("n")}, on_error="skip")


# ---- what may be skipped


@pytest.mark.crossed
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("ValueError", None),
        ("a bad image", None),
        ("DataError", None),
        ("MemoryError", sp.errors.SourceError),
        ("FileNotFoundError", sp.errors.SourceError),
        ("ConnectionError", sp.errors.SourceError),
        ("TimeoutError", sp.errors.SourceError),
        ("StreamError", sp.errors.SourceError),
    ],
)
@pytest.mark.parametrize("workers", [None, 1])
def test_faults_that_are_no_property_of_the_row_stop_the_stream(
    catalog: sp.Catalog, kind: str, error: type[Exception] | None, workers: int | None
) -> None:
    if workers and kind not in ("ValueError", "MemoryError", "FileNotFoundError"):
        pytest.skip("the same door")
    plan = catalog.table("d").sample(order=sp.Sequential())
    plan = plan.map(own.Raises(kind), columns=["n"], name="m", returns=pa.int64(), batched=False, workers=workers)
    plan = plan.collate(batch_size=8, fields={"m": sp.List("m")}, on_error="skip", error_budget=1)
    with plan.to_numpy() as stream:
        if error is None:
            assert next(iter(stream))["m"] == [0, 1, 2, 3, 4, 6, 7]
            return
        with pytest.raises(error, match=r"map \(Raises\): failed: ") as caught:
            next(iter(stream))
        assert not isinstance(caught.value, sp.errors.DataError)


def test_without_a_policy_a_function_that_raises_stops_the_stream_and_names_the_way_out(catalog: sp.Catalog) -> None:
    plan = catalog.table("d").sample(order=sp.Sequential())
    plan = plan.map(own.Single((5,)), columns=["n"], name="m", returns=pa.int64(), batched=False)
    with (
        plan.collate(batch_size=8, fields={"m": sp.List("m")}).to_numpy() as stream,
        pytest.raises(
            sp.errors.DataError, match=r"d: sample id='r5': map \(Single\): failed: ValueError: bad: 5.*on_error="
        ),
    ):
        list(stream)


def test_kept_values_of_a_strict_plan_name_the_row(tmp_path: Path) -> None:
    catalog = linked(make_catalog, tmp_path)
    plan = catalog.table("d").sample(order=sp.Sequential())
    plan = plan.map(own.Single((5,)), columns=["n"], name="m", returns=pa.int64(), batched=False).cache()
    with (
        plan.collate(batch_size=8, fields={"m": sp.List("m")}).to_numpy() as stream,
        pytest.raises(sp.errors.DataError, match=r"d: sample id='r5'"),
    ):
        stream.materialize(lambda _: None)

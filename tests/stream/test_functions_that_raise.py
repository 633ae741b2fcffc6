"""A user's function that raises for a row: `on_error` covers it as it covers bytes that cannot be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import check_replay, check_resume, frozen, same
from tests.fixtures import raising as own
from tests.fixtures.examples import few

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

ROWS = 90
FEW = few(6, 150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
KINDS = ("map", "single", "random", "records", "filter", "flat_map", "tokens")
FORMATIONS = {"fixed": {}, "window": {"formation": sp.WindowedBucket(window_size=32, keys=[sp.BucketKey("n")])}}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("raising"))


def make_catalog(folder: Path) -> sp.Catalog:
    made = sp.connect(str(folder / "catalog"))
    shards = [f"s{row // 30}" for row in range(ROWS)]
    table = pa.table({"id": [f"r{row}" for row in range(ROWS)], "n": range(ROWS), "shard": shards})
    made.register("d", sp.Arrow(table), identity="id", shard="shard")
    return made


@dataclass(frozen=True)
class Case:
    """One plan with a function that raises for some rows, in words that a failing example prints."""

    kind: str
    bad: tuple[int, ...]
    policy: str
    formation: str
    size: int
    lanes: int
    kept: bool
    after: bool  # whether another function reads what this one gives

    def plan(self, catalog: sp.Catalog, *, twin: bool) -> sp.Relation:  # noqa: C901  one case a kind
        ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=self.lanes)
        plan = catalog.table("d").sample(order=sp.GlobalShuffle(seed=7), assignment=ranks)
        one: dict[str, Any] = {"columns": ["n"], "name": "m", "returns": pa.int64()}
        match self.kind:
            case "map":
                plan = plan.map(own.Doubled(self.bad, twin), **one)
            case "single":
                plan = plan.map(own.Single(self.bad, twin), batched=False, **one)
            case "random":
                plan = plan.map(own.Drawn(self.bad, twin), random=True, **one)
            case "records":
                plan = plan.map(
                    own.Records(self.bad, twin), columns=["n"], returns={"m": pa.int64(), "t": pa.list_(pa.int64())}
                )
            case "filter":
                plan = plan.filter(own.Odd(self.bad, twin), columns=["n"])
            case "flat_map":
                plan = plan.flat_map(own.Parts(self.bad, twin), batched=False, fan_out=4, **one)
            case "tokens":
                plan = plan.map(own.Tokens(self.bad, twin), batched=False, **(one | {"returns": pa.list_(pa.int64())}))
        if self.kept and self.kind == "flat_map":  # what reads one part of a row is not kept
            plan = plan.cache()
        if self.after and "m" in self.fields() and self.kind != "tokens":
            plan = plan.map(own.Doubled(()), columns=["m"], name="k", returns=pa.int64())
        if self.kept and self.kind not in ("flat_map", "random"):
            plan = plan.cache()
        options: dict[str, Any] = {} if twin else {"on_error": self.policy, "error_budget": 1.0}
        fields: dict[str, Any] = {name: sp.List(name) for name in self.fields()}
        if self.kind == "tokens":
            fields["m"] = sp.Pad("m", pad_to_multiple_of=8)
        if self.after and "m" in fields and self.kind != "tokens":
            fields["k"] = sp.Stack("k")
        return plan.collate(
            batch_size=self.size, fields=fields, last=sp.KeepPartial, **options, **FORMATIONS[self.formation]
        )

    def fields(self) -> list[str]:
        return {"filter": ["id", "n"], "records": ["id", "n", "m", "t"]}.get(self.kind, ["id", "n", "m"])

    def stream(self, catalog: sp.Catalog, *, twin: bool = False, **binding: Any) -> sp.PreparedStream:
        return self.plan(catalog, twin=twin).to_numpy().bind(**binding)

    def expected(self, catalog: sp.Catalog) -> list[dict[str, Any]]:
        """What the policy makes of the twin's batches, said in the plainest way."""
        with self.stream(catalog, twin=True) as stream:
            whole = [frozen(batch) for batch in stream]
        made = [self._left(batch) for batch in whole]
        near = [[*[*range(at + 1, len(made))][:8], *range(at - 1, -1, -1)] for at in range(len(made))]
        out = []
        for at, batch in enumerate(made):
            found = [batch, *(made[other] for other in near[at][:8])]
            out.append(next((each for each in found if each is not None), None))
        return out[: out.index(None)] if None in out else out  # type: ignore[return-value]  # none is None

    def _left(self, batch: dict[str, Any]) -> dict[str, Any] | None:
        count = len(batch["n"])
        good = [row for row in range(count) if batch["n"][row] not in self.bad]
        rows = good
        if self.policy == "substitute" and good:
            rows = [next(at % count for at in range(row, row + count) if at % count in good) for row in range(count)]
        if not rows:
            return None
        return {name: [v[r] for r in rows] if isinstance(v, list) else v[rows] for name, v in batch.items()}


@st.composite
def cases(draw: Any) -> Case:
    crowded = draw(st.booleans())
    bad = draw(st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=60 if crowded else 8))
    return Case(
        draw(st.sampled_from(KINDS)),
        tuple(sorted(bad)),
        draw(st.sampled_from(["skip", "substitute"])),
        draw(st.sampled_from(sorted(FORMATIONS))),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 2)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


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
    catalog = make_catalog(tmp_path_factory.mktemp("case"))
    if made and case.kept and case.kind != "random":
        with case.stream(catalog) as stream:
            stream.materialize(lambda _: None)

    assert equal(run(case.stream(catalog)), case.expected(catalog))


@FEW
@given(case=cases(), data=st.data())
def test_batches_replay_resume_and_can_be_built_alone(catalog: sp.Catalog, case: Case, data: st.DataObject) -> None:
    whole = run(case.stream(catalog))
    with case.stream(catalog) as stream:
        for number in data.draw(st.permutations(range(len(whole))))[:6]:
            assert same(stream.batch(number), whole[number])
        complete = len(whole) == stream.count()
    if complete:
        check_replay(lambda: case.stream(catalog))
        check_resume(lambda: case.stream(catalog), [1, len(whole) // 2])


@FEW
@given(case=cases(), world=st.sampled_from([2, 3]), workers=st.sampled_from([1, 2]))
def test_ranks_and_workers_share_one_sequence(
    tmp_path_factory: pytest.TempPathFactory, case: Case, world: int, workers: int
) -> None:
    catalog = make_catalog(tmp_path_factory.mktemp("case"))
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
    catalog = make_catalog(tmp_path_factory.mktemp("case"))
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


@dataclass(frozen=True)
class PackedCase:
    bad: tuple[int, ...]
    options: dict[str, Any]
    size: int
    kept: bool

    def stream(self, catalog: sp.Catalog, **binding: Any) -> sp.PreparedStream:
        plan = catalog.table("d").sample(order=sp.GlobalShuffle(seed=3))
        tokens = {"columns": ["n"], "name": "m", "returns": pa.list_(pa.int64()), "batched": False}
        plan = plan.map(own.Tokens(self.bad), **tokens)
        plan = plan.cache() if self.kept else plan
        fields = {"ids": sp.Pad("m", pad_value=-1), "segments": sp.fields.Segments("m"), "id": sp.List("id")}
        return (
            plan.collate(
                batch_size=self.size,
                fields=fields,
                formation=sp.batching.Packed(max_tokens=16, **self.options),
                on_error="skip",
                error_budget=1.0,
                last=sp.KeepPartial,
            )
            .to_numpy()
            .bind(**binding)
        )


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
    catalog = make_catalog(tmp_path_factory.mktemp("case"))
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
    check_replay(lambda: case.stream(catalog))
    check_resume(lambda: case.stream(catalog), [1, len(batches) // 2])


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


def assembled(catalog: sp.Catalog, lanes: int = 1, **options: Any) -> Any:
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=lanes)
    plan = catalog.table("d").sample(order=sp.GlobalShuffle(seed=5), assignment=ranks)
    returns = pa.schema([("id", pa.utf8()), ("n", pa.int64()), ("other", pa.int64())])
    plan = plan.with_columns(number=sp.col("n"))
    made = plan.assemble(PairsById, columns=["id", "n"], returns=returns, batched=False)
    fields = {name: sp.List(name) for name in ("n", "other")}
    options = {"on_error": "skip", "error_budget": 1.0, "last": sp.KeepPartial, **options}
    return made.collate(batch_size=4, fields=fields, **options).to_numpy()


class PairsById(own.Pairs):
    def push(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**made, "id": f"r{made['n']}"} for made in super().push(row)]


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_row_that_an_assembler_fails_on_is_left_out_and_told(tmp_path: Path, lanes: int) -> None:
    catalog = make_catalog(tmp_path)
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
    check_replay(lambda: assembled(catalog, lanes))
    check_resume(lambda: assembled(catalog, lanes), [1, 4])
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
    catalog = make_catalog(tmp_path)
    plan = catalog.table("d").sample(order=sp.Sequential())
    plan = plan.map(own.Single((5,)), columns=["n"], name="m", returns=pa.int64(), batched=False).cache()
    with (
        plan.collate(batch_size=8, fields={"m": sp.List("m")}).to_numpy() as stream,
        pytest.raises(sp.errors.DataError, match=r"d: sample id='r5'"),
    ):
        stream.materialize(lambda _: None)

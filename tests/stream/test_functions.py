"""A user's functions: record batches, threads and processes, values that are kept, and many ranks."""

import json
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import spiral_stream as sp
from spiral_stream.errors import BindError, DataError, PlanError, ResumeError, StreamError
from spiral_stream.testing import frozen, same
from tests.fixtures import functions as own
from tests.fixtures.functions import COLUMNS, collated, kept, mapped, paired, sampled
from tests.fixtures.inner import batches_of
from tests.fixtures.linked import linked

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return linked(own.make_catalog, tmp_path)


def read(run: Any) -> list[dict[str, Any]]:
    with run:
        return [frozen(batch) for batch in run]


def equal(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    return len(some) == len(others) and all(same(a, b) for a, b in zip(some, others, strict=True))


# ---- record batches


def test_several_columns_come_of_one_call(catalog: sp.Catalog) -> None:
    batches = read(mapped(catalog).to_numpy())

    n = {row["id"]: row["n"] for row in own.table().to_pylist()}
    for batch in batches:
        assert batch["x"].shape == (16, 2, 3)
        for row, each in enumerate(batch["id"]):
            assert batch["x"][row, 1, 2] == n[each] + 5
            assert (batch["words"][row], batch["text"][row]) == (list(range(n[each] % 4)), f"t{n[each]}")


@pytest.mark.parametrize(("function", "batched"), [(own.rows, True), (own.one, False)])
def test_dicts_do_as_well_as_arrays(catalog: sp.Catalog, function: Callable[..., Any], batched: bool) -> None:
    plan = mapped(catalog, function, batched=batched)

    assert equal(read(plan.to_numpy()), read(mapped(catalog).to_numpy()))


@pytest.mark.parametrize("threads", [1, 4])
def test_batches_are_the_same_on_any_number_of_threads(catalog: sp.Catalog, threads: int) -> None:
    plan = mapped(catalog).to_numpy().plan
    stream = sp.PreparedStream(plan, catalog, threads=threads)

    assert equal(read(stream), read(mapped(catalog).to_numpy()))


@pytest.mark.parametrize(
    ("function", "returns", "says"),
    [
        (own.wide, {"x": own.TENSOR}, r"column 'x': returned shape \(2, 4\) for a sample, and returns= says \(2, 3\)"),
        (own.few, {"x": own.TENSOR}, r"column 'x': returned \d+ values for \d+ samples, of which this is the first"),
        (own.texts, {"x": pa.float32()}, r"column 'x': returned list that is no float .*State another returns="),
        (own.nothing, {"x": pa.float32()}, r"column 'x' is missing; there are y. Return it"),
        (own.nulls, pa.schema([pa.field("x", pa.float32(), nullable=False)]), r"column 'x' is null, and returns= says"),
    ],
)
def test_what_does_not_fit_is_named_with_function_column_and_place(
    catalog: sp.Catalog, function: Callable[..., Any], returns: Any, says: str
) -> None:
    plan = collated(sampled(catalog).map(function, columns=["n"], returns=returns), ["x"])
    place = "" if function is own.nothing else r"d: sample id=\d+: "

    with pytest.raises(DataError, match=rf"{place}map \({function.__name__}\): {says}"):
        read(plan.to_numpy())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"returns": {"x": "float"}}, r"map: returns=.*Give names and Arrow types"),
        ({"returns": {"x": pa.int8()}, "name": "x"}, r"map: name='x', and returns= names the columns"),
        ({"returns": {}}, r"map \(features\): returns no column"),
        ({"returns": COLUMNS, "workers": 0}, r"map \(features\): workers=0. Give a number of processes"),
    ],
)
def test_what_is_no_function_of_record_batches_is_refused(catalog: sp.Catalog, options: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        sampled(catalog).map(own.features, columns=["n"], **options)


def test_boxes_that_a_function_gives_follow_their_images(tmp_path: Path) -> None:
    pixels = np.full((20, 24, 3), 90, np.uint8)
    for number in range(8):
        Image.fromarray(pixels).save(tmp_path / f"{number}.jpg")
    table = pa.table({"id": range(8), "n": range(8), "image": [str(tmp_path / f"{n}.jpg") for n in range(8)]})
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("d", sp.Arrow(table), identity="id", semantic={"image": "image/jpeg-ref"})
    plan = catalog.table("d").sample(order=sp.Sequential())
    plan = plan.map(own.boxes, columns=["n"], returns={"boxes": pa.list_(pa.list_(pa.float32(), 4))})
    fields = {
        "image": sp.Stack("image", decode="jpeg", transforms=[sp.RandomResizedCrop(16)]),
        "boxes": sp.fields.Boxes("boxes", of="image"),
    }
    (batch,) = read(plan.collate(batch_size=8, fields=fields).to_numpy())

    assert batch["boxes"].shape == (8, 2, 4)


# ---- processes


def children() -> set[str]:
    """Processes that this one started and were not waited for, by number."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended since it was listed
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(process.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found as Linux lists them")
def test_processes_deliver_what_threads_do_and_end_with_the_stream(catalog: sp.Catalog) -> None:
    before = children()
    with mapped(catalog, workers=2).to_numpy() as stream:
        assert stream.fingerprint == mapped(catalog).to_numpy().fingerprint
        assert equal([frozen(batch) for batch in stream], read(mapped(catalog).to_numpy()))
        started = children() - before
        assert 1 <= len(started) <= 2

    assert started.isdisjoint(children())


def test_a_process_that_is_killed_is_named(catalog: sp.Catalog) -> None:
    plan = sampled(catalog).map(own.killed, columns=["n"], name="m", returns=pa.int64(), workers=1)

    says = r"map \(killed\): the process that ran it on 16 samples ended with signal 9 \(SIGKILL\).*fewer workers="
    with pytest.raises(StreamError, match=says):
        read(collated(plan, ["m"]).to_numpy())


@pytest.mark.slow
def test_a_bad_value_of_a_process_names_the_sample(catalog: sp.Catalog) -> None:
    plan = sampled(catalog).map(own.wide, columns=["n"], returns={"x": own.TENSOR}, workers=1)

    with pytest.raises(DataError, match=r"d: sample id=\d+: map \(wide\): column 'x': returned shape"):
        read(collated(plan, ["x"]).to_numpy())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:lance is not fork-safe", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_workers_of_a_dataloader_run_the_functions_themselves(catalog: sp.Catalog, context: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    stream = mapped(catalog, workers=2).to_torch()
    loader = data.DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=context, timeout=300)

    ids = [batch["id"] for batch in loader]
    assert ids == [batch["id"] for batch in read(mapped(catalog).to_numpy())]


def test_a_function_that_only_this_process_has_is_refused(catalog: sp.Catalog) -> None:
    plan = sampled(catalog)
    with pytest.raises(
        PlanError, match=r"map \(.*lambda.*\): workers=2 runs it in other processes, and no other process"
    ):
        plan.map(lambda n: n, columns=["n"], name="m", returns=pa.int64(), workers=2)
    with pytest.raises(PlanError, match=r"cache \(.*lambda.*\): its values are to be kept, and no other process"):
        plan.map(lambda n: n, columns=["n"], name="m", returns=pa.int64()).cache()


# ---- values that are kept


@pytest.mark.parametrize("executor", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_kept_values_are_those_of_the_functions(
    catalog: sp.Catalog, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = read(kept(catalog, cache=False).to_numpy())
    with kept(catalog).to_numpy() as stream:
        assert stream.fingerprint == kept(catalog, cache=False).to_numpy().fingerprint
        assert equal([frozen(batch) for batch in stream], want)  # on the fly
        done = stream.materialize(lambda _: None, executor=executor)
        assert (done.shards, done.rows) == (6, 2 * stream.rows)
        assert [(each.rows, each.complete) for each in stream.caches()] == [(stream.rows, True)] * 2
        assert stream.caches()[1].form == "values of not_fifth, checked, parts"

    _break(monkeypatch)
    assert equal(read(kept(catalog).to_numpy()), want)


def _break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of a function fail, without a change of its code, but for the rows that are computed again."""
    from spiral_stream.runtime.columns import recomputed as kept_again
    from spiral_stream.transforms.python import Function

    monkeypatch.setattr(kept_again, "ROWS", 0)

    def fails(*_: Any) -> Any:
        pytest.fail("a function was called")

    monkeypatch.setattr(Function, "run", fails)


def test_what_functions_decide_runs_on_many_ranks_once_it_is_kept(catalog: sp.Catalog) -> None:
    with kept(catalog).to_numpy() as stream:
        with pytest.raises(
            BindError, match=r"filter not_fifth, flat_map parts.*stream.materialize\(\) keeps what filter"
        ):
            read(kept(catalog).to_numpy().bind(rank=0, world_size=2))
        stream.materialize()

    want = read(kept(catalog).to_numpy())
    assert equal(read(kept(catalog).to_numpy().bind(rank=1, world_size=2)), want[1::2])


def test_a_changed_function_has_other_values_and_a_new_shard_costs_that_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for shard in range(3):
        pq.write_table(own.table().slice(shard * 80, 80), folder / f"{shard}.parquet")
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("d", sp.Parquet(str(folder)), identity="id")
    with _one(catalog).to_numpy() as stream:
        stream.materialize(lambda _: None)
        (first,) = stream.caches()

    pq.write_table(own.table().slice(0, 40).set_column(0, "id", pa.array(range(300, 340))), folder / "3.parquet")
    catalog.refresh("d")
    with _one(catalog).to_numpy() as stream:
        (status,) = stream.caches()
        assert (status.fingerprint, status.built) == (first.fingerprint, first.rows)
        assert status.rows > first.rows
        assert {int(batch["m"].max()) for batch in stream} <= set(range(8, 202))  # on the fly
    monkeypatch.setattr(own.doubled, "__spiral_version__", "2", raising=False)
    with _one(catalog).to_numpy() as stream:
        assert stream.caches()[0].fingerprint != first.fingerprint
        assert not stream.caches()[0].built


def _one(catalog: sp.Catalog) -> sp.Relation:
    plan = sampled(catalog).map(own.doubled, columns=["n"], name="m", returns=pa.int64())
    return collated(plan.cache(), ["m"])


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (lambda plan: plan.cache(), r"cache: no function comes before it"),
        (lambda plan: plan.map(own.drawn, columns=["n"], name="m", returns=pa.float64(), random=True).cache(),
         r"cache: map \(drawn\) draws random numbers, so its values are others in each epoch"),
        (lambda plan: plan.assemble(own.Pairs, columns=["id", "n"], returns=own.PAIRED).cache(),
         r"cache: assemble \(Pairs\) makes samples of several others"),
        (lambda plan: plan.flat_map(own.parts, columns=["shard"], name="l", returns=pa.utf8(), fan_out=4)
         .map(own.doubled, columns=["part"], name="m", returns=pa.int64()).cache(),
         r"cache: map \(doubled\) takes what flat_map \(parts\) gives, which is of one part of a row"),
        (lambda plan: plan.map(own.doubled, columns=["n"], name="m", returns=pa.int64()).cache(n=sp.Raw(8)),
         r"cache: n=... after sample; there it keeps what functions give"),
    ],
)  # fmt: skip
def test_what_is_no_function_of_the_row_is_not_kept(catalog: sp.Catalog, plan: Callable[..., Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(sampled(catalog))


def test_materialize_says_why_it_builds_nothing(catalog: sp.Catalog) -> None:
    with mapped(catalog).to_numpy() as stream, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        stream.materialize()

    says = "not kept unless the plan asks for it (map features, map drawn)"
    assert any(says in str(each.message) and ".map(f, ...).cache()" in str(each.message) for each in told)


def test_samples_that_are_limited_or_come_again_read_kept_values(catalog: sp.Catalog) -> None:
    plan = sampled(catalog).limit(50).map(own.doubled, columns=["n"], name="m", returns=pa.int64())
    want = read(collated(plan, ["m"]).to_numpy())
    with collated(plan.cache(), ["m"]).to_numpy() as stream:
        stream.materialize()
        assert all(each.complete for each in stream.caches())

    assert equal(read(collated(plan.cache(), ["m"]).to_numpy()), want)


def test_values_of_streams_and_of_joined_columns_are_kept(catalog: sp.Catalog) -> None:
    want = read(own.mixed(catalog, "a", cache=False).to_numpy())
    with own.mixed(catalog, "a").to_numpy() as stream:
        stream.materialize()
        before = {each.fingerprint for each in stream.caches() if each.complete}
        assert stream.verify().damaged == ()
    assert len(before) == 2
    assert equal(read(own.mixed(catalog, "a").to_numpy()), want)

    with own.mixed(catalog, "z").to_numpy() as stream:  # the joined relation changed
        assert before.isdisjoint(each.fingerprint for each in stream.caches())


def test_kept_values_are_listed_and_go_with_the_stream_that_named_them(catalog: sp.Catalog) -> None:
    from datetime import timedelta

    with kept(catalog).to_numpy() as stream:
        stream.materialize()
        catalog.save_stream("mine", stream)
    values = [each for each in catalog.caches() if each.kind == "values"]
    assert [(each.used_by, each.relations, each.dead_bytes) for each in values] == [(("mine",), ("d",), 0)] * 2

    with catalog.open_stream("mine") as opened:
        assert all(each.complete for each in opened.caches())
    catalog.drop_stream("mine")
    catalog.caches(remove_dead=True, older_than=timedelta(0))
    assert not [each for each in catalog.caches() if each.kind == "values"]


def test_tokens_of_what_a_function_gives_are_kept(catalog: sp.Catalog) -> None:
    plan, packed = own.texts_of_functions(catalog), own.packed
    want = read(packed(plan))
    with packed(plan.cache()) as stream:
        stream.materialize()
    assert equal(read(packed(plan.cache())), want)


# ---- many ranks without kept values


def test_assembled_samples_run_on_many_ranks_by_lanes(catalog: sp.Catalog) -> None:
    says = r"assemble Pairs.*plan with lanes= that the number of readers divides.*bind\(steps_per_epoch=...\)"
    with pytest.raises(BindError, match=says):
        read(paired(catalog).to_numpy().bind(rank=0, world_size=2))

    want = read(paired(catalog).to_numpy())
    for world_size, steps in ((2, 10), (4, 5)):
        for rank in range(world_size):
            run = paired(catalog).to_numpy().bind(rank=rank, world_size=world_size, steps_per_epoch=steps)
            assert len(run) == steps
            assert equal(read(run), want[rank : steps * world_size : world_size])


def test_a_rank_forms_its_own_lanes_alone(catalog: sp.Catalog) -> None:
    with paired(catalog).to_numpy().bind(rank=1, world_size=2, steps_per_epoch=10) as run:
        list(run)
        lanes = {lane for _, lane, _ in batches_of(run).chapters.open}

    assert lanes == {1, 3}


def test_too_many_steps_are_named_with_how_many_there_are(catalog: sp.Catalog) -> None:
    with (
        paired(catalog).to_numpy().bind(rank=0, world_size=2, steps_per_epoch=500) as run,
        pytest.raises(
            StreamError, match=r"steps_per_epoch=500 is bound, and epoch 0 has no batch \d+.*at most \d+ steps"
        ),
    ):
        list(run)


def test_a_run_with_promised_steps_resumes_on_other_ranks(catalog: sp.Catalog) -> None:
    want = read(paired(catalog).to_numpy())
    with paired(catalog).to_numpy().bind(rank=0, world_size=2, steps_per_epoch=10) as run:
        batches = iter(run)
        for _ in range(3):
            next(batches)
        state = json.loads(json.dumps(run.state_dict()))
    for world_size in (1, 4):
        bound = {"steps_per_epoch": 4} if world_size > 1 else {}
        with paired(catalog).to_numpy().bind(rank=world_size - 1, world_size=world_size, **bound) as run:
            run.load_state_dict(state)
            assert same(frozen(next(iter(run))), want[6 + world_size - 1])


# ---- resume


@pytest.mark.parametrize("name", ["mapped", "kept", "paired"])
def test_a_changed_function_is_refused_on_resume_with_the_place(
    catalog: sp.Catalog, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with getattr(own, name)(catalog).to_numpy() as run:
        next(iter(run))
        state = run.state_dict()
    place, changed = {
        "mapped": ("map_records", own.features),
        "kept": ("keep", own.not_fifth),
        "paired": ("assemble", own.Pairs),
    }[name]
    monkeypatch.setattr(changed, "__spiral_version__", "2", raising=False)
    with getattr(own, name)(catalog).to_numpy() as run, pytest.raises(ResumeError, match=rf"differ at {place}.*@code"):
        run.load_state_dict(state)

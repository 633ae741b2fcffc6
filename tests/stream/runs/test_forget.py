"""A run that forgets rows ends where one ends that never had them: the same batches, and the same weights, byte by byte."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import ResumeError, StreamError
from tests.fixtures import warm
from tests.fixtures.examples import few
from tests.fixtures.seen_runs import Counted, Part, Plan, catalog_of, parts, plans, run
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

WORDS = 32
_COUNT = count()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(tmp_path_factory.mktemp("forget") / "catalog")
    catalog.register("rows", sp.Arrow(rows_table()), identity="id")
    return catalog


def rows_table() -> pa.Table:
    rng = np.random.default_rng(3)
    rows = 120
    tokens = [rng.integers(1, WORDS, int(n)).tolist() for n in rng.integers(3, 20, rows)]
    return pa.table(
        {
            "id": [f"r{k}" for k in range(rows)],
            "x": pa.array(rng.normal(size=(rows, 4)).tolist(), pa.list_(pa.float32(), 4)),
            "y": rng.integers(0, 3, rows),
            "tokens": pa.array(tokens, pa.list_(pa.uint16())),
        }
    )


class Mlp(torch.nn.Module):
    """Two layers and dropout, which draws from torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3)
        )

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layers(batch["x"]), batch["y"])


class Gpt(torch.nn.Module):
    """One block with causal attention, over packed rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, 16)
        self.block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(16, WORDS)

    def loss(self, batch: Any) -> torch.Tensor:
        ids = batch["ids"].long()
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        found = self.head(self.block(self.embed(ids), src_mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def rows_plan(catalog: sp.Catalog) -> Any:
    fields = {"x": sp.Stack("x"), "y": sp.Stack("y"), "id": sp.List("id")}
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=5))
    return sampled.collate(batch_size=8, fields=fields, last=sp.batching.PadPartial)


def packed_plan(catalog: sp.Catalog) -> Any:
    fields = {"ids": sp.Pad("tokens"), "id": sp.List("id")}
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=5))
    packed = sp.batching.Packed(max_tokens=48, window_size=32)
    return sampled.collate(batch_size=2, formation=packed, fields=fields, last=sp.KeepPartial)


@dataclass
class Training:
    """A model, its optimizer, and what a checkpoint holds of both and of torch's generator."""

    make: Callable[[], Any]

    def __post_init__(self) -> None:
        torch.manual_seed(7)
        self.model = self.make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.model.loss(batch).backward()
        self.optimizer.step()

    def saved(self) -> Any:
        held = (self.model.state_dict(), self.optimizer.state_dict(), torch.get_rng_state())
        return [torch.utils._pytree.tree_map(copied, each) for each in held]

    def load(self, saved: Any) -> None:
        held = [torch.utils._pytree.tree_map(copied, each) for each in saved]
        self.model.load_state_dict(held[0])
        self.optimizer.load_state_dict(held[1])
        torch.set_rng_state(held[2])

    def weights(self) -> bytes:
        return b"".join(each.detach().numpy().tobytes() for each in self.model.state_dict().values())


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="module", autouse=True)
def exact() -> Iterator[None]:
    """Deterministic operations on one thread."""
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("make", "plan"), [(Mlp, rows_plan), (Gpt, packed_plan)])
@few(6, 60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data(), every=st.integers(2, 5))
def test_weights_are_those_of_a_run_that_never_had_the_rows(
    catalog: sp.Catalog, make: Callable[[], Any], plan: Callable[[sp.Catalog], Any], data: st.DataObject, every: int
) -> None:
    first = Training(make)
    saved = [(None, first.saved())]
    checkpoints = []
    with plan(catalog).to_torch() as stream:
        catalog.save_stream("train", stream)
        everyone = [each for number in range(stream.count()) for each in stream.ledger(number)]
        for step, batch in enumerate(stream, 1):
            first.step(batch)
            if step % every == 0 and step < len(stream):
                checkpoints.append(json.loads(json.dumps(stream.state_dict())))
                saved.append((checkpoints[-1]["batch"], first.saved()))
        total = len(stream)
    end = checkpoints[-1]
    ids = data.draw(st.lists(st.sampled_from(everyone), min_size=1, max_size=4, unique=True))
    found = catalog.forget(end, ids, checkpoints)

    again = Training(make)
    at = None if found.checkpoint is None else found.checkpoint.state["batch"]
    again.load(dict(saved)[at])
    with plan(catalog).to_torch() as stream:
        stream.load_state_dict(json.loads(json.dumps(found.state)))
        had = [again.step(batch) or batch["id"] for batch in stream]

    never = Training(make)
    never.load(saved[0][1])
    with plan(catalog).to_torch() as stream:
        stream.skip(identities=ids)
        expected = [never.step(batch) or batch["id"] for batch in stream]

    assert had == expected[total - len(had) :]
    assert not {str(name) for names in expected for name in flat(names)} & set(ids)
    assert again.weights() == never.weights()
    assert first.weights() != never.weights()
    assert found.steps[1] == (at or 0)


def flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield value


@few(15, 200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(plan=plans, done=parts, data=st.data())
def test_the_first_batch_and_the_checkpoint_are_those_found_by_hand(
    several: sp.Catalog, plan: Plan, done: list[Part], data: st.DataObject
) -> None:
    counted = Counted()
    states = []
    for part in done:
        assume(run(several, plan, [part], counted))
        assume(counted.state["epoch"] == 0)
        states.append(json.loads(json.dumps(counted.state)))
    names = sorted({name for batch in counted.batches for name in batch})
    assume(names)
    ids = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    with plan.open(several) as stream:
        several.save_stream("train", stream)
    asked = [(name.split("-")[0], name) for name in ids] if plan.mixed else ids
    found = several.forget(states[-1], asked, states)
    held = [number for number, batch in enumerate(counted.batches) if set(batch) & set(ids)]
    before = [state["batch"] for state in states if state["batch"] <= held[0]]
    assert found.batches == len(held)
    assert found.deliveries == sum(counted.samples[name] for name in ids)
    assert found.state["batch"] == max(before, default=0)
    assert (found.checkpoint is None) == (not before)
    assert found.not_recorded == ()
    with plan.open(several) as stream:
        stream.load_state_dict(json.loads(json.dumps(found.state)))
        assert {tuple(each[3]) for each in stream.skipped()["samples"]} >= {(name,) for name in ids}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return catalog_of(tmp_path_factory.mktemp("several"))


# ---- examples


def test_what_is_not_recorded_counts_as_met(catalog: sp.Catalog) -> None:
    with rows_plan(catalog).to_numpy() as stream:
        catalog.save_stream("train", stream)
        stream.seek(batch=4)
        early = stream.state_dict()
        late_name = stream.ledger(10)[0]
        stream.seek(epoch=1, batch=2)
        late = stream.state_dict()
    found = catalog.forget(late, [late_name, "nobody"], [early])
    assert found.checkpoint is not None
    assert found.state["batch"] == 4  # what came after it is not recorded
    assert found.unknown == ("nobody",)
    assert found.not_recorded == ("epoch 0 from batch 4 on: not recorded",)
    assert catalog.forget(late, [late_name]).state["epoch"] == 0
    text = str(found)
    assert "register it again without the rows" in text
    assert "statistics" in text


def test_a_batch_of_which_nothing_is_left_is_skipped(catalog: sp.Catalog) -> None:
    with rows_plan(catalog).to_numpy() as stream:
        catalog.save_stream("train", stream)
        ids = stream.ledger(2)
        stream.seek(batch=5)
        state = stream.state_dict()
    found = catalog.forget(state, ids)
    assert found.emptied == ((0, 2),)
    with rows_plan(catalog).to_numpy() as stream:
        stream.load_state_dict(found.state)
        assert not {name for batch in stream for name in batch["id"]} & set(ids)


def test_what_cannot_be_forgotten_says_the_way_out(catalog: sp.Catalog, tmp_path: Path) -> None:
    with rows_plan(catalog).to_numpy() as stream:
        catalog.save_stream("train", stream)
        state = stream.state_dict()
    with pytest.raises(StreamError, match=r"lists 10,000 at most\. Name a table in place of the list"):
        catalog.forget(state, range(10_001))
    with pytest.raises(StreamError, match=r"forget: ids=None\. Give a list of identities, a relation"):
        catalog.forget(state, None)
    other = sp.connect(tmp_path)
    other.register("rows", sp.Arrow(pa.table({"id": range(50)})), identity="id")
    with (
        other.table("rows")
        .sample(order=sp.GlobalShuffle(seed=6))
        .collate(batch_size=4, fields={"id": sp.List("id")})
        .to_numpy() as stream
    ):
        foreign = stream.state_dict()
    with pytest.raises(ResumeError, match=r"of one run|of the run alone"):
        catalog.forget(state, ["r1"], [foreign])


def refuse_late(numbers: Any) -> Any:
    """All of the last batches cannot be read, so that a batch from before them stands in."""
    if any(int(each[1:]) in LATE for each in numbers.to_pylist()):
        msg = "cannot be read"
        raise ValueError(msg)
    return numbers


LATE: set[int] = set()


def test_a_skipped_sample_does_not_come_back_in_a_batch_that_stands_in(catalog: sp.Catalog) -> None:
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=5))
    made = sampled.map(refuse_late, name="made", columns=["id"], returns=pa.utf8())
    plan = made.collate(batch_size=8, fields={"made": sp.List("made")}, on_error="skip", error_budget=100)
    with plan.to_numpy() as stream:
        last = stream.count() - 1
        LATE.clear()
        LATE.update(int(name[1:]) for name in stream.ledger(last))
        gone = stream.ledger(last - 1)[0]
        stream.seek(batch=last)
        had = next(iter(stream))["made"]
        assert gone in had  # the batch before stands in
        stream.seek(epoch=0, batch=last)
        stream.skip(identities=[gone])
        assert sorted(next(iter(stream))["made"]) == sorted(set(had) - {gone})
        assert json.loads(json.dumps(stream.state_dict()))["skips"]["stand_ins"] is True


# ---- two legs of one epoch that are counted from 0


@few(8, 100)
@given(first=st.integers(1, 6), second=st.integers(1, 6), every=st.integers(1, 3), data=st.data())
def test_a_run_forgets_rows_that_it_met_before_and_after_a_rebase(
    catalog: sp.Catalog, first: int, second: int, every: int, data: st.DataObject
) -> None:
    """The plan after the rebase numbers the rest of the epoch from 0 on, so a place says nothing without its leg."""
    name = f"rebased-{next(_COUNT)}"
    other = rows_plan(catalog)
    wide = (
        catalog.table("rows")
        .sample(order=sp.GlobalShuffle(seed=5))
        .collate(batch_size=16, fields={"id": sp.List("id")})
    )
    states, held, step = [], [], 0
    with other.to_numpy() as stream:
        recorded = catalog.run(name, stream)
        batches = iter(stream)
        for _ in range(first):
            held.append((step, list(next(batches)["id"])))
            step += 1
            if step % every == 0:
                states.append((step, json.loads(json.dumps(stream.state_dict()))))
        batches.close()
        with wide.to_numpy() as rest:
            rest.rebase(stream)
            recorded.close()
            after = catalog.run(name, rest)
            batches = iter(rest)
            for _ in range(second):
                had = next(batches, None)
                if had is None:
                    break
                held.append((step, list(had["id"])))
                step += 1
                if step % every == 0:
                    states.append((step, json.loads(json.dumps(rest.state_dict()))))
            batches.close()
            after.close()
    ids = data.draw(
        st.lists(st.sampled_from([each for _, names in held for each in names]), min_size=1, max_size=3, unique=True)
    )
    found = catalog.run(name).forget(ids, [state for _, state in states])
    met = [at for at, names in held if set(names) & set(ids)]
    before = [at for at, _ in states if at <= met[0]]

    assert found.first is not None
    assert (found.first.step, found.batches) == (met[0], len(met))
    assert found.steps == (len(held), max(before, default=0))
    assert (found.checkpoint is None) == (not before)
    plan = wide if found.state["plan"] == wide.to_numpy().state_dict()["plan"] else other
    with plan.to_numpy() as stream:
        stream.load_state_dict(json.loads(json.dumps(found.state)))
        assert not {each for batch in stream for each in batch["id"]} & set(ids)


# ---- tables in place of lists


@few(20, 200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(plan=plans, done=parts, data=st.data())
def test_a_table_forgets_what_a_list_forgets(
    several: sp.Catalog, plan: Plan, done: list[Part], data: st.DataObject
) -> None:
    counted, states = Counted(), []
    for part in done:
        assume(run(several, plan, [part], counted))
        states.append(json.loads(json.dumps(counted.state)))
    names = sorted({name for batch in counted.batches for name in batch})
    assume(names)
    ids = data.draw(st.lists(st.sampled_from([*names, "a-900"]), min_size=1, max_size=5, unique=True))
    with plan.open(several) as stream:
        several.save_stream("train", stream)
    listed = [(name.split("-")[0], name) for name in ids] if plan.mixed else ids
    columns: dict[str, Any] = {"sample_id": [*ids, ids[0]], "other": range(len(ids) + 1)}
    if plan.mixed and data.draw(st.booleans()):
        columns["stream_id"] = [name.split("-")[0] for name in columns["sample_id"]]
    table = pa.table(columns)
    found, by_list = several.forget(states[-1], table, states), several.forget(states[-1], listed, states)

    same = ("first", "batches", "deliveries", "steps", "emptied", "not_recorded", "not_covered")
    assert [getattr(found, name) for name in same] == [getattr(by_list, name) for name in same]
    assert found.checkpoint == by_list.checkpoint
    assert {name if isinstance(name, str) else name[-1] for name in found.unknown} == {"a-900"} & set(ids)
    batches = []
    for each in (found, by_list):
        with plan.open(several) as stream:
            stream.load_state_dict(json.loads(json.dumps(each.state)))
            batches.append([stream.ledger(number) for number in range(stream.count())])
            batches[-1] += [list(map(str, flat(batch["sample_id"]))) for batch in stream]
    assert batches[0] == batches[1]


def test_a_table_is_exported_beside_a_checkpoint_and_later_lists_and_tables_add_to_it(tmp_path: Path) -> None:
    pq.write_table(rows_table(), tmp_path / "rows.parquet")
    catalog, other = (sp.connect(tmp_path / name) for name in ("here", "there"))
    for each in (catalog, other):
        each.register("rows", sp.Parquet(str(tmp_path / "rows.parquet")), identity="id")
    with rows_plan(catalog).to_numpy() as stream:
        catalog.save_stream("train", stream)
        everyone = [each for number in range(6) for each in stream.ledger(number)]
        stream.seek(batch=9)
        state = stream.state_dict()
    parts_of = [[each for k, each in enumerate(everyone) if k % 8 in some] for some in ((0, 1, 2), (3,), (4, 5))]
    gone = catalog.table("rows").filter(sp.col("id").is_in(parts_of[0]))
    found = catalog.forget(state, gone)
    again = catalog.forget(found.state, parts_of[1])
    last = catalog.forget(again.state, pa.table({"id": parts_of[2]}))
    catalog.export_state(last.state, tmp_path / "state.spiral")

    with rows_plan(other).to_numpy() as stream:
        with pytest.raises(
            ResumeError, match=r"the skipped samples of the state lie in the catalog that saved it.*export_state"
        ):
            stream.load_state_dict(last.state)
        stream.load_state_dict(other.import_state(tmp_path / "state.spiral"))
        assert len(stream.skipped()["tables"]) == 2
        assert "1 samples" not in str(stream.explain())
        names = {name for batch in stream for name in batch["id"]}
    assert all(names.isdisjoint(some) for some in parts_of)
    assert names >= {each for k, each in enumerate(everyone) if k % 8 > 5}


@pytest.mark.parametrize(
    ("given", "way_out"),
    [
        (pa.table({"name": ["r1"], "x": [1]}), r"has no column 'id'.*Name the columns like that"),
        (pa.table({"id": pa.array(["r1", None])}), r"has nulls, which name no sample\. Filter them out"),
        (pa.table({"id": [[1]]}), r"is list.*Cast it"),
        ("nowhere.parquet", r"neither a relation of the catalog nor a Parquet or Arrow file\. Name one"),
    ],
)
def test_a_table_that_names_no_samples_says_the_way_out(catalog: sp.Catalog, given: Any, way_out: str) -> None:
    with rows_plan(catalog).to_numpy() as stream:
        catalog.save_stream("train", stream)
        state = stream.state_dict()
    with pytest.raises(StreamError, match=way_out):
        catalog.forget(state, given)


@pytest.mark.slow
def test_weights_are_those_of_a_run_without_fifty_thousand_rows(tmp_path: Path) -> None:
    """A relation, its name, an Arrow file and the command name them; the state stays small."""
    from pyarrow import feather

    catalog, rng = sp.connect(tmp_path / "catalog"), np.random.default_rng(5)
    rows = 400_000
    x = pa.array(rng.normal(size=(rows, 4)).astype(np.float32).tolist(), pa.list_(pa.float32(), 4))
    table = pa.table({"id": [f"r{k}" for k in range(rows)], "x": x, "y": rng.integers(0, 3, rows)})
    catalog.register("rows", sp.Arrow(table), identity="id")

    def plan() -> Any:
        sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=5))
        return sampled.collate(batch_size=4_096, fields={"x": sp.Stack("x"), "y": sp.Stack("y"), "id": sp.List("id")})

    first, states, saved = Training(Mlp), [], {}
    with plan().to_torch() as stream:
        catalog.save_stream("train", stream)
        late = {name for number in range(40, len(stream) - 1) for name in stream.ledger(number)}
        for step, batch in enumerate(stream, 1):
            first.step(batch)
            if step in (30, 60, len(stream) - 1):
                states.append(json.loads(json.dumps(stream.state_dict())))
                saved[step] = first.saved()
    gone = pa.table({"id": sorted(late)[:50_000], "why": ["withdrawn"] * 50_000})
    catalog.register("withdrawn", sp.Arrow(gone), identity="id")
    feather.write_feather(gone, tmp_path / "gone.arrow")
    given = (catalog.table("withdrawn"), "withdrawn", tmp_path / "gone.arrow", gone)
    found, *others = (catalog.forget(states[-1], each, states) for each in given)

    assert all(other.state == found.state and other.first == found.first for other in others)
    assert (found.state["batch"], found.deliveries, found.unknown) == (30, 50_000, ())
    assert len(json.dumps(found.state)) < 1_500
    files = []
    for k, state in enumerate(states):
        files.append(str(tmp_path / f"state-{k}.json"))
        Path(files[-1]).write_text(json.dumps(state))
    out = str(tmp_path / "out.json")
    asked = ["forget", *files, "--ids", "withdrawn", "--out", out, "--catalog", str(tmp_path / "catalog")]
    done = warm.run([sys.executable, "-m", "spiral_stream", *asked], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(Path(out).read_text()) == found.state

    again = Training(Mlp)
    again.load(saved[30])
    with plan().to_torch() as stream:
        stream.load_state_dict(found.state)
        had = [again.step(batch) or batch["id"] for batch in stream]
    never = Training(Mlp)
    with plan().to_torch() as stream:
        stream.skip(identities=catalog.table("withdrawn"))
        expected = [never.step(batch) or batch["id"] for batch in stream]
    assert had == expected[30:]
    assert again.weights() == never.weights() != first.weights()
    assert not {name for names in expected for name in names} & set(gone["id"].to_pylist())

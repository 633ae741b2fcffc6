"""A run that skips batches and samples: everything else stays as it was, on any number of ranks and after any resume."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import ResumeError, StreamError
from tests.fixtures.examples import few
from tests.fixtures.skips import FORMATIONS, ORDER, SIZES, plan_of
from tests.fixtures.texts import SMALL_PLANS, make_catalog

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

FEW = few(5, 333, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("skip"), SIZES, shortest=1)


@dataclass(frozen=True)
class Skipped:
    """What a test skips, and when."""

    formed: str
    mixed: bool
    steps: int  # before it skips
    batches: tuple[int, ...]
    samples: tuple[int, ...]  # numbers among the samples of the epoch
    worlds: tuple[int, int]


@st.composite
def skipped(draw: st.DrawFn) -> Skipped:
    worlds = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    steps = draw(st.integers(0, 3))
    ahead = st.integers(steps * worlds[0], 11)
    return Skipped(
        draw(st.sampled_from(list(FORMATIONS))),
        draw(st.booleans()),
        steps,
        tuple(draw(st.lists(ahead, max_size=4, unique=True))) if steps * worlds[0] < 11 else (),
        tuple(draw(st.lists(st.integers(0, 49), max_size=5, unique=True))),
        worlds,
    )


def rows_of(batch: Mapping[str, Any]) -> list[dict[str, list[int]]]:
    """For each row of a batch: sample -> its tokens, as far as they are in that row; without padding."""
    out = []
    for row, names in enumerate(batch["sample_id"]):
        ids = batch["ids"][row]
        if "segments" not in batch:
            out.append({names: np.trim_zeros(ids, "b").tolist()})  # no token is 0
            continue
        pieces = [ids[batch["segments"][row] == k + 1].tolist() for k in range(int(batch["segments"][row].max()))]
        out.append(dict(zip(names, pieces, strict=True)))
    return out


class Unskipped:
    """The epoch as it is without skips, and what a drawn skip leaves of it."""

    def __init__(self, catalog: sp.Catalog, drawn: Skipped) -> None:
        with plan_of(catalog, drawn.formed, mixed=drawn.mixed) as whole:
            self.total = whole.count()
            self.rows = [rows_of(whole.batch(n)) for n in range(self.total)]
            self.ledgers = [whole.ledger(n) for n in range(self.total)]
        everyone = [each for ledger in self.ledgers for each in ledger]
        self.begun = drawn.steps * drawn.worlds[0]
        self.batches = [n for n in drawn.batches if self.begun <= n < self.total]
        self.samples = [everyone[n % len(everyone)] for n in drawn.samples]
        self.names = {each[-1] if isinstance(each, tuple) else each for each in self.samples}
        self.packed = drawn.formed == "packed"

    def ledger(self, number: int) -> list[Any]:
        if number < self.begun:
            return self.ledgers[number]
        return [] if number in self.batches else [each for each in self.ledgers[number] if each not in self.samples]

    def left(self, number: int) -> list[dict[str, list[int]]]:
        if number < self.begun:
            return self.rows[number]
        rows = [{name: ids for name, ids in row.items() if name not in self.names} for row in self.rows[number]]
        return rows if self.packed else [row for row in rows if row]

    def delivered(self) -> list[int]:
        return [n for n in range(self.total) if n not in self.batches]


def read(ranks: list[sp.PreparedStream], steps: int | None) -> list[Any]:
    """The batches of all ranks, in the order of their numbers."""
    loops = [iter(rank) for rank in ranks]
    out = [[rows_of(batch) for batch in islice(loop, steps)] for loop in loops]
    for loop in loops:
        loop.close()
    return [own[step] for step in range(max(map(len, out))) for own in out if step < len(own)]


@FEW
@given(drawn=skipped())
def test_what_is_not_skipped_stays_as_it_was(catalog: sp.Catalog, drawn: Skipped) -> None:
    whole = Unskipped(catalog, drawn)
    assume(whole.begun < whole.total and whole.delivered()[-1] >= whole.begun)  # else the epoch ends before the skip
    assume(all(whole.ledger(n) for n in whole.delivered()))  # another test is about empty batches
    with ExitStack() as stack:

        def ranks(world: int) -> list[sp.PreparedStream]:
            out = [stack.enter_context(plan_of(catalog, drawn.formed, mixed=drawn.mixed)) for _ in range(world)]
            return [rank.bind(data_parallel_rank=k, data_parallel_world_size=world) for k, rank in enumerate(out)]

        before, after = map(ranks, drawn.worlds)
        seen = read(before, drawn.steps)
        for rank in before:
            rank.skip(batches=whole.batches, identities=whole.samples)
        states = [rank.state_dict() for rank in before]
        assert all(state == states[0] for state in states)
        for rank in after:
            rank.load_state_dict(json.loads(json.dumps(states[0])))
            assert [rank.ledger(n) for n in range(whole.total)] == list(map(whole.ledger, range(whole.total)))
            assert rank.count() == whole.total
        assert seen + read(after, None) == list(map(whole.left, whole.delivered()))


# ---- examples


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[sp.PreparedStream]:
    catalog = sp.connect(tmp_path)
    table = pa.table({"id": range(100), "x": np.arange(100, dtype=np.float32)})
    catalog.register("numbers", sp.Arrow(table), identity="id")
    plan = catalog.table("numbers").sample(order=ORDER)
    with plan.collate(batch_size=10, fields={"id": sp.List("id")}).to_numpy() as stream:
        yield stream


def ids(stream: sp.PreparedStream) -> list[list[int]]:
    return [batch["id"] for batch in stream]


def test_steps_are_those_of_the_run_and_what_follows_moves_up(numbers: sp.PreparedStream) -> None:
    everything = ids(numbers)
    numbers.set_epoch(0)
    numbers.bind(data_parallel_rank=0, data_parallel_world_size=2)
    numbers.skip(steps=range(1, 3))
    assert numbers.skipped() == {"batches": [[0, 2, 4]], "samples": []}
    assert ids(numbers) == [everything[0], everything[6], everything[8]]
    numbers.bind(epoch=0)
    assert len(numbers) == 3
    numbers.skip(steps=[1])  # counted anew
    assert numbers.skipped()["batches"] == [[0, 2, 6]]


def test_a_skip_of_another_epoch_waits_for_it(numbers: sp.PreparedStream) -> None:
    second = [numbers.ledger(n, epoch=1) for n in range(10)]
    numbers.skip(batches=[9, 0], epoch=1)
    assert len(ids(numbers)) == 10
    assert ids(numbers) == second[1:9]


def test_a_skipped_sample_is_out_in_every_epoch_from_then_on(numbers: sp.PreparedStream) -> None:
    loop = iter(numbers)
    first = next(loop)["id"]
    loop.close()
    numbers.skip(identities=[first[0], 7])
    assert first == numbers.ledger(0)  # it was delivered before the skip
    assert numbers.locate(first[0], epoch=0) is not None
    assert numbers.locate(first[0], epoch=1) is None
    assert {*first, *chain(*ids(numbers))} == {*range(100)} - {7}
    assert {*chain(*ids(numbers))} == {*range(100)} - {7, first[0]}


def test_what_is_skipped_is_refused_by_number_and_named_in_explain(numbers: sp.PreparedStream) -> None:
    numbers.skip(batches=[3], identities=[5])
    with pytest.raises(IndexError, match=r"batch 3 of epoch 0 is skipped; stream.skipped\(\) lists"):
        numbers.batch(3)
    assert numbers.ledger(3) == []
    assert numbers.batch(4)["id"] == numbers.ledger(4)
    assert "1 batches and 1 samples" in str(numbers.explain())
    located = [numbers.locate(each) for each in numbers.ledger(4)]
    assert {(each["batch"], each["step"]) for each in located if each} == {(4, 3)}


def test_a_batch_of_which_nothing_is_left_says_how_to_skip_it(numbers: sp.PreparedStream) -> None:
    numbers.skip(identities=numbers.ledger(1))
    with pytest.raises(StreamError, match=r"batch 1 of epoch 0: all of its samples .* stream.skip\(batches=\[1\]\)"):
        ids(numbers)
    numbers.skip(batches=[1])
    assert len(ids(numbers)) == 8  # batch 0 was delivered before


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"batches": [0]}, "batch 0 of epoch 0 was delivered already; the run stands before batch 2"),
        ({"steps": [1]}, "step 1 of epoch 0 was delivered already; the run stands before step 2"),
        ({"batches": [10]}, "epoch 0 has 10 batches, so there is no batch 10"),
        ({"batches": [-1]}, "Give whole numbers from 0 up"),
        ({"batches": 3}, "Give a list, for example batches=range"),
        ({"steps": "12"}, "Give a list, for example steps=range"),
        ({"batches": range(0, 50_000, 2), "epoch": 1}, "epoch 1 has 10 batches"),
    ],
)
def test_what_cannot_be_skipped_is_refused_and_changes_nothing(
    numbers: sp.PreparedStream, asked: Mapping[str, Any], message: str
) -> None:
    loop = iter(numbers)
    next(loop), next(loop)
    with pytest.raises(StreamError, match="Leave the loop"):
        numbers.skip(**asked)
    loop.close()
    with pytest.raises(StreamError, match=message):
        numbers.skip(**asked)
    assert numbers.skipped() == {"batches": [], "samples": []}


def test_a_step_past_all_numbers_is_refused_by_its_own_number(numbers: sp.PreparedStream) -> None:
    numbers.bind(rank=0, world_size=4)
    with pytest.raises(StreamError, match=r"has no step 2,305,843,009,213,693,952 for this many ranks. Name earlier"):
        numbers.skip(steps=[2**61])


def test_an_identity_that_no_row_has_is_refused(numbers: sp.PreparedStream) -> None:
    with pytest.raises(KeyError, match="skip: no row that the plan keeps has id = 100"):
        numbers.skip(identities=[1, 100])
    assert numbers.skipped()["samples"] == []


def test_a_plan_that_names_its_epoch_has_no_place_ahead(numbers: sp.PreparedStream) -> None:
    with numbers.eval() as stream, pytest.raises(StreamError, match="the plan names its own epoch"):
        stream.skip(identities=[3])


def test_rebase_carries_skipped_samples_and_refuses_batches_ahead(numbers: sp.PreparedStream) -> None:
    gone = {*numbers.ledger(0), *numbers.ledger(1), *numbers.ledger(2)}
    late = next(each for each in range(90) if each not in gone)
    numbers.skip(batches=[1], identities=[late])
    plan = numbers.catalog.table("numbers").filter(sp.col("x") < 90).sample(order=ORDER)
    with plan.collate(batch_size=7, last=sp.KeepPartial, fields={"id": sp.List("id")}).to_numpy() as other:
        with pytest.raises(ResumeError, match="the run skips batches that it has not come to"):
            other.rebase(numbers)
        loop = iter(numbers)
        next(loop), next(loop)
        loop.close()
        other.rebase(numbers)
        assert other.skipped() == {"batches": [], "samples": [[0, 0, "", [late]]]}
        assert {*chain(*ids(other))} == {*range(90)} - gone - {late}


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # which is why forked workers read in another interpreter
def test_workers_that_began_before_a_skip_say_so(numbers: sp.PreparedStream) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    plan = numbers.catalog.table("numbers").sample(order=ORDER)
    with plan.collate(batch_size=10, fields={"id": sp.List("id")}).to_torch() as stream:
        loader = torch_data.DataLoader(stream, batch_size=None, num_workers=1, persistent_workers=True)
        assert len(list(loader)) == 10
        stream.load_state_dict(stream.state_dict(delivered=10))
        stream.skip(batches=[0])
        with pytest.raises(StreamError, match=r"edited .* after this worker began"):
            list(loader)
        fresh = torch_data.DataLoader(stream, batch_size=None, num_workers=1)
        assert [each["id"] for each in fresh] == [stream.ledger(n, epoch=1) for n in range(1, 10)]


def test_identities_may_be_texts_and_bytes(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path)
    table = pa.table({"name": ["ä", "b", "c", "d"], "key": [b"\0\xff", b"b", b"", b"d"]})
    catalog.register("named", sp.Arrow(table), identity=["name", "key"])
    plan = catalog.table("named").sample(order=ORDER).collate(batch_size=2, fields={"name": sp.List("name")})
    with plan.to_numpy() as stream, plan.to_numpy() as other:
        stream.skip(identities=[("ä", b"\0\xff"), ("c", b"")])
        other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert sorted(name for batch in other for name in batch["name"]) == ["b", "d"]


# ---- what somebody found who tried it


def test_a_run_that_skips_samples_is_rebased_over_changed_data(tmp_path: Path) -> None:
    catalog, rows = sp.connect(tmp_path / "catalog"), tmp_path / "rows"
    rows.mkdir()
    pq.write_table(pa.table({"id": range(20)}), rows / "a.parquet")
    pq.write_table(pa.table({"id": range(20, 40)}), rows / "b.parquet")
    catalog.register("p", sp.Parquet(str(rows)), identity="id")
    plan = catalog.table("p").sample(order=ORDER)
    plan = plan.collate(batch_size=4, last=sp.KeepPartial, fields={"id": sp.List("id")})
    with plan.to_numpy() as stream:
        loop = iter(stream)
        came = next(loop)["id"]
        loop.close()
        late = next(each for each in range(20) if each not in came)
        gone = next(each for each in range(20, 40) if each not in came)
        stream.skip(identities=[late, gone])
        state = json.loads(json.dumps(stream.state_dict()))
    (rows / "b.parquet").unlink()
    pq.write_table(pa.table({"id": range(40, 50)}), rows / "c.parquet")
    catalog.refresh("p")
    with plan.to_numpy() as new, plan.to_numpy() as resumed:
        new.rebase(state)
        resumed.load_state_dict(json.loads(json.dumps(new.state_dict())))
        left = {*range(20), *range(40, 50)} - {*came, late}
        assert {*chain(*ids(new))} == {*chain(*ids(resumed))} == left
        assert [each[3] for each in resumed.skipped()["samples"]] == [[late], [gone]]


@pytest.mark.parametrize("last", [sp.KeepPartial, sp.batching.PadPartial])
def test_the_short_last_step_can_be_skipped(tmp_path: Path, last: Any) -> None:
    catalog = sp.connect(tmp_path)
    catalog.register("n", sp.Arrow(pa.table({"id": range(200)})), identity="id")
    plan = catalog.table("n").sample(order=sp.Sequential())
    with plan.collate(batch_size=8, last=last, fields={"id": sp.List("id")}).to_numpy() as stream:
        stream.bind(data_parallel_rank=0, data_parallel_world_size=2)
        assert len(stream) == 13
        stream.skip(steps=range(11, 13))
        assert stream.skipped()["batches"] == [[0, 22, 3]]
        assert len(stream) == 11
        with pytest.raises(StreamError, match="epoch 0 has no step 11 for this many ranks; it has 25 batches"):
            stream.skip(steps=[11])


def test_a_rank_that_has_had_its_epoch_stays_there_where_it_skips(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path)
    catalog.register("n", sp.Arrow(pa.table({"id": range(40)})), identity="id")
    plan = catalog.table("n").sample(order=sp.Sequential())
    lengths = []
    for rank in range(2):
        with plan.collate(batch_size=8, last=sp.KeepPartial, fields={"id": sp.List("id")}).to_numpy() as stream:
            stream.bind(rank=rank, world_size=2)
            assert len(list(islice(stream, len(stream)))) == 3 - rank
            stream.skip(identities=[3])
            assert stream.epoch == 1
            lengths.append(len(list(stream)))
    assert lengths == [3, 2]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"identities": "ab"}, r"identities='ab'. Give a list, for example identities=\["),
        ({"identities": 5}, r"identities=5. Give a list"),
        ({"batches": range(10**12)}, r"batches names 1,000,000,000,000, and may name 1,000,000 at a time"),
    ],
)
def test_what_is_no_list_is_refused(numbers: sp.PreparedStream, asked: Mapping[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        numbers.skip(**asked)


def test_an_identity_may_be_a_list_as_json_returns_it(numbers: sp.PreparedStream) -> None:
    numbers.skip(identities=[[7]])
    assert numbers.skipped()["samples"] == [[0, 0, "", [7]]]
    with pytest.raises(KeyError, match="has a null, which names no sample"):
        numbers.skip(identities=[None])


def test_an_epoch_of_which_all_is_skipped_says_so(numbers: sp.PreparedStream) -> None:
    numbers.skip(batches=range(10))
    with pytest.warns(sp.SpiralWarning, match=r"all of its batches are skipped .*stream.skipped\(\) lists them"):
        assert [batch for batch in numbers] == []  # noqa: C416  list() asks for the length


def test_skips_without_a_checksum_were_added_by_hand(numbers: sp.PreparedStream) -> None:
    state = numbers.state_dict()
    edited = {name: value for name, value in state.items() if name != "checksum"}
    numbers.load_state_dict(edited)  # a state from before there were checksums
    with pytest.raises(ResumeError, match="skips have no checksum"):
        numbers.load_state_dict({**edited, "skips": {"batches": [[0, 1, 1]], "samples": []}})


@pytest.mark.parametrize("named", [5, 5.0, np.int64(5), np.float32(5), (5.0,)])
def test_a_skipped_sample_is_recorded_as_it_is_stored(tmp_path: Path, named: Any) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Arrow(pa.table({"sample_id": range(12)})), identity="sample_id")
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    plan = sampled.collate(batch_size=4, fields={"id": sp.List("sample_id")})
    with plan.to_numpy() as stream, plan.to_numpy() as resumed:
        stream.skip(identities=[named])
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))

        assert resumed.skipped()["samples"] == [[0, 0, "", [5]]]
        assert [batch["id"] for batch in resumed] == [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11]]


def test_a_value_that_no_state_can_hold_is_refused_before_it_is_skipped(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Arrow(pa.table({"sample_id": range(12)})), identity="sample_id")
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    with sampled.collate(batch_size=4, fields={"id": sp.List("sample_id")}).to_numpy() as stream:
        with pytest.raises(StreamError, match=r"is a Int64Scalar. Give it as a text, an integer or bytes"):
            stream.skip(identities=[pa.scalar(5)])
        assert stream.skipped() == {"batches": [], "samples": []}

"""Optimizer steps that ranks share evenly: what is bound, where batches are found, what states, seeks and edits say."""

import json
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import BindError, DataError, PlanError, ResumeError, StreamError
from tests.fixtures import even_steps
from tests.fixtures.texts import make_catalog, tokenized

pytestmark = pytest.mark.usefixtures("no_threads_left")

STEP = 12


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("steps"), even_steps.SIZES, shortest=1)


def on_rank(catalog: sp.Catalog, rank: int, world: int, formed: str = "fixed", **options: Any) -> sp.PreparedStream:
    return even_steps.stream(catalog, formed, **options).bind(rank=rank, world_size=world, step_batches=STEP)


def cost_of(batch: dict[str, Any]) -> float:
    lengths = batch["size"] - 1
    return float((lengths + lengths**2 / 16).sum())


# ---- what is bound


def test_ranks_that_cannot_share_a_step_are_refused_with_those_that_can(catalog: sp.Catalog) -> None:
    stream = even_steps.stream(catalog)

    with pytest.raises(BindError, match=r"5 ranks cannot share step_batches=12 evenly; 1, 2, 3, 4, 6, 12 ranks can"):
        stream.bind(rank=0, world_size=5, step_batches=12)
    with pytest.raises(BindError, match=r"with merge=5 cannot share .*; merge=5 does not divide it. Bind one of"):
        stream.bind(rank=0, world_size=1, step_batches=12, merge=5)
    with pytest.raises(BindError, match=r"4 ranks with merge=2 .* 1, 2, 3, 6 ranks can with merge=2"):
        stream.bind(rank=0, world_size=4, step_batches=12, merge=2)
    with pytest.raises(BindError, match=r"ends an epoch inside an optimizer step of 6 batches per rank. Give .* as 12"):
        stream.bind(rank=0, world_size=2, step_batches=12, steps_per_epoch=7)
    assert stream.bind(rank=0, world_size=2, step_batches=12, steps_per_epoch=12).steps_per_epoch == 12
    stream.close()


def test_a_deal_by_cost_needs_a_cost_and_a_step(catalog: sp.Catalog) -> None:
    stream = even_steps.stream(catalog, cost=None)

    with pytest.raises(BindError, match=r"the plan says no cost. Give it one, collate\(cost='len\(tokens\)'\)"):
        stream.bind(step_batches=12, deal="cost")
    with pytest.raises(BindError, match=r"Say how many: bind\(step_batches=...\)"):
        stream.bind(deal="order")
    with pytest.raises(BindError, match=r"deal='fair' is no way to deal. Give 'cost', or 'order'"):
        stream.bind(step_batches=12, deal="fair")
    stream.close()


@pytest.mark.parametrize(
    ("cost", "why"),
    [
        ("n_tokens", r"'n_tokens' is not a column of the input; .*it has .*tokens"),
        ("3", r"cost='3' is the same for every sample. Name a column; the input has "),
        ("tokens", r"cost='tokens' is list.*Give len\(tokens\)"),
        ("sample_id", r"cost='sample_id' is string. Give a number of each sample"),
        ("len(tokens) ** 5", r"'5' is no power that is read here"),
        (7, r"collate: cost is 7. Give a number of each sample"),
    ],
)
def test_a_cost_that_is_no_number_of_a_sample_is_refused(catalog: sp.Catalog, cost: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        even_steps.stream(catalog, cost=cost)


def test_a_cost_below_zero_is_refused_where_it_is_read(catalog: sp.Catalog) -> None:
    with (
        on_rank(catalog, 0, 2, cost="3 - len(tokens)") as stream,
        pytest.raises(
            DataError, match=r"Only finite numbers from 0 up count: mend the column, or filter such rows out"
        ),
    ):
        next(iter(stream))


def test_a_cost_is_part_of_the_plan_and_of_what_is_saved(catalog: sp.Catalog) -> None:
    plain, linear, quadratic = (even_steps.stream(catalog, cost=cost) for cost in (None, *even_steps.COSTS[:2]))

    assert len({stream.fingerprint for stream in (plain, linear, quadratic)}) == 3
    catalog.save_stream("costed", quadratic)
    assert catalog.open_stream("costed").fingerprint == quadratic.fingerprint
    assert "cost len(tokens) + len(tokens) ** 2 / 16" in str(quadratic.explain())


def test_a_cost_that_every_rank_would_tokenize_for_is_refused(catalog: sp.Catalog) -> None:
    plan = tokenized(catalog.table("a"), sp.GlobalShuffle(seed=1)).collate(
        batch_size=3, cost="len(tokens)", fields={"ids": sp.Pad("tokens")}
    )
    stream = plan.to_numpy().bind(rank=0, world_size=2, step_batches=12)

    with pytest.raises(
        BindError, match=r"needs len\(tokens\), which no cache holds.*Call stream.materialize\(\) first"
    ):
        next(iter(stream))
    assert "the cost needs len(tokens), which no cache holds" in str(stream.explain())
    stream.materialize(lambda _: None)
    assert len(list(stream)) == len(stream)
    stream.close()


# ---- where batches are


@pytest.mark.parametrize("formed", even_steps.FORMATIONS)
def test_a_sample_is_delivered_where_it_is_located(catalog: sp.Catalog, formed: str) -> None:
    with even_steps.stream(catalog, formed) as whole:
        wanted = [whole.ledger(number) for number in range(2 * STEP)]
    ranks = [on_rank(catalog, rank, 3, formed) for rank in range(3)]
    got = {(step, rank): batch["id"] for rank, stream in enumerate(ranks) for step, batch in enumerate(stream)}
    flat = {at: [x for row in ids for x in row] if ids and isinstance(ids[0], list) else ids for at, ids in got.items()}

    for number, ids in enumerate(wanted):
        stream = ranks[number % 3]
        stream.set_epoch(0)
        found = stream.locate(ids[0])
        assert found is not None
        assert ids[0] in flat[found["step"], found["rank"]]
        assert stream.ledger(number) == ids  # numbers are the plan's, whoever asks
    for stream in ranks:
        stream.close()


def test_microsteps_have_batches_of_neighbouring_cost_on_all_ranks(catalog: sp.Catalog) -> None:
    ranks = [on_rank(catalog, rank, 4, more={"size": sp.Stack("size")}) for rank in range(4)]
    costs = np.array([[cost_of(batch) for batch in islice(stream, 3)] for stream in ranks])

    assert (costs[:, :-1].min(axis=0) >= costs[:, 1:].max(axis=0)).all()
    share = 1 - costs.mean(axis=0).sum() / costs.max(axis=0).sum()
    assert all(stream.metrics()["step_wait_share"] == pytest.approx(share) for stream in ranks)
    for stream in ranks:
        stream.close()


def test_merged_batches_and_replicas_are_dealt_together(catalog: sp.Catalog) -> None:
    with even_steps.stream(catalog) as whole:
        wanted = sorted(x for number in range(STEP) for x in whole.ledger(number))
    got: list[Any] = []
    for rank in range(4):  # two groups of two, which get the same
        stream = even_steps.stream(catalog).bind(rank=rank, world_size=4, replication=2, merge=2, step_batches=STEP)
        got.append([batch["id"] for batch in islice(stream, 3)])
        stream.close()

    assert got[0] == got[1]
    assert got[2] == got[3]
    assert sorted(x for group in (got[0], got[2]) for batch in group for x in batch) == wanted
    assert {len(batch) for group in got for batch in group} == {6}


def test_take_and_show_are_of_what_the_loop_gets(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 1, 3) as stream:
        taken = stream.take(6)
        shown = stream.show(1).tiles[0].title
        got = list(islice(stream, 6))
        first = next(n for n in range(STEP) if stream.ledger(n) == got[0]["id"])

        assert [batch["id"] for batch in taken] == [batch["id"] for batch in got]
        assert shown == f"batch {first} row 0"


# ---- places


def test_a_state_stands_at_borders_alone(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 0, 3) as stream:
        loop = iter(stream)
        for _ in range(4):
            next(loop)
        border = stream.state_dict()
        had = [next(loop)["id"], next(loop)["id"]]
        with pytest.warns(
            sp.SpiralWarning, match=r"inside an optimizer step, after 2 of its 4 microsteps.*its update is done"
        ):
            inside = stream.state_dict()
        more = next(loop)["id"]
        loop.close()  # type: ignore[attr-defined]  # a generator
        again = next(iter(stream))["id"]  # the same stream goes on where it is
        assert inside == border
        assert border["batch"] == STEP
        assert border["segments"] == [[0, 0, 0, 3, 1, STEP, "cost"]]
        assert again != more
        with on_rank(catalog, 0, 3) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(inside)))
            assert [batch["id"] for batch in islice(resumed, 3)] == [*had, more]


def test_other_ranks_inside_a_step_begin_it_again(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 0, 3) as stream, on_rank(catalog, 0, 2) as other:
        for _ in islice(stream, 5):
            pass
        stream.bind(rank=0, world_size=2)
        assert next(iter(stream))["id"] == [batch["id"] for batch in islice(other, 7)][6]


def test_a_state_of_undealt_steps_goes_on_with_dealt_ones(catalog: sp.Catalog) -> None:
    with even_steps.stream(catalog) as before, even_steps.stream(catalog) as whole:
        for _ in islice(before, 5):
            pass
        state = before.state_dict()
        wanted = sorted(x for number in range(5, 5 + STEP) for x in whole.ledger(number))
    got: list[str] = []
    for rank in range(2):
        with on_rank(catalog, rank, 2) as stream:
            stream.load_state_dict(state)
            got += [x for batch in islice(stream, 6) for x in batch["id"]]
            found = stream.locate(got[-1])
            assert found is not None
            assert (found["rank"], found["step"]) == (rank, 5 + 5)
    assert sorted(got) == wanted


def test_a_damaged_deal_is_refused(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 0, 3) as stream:
        for _ in islice(stream, 4):
            pass
        state = stream.state_dict()
        del state["checksum"]
        for change in (
            {"segments": [[0, 0, 0, 3, 1, STEP, "fair"]]},
            {"segments": [[0, 0, 0, 3, 1, STEP]]},
            {"segments": [[0, 0, 0, 3, 1, 10, "cost"]]},
            {"batch": 9, "step": 3},
        ):
            with pytest.raises(ResumeError, match=r"Pass what state_dict\(\) returned"):
                stream.load_state_dict({**state, **change})


def test_seek_goes_to_borders_alone(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 1, 3) as stream:
        wanted = [batch["id"] for batch in stream]
        stream.seek(epoch=0, step=4)
        assert next(iter(stream))["id"] == wanted[4]
        stream.seek(epoch=0, batch=24)
        assert next(iter(stream))["id"] == wanted[8]
        with pytest.raises(ResumeError, match=r"step=5 lies inside an optimizer step of 4 steps .*such as 4 or 8"):
            stream.seek(epoch=0, step=5)
        with pytest.raises(
            ResumeError, match=r"batch=13 lies inside an optimizer step of 12 batches.*such as 12 or 24"
        ):
            stream.seek(epoch=0, batch=13)


def test_edits_wait_for_a_border(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 0, 3) as stream:
        for _ in islice(stream, 5):
            pass
        with pytest.raises(
            StreamError, match=r"skip: the run stands inside an optimizer step, after 1 of its 4 micro.*border"
        ):
            stream.skip(batches=[40])
        for _ in islice(stream, 3):
            pass
        stream.skip(batches=[24])
        assert stream.ledger(24) == []
    with on_rank(catalog, 0, 3, mixed=True) as stream:
        for _ in islice(stream, 5):
            pass
        with pytest.raises(
            StreamError, match=r"decide: the run stands inside an optimizer step.*Call it at the step's border"
        ):
            stream.decide({"a": 1, "b": 1})
        for _ in islice(stream, 3):
            pass
        with pytest.raises(StreamError, match=r"at=30 lies inside a step of 12 batches.* Give 24 or 36"):
            stream.decide({"a": 1, "b": 1}, at=30)
        assert stream.decide({"a": 1, "b": 1}, at=36) == (0, 36)


@pytest.mark.parametrize(("last", "steps"), [(sp.DropPartial, 16), (sp.KeepPartial, 17), (sp.batching.PadPartial, 20)])
def test_the_last_step_of_an_epoch_goes_by_the_tail_rule(catalog: sp.Catalog, last: Any, steps: int) -> None:
    ranks = [on_rank(catalog, rank, 3, last=last) for rank in range(3)]  # 50 batches: four steps, and two batches
    got = [[x for batch in stream for x in batch["id"]] for stream in ranks]
    seen = sorted(x for each in got for x in each)

    assert len(ranks[0]) == steps
    assert [stream.epoch for stream in ranks] == [1, 1, 1]
    assert len(set(seen)) == (144 if last is sp.DropPartial else 150)
    assert len(seen) == {sp.DropPartial: 144, sp.KeepPartial: 150}.get(last, 180)
    for stream in ranks:
        stream.close()


def test_an_epoch_without_a_whole_step_says_so(catalog: sp.Catalog) -> None:
    with (
        even_steps.stream(catalog).bind(rank=0, world_size=2, step_batches=60) as stream,
        pytest.warns(
            sp.SpiralWarning, match=r"50 batches do not make an optimizer step of 60.*step_batches of at most 50"
        ),
    ):
        assert list(stream) == []


# ---- what is said of it


def test_explain_says_how_long_ranks_wait_with_the_deal_and_without(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 0, 4, "packed") as stream:
        for _ in stream:
            pass
        batch = stream.explain(analyze=True).facts["batch"]
        figures = batch["ranks wait"].figures

        assert figures["planned"].value < figures["undealt"].value < 1
        assert figures["p50"].value <= figures["p90"].value <= figures["p99"].value < 1
        assert batch["optimizer step"].figures["microsteps"].value == 3
        assert batch["ranks waited"].figures["share"].value == stream.metrics()["step_wait_share"]
    with even_steps.stream(catalog, cost=None).bind(step_batches=STEP) as stream:
        assert "the plan says no cost" in stream.explain().facts["batch"]["ranks wait"]
    with even_steps.stream(catalog) as stream:
        assert "optimizer step" not in stream.explain().facts["batch"]
        assert stream.metrics()["step_wait_share"] is None


def test_a_run_records_the_batches_that_were_dealt(catalog: sp.Catalog) -> None:
    with on_rank(catalog, 0, 3) as stream, catalog.run("dealt", stream, attempt="one") as run:
        got: list[str] = []
        for batch in islice(stream, 8):
            got += batch["id"]
            run.log(batch=batch, loss=np.arange(len(batch["id"]), dtype=float))
        state = stream.state_dict()
        run.flush()
        table = catalog.table("runs.dealt").to_arrow().to_pydict()
        seen = stream.seen()

    assert state["batch"] == 24
    assert table["sample_id"] == got
    assert set(table["batch"]) <= set(range(24))
    for sample, number in zip(table["sample_id"], table["batch"], strict=True):
        assert sample in stream_ledger(catalog, number)
    assert "24" in str(seen)


def stream_ledger(catalog: sp.Catalog, number: int) -> list[Any]:
    with even_steps.stream(catalog) as whole:
        return whole.ledger(number)


def test_lists_with_long_offsets_have_lengths_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = sp.connect(tmp_path_factory.mktemp("long"))
    lists = pa.array([[1] * (1 + at % 7) for at in range(24)], pa.large_list(pa.int64()))
    made.register("rows", sp.Arrow(pa.table({"id": range(24), "tokens": lists})), identity="id")
    sampled = made.table("rows").sample(order=sp.Sequential())
    fields = {"id": sp.Stack("id"), "ids": sp.Pad("tokens")}
    with sampled.collate(batch_size=1, cost="len(tokens)", fields=fields).to_numpy() as stream:
        lengths = [batch["ids"].shape[1] for batch in stream.bind(step_batches=24)]

    assert lengths == sorted(lengths, reverse=True)


def test_what_ranks_wait_is_told_without_a_deal_too(catalog: sp.Catalog) -> None:
    with (
        even_steps.stream(catalog, "packed").bind(rank=0, world_size=3, step_batches=STEP) as dealt,
        even_steps.stream(catalog, "packed").bind(rank=0, world_size=3, step_batches=STEP, deal="order") as ordered,
    ):
        assert len(list(dealt)) == len(list(ordered))
        assert dealt.metrics()["step_wait_share"] < ordered.metrics()["step_wait_share"]

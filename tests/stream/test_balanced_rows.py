"""Batches of a step exchange rows: the same samples in as many rows as before, within the budget, and closer in cost."""

import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import BindError, PlanError, ResumeError
from tests.fixtures import even_steps
from tests.fixtures.examples import few
from tests.fixtures.texts import make_catalog

pytestmark = pytest.mark.usefixtures("no_threads_left")

STEP = 12


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("rows"), even_steps.SIZES, shortest=1)


def rows_of(batch: dict[str, Any]) -> list[str]:
    """Each row of a batch: its samples, and their tokens."""
    return sorted(repr((ids, row.tolist())) for ids, row in zip(batch["id"], batch["ids"], strict=True))


def trimmed(batch: dict[str, Any]) -> list[str]:
    """Each row of a padded batch, without padding."""
    return sorted(repr((ids, row[row != 99].tolist())) for ids, row in zip(batch["id"], batch["ids"], strict=True))


DRAWN = st.fixed_dictionaries(
    {
        "formed": st.sampled_from([*even_steps.FORMATIONS]),
        "cost": st.sampled_from(even_steps.COSTS),
        "last": st.sampled_from([sp.DropPartial, sp.KeepPartial, sp.batching.PadPartial]),
        "mixed": st.booleans(),
        "lanes": st.sampled_from([1, 2]),
    }
)


@few(20, 200)
@given(drawn=DRAWN, step=st.integers(2, 20))
def test_a_step_has_the_same_rows_in_batches_of_the_same_shape(
    catalog: sp.Catalog, drawn: dict[str, Any], step: int
) -> None:
    more = {"ids": sp.Pad("tokens", pad_value=99)}
    with even_steps.stream(catalog, **drawn, more=more) as formed:
        before = [{name: list(b[name]) if name == "id" else b[name].copy() for name in b} for b in formed]
    with even_steps.stream(catalog, **drawn, more=more, balanced=step).bind(
        deal="order", rank=0, world_size=1
    ) as balanced:
        total = balanced.count()
        after = [balanced.batch(number) for number in range(total)]

    before = before[:total]
    assert [b["ids"].shape[0] for b in after] == [b["ids"].shape[0] for b in before]
    if drawn["formed"] != "fixed":  # whose batches are as wide as their longest row
        assert [b["ids"].shape[1] for b in after] == [b["ids"].shape[1] for b in before]
    rows = rows_of if drawn["formed"] in ("packed", "cut") else trimmed
    for first in range(0, total, step):
        part = slice(first, first + step)
        assert sorted(x for b in after[part] for x in rows(b)) == sorted(x for b in before[part] for x in rows(b))


def spread(stream: sp.PreparedStream) -> float:
    stream.count()
    return float(stream.explain().facts["batch"]["ranks wait"].figures["planned"].value)


@pytest.mark.parametrize("formed", ["fixed", "packed", "cut", "budgets"])
def test_ranks_wait_less_where_each_has_one_batch_of_a_step(catalog: sp.Catalog, formed: str) -> None:
    bound = {"rank": 0, "world_size": STEP, "step_batches": STEP}
    with (
        even_steps.stream(catalog, formed).bind(**bound) as dealt,
        even_steps.stream(catalog, formed, balanced=STEP).bind(**bound) as exchanged,
    ):
        before, after = spread(dealt), spread(exchanged)
        figures = exchanged.explain().facts["batch"]["ranks wait"].figures

    assert after < before * {"budgets": 1.0, "fixed": 0.4}.get(formed, 0.6)
    assert figures["undealt"].value == pytest.approx(before)  # the shadow is of batches as they were formed


def test_a_plan_that_exchanges_rows_says_its_step(catalog: sp.Catalog) -> None:
    plain, four, twelve = (even_steps.stream(catalog, balanced=step) for step in (None, 4, STEP))

    assert len({stream.fingerprint for stream in (plain, four, twelve)}) == 3
    assert four.bind(rank=0, world_size=2).state_dict()["segments"] == []
    for _ in islice(four, 2):
        pass
    assert four.state_dict()["segments"] == [[0, 0, 0, 2, 1, 4, "cost"]]
    assert "rows exchanged in steps of 12 batches" in str(twelve.explain())
    with pytest.raises(BindError, match=r"exchanges rows between 12 batches. Bind that many or a multiple"):
        twelve.bind(step_batches=18)
    with pytest.raises(BindError, match=r"5 ranks cannot share step_batches=12 evenly"):
        twelve.bind(rank=0, world_size=5)
    catalog.save_stream("balanced", twelve)
    assert catalog.open_stream("balanced").fingerprint == twelve.fingerprint
    for stream in (plain, four, twelve):
        stream.close()


def test_states_lead_any_number_of_ranks_on(catalog: sp.Catalog) -> None:
    with even_steps.stream(catalog, "packed", balanced=STEP) as whole:
        ledger = {number: sorted(whole.ledger(number)) for number in range(whole.count())}
    state: Any = None
    for step, world in enumerate((4, 3, 2)):
        got: list[Any] = []
        for rank in range(world):
            with even_steps.stream(catalog, "packed", balanced=STEP).bind(rank=rank, world_size=world) as stream:
                if state is not None:
                    stream.load_state_dict(json.loads(json.dumps(state)))
                got += [x for batch in islice(stream, STEP // world) for row in batch["id"] for x in row]
                after = stream.state_dict()
                found = stream.locate(got[-1])
                assert found is None or found["rank"] in range(world)
        state = after
        assert sorted(got) == sorted(x for number in range(step * STEP, (step + 1) * STEP) for x in ledger[number])


def test_every_sample_is_found_in_the_batch_that_holds_it(catalog: sp.Catalog) -> None:
    with even_steps.stream(catalog, "packed", balanced=STEP).bind(rank=0, world_size=1) as stream:
        for number in range(STEP):
            found = stream.locate(stream.ledger(number)[0])
            assert found is not None
            assert found["batch"] == number


def test_skipped_samples_and_batches_leave_the_others_as_they_are(catalog: sp.Catalog) -> None:
    with (
        even_steps.stream(catalog, "packed", balanced=STEP) as stream,
        even_steps.stream(catalog, "packed", balanced=STEP) as whole,
    ):
        gone = whole.ledger(3)[0]
        stream.skip(batches=[1], identities=[gone])
        assert stream.ledger(1) == []
        for number in (0, 2, 4, 17):
            assert stream.ledger(number) == whole.ledger(number)
        assert stream.ledger(3) == [each for each in whole.ledger(3) if each != gone]


def test_other_shares_begin_at_a_border(catalog: sp.Catalog) -> None:
    def stream() -> sp.PreparedStream:
        return even_steps.stream(catalog, mixed=True, balanced=4).bind(rank=0, world_size=2)

    with stream() as decided, stream() as planned:
        before = [planned.ledger(number) for number in range(16)]
        for _ in islice(decided, 2):
            pass
        assert decided.decide({"a": 0, "b": 1}, at=16) == (0, 16)
        assert [decided.ledger(number) for number in range(16)] == before
        assert all(name.startswith("b-") for _, name in decided.ledger(17))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"balance": "rows"},
            r"balance='rows' is of the batches of an optimizer step. Say how many they are: step_batches",
        ),
        (
            {"step_batches": 4},
            r"step_batches without a balance. Give balance='rows' with step_batches; a run alone binds",
        ),
        ({"balance": "samples", "step_batches": 4}, r"balance='samples'. Give balance='rows'"),
        ({"balance": "rows", "step_batches": 1}, r"step_batches=1; .*an integer in \[2, 65536\]|integer in"),
        (
            {"balance": "rows", "step_batches": 4, "cost": None},
            r"exchanges rows by cost. Say it: collate\(cost='len\(tokens\)'\)",
        ),
    ],
)
def test_an_exchange_that_says_too_little_is_refused(catalog: sp.Catalog, options: dict[str, Any], why: str) -> None:
    sampled = catalog.table("a").sample(order=sp.GlobalShuffle(seed=1))

    with pytest.raises(PlanError, match=why):
        sampled.collate(batch_size=2, fields={"x": sp.Stack("size")}, **{"cost": "size", **options})


def test_what_an_exchange_would_break_is_refused(catalog: sp.Catalog) -> None:
    rows = sp.mix([sp.Stream(n, catalog.table(n), proportion=0.5) for n in ("a", "b")], epoch_size=100)
    fields = {"x": sp.Stack("size")}
    with pytest.raises(PlanError, match=r"StratifiedByStream says which streams share one. Leave one of them out"):
        rows.sample(order=sp.GlobalShuffle(seed=1)).collate(
            batch_size=4,
            fields=fields,
            composition=sp.StratifiedByStream(),
            cost="size",
            balance="rows",
            step_batches=4,
        )


def test_a_rebase_inside_a_step_of_rows_is_refused(catalog: sp.Catalog) -> None:
    with (
        even_steps.stream(catalog, balanced=4).bind(rank=0, world_size=2) as stream,
        even_steps.stream(catalog, last=sp.KeepPartial) as other,
    ):
        stream.skip(batches=[1])  # so that the run's steps are no longer those that exchange rows
        for _ in islice(stream, 2):
            pass
        with pytest.raises(ResumeError, match=r"batch 5 lies inside a step of 4 batches that exchange rows. Stop at a"):
            other.rebase(stream)

"""What a step comes to is what all ranks deliver in it, as each batch says."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.errors import BindError, PlanError
from spiral_stream.fields import StepTotal
from tests.fixtures import even_steps
from tests.fixtures.texts import make_catalog, tokenized

pytestmark = pytest.mark.usefixtures("no_threads_left")

STEP = 12
FIELDS = {"all": StepTotal("len(tokens)"), "ids": sp.Pad("tokens", pad_value=-1)}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("steps"), even_steps.SIZES, shortest=1)


def tokens(batch: dict[str, Any]) -> int:
    return int((np.asarray(batch["ids"]) != -1).sum())


def by_step(catalog: sp.Catalog, world: int, each: int, **options: Any) -> list[tuple[set[int], int]]:
    """For each step: what its batches say, and the tokens that they hold; ``each`` batches per rank."""
    bound = options.pop("bound", {})
    ranks = []
    for rank in range(world):
        with even_steps.stream(catalog, more=FIELDS, **options) as stream:
            ranks.append(
                [(set(b["all"].tolist()), tokens(b)) for b in stream.bind(rank=rank, world_size=world, **bound)]
            )
    steps = range(-(-max(map(len, ranks)) // each))
    some = [[b for batches in ranks for b in batches[step * each : (step + 1) * each]] for step in steps]
    return [(set().union(*(said for said, _ in step)), sum(held for _, held in step)) for step in some]


@pytest.mark.parametrize("formed", even_steps.FORMATIONS)
@pytest.mark.parametrize("last", [sp.DropPartial, sp.KeepPartial])
def test_every_batch_says_the_tokens_of_its_optimizer_step(catalog: sp.Catalog, formed: str, last: Any) -> None:
    for world in (2, 3):
        found = by_step(catalog, world, STEP // world, formed=formed, last=last, bound={"step_batches": STEP})
        assert len(found) >= 3
        assert all(said == {held} for said, held in found)


@pytest.mark.parametrize("formed", ["fixed", "cut"])
def test_without_optimizer_steps_it_is_one_batch_on_each_rank(catalog: sp.Catalog, formed: str) -> None:
    assert all(said == {held} for said, held in by_step(catalog, 3, 1, formed=formed))
    assert all(said == {held} for said, held in by_step(catalog, 2, 1, formed=formed, bound={"merge": 3}))
    assert all(said == {held} for said, held in by_step(catalog, 1, 1, formed=formed))


def test_a_step_in_order_says_it_too(catalog: sp.Catalog) -> None:
    bound = {"step_batches": STEP, "deal": "order"}

    assert all(said == {held} for said, held in by_step(catalog, 4, 3, bound=bound, cost=None))


def test_single_batches_say_what_the_loop_gets(catalog: sp.Catalog) -> None:
    with even_steps.stream(catalog, more=FIELDS).bind(rank=0, world_size=2, step_batches=STEP) as stream:
        wanted = {int(batch["all"][0]) for batch in islice(stream, 6)}
        assert {int(stream.batch(number)["all"][0]) for number in range(STEP)} == wanted
        assert stream.take(1)[0]["all"].dtype == np.int64
        assert stream.spec()["all"].dtype == "int64"
        assert set(stream.batch(3, epoch=2)["all"].tolist()) != wanted


def test_rows_that_only_fill_a_batch_are_not_counted(catalog: sp.Catalog) -> None:
    last = sp.batching.PadPartial(value={"ids": -1})
    found = by_step(catalog, 3, 4, last=last, bound={"step_batches": STEP})

    assert all(said == {held} for said, held in found)
    assert sum(held for _, held in found) == by_step(catalog, 1, 10**6, last=sp.KeepPartial)[0][1]


def test_a_loss_that_is_divided_by_it_is_the_mean_over_all_tokens(catalog: sp.Catalog) -> None:
    with even_steps.stream(catalog, more=FIELDS).bind(step_batches=STEP) as stream:
        step = [
            (tokens(batch), int(batch["all"][0]), float(batch["ids"][batch["ids"] != -1].sum()))
            for batch in islice(stream, STEP)
        ]
    losses, counts = np.array([loss for *_, loss in step]), np.array([count for count, *_ in step])

    assert sum(loss / total for _, total, loss in step) == pytest.approx(losses.sum() / counts.sum())
    assert np.mean(losses / counts) != pytest.approx(losses.sum() / counts.sum(), rel=1e-3)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: StepTotal(3), "Give an expression over columns, such as"),  # type: ignore[arg-type]
        (lambda: StepTotal("3 * 4"), "names no column. Give a number of each sample"),
        (lambda: StepTotal("size", dtype="uint8"), "it is one of int64, int32, float32, float64"),
    ],
)
def test_totals_of_nothing_are_refused(made: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        made()


def test_totals_of_other_columns_are_refused(catalog: sp.Catalog) -> None:
    with pytest.raises(PlanError, match=r"field 'n'.*'lenghts' is not a column of the input"):
        even_steps.stream(catalog, more={"n": StepTotal("lenghts")})
    with pytest.raises(PlanError, match=r"value='tokens' is list.*Give len\(tokens\)"):
        even_steps.stream(catalog, more={"n": StepTotal("tokens")})


def test_a_total_of_fractions_takes_a_dtype_of_fractions(catalog: sp.Catalog) -> None:
    with pytest.raises(PlanError, match=r"is double, and int64 would cut.*dtype=\"float64\""):
        even_steps.stream(catalog, more={"all": StepTotal("len(tokens) / 4")})
    fields = {"all": StepTotal("len(tokens) / 4", dtype="float64"), "whole": StepTotal("len(tokens)")}
    with even_steps.stream(catalog, more=fields) as stream:
        batch = next(iter(stream.bind(step_batches=STEP)))
    assert batch["all"][0] == batch["whole"][0] / 4


def test_a_total_that_every_rank_would_tokenize_for_is_refused(catalog: sp.Catalog) -> None:
    sampled = tokenized(catalog.table("b"), sp.GlobalShuffle(seed=2))
    with (
        sampled.collate(batch_size=3, fields=FIELDS).to_numpy().bind(rank=0, world_size=2) as stream,
        pytest.raises(BindError, match=r"StepTotal='len\(tokens\)' needs len\(tokens\), which no cache holds"),
    ):
        next(iter(stream))


def test_other_types_and_expressions_are_saved_with_the_plan(catalog: sp.Catalog) -> None:
    more = {"half": StepTotal(sp.col("size") / 2, dtype="float32"), "size": sp.Stack("size")}  # type: ignore[arg-type]  # as text
    catalog.save_stream("totals", even_steps.stream(catalog, more=more))
    with catalog.open_stream("totals") as stream:
        for batch in islice(stream, 3):
            assert batch["half"].dtype == np.float32
            assert batch["half"].tolist() == [batch["size"].sum() / 2] * 3

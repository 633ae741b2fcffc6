"""`skip` and `take` after `sample`: an epoch without its beginning, or its beginning alone, by every number of a sample."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from tests.fixtures.epoch_parts import ORDERS, ROWS, VERBS, Verb, left, made, make_catalog, plan, written
from tests.fixtures.examples import few

pytestmark = pytest.mark.usefixtures("no_threads_left")


def meant(sampled: sp.Relation, verbs: list[Verb], epoch: int) -> list[Any]:
    """The identities of an epoch, from lists of whole passes; where a part is fixed, in no order: a set is compared."""
    if not verbs:
        return list(sampled.order(epoch).rows(range(ROWS))["id"].to_pylist())
    *inner, (name, count, fixed) = verbs
    if name == "repeat":
        times = 1 + count % 3
        return [each for turn in range(times) for each in meant(sampled, inner, epoch * times + turn)]
    before = meant(sampled, inner, 0 if fixed else epoch)
    return before[:count] if name == "take" else before[count:]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("skipped"))


# ---- laws


@few(40, 400)
@given(order=st.sampled_from(ORDERS), verbs=st.lists(VERBS, min_size=1, max_size=4), epoch=st.integers(0, 3))
def test_verbs_mean_what_lists_mean(catalog: sp.Catalog, order: Any, verbs: list[Verb], epoch: int) -> None:
    """Rows, positions, batches, the number of steps and places of samples are those of sliced lists of passes."""
    sampled = catalog.table("rows").sample(order=order)
    if left(verbs) <= 0:
        with pytest.raises(sp.errors.PlanError, match=r"skip: .* so none is left\. (Skip at most|Leave skip out)"):
            len(made(written(sampled, verbs))())
        return
    last_fixed = any(fixed and name != "repeat" for name, _, fixed in verbs) and not isinstance(order, sp.Sequential)
    relation = written(sampled, verbs)
    found = relation.order(epoch).rows(range(len(relation.order(epoch))))["id"].to_pylist()
    if not last_fixed:
        assert found == meant(sampled, verbs, epoch)
    assert len(found) == left(verbs)
    with made(relation)() as stream:
        assert len(stream) == -(-len(found) // 4)
        stream.seek(epoch=epoch)
        assert [each for batch in stream for each in batch["id"]] == found
        for at in {0, len(found) // 2, len(found) - 1}:
            assert stream.sample(at, epoch=epoch)["id"] == found[at]
            places = [n for n, each in enumerate(found) if each == found[at]]
            assert stream.order(epoch).positions(found[at]) == places
            assert found[at] in stream.ledger(at // 4, epoch=epoch)
            assert stream.locate(found[at], epoch=epoch)["batch"] == places[0] // 4


@given(
    count=st.integers(1, ROWS - 1),
    order=st.sampled_from(ORDERS),
    epochs=st.lists(st.integers(0, 9), min_size=2, max_size=2),
)
def test_what_is_taken_and_what_is_skipped_are_the_epoch(
    catalog: sp.Catalog, count: int, order: Any, epochs: list[int]
) -> None:
    sampled = catalog.table("rows").sample(order=order)

    def drawn(relation: sp.Relation, epoch: int) -> list[Any]:
        return list(relation.order(epoch).rows(range(len(relation.order(epoch))))["id"].to_pylist())

    first, second = epochs
    assert drawn(sampled.take(count), first) + drawn(sampled.skip(count), first) == drawn(sampled, first)
    taken, rest = sampled.take(count, fixed=True), sampled.skip(count, fixed=True)
    assert sorted(drawn(taken, first)) == sorted(drawn(taken, second))
    assert sorted(drawn(rest, first)) == sorted(drawn(rest, second))
    assert sorted(drawn(taken, first) + drawn(rest, second)) == sorted(drawn(sampled, 0))


# ---- plans


def test_take_is_limit_and_a_skip_of_nothing_is_the_plan(catalog: sp.Catalog) -> None:
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(4))

    assert sampled.take(5).fingerprint == sampled.limit(5).fingerprint
    assert catalog.table("rows").take(5).fingerprint == catalog.table("rows").limit(5).fingerprint
    assert sampled.skip(0).fingerprint == sampled.fingerprint
    several = {
        each.fingerprint for each in (sampled.skip(5), sampled.skip(6), sampled.skip(5, fixed=True), sampled.take(5))
    }
    assert len(several) == 4
    assert left([("skip", 5, False), ("take", 5, False)]) == len(sampled.skip(5).take(5).order())


def test_a_skip_is_explained_and_saved(catalog: sp.Catalog) -> None:
    relation = plan(catalog.table("rows").sample(order=sp.GlobalShuffle(4)).skip(9))
    with relation.to_numpy() as stream:
        explained = str(stream.explain())
        assert "Skip the first 9 samples of every epoch" in explained
        catalog.save_stream("skipped", stream)
        wanted = [batch["id"] for batch in stream]
    with catalog.open_stream("skipped") as again:
        assert [batch["id"] for batch in again] == wanted


def test_a_state_of_another_skip_is_refused(catalog: sp.Catalog) -> None:
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(4))
    with made(sampled.skip(9))() as stream, made(sampled.skip(10))() as other:
        next(iter(stream))
        state = json.loads(json.dumps(stream.state_dict()))
        with pytest.raises(sp.errors.ResumeError, match=r"9 -> 10"):
            other.load_state_dict(state)
        with pytest.raises(sp.errors.ResumeError, match=r"limit, skip or repeat after sample.*Go on at the end"):
            other.rebase(stream)


def test_a_far_place_costs_no_pass_over_what_is_skipped(tmp_path: Path) -> None:
    """10^12 draws without a row of them: 5 ms, of which most is the plan."""
    catalog = sp.connect(tmp_path)
    catalog.register("few", sp.Arrow(pa.table({"id": range(1_000)})), identity="id")
    relation = catalog.table("few").sample(order=sp.GlobalShuffle(4)).repeat().skip(10**12)

    begin = time.process_time()
    assert relation.order(0).rows([0])["id"].to_pylist() == (
        catalog.table("few").sample(order=sp.GlobalShuffle(4)).order(10**9).rows([0])["id"].to_pylist()
    )
    assert time.process_time() - begin < 5


# ---- refusals


def test_a_skip_of_everything_is_refused_where_its_number_is_known(catalog: sp.Catalog) -> None:
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(4))
    for relation, count, said in (
        (sampled, 41, "41 samples are skipped, and an epoch has 41, so none is left. Skip at most 40"),
        (sampled.take(7), 9, "9 samples are skipped, and an epoch has 7, so none is left. Skip at most 6"),
        (sampled.take(1), 1, "Leave skip out"),
        (sampled.skip(40), 1, "Leave skip out"),
        (sampled.repeat(2), 82, "Skip at most 81"),
    ):
        with pytest.raises(sp.errors.PlanError, match=said):
            relation.skip(count)
    filtered = catalog.table("rows").filter(sp.col("id") < 20).sample(order=sp.GlobalShuffle(4)).skip(20)
    for prepare in (lambda: len(made(filtered)()), filtered.order):
        with pytest.raises(sp.errors.PlanError, match=r"an epoch has 20, so none is left\. Skip at most 19"):
            prepare()


def test_what_a_skip_does_not_follow_is_refused(catalog: sp.Catalog) -> None:
    rows = catalog.table("rows")
    sampled = rows.sample(order=sp.GlobalShuffle(4))
    with pytest.raises(sp.errors.PlanError, match=r"skip: follows scan.*Write it after .sample.*Sequential"):
        rows.skip(3)
    with pytest.raises(sp.errors.PlanError, match=r"skip: follows keep.*directly after .sample"):
        sampled.filter(sp.col("id") > 3).skip(3)
    mixed = sp.mix([sp.Stream("a", rows, proportion=0.5), sp.Stream("b", rows, proportion=0.5)], epoch_size=20)
    with pytest.raises(sp.errors.PlanError, match=r"skip: follows a mixture.*to begin later, .seek\(epoch=, batch=\)"):
        mixed.sample(order=sp.GlobalShuffle(4)).skip(3)
    for wrong, said in (
        (-1, "count=-1. Give an integer of at least 0"),
        (1.5, "count=1.5"),
        (True, "count=True"),
        (2**80, "Give at most"),
    ):
        with pytest.raises(sp.errors.PlanError, match=said):
            sampled.skip(wrong)  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(
        sp.errors.PlanError, match=r"skip: fixed=1. Give True for the same samples in every epoch, or False"
    ):
        sampled.skip(3, fixed=1)  # type: ignore[arg-type]  # that is what is tested

"""One relation, rebased: the running epoch delivers every row once, whatever becomes of plan, data and ranks meanwhile."""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import CatalogError, ResumeError, SourceError
from spiral_stream.testing import frozen, same
from tests.fixtures.examples import few
from tests.fixtures.grown import ORDERS, SHARDS, Grown, Plan, Shards
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

FEW = few(
    3,
    250,
    phases=[__import__("hypothesis").Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
PLANS = st.builds(
    Plan,
    order=st.sampled_from(ORDERS),
    batch_size=st.integers(1, 5),
    formed=st.booleans(),
    steps=st.integers(0, 6),
    world=st.integers(1, 3),
)


def ids_of(batches: Sequence[Mapping[str, Any]]) -> list[int]:
    return [each for batch in batches for each in batch["sample_id"]]


def read(ranks: Sequence[sp.PreparedStream], steps: int | None) -> tuple[list[int], bool]:
    """Read some steps of the epoch on all ranks; whether all of it has come."""
    runs = [iter(rank) for rank in ranks]
    found = [list(islice(run, steps)) for run in runs]
    over = steps is None or min(map(len, found)) < steps
    found = [[*own, *run] if over else own for own, run in zip(found, runs, strict=True)]
    for run in runs:
        run.close()  # type: ignore[attr-defined]  # a generator
    return [each for own in found for each in ids_of(own)], over


def ranks_of(plan: Plan, catalog: sp.Catalog) -> list[sp.PreparedStream]:
    ranks = [plan.open(catalog) for _ in range(plan.world)]
    return [r.bind(data_parallel_rank=k, data_parallel_world_size=plan.world) for k, r in enumerate(ranks)]


@FEW
@given(shards=SHARDS, plans=st.lists(PLANS, min_size=2, max_size=3), epoch=st.sampled_from([0, 0, 2]), data=st.data())
def test_the_running_epoch_delivers_every_row_once(
    shards: Shards, plans: list[Plan], epoch: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        grown = Grown(Path(folder), shards)
        ranks, came = ranks_of(plans[0], grown.catalog), list[int]()
        for rank in ranks:
            rank.set_epoch(epoch)
        plan, rest = plans[0], plans[1:]
        while True:
            found, over = read(ranks, plan.steps if rest else None)
            came += found
            if over or ranks[0].epoch > epoch:
                break
            alike = data.draw(st.booleans(), label="another plan") is False
            plan, rest = plan if alike else rest[0], rest[1:]
            state = json.loads(json.dumps(ranks[0].state_dict()))
            grown.change(grown.drawn_change(data.draw))
            earlier, ranks = ranks, ranks_of(plan, grown.catalog)
            for rank in ranks:
                rank.rebase(state if alike else earlier[0])
            for each in earlier:
                each.close()
            if ranks[0].epoch > epoch:
                break

        assert len(came) == len(set(came))
        assert grown.ids <= set(came)
        assert {rank.epoch for rank in ranks} == {epoch + 1}
        with plan.open(grown.catalog) as alone:
            alone.set_epoch(epoch + 1)
            whole = ids_of(list(alone))
        assert sorted(read(ranks, None)[0]) == sorted(whole) == sorted(grown.ids)
        for rank in ranks:
            rank.close()


@FEW
@given(shards=SHARDS, plan=PLANS, data=st.data())
def test_a_rebased_epoch_is_a_function_of_its_state(shards: Shards, plan: Plan, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        grown = Grown(Path(folder), shards)
        with plan.open(grown.catalog) as old:
            read([old], plan.steps)
            state = json.loads(json.dumps(old.state_dict()))
        grown.change(grown.drawn_change(data.draw))
        with plan.open(grown.catalog) as new:
            new.rebase(state)
            batches, states = [], [json.loads(json.dumps(new.state_dict()))]
            for batch in new:
                batches.append(frozen(batch))
                states.append(json.loads(json.dumps(new.state_dict())))
            at = data.draw(st.integers(0, len(batches) - 1), label="resumed after")
            epoch = states[0]["epoch"]
            assert new.count(epoch) == len(batches)
            for number, batch in enumerate(batches):
                assert new.ledger(number, epoch) == batch["sample_id"]
                assert same(frozen(new.batch(number, epoch)), batch)
                for each in batch["sample_id"]:
                    found = new.locate(each, epoch)
                    assert found is not None
                    assert found["batch"] == number
            for each in sorted(grown.ids - set(ids_of(batches))):
                assert new.locate(each, epoch) is None
        for _ in range(2):
            with plan.open(grown.catalog) as fresh:
                fresh.load_state_dict(states[at])
                assert fresh.state_dict() == states[at]
                assert all(same(a, b) for a, b in zip(fresh, batches[at:], strict=True))


# ---- examples


@pytest.fixture
def grown(tmp_path: Path) -> Grown:
    return Grown(tmp_path, {"a": list(range(20)), "b": list(range(100, 110))})


def test_a_wider_filter_brings_its_rows_into_the_running_epoch(grown: Grown) -> None:
    with Plan(least=5, batch_size=4).open(grown.catalog) as narrow, Plan().open(grown.catalog) as wide:
        came = ids_of(list(islice(narrow, 2)))
        wide.rebase(narrow)
        rest = ids_of(list(wide))
    assert all(each % 10 >= 5 for each in came)
    assert sorted(came + rest) == sorted(grown.ids)


def test_a_place_of_unchanged_data_is_one_range_whatever_the_batches_are(grown: Grown) -> None:
    with Plan(batch_size=4).open(grown.catalog) as old, Plan(batch_size=3).open(grown.catalog) as new:
        came = ids_of(list(islice(old, 2)))
        new.rebase(old)
        assert new.state_dict()["rebase"] == {"epoch": 0, "streams": {"": {"left": [[8, 22]], "then": 30}}}
        assert len(set(came) | set(ids_of(list(new)))) == 8 + 22


def test_what_is_whole_or_empty_needs_no_record(grown: Grown) -> None:
    plan = Plan(order=sp.Sequential(), batch_size=15)
    with plan.open(grown.catalog) as old, plan.open(grown.catalog) as new:
        new.rebase(old)
        assert (new.epoch, "rebase" in new.state_dict()) == (0, False)
        next(iter(old))
        state = old.state_dict()
    grown.change({"a": grown.shards["a"][:15]})  # all of what is there was delivered
    with plan.open(grown.catalog) as new:
        new.rebase(state)
        assert (new.epoch, "rebase" in new.state_dict()) == (1, False)


def test_many_ranges_are_saved_as_bits(tmp_path: Path) -> None:
    grown = Grown(tmp_path, {"a": list(range(2_000))})
    with Plan(batch_size=500).open(grown.catalog) as old:
        came = ids_of([next(iter(old))])
        state = old.state_dict()
    grown.change({**grown.shards, "b": list(range(5_000, 5_300))})
    with Plan(batch_size=500).open(grown.catalog) as new, Plan(batch_size=500).open(grown.catalog) as again:
        new.rebase(state)
        state = json.loads(json.dumps(new.state_dict()))
        assert len(json.dumps(state)) < 1_500
        again.load_state_dict(state)
        rest = ids_of(list(again))
        assert rest == ids_of(list(new))
        assert not set(came) & set(rest)
        listed = state["rebase"]["streams"][""]
        cut = {**listed, "bits": listed["bits"][4:]}
        with pytest.raises(ResumeError, match=r"rebase cannot be read .*its bits are cut"):
            new.load_state_dict({**state, "rebase": {"epoch": 0, "streams": {"": cut}}})
        other = {"epoch": 0, "streams": {"": {"left": [[0, 5]], "then": 9}}}
        unsealed = {name: each for name, each in state.items() if name != "checksum"}
        with pytest.raises(ResumeError, match="has left is not of this plan"):
            new.load_state_dict({**unsealed, "rebase": other})


# ---- bad input


def test_a_plain_load_says_what_goes_on_with_other_data(grown: Grown) -> None:
    with Plan().open(grown.catalog) as old:
        next(iter(old))
        state = old.state_dict()
    grown.change({"a": grown.shards["a"]})
    with Plan().open(grown.catalog) as new:
        with pytest.raises(ResumeError, match=r"data changed .*; stream.rebase\(state\) delivers the rest"):
            new.load_state_dict(state)
        with Plan(batch_size=5).open(grown.catalog) as other, pytest.raises(ResumeError, match="saved by plan"):
            other.rebase(state)
        for path in (grown.folder / "catalog" / "manifests").glob("*.arrow"):
            if path.name != grown.catalog.entry("grown").manifest_name:
                path.unlink()
        with pytest.raises(CatalogError, match=r"shard table of data version .* Use the catalog that the run used"):
            new.rebase(state)
        assert "rebase" not in new.state_dict()


def test_plans_without_a_common_place_are_refused(grown: Grown) -> None:
    lanes = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=4)
    fields = {"sample_id": sp.List("sample_id")}
    rows = grown.catalog.table("grown")
    grown.catalog.register("other", sp.Arrow(pa.table({"sample_id": [1, 2, 3]})), identity="sample_id")
    laned = rows.sample(order=ORDERS[1], assignment=lanes).collate(batch_size=2, fields=fields)
    pinned = rows.sample(order=ORDERS[1], epoch=3).collate(batch_size=2, fields=fields)
    other = grown.catalog.table("other").sample(order=ORDERS[1]).collate(batch_size=1, fields=fields)
    for plan, found in (
        (laned, "has 4 lanes; only a plan of one lane .* Go on at the end of its epoch"),
        (pinned, "names its own epoch.* Leave epoch= out"),
        (other, "were rows of other and are rows of grown"),
    ):
        with plan.to_numpy() as old, Plan().open(grown.catalog) as new, pytest.raises(ResumeError, match=found):
            new.rebase(old)
    with Plan().open(grown.catalog) as new, pytest.raises(ResumeError, match="Give the earlier stream, or what its"):
        new.rebase(3)  # type: ignore[arg-type]  # the point


def test_rows_that_would_have_to_be_read_again_are_named(grown: Grown) -> None:
    entry = grown.catalog.entry("grown")
    grown.change({"a": grown.shards["a"][:5]})
    former = grown.catalog.registry.relations.former(grown.catalog.entry("grown"), entry.data_version)
    with former.source.open() as reader:
        assert [unit.content_key for unit in reader.units()] == entry.manifest().unit_keys.to_pylist()
        with pytest.raises(SourceError, match=r"grown: digit of data version .* the data changed since"):
            list(reader.scan(["digit"]))

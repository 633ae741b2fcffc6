"""A seed that is not given is drawn, shown, saved, and taken over by whoever resumes."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.seeding import DrawnSeed

ORDERS = [
    lambda: sp.GlobalShuffle(None),
    lambda: sp.HashBucketed(None, bucket_count=8),
    lambda: sp.ShardAwareShuffle(None, shuffle_block_size=16),
    lambda: sp.orders.Weighted("w"),
]


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> sp.Relation:
    catalog = sp.connect(tmp_path_factory.mktemp("drawn"))
    catalog.register("rows", sp.Arrow(pa.table({"id": range(100), "w": [1.0] * 100})), identity="id")
    return catalog.table("rows")


def stream(relation: sp.Relation, order: Any) -> sp.PreparedStream:
    return relation.sample(order=order).collate(batch_size=10, fields={"id": sp.List("id")}).to_numpy()


def ids(stream: sp.PreparedStream) -> list[int]:
    return [each for batch in stream for each in batch["id"]]


def begun(opened: Any) -> tuple[dict[str, Any], list[str]]:
    """The state behind the first batch, after a way through JSON, and the samples of the others."""
    batches = iter(opened)
    next(batches)
    state = json.loads(json.dumps(opened.state_dict()))
    return state, [each for batch in batches for each in batch["id"]]


@pytest.mark.parametrize("order", ORDERS)
def test_another_process_resumes_with_the_seed_that_was_drawn(relation: sp.Relation, order: Any) -> None:
    with stream(relation, order()) as first, stream(relation, order()) as second:
        assert first.fingerprint != second.fingerprint
        state, rest = begun(first)

        second.load_state_dict(state)

        assert second.fingerprint == first.fingerprint
        assert ids(second) == rest
        assert second.state_dict()["drawn_seed"] == state["drawn_seed"]
        assert f"{state['drawn_seed']} (drawn)" in str(second.explain())


def test_a_saved_stream_has_the_seed(relation: sp.Relation) -> None:
    plan = relation.sample(order=sp.GlobalShuffle(None)).collate(batch_size=10, fields={"id": sp.List("id")})
    with plan.to_numpy() as first:
        relation.catalog.save_stream("drawn", first)  # type: ignore[attr-defined]  # of a catalog that was connected
        with relation.catalog.open_stream("drawn") as again:  # type: ignore[attr-defined]
            assert again.fingerprint == first.fingerprint
            assert ids(again.bind(rank=0, world_size=1)) == ids(first)


def test_several_ranks_need_one_seed(relation: sp.Relation) -> None:
    with stream(relation, sp.GlobalShuffle(None)) as first, stream(relation, sp.GlobalShuffle(None)) as second:
        first.bind(rank=1, world_size=2)
        with pytest.raises(sp.errors.BindError, match=r"each of 2 ranks draws another order.*Give a seed"):
            next(iter(first))
        first.load_state_dict(second.state_dict())
        assert len(ids(first)) == 50


def test_states_of_plans_with_a_seed_do_not_change(relation: sp.Relation) -> None:
    with stream(relation, sp.GlobalShuffle(7)) as fixed, stream(relation, sp.GlobalShuffle(None)) as drawn:
        assert "drawn_seed" not in fixed.state_dict()
        with pytest.raises(sp.errors.ResumeError, match=r"sample\.order\.seed"):
            fixed.load_state_dict(drawn.state_dict())
        with pytest.raises(sp.errors.ResumeError, match="edited or damaged"):
            drawn.load_state_dict({**drawn.state_dict(), "drawn_seed": 5})


def test_a_state_that_is_refused_leaves_the_seed_and_what_is_skipped(relation: sp.Relation) -> None:
    with stream(relation, sp.GlobalShuffle(None)) as first, stream(relation, sp.GlobalShuffle(None)) as second:
        second.bind(run_seed=77).skip(batches=[1])
        before = second.fingerprint, second.ledger(0), second.state_dict()
        with pytest.raises(sp.errors.ResumeError, match="Leave run_seed unbound"):
            second.load_state_dict(first.state_dict())
        with pytest.raises(sp.errors.ResumeError, match="Leave run_seed unbound"):
            second.rebase(first.state_dict())
        assert (second.fingerprint, second.ledger(0), second.state_dict()) == before


def test_a_rebase_on_a_state_takes_its_seed(relation: sp.Relation) -> None:
    with stream(relation, sp.GlobalShuffle(None)) as first, stream(relation, sp.GlobalShuffle(None)) as second:
        state, rest = begun(first)

        second.rebase(state)

        assert second.fingerprint == first.fingerprint
        assert ids(second) == rest


def test_a_drawn_seed_is_an_integer_that_travels() -> None:
    seed = DrawnSeed(5, recorded=True)

    again = pickle.loads(pickle.dumps(seed))

    assert (again, again.recorded, json.dumps(seed), repr(seed)) == (5, True, "5", "5 (drawn)")
    assert DrawnSeed.fresh() != DrawnSeed.fresh()


@pytest.mark.parametrize("seed", [1.5, "a", True])
def test_a_seed_that_is_no_integer_is_refused(seed: Any, tmp_path: Path) -> None:
    del tmp_path
    with pytest.raises(sp.errors.PlanError, match="seed is"):
        sp.GlobalShuffle(seed)

"""`map` with the place of each sample in the epoch, and with `fn(...) >> "name"`."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import col
from spiral_stream.errors import PlanError
from tests.fixtures import functions as own
from tests.fixtures.examples import few

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

FEW = few(10, 200)
FORMS: dict[str, dict[str, Any]] = {
    "batched": {"what": own.placed},
    "one by one": {"what": own.placed_one, "batched": False},
    "random": {"what": own.placed_and_drawn, "random": True},
    "records": {"what": own.placed_rows, "name": None, "returns": {"at": pa.int64(), "before": pa.int64()}},
}
FORMED = sp.WindowedBucket(window_size=32, keys=[sp.BucketKey("at")])
ORDERS = [
    sp.GlobalShuffle(seed=3),
    sp.Sequential(),
    sp.ShardAwareShuffle(seed=5),
    sp.orders.WindowShuffle(seed=2, window=50),
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return own.make_catalog(tmp_path_factory.mktemp("map_forms"))


def indexed(base: sp.Relation, **form: Any) -> sp.Relation:
    return base.map(**{"columns": ["n"], "name": "at", "returns": pa.int64(), "with_index": True, **form})


def places(batches: Any) -> list[tuple[Any, int]]:
    return [pair for batch in batches for pair in zip(batch["id"], batch["at"].tolist(), strict=True)]


def fields() -> dict[str, Any]:
    return {"id": sp.List("id"), "at": sp.Stack("at")}


# ---- the place in the epoch


@FEW
@given(data=st.data())
def test_the_index_is_the_place_in_the_order_on_any_ranks_and_after_a_resume(
    catalog: sp.Catalog, data: st.DataObject
) -> None:
    """Whoever forms the batches, in whatever form, after a filter or not, and for repeated samples too."""
    order = data.draw(st.sampled_from(ORDERS))
    base = catalog.table("d").sample(order=order)
    whole = base = base.repeat(2) if data.draw(st.booleans()) else base
    if data.draw(st.booleans()):
        base = base.filter(col("n") > data.draw(st.integers(0, 60)))
    plan = indexed(base, **FORMS[data.draw(st.sampled_from(sorted(FORMS)))])
    formed = data.draw(st.sampled_from([None, FORMED]))
    tail = data.draw(st.sampled_from([sp.KeepPartial, sp.batching.PadPartial, sp.DropPartial]))
    made = plan.collate(batch_size=data.draw(st.integers(1, 24)), fields=fields(), formation=formed, last=tail)
    world, epoch = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2))

    found: list[tuple[Any, int]] = []
    if formed is not None:
        world = 1  # the key is what a function gives, so one rank forms the batches
    for rank in range(world):
        with made.to_numpy().bind(rank=rank, world_size=world, epoch=epoch) as stream:
            stop = data.draw(st.integers(0, 4))
            run = iter(stream)
            had = [batch for batch, _ in zip(run, range(stop), strict=False)]
            run.close()
            state = stream.state_dict()
        found += places(had)
        if state["epoch"] == epoch:
            with made.to_numpy().bind(rank=rank, world_size=world) as stream:
                stream.load_state_dict(state)
                found += places(stream)
    ids = whole.order(epoch).rows(np.array([at for _, at in found], dtype=np.uint64))["id"].to_pylist()

    assert [sample for sample, _ in found] == ids


@FEW
@given(data=st.data())
def test_parts_and_streams_of_a_mixture_have_the_place_of_their_sample(
    catalog: sp.Catalog, data: st.DataObject
) -> None:
    rows = catalog.table("d")
    proportion = data.draw(st.sampled_from([0.25, 0.5]))
    small = sp.Stream("small", rows.filter(col("n") < 30), proportion=proportion)
    large = sp.Stream("large", rows.filter(col("n") >= 30), proportion=1 - proportion)
    mixed = sp.mix([small, large], epoch_size=data.draw(st.integers(40, 300))).sample(order=sp.GlobalShuffle(seed=4))
    parts, epoch = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2))
    fanned = mixed.flat_map(lambda _: list(range(parts)), name="k", columns=["n"], returns=pa.int64(), fan_out=3)
    plan = indexed(fanned, what=own.placed).collate(batch_size=9, fields=fields(), last=sp.KeepPartial)

    with plan.to_numpy().bind(epoch=epoch) as stream:
        found = places(stream)

    assert [at for _, at in found] == [at for at in range(len(found) // parts) for _ in range(parts)]
    ids = mixed.order(epoch).rows(np.array([at for _, at in found], dtype=np.uint64))["id"].to_pylist()
    assert [sample for sample, _ in found] == ids


def test_processes_give_the_same_places(catalog: sp.Catalog) -> None:
    base = catalog.table("d").sample(order=sp.GlobalShuffle(seed=3))
    with indexed(base, what=own.placed, workers=1).collate(batch_size=80, fields=fields()).to_numpy() as stream:
        assert [at for _, at in places(stream)] == list(range(own.ROWS))


def test_a_function_with_an_index_is_another_plan_and_comes_back_from_a_saved_one(catalog: sp.Catalog) -> None:
    base = catalog.table("d").sample(order=sp.GlobalShuffle(seed=3))
    with_it = indexed(base, what=own.placed)
    assert with_it.fingerprint != indexed(base, what=own.placed, with_index=False).fingerprint

    stream = with_it.collate(batch_size=80, fields=fields()).to_numpy()
    catalog.save_stream("placed", stream)
    with catalog.open_stream("placed") as again:
        assert again.fingerprint == stream.fingerprint
        assert [at for _, at in places(again)] == list(range(own.ROWS))


def test_a_place_in_the_epoch_is_not_kept_and_assembled_samples_have_none(catalog: sp.Catalog) -> None:
    base = catalog.table("d").sample(order=sp.GlobalShuffle(seed=3))
    with pytest.raises(
        PlanError, match=r"map \(placed\) takes the place of a sample in the epoch.* put \.cache\(\) before"
    ):
        indexed(base, what=own.placed).cache()
    assembled = base.assemble(own.Pairs, columns=["id", "n"], returns=own.PAIRED, batched=False)
    with pytest.raises(PlanError, match="Write this map before assemble, and take its column there"):
        indexed(assembled, what=own.placed)
    with pytest.raises(PlanError, match=r"with_index=3 is an int\. Give True or False"):
        indexed(base, what=own.placed, with_index=3)


# ---- names by >>


@given(name=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12))
def test_fn_names_the_column_as_name_does(catalog: sp.Catalog, name: str) -> None:
    base = catalog.table("d").sample(order=sp.Sequential())
    by_arrow = base.map(sp.transforms.fn(own.doubled) >> name, columns=["n"], returns=pa.int64())

    assert by_arrow.fingerprint == base.map(own.doubled, name=name, columns=["n"], returns=pa.int64()).fingerprint
    assert by_arrow.columns[-1] == name or name in base.columns


def test_what_is_wrong_about_a_name_says_what_to_type(catalog: sp.Catalog, tmp_path: Path) -> None:
    base = catalog.table("d").sample(order=sp.Sequential())
    rest: dict[str, Any] = {"columns": ["n"], "returns": pa.int64()}
    for wrong, says in [
        (lambda: base.map(own.doubled, **rest), r'fn\(score\) >> "score"'),
        (lambda: base.map(sp.transforms.fn(own.doubled), **rest), r'Write fn\(doubled\) >> "score"'),
        (lambda: base.map(sp.transforms.fn(own.doubled) >> "x", name="y", **rest), "Leave one of them out"),
        (lambda: sp.transforms.fn(own.doubled) >> 3, r'as in fn\(doubled\) >> "score"'),
        (lambda: sp.transforms.fn("doubled"), "Give a function"),
        (lambda: base.map(sp.transforms.fn(own.doubled) >> "x", columns=["n"], returns={"y": pa.int64()}), "returns="),
    ]:
        with pytest.raises(PlanError, match=says):
            wrong()


def test_a_transform_refuses_arguments_of_functions(catalog: sp.Catalog) -> None:
    """They were taken and not heeded."""
    base = catalog.table("d").with_columns(text="a").sample(order=sp.Sequential())
    tokens = sp.Tokenize("text", tokenizer="none") >> "tokens"
    wrong = {"name": "x", "columns": ["n"], "returns": pa.int64(), "batched": False, "random": True}
    for name, value in {**wrong, "version": "1", "workers": 2, "with_index": True}.items():
        with pytest.raises(PlanError, match=f"map: {name}=.* is of functions, and Tokenize is none.* Leave it out"):
            base.map(tokens, **{name: value})

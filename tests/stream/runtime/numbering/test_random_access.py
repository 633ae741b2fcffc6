"""The order of an epoch can be asked for any position, and any sample can be built by itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp

ROWS = 60
ORDERS: dict[str, Any] = {
    "bucketed": sp.HashBucketed(5, bucket_count=8),
    "expanded": sp.orders.ExpandedRange(6, 20),
    "global": sp.GlobalShuffle(4),
    "sequential": sp.Sequential(),
    "shards": sp.ShardAwareShuffle(3, shuffle_block_size=16),
    "weighted": sp.orders.Weighted("weight", seed=8),
    "weighted once": sp.orders.Weighted("weight / 2", replacement=False, seed=8),
    "window": sp.orders.WindowShuffle(6, 10),
    "with replacement": sp.orders.WithReplacement(9),
    "within": sp.orders.WithinShards(7),
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(tmp_path_factory.mktemp("ordered"))
    for name, begin in (("a", 0), ("b", 1_000)):
        ids = range(begin, begin + ROWS)
        table = pa.table({"id": ids, "weight": [float(i % 5) for i in ids], "x": np.arange(begin, begin + ROWS) / 2})
        catalog.register(name, sp.Arrow(table), identity="id")
    return catalog


def fields() -> dict[str, Any]:
    return {"x": sp.Stack("x"), "id": sp.List("id")}


def sampled(catalog: sp.Catalog, order: str, *, mixed: bool) -> sp.Relation:
    rows = catalog.table("a").filter(sp.col("id") != 3)
    streams = [sp.Stream("a", rows, proportion=0.7), sp.Stream("b", catalog.table("b"), proportion=0.3)]
    if ORDERS[order].goes_in_turn:  # streams that follow each other
        both = sp.concat([sp.Stream("a", rows), sp.Stream("b", catalog.table("b"))])
    else:
        both = sp.mix(streams, epoch_size=150)
    return (both if mixed else rows).sample(order=ORDERS[order])


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_rows_are_those_that_a_loop_sees(catalog: sp.Catalog, order: str, mixed: bool) -> None:
    relation = sampled(catalog, order, mixed=mixed)
    plan = relation.collate(batch_size=7, last=sp.KeepPartial, fields=fields())
    with plan.to_numpy().bind(epoch=2) as stream:
        seen = [identity for batch in stream for identity in batch["id"]]
        stream.set_epoch(2)
        ordered = relation.order(2)
        assert len(ordered) == len(seen)

        rows = ordered.rows(range(len(ordered)))
        assert rows["id"].to_pylist() == seen
        assert (("stream_id" in rows.column_names), {*rows["__row__"].to_pylist()} <= {*range(ROWS)}) == (mixed, True)
        some = [len(seen) - 1, 0, 11, 11]
        assert stream.order(2).rows(some).equals(rows.take(some))
        for at in some:
            assert stream.order().positions(seen[at]) == [n for n, each in enumerate(seen) if each == seen[at]]
            one = stream.sample(at)
            assert (one["id"], float(one["x"])) == (seen[at], seen[at] / 2)
        assert stream.sample(-1)["id"] == seen[-1]


@pytest.mark.parametrize("part", ["first", "fixed", "repeated", "both"])
def test_limits_and_repeats_say_what_an_epoch_has(catalog: sp.Catalog, part: str) -> None:
    relation = sampled(catalog, "global", mixed=False)
    relation = relation if part == "repeated" else relation.limit(25, fixed=part == "fixed")
    relation = relation.repeat(2) if part in ("both", "repeated") else relation
    with relation.collate(batch_size=9, last=sp.KeepPartial, fields=fields()).to_numpy() as stream:
        epochs = [[each for batch in stream for each in batch["id"]] for _ in range(3)]
    assert {len(epoch) for epoch in epochs} == {{"both": 50, "repeated": 118}.get(part, 25)}
    assert epochs[0] != epochs[1]
    assert (sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])) == (part in ("fixed", "repeated"))


def test_an_endless_stream_goes_on_and_resumes(catalog: sp.Catalog) -> None:
    def make() -> sp.PreparedStream:
        relation = sampled(catalog, "global", mixed=False).repeat()
        return relation.collate(batch_size=50, fields=fields()).to_numpy()

    with make() as stream:
        batches = iter(stream)
        seen = [next(batches)["id"] for _ in range(5)]
        state = stream.state_dict()
        following = next(batches)["id"]
        assert len(stream) > 10**9
    flat = [each for batch in seen for each in batch]
    assert sorted(flat[:59]) == sorted(flat[59:118]) != flat[:59]  # passes, without a short batch between them
    with make() as again:
        again.load_state_dict(state)
        assert next(iter(again))["id"] == following


def test_random_bits_differ_where_a_row_is_drawn_twice(catalog: sp.Catalog) -> None:
    rows = sampled(catalog, "with replacement", mixed=False).order(0).rows(range(59))

    assert len({*zip(rows["id"].to_pylist(), rows["__pass__"].to_pylist(), strict=True)}) == 59
    assert len({*rows["id"].to_pylist()}) < 50


def test_positions_outside_and_things_that_are_none_are_refused(catalog: sp.Catalog) -> None:
    relation = sampled(catalog, "global", mixed=False)
    for wrong, said in (
        ([59], r"position 59 of epoch 0. Give positions in \[0, 59\)"),
        ([-1], "position -1"),
        ([0.5], "float64"),
    ):
        with pytest.raises(IndexError, match=said):
            relation.order(0).rows(wrong)
    assert relation.order(0).rows([]).num_rows == 0
    with relation.collate(batch_size=2, fields=fields()).to_numpy() as stream:
        with pytest.raises(IndexError, match="sample 59 of epoch 0"):
            stream.sample(59)
        with pytest.raises(sp.errors.PlanError, match="Give an integer"):
            stream.sample("a")  # type: ignore[arg-type]  # that is what is tested
        with pytest.raises(KeyError, match="no row that the plan keeps"):
            stream.order().positions(3)


def test_a_sample_of_packed_or_filtered_batches_is_refused(catalog: sp.Catalog) -> None:
    kept = sampled(catalog, "global", mixed=False).filter(sp.col("x") > 3.0)
    said = r"the plan has keep, which decides .*batch\(number\)"
    with (
        kept.collate(batch_size=2, fields=fields()).to_numpy() as stream,
        pytest.raises(sp.errors.StreamError, match=said),
    ):
        stream.sample(0)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), None])
def test_a_bad_weight_is_named_with_its_row(tmp_path: Path, weight: float | None) -> None:
    catalog = sp.connect(tmp_path)
    table = pa.table({"id": ["p", "q", "r"], "w": pa.array([1.0, 0.0, weight])})
    catalog.register("rows", sp.Arrow(table), identity="id")
    relation = catalog.table("rows")

    with pytest.raises(
        sp.errors.PlanError, match=r"Weighted: weights='w': the weight of row 2 is .*id='r'.* filter the row out"
    ):
        relation.sample(order=sp.orders.Weighted("w")).order()
    sound = relation.filter(sp.col("id") != "r").sample(order=sp.orders.Weighted("w", seed=1))
    explained = str(sound.collate(batch_size=1, fields={"id": sp.List("id")}).to_numpy().explain())
    assert "w: above 0 in 1 of 2 rows" in explained
    assert {*sound.order().rows([0, 1])["id"].to_pylist()} == {"p"}


def test_weights_that_are_all_0_or_no_numbers_are_refused(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path)
    catalog.register("rows", sp.Arrow(pa.table({"id": ["p", "q"], "w": [0, 0]})), identity="id")
    relation = catalog.table("rows")

    with pytest.raises(sp.errors.PlanError, match="all 2 rows have weight 0"):
        relation.sample(order=sp.orders.Weighted("w")).order()
    for wrong, said in (("id", "is string, no number"), ("v", "'v' is not a column"), ("w +", "weights")):
        with pytest.raises(sp.errors.PlanError, match=said):
            relation.sample(order=sp.orders.Weighted(wrong))


def test_limits_of_mixtures_and_after_maps_are_refused(catalog: sp.Catalog) -> None:
    with pytest.raises(sp.errors.PlanError, match="Give an epoch_size"):
        sampled(catalog, "global", mixed=True).limit(5)
    relation = sampled(catalog, "global", mixed=False)
    with pytest.raises(sp.errors.PlanError, match=r"repeat: follows keep.*directly after .sample"):
        relation.filter(sp.col("x") > 1.0).repeat(2)
    with pytest.raises(sp.errors.PlanError, match="count=0"):
        relation.limit(0)
    with pytest.raises(sp.errors.PlanError, match="times=0"):
        relation.repeat(0)
    with pytest.raises(sp.errors.PlanError, match="Write it after sample"):
        catalog.table("a").limit(3, fixed=True)
    with pytest.raises(sp.errors.PlanError, match="repeat: follows scan"):
        catalog.table("a").repeat(2)


def test_a_rebase_of_draws_or_parts_is_refused(catalog: sp.Catalog) -> None:
    for relation in (sampled(catalog, "weighted", mixed=False), sampled(catalog, "global", mixed=False).limit(20)):
        made = [relation.collate(batch_size=size, fields=fields()).to_numpy() for size in (5, 4)]
        with made[0] as old, made[1] as new:
            next(iter(old))
            with pytest.raises(sp.errors.ResumeError, match="Go on at the end of its epoch"):
                new.rebase(old)

"""Subjects of numbers: every order and part of an epoch, every source, derived relations, lanes that are bound to nodes."""

from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import derived_plans, epoch_parts, node_lanes, shard_keys
from tests.fixtures.every_source import MADE, made
from tests.fixtures.lines import Lines, written
from tests.stream.laws.subject import Subject

TAILS: Final = st.sampled_from([sp.DropPartial, sp.KeepPartial, sp.batching.PadPartial])


# ---- orders, and how much of an epoch is taken


def _enough(verbs: list[epoch_parts.Verb]) -> bool:
    """Whether a few batches are left: a loop over none shows nothing."""
    return 24 <= epoch_parts.left(verbs) <= 2 * epoch_parts.ROWS


def _ordered(catalog: sp.Catalog, drawn: Any) -> MakeStream:
    order, verbs, last, lanes, formed = drawn
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes)
    rows = catalog.table("rows").sample(order=order, assignment=ranks)
    formation = sp.WindowedBucket(window_size=16, keys=(sp.BucketKey("weight"),), cost_group=1) if formed else None
    return epoch_parts.made(epoch_parts.written(rows, verbs), last=last, formation=formation, batch_size=4)


def _sorted(catalog: sp.Catalog, window: int) -> MakeStream:
    order = sp.orders.WindowShuffle(seed=1, window=window)
    sampled = catalog.table("rows").sort("weight", "id").sample(order=order, identity="id")
    return epoch_parts.made(sampled)


PARTS: Final = st.lists(epoch_parts.VERBS, max_size=3).filter(_enough)
ORDERS: Final = (*epoch_parts.ORDERS, sp.orders.Weighted("weight / 2", replacement=False, seed=8))
ORDERED: Final = [
    Subject(
        f"{order}",
        epoch_parts.make_catalog,
        st.tuples(st.just(order), PARTS, TAILS, st.integers(1, 2), st.sampled_from(formed)),
        _ordered,
    )
    for order, formed in zip(ORDERS, cycle([(False, True), (True, False)]), strict=False)  # the first is drawn first
]
SORTED: Final = Subject("a sort in a window shuffle", epoch_parts.make_catalog, st.sampled_from([5, 20]), _sorted)


def _grouped(catalog: sp.Catalog, drawn: Any) -> MakeStream:
    key, block, mixed, lanes = drawn
    return lambda: shard_keys.grouped(catalog, key, block, mixed=mixed, lanes=lanes)


KEYED: Final = Subject(
    "a shard key",
    shard_keys.make_catalog,
    st.tuples(shard_keys.KEYS, st.integers(1, 100), st.booleans(), st.integers(1, 3)),
    _grouped,
)


# ---- sources, whose rows are told apart by their place


def _stored(kind: str, folder: Path) -> sp.Catalog:
    (folder / "data").mkdir()
    catalog = sp.connect(folder / "catalog")
    catalog.register("rows", made(kind, folder / "data"), identity=sp.RowIdentity())
    return catalog


def _of_source(catalog: sp.Catalog, order: Any) -> MakeStream:
    plan = catalog.table("rows").sample(order=order)
    return plan.collate(batch_size=3, fields={"id": sp.List("__row_id__")}, last=sp.KeepPartial).to_numpy


OVER_SHARDS: Final = st.sampled_from(
    [
        sp.GlobalShuffle(seed=3),
        sp.ShardAwareShuffle(seed=3, shuffle_block_size=4),
        sp.HashBucketed(seed=3, bucket_count=4, bucket_order=sp.ShuffleBuckets(seed=3)),
        sp.Sequential(),
    ]
)
SOURCES: Final = [
    Subject(f"source {kind}", partial(_stored, kind), OVER_SHARDS, _of_source, by_day=2 if kind == "parquet" else 1)
    for kind in sorted(MADE)
]


def _imported(folder: Path) -> sp.Catalog:
    catalog = sp.connect(folder / "catalog")
    for name, counts in (("one", (3,)), ("gaps", (0, 9, 2)), ("many", (5, 0, 0, 4, 1))):
        catalog.register(name, Lines(str(written(folder / name, *counts))), identity="number")
    return catalog


def _of_lines(catalog: sp.Catalog, name: str) -> MakeStream:
    plan = catalog.table(name).sample(order=sp.GlobalShuffle(seed=3), identity="number")
    return plan.collate(batch_size=2, fields={"number": sp.Stack("number")}, last=sp.KeepPartial).to_numpy


IMPORTED: Final = Subject("imported rows", _imported, st.sampled_from(["many", "gaps", "one"]), _of_lines, by_day=2)


# ---- derived relations


def _derived(catalog: sp.Catalog, drawn: Any) -> MakeStream:
    plan, order = drawn
    relation = plan(catalog).distinct("id")  # the sides of a union share ids
    return lambda: derived_plans.stream(relation, order)


def _mixed(catalog: sp.Catalog, _: None) -> MakeStream:
    union = catalog.table("b").union(catalog.table("c")).distinct("id").project("id", "x")
    groups = catalog.table("a").group_by("id").aggregate(x=("x", "max"))
    mixed = sp.mix([sp.Stream("union", union), sp.Stream("groups", groups)])
    fields = {"id": sp.List("id"), "stream_id": sp.List("stream_id")}
    sampled = mixed.sample(identity="id", order=sp.GlobalShuffle(seed=1))
    return sampled.collate(batch_size=8, fields=fields, last=sp.KeepPartial).to_numpy


def _two_columns(catalog: sp.Catalog, _: None) -> MakeStream:
    both = catalog.table("a").with_columns(side="a").union(catalog.table("b").with_columns(side="b"))
    return lambda: derived_plans.stream(both, sp.HashBucketed(seed=1), ["side", "id"])


def _drawn_by_sql(catalog: sp.Catalog, _: None) -> MakeStream:
    query = catalog.sql("select id, x from a using sample reservoir(20 rows) repeatable (7)")
    return lambda: derived_plans.stream(query)


DERIVED: Final = [
    Subject(
        "derived relations",
        derived_plans.make_catalog,
        st.tuples(derived_plans.plans, st.sampled_from(derived_plans.ORDERS)),
        _derived,
        by_day=2,
        by_night=166,
    ),
    *(
        Subject(name, derived_plans.make_catalog, st.none(), make, by_night=5)
        for name, make in (
            ("a mixture of derived relations", _mixed),
            ("a union whose identity is two columns", _two_columns),
            ("a sample that SQL text draws", _drawn_by_sql),
        )
    ),
]


# ---- ranks on nodes

ON_NODES: Final = Subject(
    "lanes that are bound to nodes",
    node_lanes.sampled,
    st.none(),
    lambda rows, _: lambda: node_lanes.stream(rows),
    worlds=(2, 4, 8),
    ranks_per_node=2,
    by_day=2,
    by_night=12,
)

SUBJECTS: Final = (*ORDERED, SORTED, KEYED, *SOURCES, IMPORTED, *DERIVED, ON_NODES)

"""Batches of a mixture hold the values of the rows that the ledger names, however the streams keep their columns."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp

ROWS = 90
pytestmark = [pytest.mark.usefixtures("no_threads_left")]


def values(stream: int, *, nulls: bool = False, wide: bool = False) -> pa.Table:
    """Rows of one stream; ``nulls`` has texts without a value, ``wide`` has tokens that take more bytes."""
    ids = [1_000 * stream + row for row in range(ROWS)]
    texts = [None if nulls and row % 7 == 0 else f"text {row} of {stream}" for row in range(ROWS)]
    tokens = [[number % (60_000 if wide else 200) for number in range(each, each + each % 9 + 1)] for each in ids]
    return pa.table(
        {
            "id": ids,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array([float(each) for each in ids for _ in range(3)]), 3),
            "text": pa.array(texts, pa.utf8()),
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
        }
    )


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    folder: Path = tmp_path_factory.mktemp("mixed")
    made = sp.connect(folder / "catalog")
    for number, (name, flags) in enumerate(
        {"plain": {}, "other": {}, "wide": {"wide": True}, "nulls": {"nulls": True}}.items()
    ):
        made.register(name, sp.Arrow(values(number, **flags)), identity="id")
    return made


def relations(catalog: sp.Catalog) -> dict[str, sp.Relation]:
    return {
        **{name: catalog.table(name) for name in catalog.tables()},
        "filtered": catalog.table("plain").filter(sp.col("id") % 3 == 1),
        "sorted": catalog.table("other").sort("id", descending=True).limit(40),
        "renamed": catalog.table("wide").project(**{name: sp.col(name) for name in ("tokens", "text", "vector", "id")}),
    }


@pytest.fixture(scope="module")
def known(catalog: sp.Catalog) -> dict[int, dict[str, Any]]:
    """The rows of all relations, by identity."""
    tables = [catalog.table(name).to_arrow() for name in catalog.tables()]
    return {row["id"]: row for table in tables for row in table.to_pylist()}


@given(
    streams=st.lists(
        st.sampled_from(["plain", "other", "wide", "nulls", "filtered", "sorted", "renamed"]), min_size=2, max_size=5
    ),
    order=st.sampled_from(
        [sp.GlobalShuffle(seed=3), sp.GlobalShuffle(seed=3, clump_size=4), sp.orders.WindowShuffle(seed=3, window=16)]
    ),
    formed=st.booleans(),
    ranks=st.integers(1, 3),
    passes=st.integers(1, 3),
)
def test_batches_hold_the_rows_that_the_ledger_names(
    catalog: sp.Catalog,
    known: dict[int, dict[str, Any]],
    streams: list[str],
    order: Any,
    formed: bool,
    ranks: int,
    passes: int,
) -> None:
    some = relations(catalog)
    parts = len(streams) * (len(streams) + 1) / 2
    mixed = sp.mix(
        [sp.Stream(f"{at}-{name}", some[name], proportion=(at + 1) / parts) for at, name in enumerate(streams)],
        epoch_size=passes * ROWS,
    )
    rule: dict[str, Any] = {"batch_size": 8}
    if formed:
        budget = sp.BatchBudget(max_tokens=64)
        rule = {"batch_size": None, "formation": sp.WindowedBucket(40, [sp.BucketKey("len(tokens)")], budget)}
    fields = {"vector": sp.Stack("vector"), "text": sp.List("text"), "tokens": sp.Pad("tokens"), "id": sp.Stack("id")}
    plan = mixed.sample(order=order).collate(fields=fields, **rule)

    for rank in range(ranks):
        with plan.to_numpy(prefetch=2).bind(rank=rank, world_size=ranks) as stream:
            for number, batch in enumerate(stream):
                ids = batch["id"].tolist()
                assert ids == [
                    each[-1] if isinstance(each, tuple) else each for each in stream.ledger(rank + number * ranks)
                ]
                assert batch["text"] == [known[each]["text"] for each in ids]
                assert batch["vector"].tolist() == [known[each]["vector"] for each in ids]
                for row, each in zip(batch["tokens"].tolist(), ids, strict=True):
                    wanted = known[each]["tokens"]
                    assert row == wanted + [0] * (len(row) - len(wanted))

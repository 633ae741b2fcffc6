"""How well an order mixes: told for every order, and what batches of the epoch hold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.explain import subject
from tests.fixtures.drawn_streams import ORDERS
from tests.fixtures.examples import few
from tests.stream.explain.words import in_words

ROWS, SHARDS, LABELS = 480, 8, 8


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """``sorted`` has one label a shard; ``mixed`` has the same rows, with labels spread over its shards."""
    catalog = sp.connect(tmp_path_factory.mktemp("mixing"))
    shards = [f"s{i * SHARDS // ROWS}" for i in range(ROWS)]
    for name, label in (("sorted", lambda i: i * LABELS // ROWS), ("mixed", lambda i: i % LABELS)):
        table = pa.table(
            {
                "sample_id": [f"{name}-{i}" for i in range(ROWS)],
                "storage_shard": shards,
                "label": [label(i) for i in range(ROWS)],
                "quality": np.linspace(0.1, 1, ROWS),
            }
        )
        catalog.register(name, sp.Arrow(table), identity="sample_id", shard="storage_shard")
    return catalog


def stream_of(
    relation: sp.Relation, order: Any, batch_size: int = 24, lanes: int = 1, **more: Any
) -> sp.PreparedStream:
    fields = {"label": sp.Stack("label"), "id": sp.List("sample_id")}
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=lanes)
    sampled = relation.sample(identity="sample_id", order=order, assignment=ranks)
    return sampled.collate(batch_size=batch_size, fields=fields, **more).to_numpy()


def measured(stream: sp.PreparedStream) -> tuple[float, float, float]:
    """P(same shard), shards and labels in the batches that the loop gets."""
    same = pairs = 0
    shards, labels = [], []
    for batch in stream:
        numbers = np.array([int(each.split("-")[1]) * SHARDS // ROWS for each in batch["id"]])
        counts = np.bincount(numbers)
        same, pairs = same + int((counts * (counts - 1)).sum()), pairs + len(numbers) * (len(numbers) - 1)
        shards.append(np.count_nonzero(counts))
        labels.append(len(np.unique(batch["label"])))
    return same / pairs, float(np.mean(shards)), float(np.mean(labels))


@few(6, 24)
@given(
    order=st.sampled_from([each for each in ORDERS if not isinstance(each, sp.ShardAwareShuffle)]),
    name=st.sampled_from(["sorted", "mixed"]),
    batch_size=st.sampled_from([16, 24, 60]),
    lanes=st.sampled_from([1, 2, 3]),
    epoch=st.integers(0, 5),
)
def test_what_is_said_of_an_order_is_what_its_batches_hold(
    catalog: sp.Catalog, order: Any, name: str, batch_size: int, lanes: int, epoch: int
) -> None:
    with stream_of(catalog.table(name), order, batch_size, lanes, last=sp.DropPartial) as stream:
        row, random = stream.bind(epoch=epoch).explain().to_dict()["sample"]["randomness"]
        same, shards, labels = measured(stream)

    assert row["order"] == f"-> {type(order).__name__}"
    assert {row[each]["mark"] for each in ("P(same shard)", "shards/batch", "label/batch")} == {"exact"}
    assert row["P(same shard)"]["value"] == pytest.approx(same)
    assert row["shards/batch"]["value"] == pytest.approx(shards)
    assert row["label/batch"]["value"] == pytest.approx(labels)
    assert random["P(same shard)"]["value"] == pytest.approx((ROWS / SHARDS - 1) / (ROWS - 1))


def test_every_order_says_how_well_it_mixes(catalog: sp.Catalog) -> None:
    for order in ORDERS:
        for formation in (None, sp.WindowedBucket(window_size=64)):
            with stream_of(catalog.table("mixed"), order, formation=formation) as stream:
                rows = stream.explain().to_dict()["sample"]["randomness"]
            assert all(0 <= row["P(same shard)"]["value"] <= 1 for row in rows)


def test_in_a_mixture_every_stream_says_it(catalog: sp.Catalog) -> None:
    mixed = sp.mix(
        [sp.Stream(name, catalog.table(name), proportion=0.5) for name in ("sorted", "mixed")], epoch_size=960
    )
    with stream_of(mixed, sp.orders.WithinShards(3)) as stream:
        rows = in_words(stream.explain())["sample"]["streams"]

    told = {(row["stream"], row["order"].strip("-> ")): row for row in rows}
    assert set(told) == {(name, order) for name in ("sorted", "mixed") for order in ("WithinShards", "at random")}
    assert told["sorted", "WithinShards"]["P(same shard)"].startswith("~")


def warned(stream: sp.PreparedStream) -> str:
    with stream:
        return "\n".join(stream.explain().to_dict()["warnings"])


WARNS: list[tuple[Callable[[], Any], str, bool]] = [
    (lambda: sp.orders.WithinShards(3), "sorted", True),
    (lambda: sp.orders.WithinShards(3), "mixed", False),
    (lambda: sp.orders.WindowShuffle(3, window=30), "sorted", True),
    (lambda: sp.ShardAwareShuffle(3, shuffle_block_size=60), "sorted", True),
    (lambda: sp.ShardAwareShuffle(3), "sorted", False),
    (lambda: sp.GlobalShuffle(3), "sorted", False),
    (sp.Sequential, "sorted", False),  # which promises no more
]


@pytest.mark.parametrize(("order", "name", "warns"), WARNS)
def test_batches_of_one_label_are_warned_of(catalog: sp.Catalog, order: Any, name: str, warns: bool) -> None:
    text = warned(stream_of(catalog.table(name), order()))

    assert ("values of label on average, and rows at random" in text) is warns
    assert ("keeps rows of a shard together, and shards differ in label. " in text) is warns


def test_shards_of_one_label_each_give_batches_of_one_label(catalog: sp.Catalog) -> None:
    text = warned(stream_of(catalog.table("sorted"), sp.orders.WithinShards(3), batch_size=20))

    assert "batches hold 1.0 values of label on average, and rows at random 7." in text
    assert "GlobalShuffle, or ShardAwareShuffle over blocks of several shards mixes them" in text


@few(4, 12)
@given(epoch=st.integers(0, 6), block=st.sampled_from([60, 120, 240]), batch_size=st.sampled_from([20, 30, 60]))
def test_blocks_are_those_of_the_epoch_that_is_explained(
    catalog: sp.Catalog, epoch: int, block: int, batch_size: int
) -> None:
    order = sp.ShardAwareShuffle(5, shuffle_block_size=block)
    kept = catalog.table("sorted").filter(sp.col("quality") > 0.23)  # shards of unequal size, so that epochs differ
    with stream_of(kept, order, batch_size, last=sp.KeepPartial) as stream:
        sample = stream.bind(epoch=epoch).explain().to_dict()["sample"]
        rows = {each["shuffle_block_size"]["figures"]["rows"]["value"]: each for each in sample["randomness"]}
        row = rows[block]
        same, _, labels = measured(stream)
        ids = np.array([int(one.split("-")[1]) for batch in stream.bind(epoch=epoch) for one in batch["id"]])
    for other in rows:
        with stream_of(kept, sp.ShardAwareShuffle(5, shuffle_block_size=other), batch_size, last=sp.KeepPartial) as one:
            same_then, _, labels_then = measured(one.bind(epoch=epoch))
        assert rows[other]["P(same shard)"]["value"] == pytest.approx(same_then, abs=0.08)
        assert rows[other]["label/batch"]["value"] == pytest.approx(labels_then, abs=0.45)
    shards = ids * SHARDS // ROWS
    blocks = [np.unique(shards[at : at + block]) for at in range(0, len(shards), block)]

    assert row["shards/block"]["value"] == pytest.approx(np.mean([len(each) for each in blocks]))
    assert row["run length"]["value"] == pytest.approx(len(shards) / sum(len(each) for each in blocks))
    assert row["P(same shard)"]["value"] == pytest.approx(same, abs=0.06)
    assert row["label/batch"]["value"] == pytest.approx(labels, abs=0.35)  # the last batch is short


def test_labels_of_some_batches_are_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MEETING_ROWS", 96)
    catalog = sp.connect(tmp_path)
    table = pa.table({"id": range(960), "label": [i % 7 for i in range(960)]})
    catalog.register("rows", sp.Arrow(table), identity="id")
    fields = {"label": sp.Stack("label")}
    for order in (sp.GlobalShuffle(3), sp.ShardAwareShuffle(3)):
        with catalog.table("rows").sample(order=order).collate(batch_size=24, fields=fields).to_numpy() as stream:
            row = stream.explain().to_dict()["sample"]["randomness"][0]
        assert row["label/batch"]["mark"] == "estimated"
        assert row["label/batch"]["source"] == "4 of the epoch's batches or windows"

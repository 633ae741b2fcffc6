"""What lies around the bytes that batches read comes in few requests, is what the rest of the epoch reads, and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.runtime import read_ahead
from spiral_stream.storage.node_cache.file import BLOCK, PART
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from tests.fixtures import stores, streams

ROWS = 64
ORDER = sp.GlobalShuffle(seed=3)
SIZE = 2 * BLOCK  # of an image
RANGE = pa.struct({"uri": pa.utf8(), "offset": pa.int64(), "length": pa.int64()})


@pytest.fixture(scope="module")
def catalog(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sp.Catalog]:
    """``files`` of this machine; ``packed``, where images of 128 KiB lie one after the other; ``spaced``, with others between."""
    folder = tmp_path_factory.mktemp("around")
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("around", prefix=uri, **stores.options(s3_endpoint))
    store, _ = store_of(uri)
    catalog, table = sp.connect(str(folder / "catalog")), streams.images(ROWS)
    images = [each.ljust(SIZE, b"\0") for each in table["image_ref"].to_pylist()]
    for name, step in (("files", 1), ("packed", 1), ("spaced", 3)):
        data = b"".join(each.ljust(step * SIZE, b"\0") for each in images)
        (folder / name).write_bytes(data)
        if name != "files":
            store.put(name, data)
        base = str(folder / name) if name == "files" else f"{uri}/{name}"
        refs = pa.array([{"uri": base, "offset": at * step * SIZE, "length": SIZE} for at in range(ROWS)], RANGE)
        rows = sp.Arrow(table.set_column(2, "image_ref", refs))
        catalog.register(name, rows, semantic={"image_ref": "image/jpeg-ref"})
    yield catalog
    use_storage("around", prefix=uri)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    monkeypatch.setattr(read_ahead, "NEXT_EPOCH_BYTES", 0)  # only what this epoch reads is counted


def plan(relation: sp.Relation, order: Any = ORDER, last: Any = sp.DropPartial) -> sp.Relation:
    return streams.plan(relation, order=order, last=last, batch_size=1)


def epoch(relation: sp.Relation, state: Any = None, bound: dict[str, int] | None = None, **options: Any) -> Any:
    """The batches of what is left of an epoch, and what was asked of the store for them."""
    with plan(relation, **options).to_numpy(prefetch=3) as stream:
        stream.bind(**bound or {})
        if state is not None:
            stream.load_state_dict(state)
        return list(stream), stream.metrics()["network"]


def same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("image", "label", "id"):
            np.testing.assert_array_equal(mine[name], other[name])


def test_many_images_come_in_few_requests(catalog: sp.Catalog) -> None:
    ours, network = epoch(catalog.table("packed"))
    same(ours, epoch(catalog.table("files"))[0])
    assert network["requests"] < 3 * ROWS / 4  # each of the first ones leaves a gap in the rest
    assert network["bytes"] == ROWS * SIZE


def test_what_no_row_names_stays_where_it_is(catalog: sp.Catalog) -> None:
    ours, network = epoch(catalog.table("spaced"))
    same(ours, epoch(catalog.table("files"))[0])
    assert network["bytes"] == ROWS * SIZE


@pytest.mark.parametrize("order", [ORDER, sp.ShardAwareShuffle(seed=3, shuffle_block_size=32), sp.Sequential()])
def test_rows_that_do_not_survive_are_left_out(catalog: sp.Catalog, order: Any) -> None:
    relation = catalog.table("packed").where(sp.col("label_id") < 2)
    ours, network = epoch(relation, order=order, last=sp.KeepPartial)
    assert network["bytes"] == len(ours) * SIZE < ROWS * SIZE


def test_another_nodes_rows_are_left_out(catalog: sp.Catalog) -> None:
    whole, _ = epoch(catalog.table("files"), last=sp.KeepPartial)
    parts = [
        epoch(catalog.table("packed"), bound={"data_parallel_rank": rank, "data_parallel_world_size": 2})
        for rank in range(2)
    ]
    assert sorted(streams.identities(parts[0][0] + parts[1][0])) == sorted(streams.identities(whole))
    assert [network["bytes"] for _, network in parts] == [ROWS // 2 * SIZE] * 2


def test_batches_that_the_run_does_not_take_are_left_out(catalog: sp.Catalog) -> None:
    ours, network = epoch(catalog.table("packed"), bound={"steps_per_epoch": 40})
    same(ours, epoch(catalog.table("files"))[0][:40])
    assert network["bytes"] == 40 * SIZE


def test_what_was_delivered_before_a_resume_is_left_out(
    catalog: sp.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = epoch(catalog.table("files"))
    with plan(catalog.table("packed")).to_numpy() as stream:
        batches = iter(stream)
        same([next(batches) for _ in range(40)], whole[:40])
        state = stream.state_dict()
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "another"))
    rest, network = epoch(catalog.table("packed"), state)
    same(rest, whole[40:])
    assert network["bytes"] == 24 * SIZE


def test_nothing_goes_for_it(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(PART))
    ours, network = epoch(catalog.table("packed"))
    same(ours, epoch(catalog.table("files"))[0])
    assert network["requests"] > ROWS / 2


@pytest.mark.usefixtures("no_threads_left")
def test_closing_ends_it(catalog: sp.Catalog) -> None:
    stream = plan(catalog.table("packed")).to_numpy(prefetch=3)
    next(iter(stream))
    stream.close()
    assert not streams.our_threads()


def test_bytes_in_the_relation_itself_are_not_read_for_it(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, asked = streams.images(ROWS), list[int]()
    lance.write_dataset(table, f"{bucket}/rows.lance", storage_options=options_of(bucket))
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Lance(f"{bucket}/rows.lance"), semantic={"image_ref": "image/jpeg-ref"})
    fetch = OpenRelation.fetch

    def counting(self: OpenRelation, rows: Any, columns: Any) -> pa.Table:
        if "image_ref" in columns:
            asked.extend(rows.tolist())
        return fetch(self, rows, columns)

    monkeypatch.setattr(OpenRelation, "fetch", counting)
    ours, _ = epoch(catalog.table("rows"))
    assert len(ours) == ROWS
    assert len(asked) < 2 * ROWS  # one for `waits`

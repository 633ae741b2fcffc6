"""What the next epoch's first batches read from a store is fetched before the present epoch ends, and changes nothing."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.semantic import H264_REF
from spiral_stream.sources.lance.source import LanceReader
from spiral_stream.sources.references.policy import Reach
from spiral_stream.storage.node_cache.store import NodeStore
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from spiral_stream.storage.store import Get
from tests.fixtures import sounds, stores, streams
from tests.fixtures.inner import batches_of
from tests.fixtures.videos import Made, write_video
from tests.fixtures.waits import until

pytestmark = pytest.mark.usefixtures("no_threads_left")

ROWS, PREFETCH = 24, 2
COLUMNS = ("image", "photos", "sound", "raw")
FIELDS = {
    "image": sp.Stack("image", decode="jpeg", transforms=[sp.RandomResizedCrop(size=8)]),
    "photos": sp.Stack("photos", decode="jpeg", transforms=[sp.RandomResizedCrop(size=8)]),
    "sound": sp.Stack("sound", decode="audio", sample_rate=8000, sequence_length=64),
    "raw": sp.List("raw"),
}
SEMANTIC = {"image": "image/jpeg-ref", "photos": "image/jpeg-ref", "sound": "audio/ref", "raw": "image/jpeg-ref"}
PACKED = {"tokens": sp.Pad("tokens"), "raw": sp.List("raw")}
TWO = {"rank": 1, "world_size": 2}
PLANS: dict[str, dict[str, Any]] = {
    "counted": {"batch_size": 3},
    "nodes": {"batch_size": 2, "lanes": 2, "bound": {"rank": 1, "world_size": 4, "ranks_per_node": 2}},
    "windowed": {"formation": sp.WindowedBucket(6, [sp.BucketKey("n")], sp.BatchBudget(max_images=5)), "lanes": 2},
    "packed": {"formation": sp.batching.Packed(max_tokens=24, window_size=12), "fields": PACKED},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The threads that read through the node cache, and the objects that they name."""
    found: list[tuple[str, str]] = []
    read = NodeStore.read

    def told(self: NodeStore, wanted: Sequence[Get]) -> Any:
        found.extend((threading.current_thread().name, each.key) for each in wanted)
        return read(self, wanted)

    monkeypatch.setattr(NodeStore, "read", told)
    return found


def ahead(asked: list[tuple[str, str]], wanted: set[str]) -> set[str]:
    """The objects that were read for the next epoch, once these are among them."""

    def found() -> set[str]:
        return {key for name, key in list(asked) if name.startswith("spiral-ahead")}

    until(lambda: found() >= wanted)
    return found()


def table(uri: str, rows: int = ROWS) -> pa.Table:
    """Rows whose columns name objects, which are put there."""
    store, prefix = store_of(f"{uri}/")
    pictures, (wave, _, _) = streams.images(rows)["image_ref"].to_pylist(), sounds.recording("wav", 0.02)
    for at, picture in enumerate(pictures):
        for column in COLUMNS:
            store.put(f"{prefix}{column}/{at:02}", wave if column == "sound" else picture)
    named = {column: [f"{uri}/{column}/{at:02}" for at in range(rows)] for column in COLUMNS}
    named["photos"] = [[each] * (at % 3) for at, each in enumerate(named["photos"])]
    tokens = [list(range(3 + at % 5)) for at in range(rows)]
    return pa.table(
        {"id": [f"{at:02}" for at in range(rows)], "n": [len(t) for t in tokens], "tokens": tokens, **named}
    )


@pytest.fixture(scope="module")
def uri(s3_endpoint: str) -> Iterator[str]:
    found = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("next", prefix=found, **stores.options(s3_endpoint))
    yield found
    use_storage("next", prefix=found)


@pytest.fixture(scope="module")
def catalog(uri: str, tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    folder = tmp_path_factory.mktemp("next")
    made = sp.connect(str(folder / "catalog"))
    rows = table(uri)
    made.register("far", sp.Arrow(rows), identity="id", semantic=SEMANTIC)
    video = write_video(folder / "video.mp4", Made(frames=8, width=64, height=48, gop=4))
    for name, bytes_of in (("a", streams.images(9)["image_ref"].to_pylist()), ("b", [video.read_bytes()] * 9)):
        for at, data in enumerate(bytes_of):
            (folder / f"{name}{at}").write_bytes(data)
            store_of(f"{uri}/clip/{at:02}")[0].put(f"clip/{at:02}", data)
    for name, image, clip in (("remote", f"{uri}/image/0", f"{uri}/clip/0"), ("local", f"{folder}/a", f"{folder}/b")):
        members = {"id": [f"{name} {at}" for at in range(9)], "image": [f"{image}{at}" for at in range(9)]}
        made.register(
            name,
            sp.Arrow(pa.table({**members, "clip": [f"{clip}{at}" for at in range(9)]})),
            identity="id",
            semantic={"image": "image/jpeg-ref", "clip": H264_REF},
        )
    return made


@pytest.fixture(scope="module")
def relation(catalog: sp.Catalog) -> sp.Relation:
    return catalog.table("far")


def stream(
    relation: sp.Relation, *, fields: Any = FIELDS, lanes: int = 1, bound: dict[str, int] = TWO, **how: Any
) -> Any:
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=lanes)
    sampled = relation.sample(identity="id", order=sp.GlobalShuffle(seed=5), assignment=ranks)
    given = {"fields": {**fields, "id": sp.List("id")}, "batch_size": None, "last": sp.KeepPartial, **how}
    return sampled.collate(**given).to_numpy(prefetch=PREFETCH).bind(**bound)


def ids(batch: Any) -> list[str]:
    return [each for row in batch["id"] for each in ([row] if isinstance(row, str) else row)]


def same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right) > PREFETCH
    for one, other in zip(left, right, strict=True):
        for name in one:
            if isinstance(one[name], list):
                assert list(one[name]) == list(other[name])
            else:
                np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("kind", PLANS)
def test_what_the_next_epoch_reads_first_is_fetched_and_nothing_else_changes(
    kind: str, relation: sp.Relation, asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")
    with stream(relation, **PLANS[kind]) as alone:
        right, state, counts = list(alone), alone.state_dict(), alone.metrics()
        then = list(alone)
    columns = [name for name in COLUMNS if name in PLANS[kind].get("fields", FIELDS)]
    first = {row for batch in then[:PREFETCH] for row in ids(batch)}
    wanted = {f"{name}/{row}" for name in columns for row in first if name != "photos" or int(row) % 3}
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    asked.clear()
    with stream(relation, **PLANS[kind]) as reader:
        found = list(reader)
        assert ahead(asked, wanted) == wanted
        assert reader.state_dict() == state
        now = reader.metrics()
        assert {name: now[name] for name in ("samples", "dropped", "filtered")} == {
            name: counts[name] for name in ("samples", "dropped", "filtered")
        }
        same([*found, *reader], right + then)
        assert reader.metrics()["network"]["requests"] <= len({key for _, key in asked})  # nothing came twice


def test_of_a_mixture_only_the_remote_member_is_looked_at(
    catalog: sp.Catalog, asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    own = Reach.open

    def told(self: Reach, reference: str, row: int) -> Any:
        opened.append(threading.current_thread().name)
        return own(self, reference, row)

    monkeypatch.setattr(Reach, "open", told)
    mixed = sp.mix([sp.Stream(name, catalog.table(name), proportion=0.5) for name in ("remote", "local")])
    clip = sp.Stack("clip", decode="h264", sequence_length=2, crop=(16, 16))
    how: dict[str, Any] = {
        "fields": {"image": FIELDS["image"], "clip": clip},
        "batch_size": 2,
        "last": sp.batching.PadPartial,
    }
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")
    with stream(mixed, **how) as alone:
        right, then = list(alone), list(alone)
    rows = [each.split() for batch in then[:PREFETCH] for each in ids(batch)]
    wanted = {f"{column}/0{at}" for member, at in rows if member == "remote" for column in ("image", "clip")}
    assert {member for member, _ in rows} == {"remote", "local"}
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    asked.clear()
    opened.clear()
    with stream(mixed, **how) as reader:
        found = list(reader)
        assert ahead(asked, wanted) == wanted
        same([*found, *reader], right + then)
    assert opened
    assert not [name for name in opened if name.startswith("spiral-ahead")]


@pytest.mark.usefixtures("catalog")  # which puts the objects
def test_of_tables_on_a_store_what_the_node_cache_keeps_is_read_ahead(
    uri: str, asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, tuple[str, ...]]] = []
    fetch = LanceReader.fetch

    def told(self: LanceReader, rows: Any, columns: Sequence[str]) -> pa.Table:
        read.append((threading.current_thread().name, tuple(columns)))
        return fetch(self, rows, columns)

    monkeypatch.setattr(LanceReader, "fetch", told)
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    rows = pa.table(
        {
            "id": [f"{at:02}" for at in range(ROWS)],
            "image": streams.images(ROWS)["image_ref"],
            "raw": [f"{uri}/raw/{at:02}" for at in range(ROWS)],
        }
    )
    catalog = sp.connect(str(tmp_path / "catalog"))
    lance.write_dataset(rows, f"{uri}/rows.lance", storage_options=options_of(uri))
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=2)
    store_of(uri + "/rows.parquet")[0].put("rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    fields = {"image": FIELDS["image"], "raw": sp.List("raw")}
    for name, source in (("lance", sp.Lance(f"{uri}/rows.lance")), ("parquet", sp.Parquet(f"{uri}/rows.parquet"))):
        catalog.register(name, source, identity="id", semantic={"image": "image/jpeg-ref", "raw": "image/jpeg-ref"})
        with stream(catalog.table(name), batch_size=3, fields=fields) as alone:
            list(alone)
            first = [row for _ in range(PREFETCH) for row in ids(next(iter(alone)))]
        asked.clear()
        with stream(catalog.table(name), batch_size=3, fields=fields) as reader:
            list(reader)
            wanted = {f"raw/{row}" for row in first} | ({"rows.parquet"} if name == "parquet" else set())
            assert ahead(asked, wanted) == wanted
    assert {columns for name, columns in read if name.startswith("spiral-ahead")} == {("raw",)}


def test_where_all_is_local_no_thread_looks_ahead(catalog: sp.Catalog) -> None:
    with stream(catalog.table("local"), batch_size=3, fields={"image": FIELDS["image"]}) as reader:
        for _ in range(2):
            assert len(list(reader)) > 0
            assert not [name for name in streams.our_threads() if name.startswith("spiral-ahead")]


def test_no_function_is_called_before_its_time(
    relation: sp.Relation, asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    calling: list[str] = []

    def size(n: pa.Array) -> pa.Array:
        calling.append(threading.current_thread().name)
        return n

    sampled = relation.sample(order=sp.GlobalShuffle(seed=5)).map(size, columns=["n"], name="size", returns=pa.int64())
    fields = {"size": sp.Stack("size"), "raw": sp.List("raw"), "id": sp.List("id")}
    with sampled.collate(batch_size=3, fields=fields).to_numpy(prefetch=PREFETCH).bind(rank=1, world_size=2) as reader:
        list(reader)
        wanted = {f"raw/{row}" for number in (1, 3) for row in ids(reader.batch(number, epoch=1))}
        assert ahead(asked, wanted) == wanted
    assert calling
    assert not [name for name in calling if name.startswith("spiral-ahead")]
    formed = sp.WindowedBucket(6, [sp.BucketKey("size")], sp.BatchBudget(max_images=5))
    photos = {"photos": FIELDS["photos"], "id": sp.List("id")}
    with sampled.collate(batch_size=None, formation=formed, fields=photos).to_numpy() as reader:
        assert batches_of(reader).forming.unknown()


def test_after_the_last_epoch_nothing_is_fetched_for_another(
    relation: sp.Relation, asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"batch_size": 3, "fields": {"raw": sp.List("raw")}}
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")
    with stream(relation, **how) as alone:
        right, then, third = list(alone), list(alone), list(alone)
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    asked.clear()
    with stream(relation, **how).bind(epochs=2) as reader:
        same(list(reader), right)
        wanted = {f"raw/{row}" for batch in then[:PREFETCH] for row in ids(batch)}
        assert ahead(asked, wanted) == wanted
        state = reader.state_dict()
        same(list(reader), then)
        last = reader.state_dict()
    with stream(relation, **how).bind(epochs=2) as resumed:
        resumed.load_state_dict(state)
        same(list(resumed), then)
        assert not [name for name in streams.our_threads() if name.startswith("spiral-ahead")]
        assert resumed.state_dict() == last
        same(list(resumed), third)  # whoever goes on all the same gets what there is
        assert not [name for name in streams.our_threads() if name.startswith("spiral-ahead")]
        same(list(resumed.bind(epoch=0)), right)
        assert [name for name in streams.our_threads() if name.startswith("spiral-ahead")]

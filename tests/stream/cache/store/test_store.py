"""One cache on disk: parts, ledger, commits, and what a reader sees of them."""

import ctypes
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import lance
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.cache.store.part_rows import Chunk
from spiral_stream.cache.store.reader import CachedShard, CacheReader, OpenShards, parts_of
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.errors import CacheError, DamageError
from tests.fixtures.examples import few
from tests.fixtures.mutations import mutated_bytes

SHARD_ROWS = 40


def payload(offset: int) -> bytes:
    return bytes([offset % 251]) * (1 + 13 * offset % 300)


def chunk(offsets: list[int], refused: dict[int, str] | None = None) -> Chunk:
    bad = refused or {}
    payloads = [b"" if o in bad else payload(o) for o in offsets]
    beside = {"height": np.arange(len(offsets), dtype=np.int32) + 1, "width": np.full(len(offsets), 7, dtype=np.int32)}
    reasons = {at: bad[o] for at, o in enumerate(offsets) if o in bad}
    rows = Rows(b"".join(payloads), np.array([len(p) for p in payloads], dtype=np.int64), reasons, beside, 0)
    return np.array(offsets, dtype=np.uint32), rows


def write(store: CacheStore, key: str, offsets: list[int], refused: dict[int, str] | None = None) -> None:
    pieces = [offsets[i : i + 8] for i in range(0, len(offsets), 8)]
    store.write(key, SHARD_ROWS, (chunk(piece, refused) for piece in pieces))


def stored(shard: CachedShard, at: int) -> bytes:
    addresses, lengths = shard.locate(np.array([at]))
    return ctypes.string_at(int(addresses[0]), int(lengths[0]))


def stored_rows(store: CacheStore) -> list[tuple[str, int]]:
    """Every row that a reader's dataset holds, as (part file's shard key, offset)."""
    dataset = lance.dataset(str(store.folder / "data.lance"))
    fragments = {each.metadata.files[0].path: each for each in dataset.get_fragments()}
    return [
        (key, row)
        for key, file in parts_of(dataset)
        for row in fragments[file].to_table(columns=["row"])["row"].to_pylist()
    ]


@few(6, 15)
@given(st.lists(st.integers(0, SHARD_ROWS - 1), unique=True, min_size=1), st.data())
def test_what_is_stored_is_found_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], data: st.DataObject
) -> None:
    store = CacheStore(tmp_path_factory.mktemp("cache"), {})
    offsets = sorted(offsets)
    refused = {o: f"bad {o}" for o in offsets if data.draw(st.integers(0, 4)) == 0}
    cut = data.draw(st.integers(0, len(offsets)))
    for part in (offsets[:cut], offsets[cut:]):
        if part:
            write(store, "k", part, refused)
    store.commit()
    reader = store.open()
    assert reader is not None
    shard = reader.shard("k")
    assert shard is not None
    asked = np.array(data.draw(st.permutations(range(SHARD_ROWS))), dtype=np.uint64)

    for offset, at in zip(asked.tolist(), shard.find(asked).tolist(), strict=True):
        if offset not in offsets:
            assert at == -1
        elif offset in refused:
            assert shard.refused(at) == f"bad {offset}"
        else:
            assert shard.refused(at) is None
            assert stored(shard, at) == payload(offset)
            assert int(shard.narrow["width"][at]) == 7


def test_payload_is_packed_in_one_blob_file_that_is_mapped(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {"profile": "raw"})
    write(store, "k", list(range(SHARD_ROWS)))
    store.commit()
    blobs = list((tmp_path / "data.lance").rglob("*.blob"))
    reader = store.open()
    assert reader is not None
    shard = reader.shard("k")
    assert shard is not None

    assert len(blobs) == 1
    assert blobs[0].stat().st_size == sum(len(payload(o)) for o in range(SHARD_ROWS))
    assert stored(shard, int(shard.find(np.array([5], dtype=np.uint64))[0])) == payload(5)
    assert str(blobs[0]) in Path("/proc/self/maps").read_text()
    assert json.loads((tmp_path / "cache.json").read_text()).items() >= {"profile": "raw"}.items()
    dataset = lance.dataset(str(tmp_path / "data.lance"))
    assert dataset.schema.names == ["row", "height", "width", "refused", "payload"]  # of every image cache there is
    assert dataset.count_rows() == SHARD_ROWS
    assert dataset.has_stable_row_ids


def test_a_commit_ends_while_others_finish_parts_faster_than_it_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = CacheStore(tmp_path, {}), count()
    write(store, "first", [0, 1])
    commit = lance.LanceDataset.commit

    def slow(*args: Any, **options: Any) -> Any:
        write(store, f"part-{next(made)}", [0])
        return commit(*args, **options)

    monkeypatch.setattr(lance.LanceDataset, "commit", slow)
    store.commit()

    assert "first" in store.covered(committed=True)
    assert next(made) == 1
    monkeypatch.undo()
    store.commit()
    assert set(store.covered(committed=True)) == {"first", "part-0"}


@pytest.mark.parametrize("attempt", range(3))
def test_threads_that_make_the_first_commit_together_all_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    """A machine that enters what others put on a store has parts and no dataset yet."""
    write(CacheStore(tmp_path / "cache", {}), "a", [0, 10])
    shutil.rmtree(tmp_path / "cache" / "data.lance" / "_versions")
    together, real = Barrier(8), lance.LanceDataset.commit

    def commit(*args: Any, **options: Any) -> Any:
        with suppress(BrokenBarrierError):
            together.wait(1)
        return real(*args, **options)

    monkeypatch.setattr(lance.LanceDataset, "commit", commit)
    with ThreadPoolExecutor(8) as pool:
        stores = [CacheStore(tmp_path / "cache", {}) for _ in range(8)]
        done = [pool.submit(store.commit) for store in stores]
        assert all(each.result(60) for each in done)
    assert stored_rows(stores[0]) == [("a", 0), ("a", 10)]


def test_nothing_is_seen_before_the_commit_and_everything_after(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    assert store.open() is None
    assert store.commit() == 0
    write(store, "a", [0, 1])
    early = store.open()
    assert early is not None
    assert "a" not in early
    assert early.shard("a") is None
    assert store.covered()["a"].tolist() == [True, True, *[False] * 38]

    assert store.covered(committed=True) == {}
    version = store.commit()
    write(store, "b", [3])
    assert set(store.covered()) == {"a", "b"}
    assert store.covered(committed=True)["a"].tolist() == [True, True, *[False] * 38]
    assert "b" not in store.covered(committed=True)
    assert store.commit() > version
    assert store.commit() == store.commit()

    late = store.open()
    assert late is not None
    assert "a" in late
    assert "b" in late
    assert "a" not in early  # a reader keeps the version it pinned


def test_a_part_that_adds_nothing_is_left_out(tmp_path: Path) -> None:
    one, two = CacheStore(tmp_path, {}), CacheStore(tmp_path, {})
    write(one, "a", [0, 1, 2])
    write(two, "a", [0, 1, 2])
    write(two, "a", [2, 3])
    one.commit()
    two.commit()

    rows = stored_rows(one)
    assert {offset for _, offset in rows} == {0, 1, 2, 3}
    assert len([row for row in rows if row == ("a", 0)]) == 1


def test_a_part_that_fails_leaves_no_trace_in_the_ledger(tmp_path: Path) -> None:
    def breaks() -> Iterator[Chunk]:
        yield chunk([0, 1])
        raise RuntimeError("the disk of the source is gone")

    store = CacheStore(tmp_path, {})
    write(store, "a", [5])
    with pytest.raises(RuntimeError, match="the disk of the source is gone"):
        store.write("b", SHARD_ROWS, breaks())
    store.commit()

    assert set(store.covered()) == {"a"}
    assert stored_rows(store) == [("a", 5)]


@pytest.mark.parametrize("blocked", ["", "ledger"])
def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path, blocked: str) -> None:
    folder = tmp_path / "cache"
    if blocked:
        folder.mkdir()
    (folder / blocked if blocked else folder).write_text("a file in the folder's place")
    store = CacheStore(folder, {})

    with pytest.raises(CacheError, match=rf"cannot write under {folder} .*Make it writable.*\$SPIRAL_CACHE"):
        write(store, "a", [0])


def test_a_cache_of_another_layout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CacheStore(tmp_path, {})
    write(store, "a", [0, 1])
    store.commit()
    reader = store.open()
    assert reader is not None

    def inline(_: Any) -> Any:
        table = lance.dataset(str(tmp_path / "data.lance")).to_table()
        struct = table["payload"].combine_chunks()
        inlined = [{**each, "kind": 0} for each in struct.to_pylist()]
        import pyarrow as pa

        return table.set_column(4, "payload", pa.array(inlined, struct.type))

    monkeypatch.setattr(lance.LanceFragment, "to_table", inline)
    with pytest.raises(
        CacheError, match=r"is not one packed blob file.*Build that shard again with stream.materialize\(\)"
    ):
        reader.shard("a")


@pytest.mark.parametrize("left", [0, 10, None])
def test_a_blob_file_that_lost_bytes_is_refused_before_it_is_followed(tmp_path: Path, left: int | None) -> None:
    store = CacheStore(tmp_path, {})
    write(store, "a", [0, 1, 20])
    store.commit()
    blob = next((tmp_path / "data.lance").rglob("*.blob"))
    if left is None:
        blob.unlink()
    else:
        os.truncate(blob, left)
    reader = store.open()
    assert reader is not None

    message = rf"{blob} is damaged: it has {left or 0} bytes, \d+ were written.*again with stream.materialize\(\)"
    with pytest.raises(CacheError, match=message):
        reader.shard("a")


def test_opened_shards_stay_within_the_byte_limit(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    for key in "abcd":
        write(store, key, list(range(SHARD_ROWS)))
    store.commit()
    shards = OpenShards(20 * SHARD_ROWS * 2)
    reader = CacheReader(lance.dataset(str(tmp_path / "data.lance")), tmp_path / "data.lance", shards)
    for key in "abcdabcd":
        shard = reader.shard(key)
        assert shard is not None
        assert stored(shard, 3) == payload(3)

        assert shards._bytes == sum(each.nbytes for each in shards._open.values()) <= 20 * SHARD_ROWS * 2


def test_readers_of_a_store_share_what_is_opened_until_its_file_changes(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    write(store, "a", list(range(SHARD_ROWS)))
    store.commit()
    first = store.open()
    assert first is not None
    opened = first.shard("a")
    write(store, "b", list(range(SHARD_ROWS)))
    store.commit()  # another version, which has the same files and more
    second = store.open()
    assert second is not None
    assert second.shard("a") is opened

    (entry,) = [each for each in store.ledger.entries() if each.key == "a"]
    blob = store.part(entry).blob
    blob.write_bytes(mutated_bytes(blob.read_bytes(), 3))
    third = store.open()
    assert third is not None
    again = third.shard("a")
    assert again is not opened
    with pytest.raises(DamageError, match="is damaged"):
        third.verify(*again.locate(again.find(np.arange(SHARD_ROWS))))

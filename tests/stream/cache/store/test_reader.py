"""What a reader keeps of a shard: 12 bytes a row, addresses that are aligned, each row once."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.cache.store.reader import CachedShard
from spiral_stream.cache.store.store import CacheStore

SHARD_ROWS = 50


def write(store: CacheStore, offsets: list[int], sizes: list[int], refused: dict[int, str] | None = None) -> None:
    """One part; the payload of row k is so many times the byte k."""
    payload = b"".join(bytes([offset]) * size for offset, size in zip(offsets, sizes, strict=True))
    rows = Rows(payload, np.array(sizes, dtype=np.int64), refused or {}, {}, len(payload))
    store.write("k", SHARD_ROWS, iter([(np.array(offsets, dtype=np.uint32), rows)]))


def opened(store: CacheStore) -> CachedShard:
    store.commit()
    reader = store.open()
    assert reader is not None
    shard = reader.shard("k")
    assert shard is not None
    return shard


def stored(shard: CachedShard, offset: int) -> bytes:
    address, size = shard.locate(shard.find(np.array([offset])))
    return ctypes.string_at(int(address[0]), int(size[0]))


def test_a_whole_shard_costs_12_bytes_a_row_and_some_rows_4_more(tmp_path: Path) -> None:
    whole, some = CacheStore(tmp_path / "whole", {}), CacheStore(tmp_path / "some", {})
    write(whole, list(range(SHARD_ROWS)), [3] * SHARD_ROWS)
    write(some, list(range(1, SHARD_ROWS)), [3] * (SHARD_ROWS - 1))

    assert opened(whole).nbytes == 12 * SHARD_ROWS
    assert opened(whole).leading == SHARD_ROWS
    assert opened(some).nbytes == 16 * (SHARD_ROWS - 1)
    assert opened(some).leading == 0


def test_rows_that_two_builders_stored_are_found_once(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    write(store, [5, 6, 7], [2, 2, 2])
    write(store, [0, 1, 2, 3, 4, 5, 6], [4] * 7)
    shard = opened(store)

    assert len(shard.sizes) == shard.leading == 8
    assert [stored(shard, row)[:1] for row in range(8)] == [bytes([row]) for row in range(8)]
    assert shard.find(np.array([8, 49, 0])).tolist() == [-1, -1, 0]


@pytest.mark.parametrize(("sizes", "alignment"), [([4, 0, 8], 4), ([4, 2, 8], 2), ([4, 3, 8], 1), ([0, 0, 0], 8)])
def test_addresses_are_as_aligned_as_all_sizes_before(tmp_path: Path, sizes: list[int], alignment: int) -> None:
    store = CacheStore(tmp_path, {})
    write(store, [0, 1, 2], sizes)
    shard = opened(store)

    assert shard.alignment % alignment == 0
    assert sizes == [0, 0, 0] or shard.alignment == alignment
    assert not (shard.addresses % np.uint64(shard.alignment)).any()


def test_an_empty_row_is_stored_and_a_refused_one_says_why(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    write(store, [0, 1, 2, 3], [2, 0, 0, 2], {2: "no text"})
    shard = opened(store)

    assert [stored(shard, row) for row in range(4)] == [b"\0\0", b"", b"", b"\3\3"]
    assert [shard.refused(at) for at in range(4)] == [None, None, "no text", None]
    assert shard.any_refused

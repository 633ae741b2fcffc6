"""What is counted to be fetched again is what a node cache fetches again, in the same order and with the same limit."""

import os
from pathlib import Path

import numpy as np
import pytest

from spiral_stream.explain.eviction import Evicting
from spiral_stream.storage import node_open, node_store
from spiral_stream.storage.node_files import BLOCK, data_file
from spiral_stream.storage.own_bytes import read_kept
from tests.fixtures.node_processes import key_of

FILES, BYTES = 24, 10 * BLOCK + 1_000
Ask = tuple[int, list[tuple[int, int]]]  # a file; offsets and lengths


def in_ranges(rng: np.random.Generator) -> list[Ask]:
    """Samples of 20 kB in tars, a few neighbouring tars at a time."""
    asks = []
    for _ in range(2):
        for block in rng.permutation(FILES // 4):
            for _ in range(40):
                file = int(block * 4 + rng.integers(4))
                asks.append((file, [(int(rng.integers(BYTES - 20_000)), 20_000)]))
    return asks


def whole(rng: np.random.Generator) -> list[Ask]:
    """Whole files in a global order."""
    return [(int(file), [(0, BYTES)]) for _ in range(3) for file in rng.permutation(FILES)]


def again_and_again(rng: np.random.Generator) -> list[Ask]:
    """Whole files, some far more often than others."""
    return [(int(file) % FILES, [(0, BYTES)]) for file in rng.geometric(0.15, 120)]


@pytest.mark.parametrize("order", [in_ranges, whole, again_and_again])
@pytest.mark.parametrize("share", [3, 8])
def test_a_node_cache_fetches_what_is_counted(
    order: object, share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = order(np.random.default_rng(7))  # type: ignore[operator]  # one of the above
    limit = FILES * BYTES // share
    clock = iter(range(10**9))
    monkeypatch.setattr(node_open.NodeFile, "stamp", lambda self: os.utime(self.handle, ns=(0, next(clock) * 1000)))
    counted = Evicting(limit, kept_again=1)
    monkeypatch.setattr(node_store, "KEPT_AGAIN", 1)
    fetched = 0

    def download(offset: int, length: int) -> bytes:
        nonlocal fetched
        fetched += length
        return bytes(length)

    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(limit))
    for file, ranges in asks:
        uri = f"s3://b/{file}"
        counted.ask(file, BYTES, [(start, start + length) for start, length in ranges])
        read_kept(uri, "1", BYTES, download, ranges)
        for path in (data := data_file(tmp_path, key_of(uri, "1", BYTES)), data.with_suffix(".sums")):
            os.utime(path, ns=(0, next(clock) * 1000))  # what was written last was used last

    assert counted.fetched == pytest.approx(fetched, rel=0.1)
    distinct = Evicting(1 << 60)
    for file, ranges in asks:
        distinct.ask(file, BYTES, [(start, start + length) for start, length in ranges])
    again = counted.fetched - distinct.fetched
    assert again > distinct.fetched / 10
    assert again == pytest.approx(fetched - distinct.fetched, rel=0.1)


def test_what_fits_is_fetched_once() -> None:
    counted = Evicting(FILES * (BYTES + 3 * 4096) * 2)
    for _ in range(3):
        for file in range(FILES):
            counted.ask(file, BYTES, [(0, BYTES)])

    assert counted.fetched == FILES * BYTES

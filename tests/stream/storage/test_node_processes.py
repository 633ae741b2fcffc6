"""Several processes of one node on one cache: each byte once, the limit kept, whoever is killed."""

import random
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spiral_stream.storage.counters import Traffic, counted
from spiral_stream.storage.node_cache.cache import NodeCache
from spiral_stream.storage.node_cache.file import BLOCK, PAGE, bytes_at, node_file, sums_of
from tests.fixtures.node_folders import ended, taken
from tests.fixtures.node_processes import context, key_of, lease_and_fork, read_all, read_and_keep_open, read_one
from tests.fixtures.range_server import RangeServer, drawn
from tests.fixtures.waits import until

SIZES = (5 * BLOCK + 17, 1, 3 * BLOCK, 131 * BLOCK + 1, 9 * BLOCK, 20 * BLOCK)
FILES = [(number, size) for number, size in enumerate(SIZES)]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    made = RangeServer()
    yield made
    made.close()


def started(target: Any, *args: Any) -> BaseProcess:
    process = context().Process(target=target, args=args, daemon=True)
    process.start()
    return process


@pytest.mark.e2e
def test_eight_cold_processes_download_the_data_once(server: RangeServer, tmp_path: Path) -> None:
    told, before = context().SimpleQueue(), server.sent()

    meet = context().Barrier(8)  # some ask while others fetch

    processes = [started(read_all, str(tmp_path), 1 << 30, server.port, FILES, 0, told, meet) for _ in range(8)]
    found = [told.get() for _ in processes]
    ended(processes)

    assert [each for each in found if isinstance(each, str)] == []
    assert server.sent() - before == sum(each["bytes"] for each in found) == TOTAL
    assert sum(each["waits"] for each in found) > 0


@pytest.mark.e2e
def test_a_cache_of_a_third_of_the_data_keeps_its_limit(server: RangeServer, tmp_path: Path) -> None:
    told, limit = context().SimpleQueue(), 10 * BLOCK
    files = [(100 + number, 2 * BLOCK) for number in range(15)]

    processes = [
        started(read_all, str(tmp_path), limit, server.port, [*files[at:], *files[:at]], 0, told) for at in (0, 5, 10)
    ]
    most = 0
    while any(process.is_alive() for process in processes):
        most = max(most, taken(tmp_path))
        time.sleep(0.005)
    found = [told.get() for _ in processes]
    ended(processes)

    assert [each for each in found if isinstance(each, str)] == []
    assert most <= limit
    assert taken(tmp_path) <= limit
    assert sum(each["again"] for each in found) == sum(each["bytes"] for each in found) - 15 * 2 * BLOCK


@pytest.mark.e2e
def test_what_another_process_has_open_is_removed_and_read_to_its_end(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, go_on = context().SimpleQueue(), context().SimpleQueue()
    process = started(read_and_keep_open, str(tmp_path), 8 * BLOCK, server.port, 0, 3 * BLOCK, told, go_on)
    told.get()

    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(8 * BLOCK))
    for number in (1, 2):
        read_one(server.port, number, 3 * BLOCK)
    cache = NodeCache(tmp_path)
    assert [each.uri for each in cache.files()] == ["http://store/2", "http://store/1"]
    go_on.put(None)
    assert told.get() == (True, False)
    ended([process])
    assert cache.clear() == (2, 2 * (3 * BLOCK + PAGE))


def damaged(folder: Path) -> list[int]:
    """Pages of the files of `FILES` whose sums are written, and are not those of their bytes."""
    found: list[int] = []
    for number, size in FILES:
        key = key_of(f"http://store/{number}", "v1", size)
        file = node_file(folder, key)
        if file.exists() and file.stat().st_size:
            data, at = file.read_bytes(), bytes_at(key.pages)
            written = np.frombuffer(data[1024 : 1024 + 8 * key.pages], np.uint64)
            right = sums_of(data[at:])
            found += np.flatnonzero((written != 0) & (written != right)).tolist()
    return found


def killed_again_and_again(server: RangeServer, folder: Path, kills: int, seed: int) -> None:
    """Two processes read; one of them is killed at a random moment, and started again."""
    told, draw, before = context().SimpleQueue(), random.Random(seed), server.sent()
    limit = TOTAL // 2
    for _ in range(kills):
        asked = server.sent()
        pair = [started(read_all, str(folder), limit, server.port, FILES, 0.002, told) for _ in range(2)]
        until(lambda asked=asked: server.sent() != asked)
        time.sleep(draw.uniform(0.0, 0.4))
        for process in pair:
            process.kill()
        ended(pair)
        assert damaged(folder) == []
    told = context().SimpleQueue()  # a killed process may have left half a message in the other one
    partly = server.sent() - before
    last = started(read_all, str(folder), limit, server.port, FILES, 0, told)
    found = told.get()
    ended([last])

    assert not isinstance(found, str), found  # bytes are right, and nobody waits for a dead process
    assert taken(folder) <= limit
    assert partly > 0


@pytest.mark.e2e
def test_processes_killed_in_mid_download_leave_no_lock_and_no_broken_file(server: RangeServer, tmp_path: Path) -> None:
    killed_again_and_again(server, tmp_path, 4, 1)


@pytest.mark.e2e
@pytest.mark.slow
def test_fifty_kills_leave_no_lock_and_no_broken_file(server: RangeServer, tmp_path: Path) -> None:
    for seed in range(5):
        killed_again_and_again(server, tmp_path / str(seed), 10, seed)


@pytest.mark.e2e
def test_what_a_killed_process_had_kept_is_not_fetched_again(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    told, size, traffic = context().SimpleQueue(), 2 * BLOCK, Traffic()
    files = [(50 + number, size) for number in range(16)]
    process = started(read_all, str(tmp_path), 1 << 30, server.port, files, 0.01, told)
    cache = NodeCache(tmp_path)
    while sum(each.there for each in cache.files()) < 8 * BLOCK:
        time.sleep(0.01)
    process.kill()
    ended([process])
    there = sum(each.there for each in cache.files())

    for number, _ in files:
        assert counted(traffic, read_one, server.port, number, size) == drawn(number, size)

    assert there >= 8 * BLOCK
    assert traffic.bytes == len(files) * size - there


@pytest.mark.e2e
def test_a_forked_child_keeps_no_lease_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    told = context().SimpleQueue()
    process = started(lease_and_fork, str(tmp_path), told)

    assert told.get() == (True, True, True)
    ended([process])

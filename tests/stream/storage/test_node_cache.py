import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import CacheError, DamageError, SourceError
from spiral_stream.storage import node_download, node_open
from spiral_stream.storage.node_cache import NodeCache
from spiral_stream.storage.node_files import BLOCK, PART, NodeKey
from tests.fixtures.range_server import drawn

KB = 1 << 10


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[NodeCache]:
    with NodeCache(tmp_path / "node", 64 << 20, stall_s=20) as made:
        yield made


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_download, "FIRST_PAUSE_S", 0.001)


class Remote:
    """A remote file that counts what is asked of it."""

    def __init__(self, number: int, size: int) -> None:
        self.key, self.data = NodeKey(f"s3://bucket/{number}", "v1", size), drawn(number, size)
        self.asked: list[tuple[int, int]] = []

    def __call__(self, offset: int, length: int) -> bytes:
        self.asked.append((offset, length))
        return self.data[offset : offset + length]


def data_of(folder: Path) -> list[Path]:
    return sorted((folder / "files").rglob("*.data"))


def taken(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (folder / "files").rglob("*.*"))


def test_a_file_is_fetched_once_and_is_all_there(cache: NodeCache) -> None:
    remote = Remote(1, PART + 70_001)

    for _ in range(2):
        with cache.open(remote.key, remote) as held:
            assert held.view() == remote.data
            assert held.path.read_bytes() == remote.data
            assert held.read(70_000, 10) == remote.data[70_000:70_010]

    assert sorted(remote.asked) == [(0, PART), (PART, 70_001)]
    assert cache.counters.snapshot().items() >= {"hits": 1, "downloads": 2, "bytes": PART + 70_001, "again": 0}.items()


def test_ranges_fetch_their_blocks_only(cache: NodeCache) -> None:
    remote = Remote(2, 20 * BLOCK + 5)

    with cache.open(remote.key, remote, [(BLOCK + 3, 10), (20 * BLOCK, 5), (0, 0)]) as held:
        assert held.read(BLOCK + 3, 10) == remote.data[BLOCK + 3 : BLOCK + 13]
        assert held.view(20 * BLOCK) == remote.data[20 * BLOCK :]
        with pytest.raises(CacheError, match=r"were not asked for. Name them in ranges="):
            held.read(5 * BLOCK, 1)
    with pytest.raises(CacheError, match=r"the file was released. Ask for it again"):
        held.read(0, 1)
    with pytest.raises(CacheError, match=r"Ask for what it has"):
        cache.open(remote.key, remote, [(20 * BLOCK, 6)])

    assert sorted(remote.asked) == [(BLOCK, BLOCK), (20 * BLOCK, 5)]


def test_a_file_without_bytes_is_not_asked_for(cache: NodeCache) -> None:
    remote = Remote(3, 0)

    with cache.open(remote.key, remote) as held:
        assert bytes(held.view()) == b""

    assert remote.asked == []


def test_another_version_is_another_file(cache: NodeCache) -> None:
    old, new = Remote(4, 100), Remote(5, 100)
    new.key = NodeKey(old.key.uri, "v2", 100)

    with cache.open(old.key, old) as first, cache.open(new.key, new) as second:
        assert (first.view(), second.view()) == (old.data, new.data)


def test_threads_that_ask_together_fetch_once(cache: NodeCache) -> None:
    remote = Remote(6, 3 * BLOCK)

    def slow(offset: int, length: int) -> bytes:
        time.sleep(0.05)
        return remote(offset, length)

    threads = [threading.Thread(target=lambda: cache.open(remote.key, slow).release()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert remote.asked == [(0, 3 * BLOCK)]
    assert cache.counters.waits >= 1


@pytest.mark.parametrize("what", ["flip", "cut", "empty", "sums", "cut sums", "no sums", "no data", "longer"])
def test_damage_is_found_when_a_process_first_opens_the_file_and_fetched_again(tmp_path: Path, what: str) -> None:
    remote, folder = Remote(7, 4 * BLOCK + 9), tmp_path / "node"
    with NodeCache(folder) as cache:
        cache.open(remote.key, remote).release()
    data = data_of(folder)[0]
    sums = data.with_suffix(".sums")
    match what:
        case "flip":
            with data.open("r+b") as file:
                file.seek(BLOCK + 5)
                file.write(bytes([remote.data[BLOCK + 5] ^ 1]))
        case "cut" | "empty":
            os.truncate(data, 2 * BLOCK + 7 if what == "cut" else 0)
        case "longer":
            os.truncate(data, 5 * BLOCK)
        case "sums":
            sums.write_bytes(os.urandom(sums.stat().st_size))
        case "cut sums":
            os.truncate(sums, sums.stat().st_size - 12)
        case "no sums":
            sums.unlink()
        case "no data":
            data.unlink()
    remote.asked.clear()

    with NodeCache(folder) as cache:
        for _ in range(2):
            with cache.open(remote.key, remote) as held:
                assert held.view() == remote.data
                assert held.path.stat().st_size == len(remote.data)

    fetched = sum(length for _, length in remote.asked)
    assert fetched == {"flip": BLOCK, "cut": 2 * BLOCK + 9, "longer": 0, "cut sums": BLOCK + 9}.get(
        what, len(remote.data)
    )


def test_what_is_damaged_again_after_it_was_fetched_anew_is_named(
    cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(8, 2 * BLOCK)
    monkeypatch.setattr(node_open.NodeFile, "write", lambda self, offset, data: os.pwrite(self.handle, b"!", offset))

    with pytest.raises(DamageError, match=r"of s3://bucket/8 are not what was written, again .* on another one"):
        cache.open(remote.key, remote)

    assert len(remote.asked) == 2


def test_requests_that_fail_are_repeated_from_where_they_stopped(cache: NodeCache) -> None:
    remote, faults = Remote(9, 6 * BLOCK), iter([2 * BLOCK + 1, 100, 3 * BLOCK])

    def failing(offset: int, length: int) -> Iterator[bytes]:
        stop = next(faults, None)
        yield remote(offset, length)[: stop if stop is not None else length]
        if stop == 100:
            raise ConnectionResetError

    with cache.open(remote.key, failing) as held:
        assert held.view() == remote.data

    assert [offset // BLOCK for offset, _ in remote.asked] == [0, 2, 2, 5]
    assert cache.counters.retries == 3


def raising(_offset: int, _length: int) -> bytes:
    msg = "GET https://me:pass@host/x?X-Amz-Signature=secret failed"
    raise ValueError(msg)


@pytest.mark.parametrize(
    ("download", "error", "says"),
    [
        (raising, SourceError, r"asked for 5 times \(ValueError: GET https://host/x failed\). Check the network"),
        (lambda _, length: b"x" * (length - 1), SourceError, "99 bytes came of 100"),
        (lambda _, length: b"x" * (length + 1), SourceError, "more came than were asked for.*read it from another one"),
        (lambda _, __: [], SourceError, "0 bytes came of 100"),
    ],
)
def test_a_download_that_fails_is_named_without_secrets(
    cache: NodeCache, download: Callable[[int, int], bytes], error: type[Exception], says: str
) -> None:
    key = NodeKey("https://me:pass@host/x?X-Amz-Signature=secret", "v", 100)

    with pytest.raises(error, match=says) as found:
        cache.open(key, download)

    assert str(found.value).startswith("https://host/x: ")
    assert all(b"secret" not in path.read_bytes() for path in cache.folder.rglob("*.*") if path.is_file())
    with cache.open(key, lambda _, length: b"y" * length) as held:  # no lease and no block is left behind
        assert held.view() == b"y" * 100


def test_an_error_of_ours_is_raised_as_it_is(cache: NodeCache) -> None:
    asked = []

    def changed(offset: int, _: int) -> bytes:
        asked.append(offset)
        msg = "s3://bucket/x changed"
        raise SourceError(msg)

    with pytest.raises(SourceError, match=r"^s3://bucket/x changed$"):
        cache.open(NodeKey("s3://bucket/x", "v", 100), changed)
    assert asked == [0]


def test_a_download_that_stalls_fails_at_the_deadline_and_gives_its_lease_back(tmp_path: Path) -> None:
    remote, go_on = Remote(10, 100), threading.Event()

    def stuck(_: int, length: int) -> bytes:
        go_on.wait(60)
        return b"z" * length

    with NodeCache(tmp_path, stall_s=0.2) as cache, NodeCache(tmp_path, stall_s=20) as other:
        with pytest.raises(SourceError, match=rf"no byte came for 0.2 s.*process {os.getpid()} asked.*stall_s="):
            cache.open(remote.key, stuck)
        with other.open(remote.key, remote) as held:
            assert held.view() == remote.data
            go_on.set()
        cache.close()
        with other.open(remote.key, remote) as held:
            assert held.view() == remote.data


def test_a_whole_file_above_the_limit_is_refused_by_name_and_its_ranges_are_not(tmp_path: Path) -> None:
    remote = Remote(11, 10 * BLOCK)

    with NodeCache(tmp_path, 4 * BLOCK) as cache:
        with pytest.raises(CacheError, match=r"s3://bucket/11: it has 655,360 bytes.*or ask for ranges of it"):
            cache.open(remote.key, remote)
        with cache.open(remote.key, remote, [(0, BLOCK)]) as held:
            assert held.view(0, BLOCK) == remote.data[:BLOCK]


def test_held_files_stay_and_the_cache_says_when_they_fill_it(tmp_path: Path) -> None:
    first, second = Remote(12, 4 * BLOCK), Remote(13, 4 * BLOCK)

    with NodeCache(tmp_path, 5 * BLOCK, stall_s=0.3) as cache:
        with cache.open(first.key, first) as held:
            with pytest.raises((CacheError, SourceError), match=r"full: its limit is 327,680|no byte came"):
                cache.open(second.key, second)
            assert held.view() == first.data
            kept = held.view()
        with cache.open(second.key, second) as held:
            assert held.view() == second.data
        assert kept == first.data  # removed, and still mapped
        assert len(data_of(tmp_path)) == 1
        assert taken(tmp_path) <= 5 * BLOCK
        cache.open(first.key, first).release()
        assert cache.counters.again == first.key.size


@given(
    limit=st.integers(12, 40),
    sizes=st.lists(st.integers(1, 12 * BLOCK), min_size=2, max_size=6),
    asks=st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.floats(0, 1), st.floats(0, 1)), max_size=25),
)
def test_any_asks_get_their_bytes_within_the_limit_and_what_was_used_longest_ago_goes(
    limit: int, sizes: list[int], asks: list[tuple[int, bool, float, float]]
) -> None:
    """``asks``: which file, whether by another process (another cache of the folder), and a range."""
    remotes, used, clock = [Remote(number, size) for number, size in enumerate(sizes)], {}, 10**9
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_open, "STAMP_S", float("inf"))  # the test stamps, by a clock of its own
        root = Path(folder)
        with NodeCache(root, limit * BLOCK) as one, NodeCache(root, limit * BLOCK) as two:
            for which, other, start, part in asks:
                remote = remotes[which % len(remotes)]
                offset = int(start * (remote.key.size - 1))
                length = int(part * (remote.key.size - offset))
                before = {path.stem for path in data_of(root)}
                remote.asked.clear()
                with (two if other else one).open(remote.key, remote, [(offset, length)]) as held:
                    assert held.read(offset, length) == remote.data[offset : offset + length]
                    clock += 1
                    os.utime(held.handle, (clock, clock))
                first, stop = offset // BLOCK * BLOCK, -(-(offset + length) // BLOCK) * BLOCK
                assert all(first <= at and at + size <= stop for at, size in remote.asked)
                now = {path.stem for path in data_of(root)}
                gone = before - now
                used[remote.key.digest] = clock
                left = [used[each] for each in now - {remote.key.digest}]
                assert all(used[each] < min(left, default=clock + 1) for each in gone)
                assert taken(root) <= limit * BLOCK
            for remote in remotes:  # what is there is not fetched again
                with one.open(remote.key, remote, [(0, 1)]):
                    remote.asked.clear()
                    with two.open(remote.key, remote, [(0, 1)]):
                        assert remote.asked == []

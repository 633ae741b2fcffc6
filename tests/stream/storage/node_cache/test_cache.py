"""The laws of the node cache, through bytes of one's own: every byte once, damage healed, the limit kept, faults named."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import CacheError, DamageError, SourceError
from spiral_stream.sources import read_kept
from spiral_stream.storage.counters import Traffic, counted, counted_behind
from spiral_stream.storage.node_cache import eviction as node_room
from spiral_stream.storage.node_cache import file as node_open
from spiral_stream.storage.node_cache import store as node_store
from spiral_stream.storage.node_cache.cache import NodeCache
from spiral_stream.storage.node_cache.file import BLOCK, PAGE, bytes_at, node_file
from spiral_stream.storage.ranges import READ_BYTES
from tests.fixtures.node_folders import taken
from tests.fixtures.node_processes import key_of
from tests.fixtures.range_server import drawn
from tests.fixtures.waits import FAR_S, until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the node cache."""
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    return tmp_path / "node"


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


class Remote:
    """A remote file that counts what is asked of it."""

    def __init__(self, number: int, size: int) -> None:
        self.uri, self.version, self.data = f"s3://bucket/{number}", "v1", drawn(number, size)
        self.asked: list[tuple[int, int]] = []

    def __call__(self, offset: int, length: int) -> bytes:
        self.asked.append((offset, length))
        return self.data[offset : offset + length]

    def read(self, *ranges: tuple[int, int], by: Callable[[int, int], bytes] | None = None) -> list[bytes]:
        found = read_kept(self.uri, self.version, len(self.data), by or self, ranges or None)
        return [bytes(each) for each in found]


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / "files").rglob("*.node"))


def bytes_of(file: Path, size: int) -> bytes:
    """What a file of the node has of a remote file's bytes."""
    return file.read_bytes()[bytes_at(-(-size // PAGE)) :]


def as_another_process() -> None:
    """Open the same folder anew, by another name: what this process has verified is not known there."""
    os.environ["SPIRAL_NODE_CACHE"] += "/."


def test_a_file_is_fetched_once_and_is_all_there(folder: Path, traffic: Traffic) -> None:
    remote = Remote(1, READ_BYTES + 70_001)

    for _ in range(2):
        assert counted(traffic, remote.read) == [remote.data]
    assert remote.read((70_000, 10)) == [remote.data[70_000:70_010]]

    assert bytes_of(files_of(folder)[0], len(remote.data)) == remote.data
    assert sorted(remote.asked) == [(0, READ_BYTES), (READ_BYTES, 70_001)]
    assert (traffic.hits, traffic.requests, traffic.bytes, traffic.again) == (1, 2, len(remote.data), 0)


def test_what_nobody_waits_for_is_counted_once_others_can_read_it(traffic: Traffic) -> None:
    remote = Remote(1, READ_BYTES + 70_001)

    seen = counted_behind(traffic, lambda: (remote.read(), remote.read(), traffic.requests, traffic.bytes))

    assert seen == ([remote.data], [remote.data], 2, len(remote.data))
    assert (traffic.requests, traffic.bytes, traffic.hits, traffic.wait_s) == (2, len(remote.data), 0, 0)


def test_a_process_that_begins_is_no_file(folder: Path) -> None:
    Remote(1, 70_001).read()
    (folder / "files" / ".123").touch()

    assert len(NodeCache(folder).files()) == 1
    assert NodeCache(folder).clear()[0] == 1


def test_ranges_fetch_their_blocks_only() -> None:
    remote = Remote(2, 20 * BLOCK + 5)

    found = remote.read((BLOCK + 3, 10), (20 * BLOCK, 5), (0, 0))

    assert found == [remote.data[BLOCK + 3 : BLOCK + 13], remote.data[20 * BLOCK :], b""]
    assert sorted(remote.asked) == [(BLOCK, BLOCK), (20 * BLOCK, 5)]
    for wrong in ((20 * BLOCK, 6), (-1, 2), (5, -1)):
        with pytest.raises(SourceError, match=r"s3://bucket/2 has 1,310,725 bytes, .* were asked for"):
            remote.read(wrong)


def test_a_file_without_bytes_is_not_asked_for() -> None:
    remote = Remote(3, 0)

    assert remote.read() == [b""]
    assert remote.asked == []


def test_another_version_is_another_file_and_none_is_refused() -> None:
    old, new = Remote(4, 100), Remote(5, 100)
    new.uri, new.version = old.uri, "v2"

    assert (old.read(), new.read()) == ([old.data], [new.data])
    new.version = ""
    with pytest.raises(CacheError, match=r"s3://bucket/4: without a version .* Give its etag, or a time"):
        new.read()


def test_threads_that_ask_together_fetch_once(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, fetching, waiting = Remote(6, 3 * BLOCK), threading.Event(), threading.Event()
    pause = node_store.Wait.pause
    monkeypatch.setattr(node_store.Wait, "pause", lambda wait: (waiting.set(), pause(wait))[1])

    def held(offset: int, length: int) -> bytes:
        fetching.set()
        assert waiting.wait(FAR_S)
        return remote(offset, length)

    threads = [threading.Thread(target=lambda: counted(traffic, remote.read, by=held)) for _ in range(8)]
    threads[0].start()
    assert fetching.wait(FAR_S)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert remote.asked == [(0, 3 * BLOCK)]
    assert traffic.waits > 0


@pytest.mark.parametrize("what", ["flip", "cut", "empty", "longer", "head", "sums", "all", "no file"])
def test_damage_is_found_when_a_process_first_reads_the_file_and_fetched_again(folder: Path, what: str) -> None:
    remote = Remote(7, 4 * BLOCK + 9)
    remote.read()
    as_another_process()
    [file] = files_of(folder)
    size, begin = file.stat().st_size, file.stat().st_size - len(remote.data)
    with file.open("r+b") as out:
        match what:
            case "flip":
                out.seek(begin + BLOCK + 5)
                out.write(bytes([remote.data[BLOCK + 5] ^ 1]))
            case "cut" | "empty" | "longer":
                out.truncate({"cut": begin + 2 * BLOCK + 7, "empty": 0, "longer": size + BLOCK}[what])
            case "head" | "all":
                out.write(os.urandom(16 if what == "head" else size))
            case "sums":
                out.seek(1024)
                out.write(os.urandom(8 * (4 * BLOCK // PAGE + 1)))
            case "no file":
                file.unlink()
    remote.asked.clear()

    for _ in range(2):
        assert remote.read() == [remote.data]
        assert file.stat().st_size == size

    fetched = sum(length for _, length in remote.asked)
    assert fetched == {"flip": PAGE, "cut": 2 * BLOCK + 9, "longer": 0}.get(what, len(remote.data))


def test_bytes_of_an_image_come_by_the_page_and_fewer_ones_by_the_block() -> None:
    remote = Remote(9, 20 * BLOCK)

    remote.read((5 * PAGE + 3, 21 * PAGE))
    remote.read((30 * PAGE, 100))

    assert remote.asked == [(5 * PAGE, 22 * PAGE), (2 * BLOCK - 5 * PAGE, 5 * PAGE)]


def test_what_is_damaged_again_after_it_was_fetched_anew_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(8, 2 * BLOCK)
    monkeypatch.setattr(node_open, "exactly", lambda *_: b"!")

    assert [remote.read(), remote.read()] == [[remote.data]] * 2  # from memory, as they came
    with pytest.raises(DamageError, match=r"of s3://bucket/8 are not what was written, again .* on another one"):
        remote.read()
    assert len(remote.asked) == 2


def raising(_offset: int, _length: int) -> bytes:
    msg = "GET https://me:pass@host/x?X-Amz-Signature=secret failed"
    raise ValueError(msg)


@pytest.mark.parametrize(
    ("download", "says"),
    [
        (raising, r"\(ValueError: GET https://host/x failed\)"),
        (lambda _, length: b"x" * (length - 1), r"\(99 came of 100\)"),
        (lambda _, length: b"x" * (length + 1), r"\(101 came of 100\)"),
        (lambda _, __: [], r"\(0 came of 100\)"),
        (lambda _, __: iter([b"x" * 99]), r"\(99 came of 100\)"),
    ],
)
def test_a_download_that_fails_is_named_without_secrets(
    folder: Path, download: Callable[[int, int], bytes], says: str
) -> None:
    uri = "https://me:pass@host/x?X-Amz-Signature=secret"

    with pytest.raises(SourceError, match=rf"bytes 0 to 100 cannot be fetched {says}. .* exactly what it is") as found:
        read_kept(uri, "v", 100, download)

    assert str(found.value).startswith("https://host/x: ")
    assert bytes(read_kept(uri, "v", 100, lambda _, length: iter([b"y"] * length))[0]) == b"y" * 100
    assert all(b"secret" not in path.read_bytes() for path in folder.rglob("*.*") if path.is_file())


def test_an_error_of_ours_is_raised_as_it_is() -> None:
    asked = []

    def changed(offset: int, _: int) -> bytes:
        asked.append(offset)
        msg = "s3://bucket/x changed"
        raise SourceError(msg)

    with pytest.raises(SourceError, match=r"^s3://bucket/x changed$"):
        read_kept("s3://bucket/x", "v", 100, changed)
    assert asked == [0]


def test_a_download_that_stalls_is_not_waited_for_by_others_beyond_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_store, "WAIT_S", 0.2)
    remote, stuck, go_on = Remote(10, 100), threading.Event(), threading.Event()

    def waiting(offset: int, length: int) -> bytes:
        stuck.set()
        go_on.wait()
        return remote.data[offset : offset + length]

    thread = threading.Thread(target=lambda: remote.read(by=waiting))
    thread.start()
    stuck.wait()
    assert remote.read() == [remote.data]
    go_on.set()
    thread.join()
    assert remote.read() == [remote.data]
    assert remote.asked == [(0, 100)]


def test_a_file_above_the_limit_is_read_and_not_kept_and_its_ranges_are(
    folder: Path, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(4 * BLOCK))
    remote = Remote(11, 10 * BLOCK)

    assert counted(traffic, remote.read) == [remote.data]
    assert traffic.unkept == len(remote.data)
    for _ in range(2):
        assert remote.read((0, BLOCK)) == [remote.data[:BLOCK]]
    assert remote.asked == [(0, 10 * BLOCK), (0, BLOCK)]
    assert taken(folder) <= 4 * BLOCK


def test_a_file_that_is_open_is_removed_for_others_and_read_to_its_end(
    folder: Path, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(5 * BLOCK))
    first, second = Remote(12, 4 * BLOCK), Remote(13, 4 * BLOCK)
    first.read()
    cache = NodeCache()
    with cache.opened(key_of(first.uri, first.version, 4 * BLOCK)) as file:
        second.read()
        assert [bytes_of(path, 4 * BLOCK) for path in files_of(folder)] == [second.data]
        assert file.read(0, 4 * BLOCK) == first.data
        assert not cache.room.reserve(file, 0, 1)  # what is written now, nobody finds
    monkeypatch.setattr(node_room, "FULL", 2)
    assert counted(traffic, first.read) == [first.data]
    assert traffic.again == 4 * BLOCK
    assert first.asked == [(0, 4 * BLOCK)] * 2


def test_files_of_an_earlier_version_count_and_go_like_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(5 * BLOCK))
    (folder / "files" / "ab").mkdir(parents=True)
    for name in ("ab01.data", "ab01.sums"):
        (folder / "files" / "ab" / name).write_bytes(bytes(2 * BLOCK))
    assert {each.uri for each in NodeCache().files()} == {""}

    remote = Remote(14, 4 * BLOCK)
    remote.read()

    assert [path.name.endswith(".node") for path in (folder / "files").rglob("*.*")] == [True]
    assert remote.read() == [remote.data]
    assert len(remote.asked) == 1


@given(
    limit=st.integers(12, 40),
    sizes=st.lists(st.integers(1, 12 * BLOCK), min_size=2, max_size=6),
    asks=st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.floats(0, 1), st.floats(0, 1)), max_size=25),
)
def test_any_asks_get_their_bytes_within_the_limit_and_what_was_used_longest_ago_goes(
    limit: int, sizes: list[int], asks: list[tuple[int, bool, float, float]]
) -> None:
    """``asks``: which file, whether by another process (another cache of the folder), and a range."""
    remotes, used, clock = [Remote(number, size) for number, size in enumerate(sizes)], {}, 4 * 10**9
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_open.NodeFile, "stamp", lambda *_: None)  # the test stamps, by a clock of its own
        patch.setattr(node_room, "FULL", 2)
        root = Path(folder)
        caches = [NodeCache(root, limit * BLOCK) for _ in range(2)]
        for which, other, start, part in asks:
            remote = remotes[which % len(remotes)]
            size = len(remote.data)
            offset = int(start * (size - 1))
            length = int(part * (size - offset))
            before = {path.stem for path in files_of(root)}
            remote.asked.clear()
            patch.setattr(node_store, "node_cache", lambda other=other: caches[other])
            assert remote.read((offset, length)) == [remote.data[offset : offset + length]]
            clock += 1
            file = node_file(root, key_of(remote.uri, remote.version, size))
            with suppress(FileNotFoundError):
                os.utime(file, (clock, clock))
            unit = PAGE if length >= BLOCK else BLOCK
            first, stop = offset // unit * unit, -(-(offset + length) // unit) * unit
            assert all(first <= at and at + size <= stop for at, size in remote.asked)
            now = {path.stem for path in files_of(root)}
            used[file.stem] = clock
            left = [used[each] for each in now - {file.stem}]
            assert all(used[each] < min(left, default=clock + 1) for each in before - now)
            assert taken(root) <= limit * BLOCK
        for remote in remotes:  # what is there is not fetched again
            for cache in caches:
                remote.asked.clear()
                patch.setattr(node_store, "node_cache", lambda cache=cache: cache)
                remote.read((0, 1))
            assert remote.asked == []


@pytest.fixture(autouse=True)
def _no_threads() -> Iterator[None]:
    before = threading.active_count()
    yield
    until(lambda: threading.active_count() <= before)

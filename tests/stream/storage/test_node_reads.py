"""A store read through the node cache: what is asked of it, and what happens when the cache or the object is not as it was."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import CacheError, DamageError, SourceError
from spiral_stream.storage.counters import Traffic, counted, counted_behind
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.local import Memory
from spiral_stream.storage.node_cache.file import BLOCK
from spiral_stream.storage.node_cache.store import Leases, NodeStore
from spiral_stream.storage.store import Get, Got, ObjectStat, Store
from tests.fixtures.waits import FAR_S, until

DATA = np.random.default_rng(1).bytes(20 * BLOCK + 77)


class Counting(Store):
    """A store in memory that counts what is asked, and can be slow."""

    def __init__(self, name: str) -> None:
        self._inner = Memory(f"memory://{name}")
        self.put, self.delete, self.list, self.stat = (
            self._inner.put,
            self._inner.delete,
            self._inner.list,
            self._inner.stat,
        )
        self.calls: list[list[Get]] = []
        self.slow_s = 0.0
        self.meet: threading.Barrier | None = None  # of all who ask

    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        self.calls.append(list(wanted))
        time.sleep(self.slow_s)
        if self.meet is not None:
            self.meet.wait(FAR_S)
        return self._inner.read(wanted)

    @property
    def asked(self) -> list[tuple[str, int, int | None]]:
        return [(each.key, each.start, each.length) for call in self.calls for each in call]


Counting.__abstractmethods__ = frozenset()


@pytest.fixture
def inner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node"))
    made = Counting(tmp_path.name)
    made.put("a", DATA)
    return made


def near(inner: Counting) -> NodeStore:
    return NodeStore(inner, "s3://bucket")


def pin(inner: Counting, key: str = "a") -> ObjectStat:
    facts = inner.stat(key)
    return ObjectStat(facts.size, marked=facts.mark)


def data_of(found: Sequence[Got | SourceError]) -> list[bytes | None]:
    out = []
    for each in found:
        assert isinstance(each, Got), each
        out.append(None if each.data is None else bytes(each.data))
    return out


def test_a_pinned_object_is_asked_for_once_and_another_is_looked_at(inner: Counting) -> None:
    known = pin(inner)
    gets = [Get("a", 5, 10, pinned=known), Get("a", BLOCK - 1, 2, pinned=known), Get("a", 9 * BLOCK, 3, pinned=known)]
    right = [DATA[5:15], DATA[BLOCK - 1 : BLOCK + 1], DATA[9 * BLOCK : 9 * BLOCK + 3]]
    assert data_of(near(inner).read(gets)) == right
    assert inner.asked == [("a", 0, 2 * BLOCK), ("a", 9 * BLOCK, BLOCK)]
    inner.calls.clear()
    assert data_of(near(inner).read(gets)) == right
    assert inner.asked == []
    assert data_of(near(inner).read([Get("a", 3, 4), Get("a", 9 * BLOCK, 1)])) == [DATA[3:7], right[2][:1]]
    assert inner.asked == [("a", 0, 0)]
    inner.calls.clear()
    assert data_of(near(inner).read([Get("a", pinned=known), Get("a", most_bytes=9, pinned=known)])) == [DATA, None]
    assert inner.asked == [("a", 2 * BLOCK, 7 * BLOCK), ("a", 10 * BLOCK, 10 * BLOCK + 77)]


def test_all_that_a_read_misses_is_asked_for_together(inner: Counting) -> None:
    for at in range(40):
        inner.put(f"small/{at}", bytes([at]) * (at * 100))
    gets = [Get(f"small/{at}", pinned=pin(inner, f"small/{at}")) for at in range(40)]
    assert data_of(near(inner).read(gets)) == [bytes([at]) * (at * 100) for at in range(40)]
    assert len(inner.calls) == 1
    assert len(inner.asked) == 39  # of the empty one nothing has to be asked
    assert data_of(near(inner).read(gets))[7] == bytes([7]) * 700
    assert len(inner.calls) == 1


@given(
    ranges=st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 3 * BLOCK)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_bytes_are_those_of_the_object_whatever_was_read_before(
    ranges: list[tuple[int, int]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_NODE_CACHE", str(tmp_path_factory.mktemp("node")))
        inner = Counting("drawn")
        inner.put("a", DATA)
        known = pin(inner)
        for part in np.array_split(np.array(ranges), 1 + seed % 3):
            gets = [Get("a", at, min(length, len(DATA) - at), pinned=known) for at, length in part.tolist()]
            assert data_of(near(inner).read(gets)) == [DATA[each.start : each.start + each.length] for each in gets]
        blocks = [
            at // BLOCK for _, first, length in inner.asked for at in range(first, first + (length or len(DATA)), BLOCK)
        ]
        assert len(blocks) == len(set(blocks))


def test_threads_that_read_other_blocks_of_one_file_do_not_wait_for_each_other(inner: Counting) -> None:
    known, store = pin(inner), near(inner)
    inner.meet = threading.Barrier(6)

    def read(at: int) -> bytes | None:
        return data_of(store.read([Get("a", 3 * at * BLOCK, 5, pinned=known)]))[0]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [DATA[3 * at * BLOCK :][:5] for at in range(6)]
    assert len(inner.calls) == 6


def test_threads_that_read_the_same_block_ask_for_it_once(inner: Counting) -> None:
    known, inner.slow_s = pin(inner), 0.1
    store, traffic = near(inner), Traffic()

    def read(_: int) -> bytes | None:
        return counted(traffic, lambda: data_of(store.read([Get("a", 100, 50, pinned=known)]))[0])

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(read, range(6))) == {DATA[100:150]}
    assert len(inner.calls) == 1
    assert traffic.waits + traffic.hits == 5


def test_what_came_between_the_look_and_the_turn_is_a_hit(inner: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    from spiral_stream.storage.node_cache import store as node_store

    known, traffic = pin(inner), Traffic()
    get = Get("a", 100, 50, pinned=known)

    class Late(Leases):
        def __init__(self, folder: Path) -> None:
            monkeypatch.setattr(node_store, "Leases", Leases)
            near(inner).read([get])  # another reader, just before
            super().__init__(folder)

    monkeypatch.setattr(node_store, "Leases", Late)
    assert counted(traffic, lambda: data_of(near(inner).read([get]))) == [DATA[100:150]]
    assert len(inner.calls) == 1
    assert (traffic.hits, traffic.hit_bytes, traffic.waits) == (1, 50, 0)


def test_a_lease_that_is_held_for_too_long_is_not_waited_for(
    inner: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiral_stream.storage.node_cache import store as node_store

    monkeypatch.setattr(node_store, "WAIT_S", 0.2)
    known, store = pin(inner), near(inner)
    assert data_of(store.read([Get("a", 9 * BLOCK, 1, pinned=known)])) == [DATA[9 * BLOCK : 9 * BLOCK + 1]]
    [file] = (tmp_path / "node" / "files").rglob("*.node")
    with Leases(tmp_path / "node") as other:
        assert other.take(file.stem, 0, 2)
        assert data_of(store.read([Get("a", 7, 7, pinned=known)])) == [DATA[7:14]]


def test_another_object_than_the_pinned_one_is_not_kept(inner: Counting, tmp_path: Path) -> None:
    known = pin(inner)
    inner.put("a", bytes(len(DATA)))
    [found] = near(inner).read([Get("a", 5, 10, pinned=known)])
    assert isinstance(found, Got)
    assert found.facts.mark != known.mark
    assert not [path for path in tmp_path.rglob("*.node") if path.stat().st_blocks]
    inner.delete("a")
    for get in (Get("a", 5, 10, pinned=known), Get("a")):
        [gone] = near(inner).read([get])
        assert isinstance(gone, NotThereError)


def test_a_cache_without_room_gives_bytes_all_the_same(inner: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(BLOCK))
    known, traffic = pin(inner), Traffic()
    gets = [Get("a", pinned=known), Get("a", 10, 5, pinned=known)]
    assert counted(traffic, lambda: data_of(near(inner).read(gets))) == [DATA, DATA[10:15]]
    assert traffic.unkept == len(DATA)


def test_what_was_removed_before_is_read_exactly_and_leaves_the_others(
    inner: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiral_stream.storage.node_cache import eviction as node_room

    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(7 * BLOCK))
    for name in ("b", "c"):
        inner.put(name, DATA[: 6 * BLOCK])
        data_of(near(inner).read([Get(name, pinned=pin(inner, name))]))
    inner.calls.clear()
    traffic, store = Traffic(), near(inner)
    gets = [Get("b", 100, 50, pinned=pin(inner, "b")), Get("c", 7, 7, pinned=pin(inner, "c"))]
    assert counted(traffic, lambda: data_of(store.read(gets))) == [DATA[100:150], DATA[7:14]]
    assert inner.asked == [("b", 100, 50)]
    with pytest.raises(
        CacheError, match="not fetched ahead of its use"
    ):  # it would be fetched once more when it is used
        counted_behind(Traffic(), store.read, gets)
    assert inner.asked == [("b", 100, 50)]
    assert (traffic.again, traffic.unkept, traffic.hits) == (50, 50, 1)
    monkeypatch.setattr(node_room, "FULL", 2)
    assert counted(traffic, lambda: data_of(store.read(gets[:1]))) == [DATA[100:150]]
    assert inner.asked[1:] == [("b", 0, BLOCK)]
    assert (traffic.again, traffic.unkept) == (50 + BLOCK, 50)


def test_a_file_that_was_altered_on_the_disk_is_fetched_again_and_then_named(
    inner: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = pin(inner)
    get = [Get("a", 100, 50, pinned=known)]

    def altered() -> None:
        [file] = (tmp_path / "node" / "files").rglob("*.node")
        with file.open("r+b") as out:
            out.seek(-len(DATA), os.SEEK_END)
            out.write(b"other bytes")

    data_of(near(inner).read(get))
    altered()  # before this process has verified what it wrote
    assert data_of(near(inner).read(get)) == [DATA[100:150]]
    assert len(inner.calls) == 2
    altered()
    with pytest.raises(DamageError, match=r"set \$SPIRAL_NODE_CACHE to a folder on another one"):
        near(inner).read(get)


@pytest.fixture(autouse=True)
def _no_threads() -> Iterator[None]:
    before = threading.active_count()
    yield
    until(lambda: threading.active_count() <= before)

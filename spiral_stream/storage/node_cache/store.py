"""A store in front of an object store: what was read once is read from the node cache's disk afterwards.

A file of the cache is one object at one time: its URI, the mark of its etag, and its size. A pinned object (`Get.pinned`)
that is here costs no request; of another one the store is asked what it is like, once per read. All that one read misses is
asked for together, in pages, under leases; what others fetch meanwhile is waited for afterwards. Where the cache fails,
bytes come from the store as if there were none.

An evicted file is stored again rarely (`eviction`): its other reads bring exactly the bytes that were asked for, and what
lies here stays. Reads ahead of use (`behind`) of such a file bring nothing.

Leases: one byte of one file is locked per page, so that all processes of a node share the work. The lock belongs to an open
descriptor (`Leases`), which serves many files at a time; the kernel takes it back from a process that ends, however it ends.
The byte of a page is drawn from the name of its file: two pages that meet there wait for each other once, and nothing else
happens. Whoever waits holds no lease, so there is no circle of waiting.
"""

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, DamageError, SourceError
from spiral_stream.integrity.locks import Wait, lock_bytes
from spiral_stream.storage.counters import behind, count
from spiral_stream.storage.node_cache.cache import NodeCache, node_cache, tell
from spiral_stream.storage.node_cache.eviction import FULL, taken
from spiral_stream.storage.node_cache.file import (
    PAGE,
    PART,
    NodeKey,
    Pages,
    Range,
    between,
    runs,
    wanted_pages,
)
from spiral_stream.storage.ranges import GAP_BYTES, READ_BYTES
from spiral_stream.storage.store import Buffer, Get, Got, ObjectStat, Store
from spiral_stream.threads import doing

_OPEN: "Final[weakref.WeakSet[Leases]]" = weakref.WeakSet()


def _forget() -> None:
    for each in list(_OPEN):
        each.forget()


os.register_at_fork(after_in_child=_forget)


@final
class Leases:
    """Leases that are taken and given back together."""

    def __init__(self, folder: Path) -> None:
        """Open the file of leases of a node cache.

        Raises:
            OSError: it cannot be made.
        """
        self._handle = os.open(folder / "leases", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _OPEN.add(self)

    def __enter__(self) -> "Leases":
        return self

    def __exit__(self, *_: object) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            _set(handle, fcntl.F_UNLCK, 0, 0)  # a child in the middle of its fork has a copy
            os.close(handle)

    def take(self, digest: str, first: int, stop: int) -> bool:
        """Take the lease of some pages without waiting; False if another thread or process has one of them."""
        return _set(self._handle, fcntl.F_WRLCK, int(digest[:15], 16) + first, stop - first)

    def forget(self) -> None:
        """Close a forked child's copy, and leave the parent's leases alone."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _set(handle: int, kind: int, first: int, count: int) -> bool:
    try:
        lock_bytes(handle, kind, first, count)
    except (BlockingIOError, PermissionError):
        return False
    return True


TOGETHER_BYTES: Final = 256 << 20  # that one call of the store brings
WAIT_S: Final = 60.0  # for others without any progress; then the bytes are asked for here too
MANY: Final = 4  # ranges that one request brings; fewer are left to whoever reads them
_PAUSES_S: Final = (0.01, 0.01)  # between two looks at what others fetch
_Int64 = NDArray[np.int64]


@final
@dataclass(slots=True, eq=False)
class _Ask:
    """What is read of one object."""

    key: NodeKey
    name: str  # in the store
    facts: ObjectStat
    indices: list[int] = field(default_factory=list)  # in the call
    ranges: list[Range] = field(default_factory=list)
    missing: Pages = field(default_factory=lambda: np.empty(0, np.int64))
    requested_ns: int = 0  # when, since 1970; of the asks of one call each has its own
    is_hit: bool = True  # where it lies on the node; not what was waited for
    exact: bool = False  # whether no more pages come than those that the ranges lie in

    def part(self, of: Sequence[Range]) -> "_Ask":
        """Return what fetches some pages, and enters nothing."""
        ends = [(first * PAGE, min(stop * PAGE, self.key.size)) for first, stop in of]
        ranges = [(at, end - at) for at, end in ends]
        return _Ask(self.key, self.name, self.facts, [], ranges, requested_ns=self.requested_ns, exact=True)

    def gets(self) -> Iterator[Get]:
        """Yield what is asked of the store for the pages that are missing: the whole object as one."""
        for first, stop in runs(self.missing):
            begin, end = first * PAGE, min(stop * PAGE, self.key.size)
            if (begin, end) == (0, self.key.size) and end <= READ_BYTES:
                yield Get(self.name)
                continue
            for at in range(begin, end, READ_BYTES):
                yield Get(self.name, at, min(READ_BYTES, end - at))


@final
class NodeStore(Store):
    """A store, read through the node cache.

    Args:
        store: where bytes lie.
        root: its URI, without a slash at its end.
    """

    def __init__(self, store: Store, root: str) -> None:
        self._store, self._root = store, root

    def stat(self, key: str) -> ObjectStat:
        return self._store.stat(key)

    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        begun, cache = time.perf_counter(), node_cache()
        found: list[Got | SourceError | None] = [None] * len(wanted)
        if cache is not None:
            try:
                _Reading(cache, self._store, wanted, found).run(self._asks(wanted, found))
            except DamageError:
                raise
            except (CacheError, OSError) as error:
                tell(f"node cache {cache.folder}: {getattr(error, 'strerror', None) or error}")
        left = [at for at, each in enumerate(found) if each is None]
        if left and cache is not None and cache.room.full and behind():
            msg = f"{self._root}/{wanted[left[0]].key} is not kept in the node cache, so it is not fetched ahead of its use"
            raise CacheError(msg)
        if left:
            for at, got in zip(left, self._store.read([wanted[at] for at in left]), strict=True):
                found[at] = got
        if cache is None or left:
            count(wait_s=time.perf_counter() - begun)
        return [each for each in found if each is not None]

    def forget(self, get: Get, facts: ObjectStat) -> None:
        """Keep nothing of what was read of an object: it was damaged on the way, and is read again.

        Args:
            get: as it was read.
            facts: what the object is like.
        """
        cache = node_cache()
        if cache is None or not facts.mark:
            return
        key = NodeKey(f"{self._root}/{get.key}", f"{facts.mark:016x}", facts.size)
        length = facts.size - get.start if get.length is None else get.length
        with suppress(CacheError, OSError), cache.opened(key) as file:  # else it is not kept
            file.forget(get.start // PAGE, -(-(get.start + length) // PAGE))

    def around(self, key: str, facts: ObjectStat, starts: _Int64, stops: _Int64) -> Iterator[Callable[[], None]]:
        """Yield what keeps ranges of one object on the node: a request of up to `PART` for many that lie together.

        Args:
            key: the object's.
            facts: as it is pinned.
            starts: first byte of each range, ascending.
            stops: the byte after it.
        """
        cache = node_cache()
        if cache is None or not facts.mark or int(stops.max(initial=0)) > facts.size:
            return
        ask = _Ask(NodeKey(f"{self._root}/{key}", f"{facts.mark:016x}", facts.size), key, facts)
        begins, ends = starts // PAGE, np.maximum.accumulate(-(-stops // PAGE))
        turns = np.flatnonzero(begins[1:] - ends[:-1] >= GAP_BYTES // PAGE) + 1
        for some in np.split(np.arange(len(starts)), turns):
            if len(some) >= MANY:
                for at in range(int(begins[some[0]]), int(ends[some[-1]]), PART // PAGE):
                    part = ask.part([(at, min(at + PART // PAGE, int(ends[some[-1]])))])
                    yield partial(self._keep, cache, part)

    def _keep(self, cache: NodeCache, part: _Ask) -> None:
        if taken(cache.folder) + PART < cache.limit_bytes * FULL:  # nothing has to go for it
            _Reading(cache, self._store, [], []).run([part])

    def _asks(self, wanted: Sequence[Get], found: list[Got | SourceError | None]) -> list[_Ask]:
        """What is asked of each object that can be kept; enters what needs no bytes."""
        asks: dict[NodeKey, _Ask] = {}
        facts = self._facts(wanted, found)
        for at, (each, known) in enumerate(zip(wanted, facts, strict=True)):
            if known is None or not known.mark:
                continue
            length = known.size - each.start if each.length is None else each.length
            if length < 0 or each.start + length > known.size:
                continue  # the store says what is wrong
            if each.length is None and each.most_bytes is not None and length > each.most_bytes:
                found[at] = Got(None, known)
                continue
            key = NodeKey(f"{self._root}/{each.key}", f"{known.mark:016x}", known.size)
            ask = asks.setdefault(key, _Ask(key, each.key, known))
            ask.indices.append(at)
            ask.ranges.append((each.start, length))
        return list(asks.values())

    def _facts(self, wanted: Sequence[Get], found: list[Got | SourceError | None]) -> list[ObjectStat | None]:
        """What objects are like: as pinned, else as the store says."""
        unknown = list(dict.fromkeys(each.key for each in wanted if each.pinned is None))
        answers = self._store.read([Get(key, 0, 0) for key in unknown]) if unknown else []
        seen = dict(zip(unknown, answers, strict=True))
        facts: list[ObjectStat | None] = []
        for at, each in enumerate(wanted):
            said = None if each.pinned is not None else seen[each.key]
            if isinstance(said, SourceError) and not self._root.startswith("http"):  # some web servers know no HEAD
                found[at] = said
            facts.append(each.pinned if said is None else said.facts if isinstance(said, Got) else None)
        return facts

    def list(self, prefix: str, ending: str = "") -> Iterator[tuple[str, ObjectStat]]:
        return self._store.list(prefix, ending)

    def put(
        self, key: str, data: Buffer, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        return self._store.put(key, data, absent=absent, unchanged=unchanged)

    def delete(self, key: str) -> None:
        self._store.delete(key)


@final
class _Reading:
    """One call's reads of objects that can be kept."""

    def __init__(
        self, cache: NodeCache, store: Store, wanted: Sequence[Get], found: list[Got | SourceError | None]
    ) -> None:
        self._cache, self._store, self._wanted, self._found = cache, store, wanted, found

    def run(self, asks: Sequence[_Ask]) -> None:
        for requested_ns, each in enumerate(asks, time.time_ns()):
            each.requested_ns = requested_ns
        left = self._not_here(asks)
        if not left:
            return
        left, unkept = self._to_keep(left)
        begun, wait = time.perf_counter(), Wait(WAIT_S, _PAUSES_S)
        waited, missing = 0, -1
        try:
            while left or unkept:
                with doing(f"waiting for {len(left) + len(unkept):,} objects, such as {(left or unkept)[0].key}"):
                    others = self._turn(left, unkept, alone=wait.over)
                    unkept = []
                    if len(others) < len(left):
                        wait.again()
                    left, waited = others, max(waited, len(others))
                    for each in left:
                        each.is_hit = False
                    if left:
                        wait.pause()
                        left = self._not_here(left)
                    if (now := sum(len(each.missing) for each in left)) != missing:
                        missing = now
                        wait.again()
        finally:
            count(wait_s=time.perf_counter() - begun, waits=waited)

    def _to_keep(self, asks: Sequence[_Ask]) -> tuple[list[_Ask], list[_Ask]]:
        """Return what is to be kept, and what is fetched and not kept."""
        room, ahead = self._cache.room, behind()
        if not room.full:
            return list(asks), []
        keep: list[_Ask] = []
        others: list[_Ask] = []
        for each in asks:
            (keep if room.keeps(each.key, _bytes(each), ahead=ahead) else others).append(each)
        return keep, [] if ahead else others

    def _not_here(self, asks: Sequence[_Ask]) -> list[_Ask]:
        """Enter what lies on the node, hits where nobody waited for it; return the others, with what they miss."""
        left: list[_Ask] = []
        hits = hit_bytes = 0
        for each in asks:
            found = self._found_here(each)
            if found is None:
                left.append(each)
                continue
            for index, data in zip(each.indices, found, strict=False):  # a part has no places
                self._found[index] = Got(data, each.facts)
            if each.indices and each.is_hit:
                hits, hit_bytes = hits + 1, hit_bytes + _bytes(each)
        if hits:
            count(hits=hits, hit_bytes=hit_bytes)
        return left

    def _found_here(self, ask: _Ask) -> list[memoryview] | None:
        """The bytes of an ask; None notes what it misses."""
        ask.missing = wanted_pages(ask.key, ask.ranges, exact=ask.exact)
        if not len(ask.missing):
            return [memoryview(b"") for _ in ask.ranges]
        try:
            with self._cache.opened(ask.key) as file:
                file.stamp(ask.requested_ns)
                ask.missing = file.missing(ask.missing)
                if not len(ask.missing):
                    return [file.read(at, length) for at, length in ask.ranges]
                gaps = between(ask.missing)
                if len(gaps):
                    ask.missing = np.union1d(ask.missing, file.missing(gaps))
        except FileNotFoundError:
            gaps = between(ask.missing)
            if len(gaps):
                ask.missing = np.union1d(ask.missing, gaps)
        return None

    def _turn(self, left: Sequence[_Ask], unkept: Sequence[_Ask], *, alone: bool) -> list[_Ask]:
        """Fetch what nobody else fetches, and what is not kept; return what others fetch."""
        with Leases(self._cache.folder) as leases:
            mine: list[_Ask] = []
            others: list[_Ask] = []
            for each in left:
                leased = [run for run in runs(each.missing) if leases.take(each.key.digest, *run) or alone]
                pages = sum(stop - first for first, stop in leased)
                (mine if pages == len(each.missing) else others).append(each)
                if 0 < pages < len(each.missing):
                    mine.append(each.part(leased))
            mine = self._not_here(mine)  # somebody may have been there between the look and the lease
            for part in _parts(mine) or ([[]] if unkept else []):
                self._fetch(part, unkept)
                unkept = []
        return others

    def _fetch(self, asks: Sequence[_Ask], unkept: Sequence[_Ask]) -> None:
        gets = [list(each.gets()) for each in asks]
        indices = [index for each in unkept for index in each.indices]
        exact = [self._wanted[index] for index in indices]
        answers = iter(self._store.read([get for some in gets for get in some] + exact))
        for each, some in zip(asks, gets, strict=True):
            got = [(get.start, next(answers)) for get in some]
            fault = next((answer for _, answer in got if isinstance(answer, SourceError)), None)
            if fault is not None:
                for index in each.indices:
                    self._found[index] = fault
                continue
            parts = [(at, answer.data) for at, answer in got if isinstance(answer, Got) and answer.data is not None]
            facts = {(answer.facts.size, answer.facts.mark) for _, answer in got if isinstance(answer, Got)}
            if facts != {(each.facts.size, each.facts.mark)}:
                continue  # another object than the pinned one: the store is asked, and whoever asked compares
            self._take(each, parts)
        for index, answer in zip(indices, answers, strict=True):
            self._found[index] = answer
            came = len(answer.data) if isinstance(answer, Got) and answer.data is not None else 0
            count(again=came, unkept=came)

    def _take(self, ask: _Ask, parts: list[tuple[int, memoryview]]) -> None:
        """Keep what came, and enter it."""
        again = self._cache.room.was_removed(ask.key.digest)
        came = sum(len(data) for _, data in parts)
        cached = self._read_here(ask, parts)
        count(again=came if again else 0, unkept=0 if cached else came)
        for index, (at, length) in zip(ask.indices, ask.ranges, strict=False):
            for begin, data in parts:
                if begin <= at and at + length <= begin + len(data):
                    self._found[index] = Got(data[at - begin : at - begin + length], ask.facts)
                    break
        if cached and any(self._found[index] is None for index in ask.indices):
            ask.is_hit = False
            self._not_here([ask])  # a range of pages that came and of some that were here

    def _read_here(self, ask: _Ask, parts: list[tuple[int, memoryview]]) -> bool:
        try:
            with self._cache.opened(ask.key, make=True) as file:
                for at, data in parts:
                    if not self._cache.room.reserve(file, at // PAGE, -(-(at + len(data)) // PAGE)):
                        return False
                    file.write(at, data)
                file.stamp(ask.requested_ns)
        except (CacheError, OSError) as error:
            tell(f"node cache {self._cache.folder}: {getattr(error, 'strerror', None) or error}")
            return False
        return True


def _bytes(ask: _Ask) -> int:
    return sum(length for _, length in ask.ranges)


def _parts(asks: Sequence[_Ask]) -> list[list[_Ask]]:
    """Cut asks into parts of so many bytes that they may lie in memory together."""
    parts: list[list[_Ask]] = []
    size = 0
    for each in asks:
        more = len(each.missing) * PAGE
        if not parts or size + more > TOGETHER_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += more
    return parts

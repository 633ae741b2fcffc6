"""What one ask misses, on its way to the node.

Every part of 8 MiB that blocks are missing of is one task, under the part's lease; parts that others fetch are waited for.
Whoever waits looks for progress: sums that anybody wrote. Without any for `stall_s` the ask fails, and gives its leases
back: a call that does not return keeps its thread, and nothing else. A request that fails or ends early is asked for again
from the block that it reached, after a pause that doubles; an attempt that brought a block is not counted.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, SourceError, SpiralError
from spiral_stream.storage.node_files import BLOCK, PART_BLOCKS, Sums, printable, refused, runs_of, sums_of
from spiral_stream.storage.node_open import NodeFile
from spiral_stream.storage.node_room import Room
from spiral_stream.threads import Workers, doing

Buffer = bytes | bytearray | memoryview
Download = Callable[[int, int], Buffer | Iterable[Buffer]]
ATTEMPTS: Final = 5  # without a block between them
FIRST_PAUSE_S: Final = 0.1
_MOST_PAUSE_S: Final = 5.0
_LOOK_S: Final = 0.02  # how often others' progress is looked at


@final
@dataclass
class NodeCounters:
    """What one process asked of the node cache.

    Args:
        hits: asks that found all their bytes here.
        downloads: requests.
        bytes: downloaded.
        again: bytes downloaded of files that had been here and were removed for others.
        damaged: blocks that were not what had been written, and were fetched again.
        evicted: files that this process removed to make room.
        retries: requests that failed and were repeated.
        waits: asks that waited for other threads or processes.
        wait_s: seconds that asks waited for bytes.
    """

    hits: int = 0
    downloads: int = 0
    bytes: int = 0
    again: int = 0
    damaged: int = 0
    evicted: int = 0
    retries: int = 0
    waits: int = 0
    wait_s: float = 0.0
    _lock: Any = field(
        default_factory=threading.RLock, repr=False, compare=False
    )  # the collector may release a file inside

    def add(self, **more: float) -> None:
        """Add to some of them."""
        with self._lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)

    def snapshot(self) -> dict[str, float]:
        """Return all of them by name."""
        with self._lock:
            return {name: getattr(self, name) for name in self.__dataclass_fields__ if not name.startswith("_")}


@final
@dataclass(frozen=True, slots=True)
class RequestLine:
    """How requests leave this process.

    Args:
        workers: their threads.
        slots: how many may be in flight.
        moved: notified when one ends.
        closing: set when the cache closes.
        room: where the bytes go.
        counters: of the process.
        stall_s: how long nothing may come.
    """

    workers: Workers
    slots: threading.BoundedSemaphore
    moved: threading.Condition
    closing: threading.Event
    room: Room
    counters: NodeCounters
    stall_s: float


@final
class Filling:
    """The blocks that one ask misses.

    Args:
        file: whose they are.
        blocks: shape [N], ascending: those asked for.
        download: gives bytes of the remote file.
        line: of the process.
    """

    def __init__(self, file: NodeFile, blocks: NDArray[np.int64], download: Download, line: RequestLine) -> None:
        self._file, self._blocks, self._download, self._line = file, blocks, download, line
        self._wanted = frozenset(blocks.tolist())
        self._running: dict[int, tuple[Future[None], Sums]] = {}
        self._stopped = False
        self._again = line.room.was_removed(file.key.digest)

    def run(self, missing: NDArray[np.int64]) -> None:
        """Fetch what is missing, or wait until others have.

        Raises:
            CacheError: it cannot be kept here.
            DamageError: what is written here does not stay.
            SourceError: it cannot be fetched, or nothing came for too long.
        """
        since, waited = time.monotonic(), False
        seen = self._progress()
        try:
            while len(missing):
                if self._line.closing.is_set():
                    msg = f"{self._file.key}: the node cache was closed. Open another one"
                    raise CacheError(msg)
                waited |= self._start(missing)
                with doing(f"waiting for {self._file.key}"), self._line.moved:
                    if not any(future.done() for future, _ in self._running.values()):
                        self._line.moved.wait(_LOOK_S)
                self._collect()
                if (now := self._progress()) != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > self._line.stall_s:
                    raise SourceError(self._stalled(missing))
                missing = self._file.missing(self._blocks)
        finally:
            self._stopped = True
            for part, (future, sums) in self._running.items():
                if future.cancelled():
                    self._ended(sums)
                sums.give_back(part)
            self._line.counters.add(waits=int(waited))

    def _start(self, missing: NDArray[np.int64]) -> bool:
        """Begin with the parts that nobody fetches; whether somebody else fetches one."""
        others = False
        for part in np.unique(missing // PART_BLOCKS).tolist():
            if part in self._running:
                continue
            if not self._line.slots.acquire(blocking=False):
                return True
            sums = self._file.sums()
            if not sums.lease(part):
                sums.close()
                self._line.slots.release()
                others = True
                continue
            self._file.retain()
            self._running[part] = self._line.workers.submit(self._fill, sums, part), sums
        return others

    def _collect(self) -> None:
        for part, (future, _) in list(self._running.items()):
            if future.done() and not future.cancelled():
                del self._running[part]
                future.result()

    def _progress(self) -> int:
        with self._file.sums() as sums:
            return sums.touched_ns()

    def _stalled(self, missing: NDArray[np.int64]) -> str:
        with self._file.sums() as sums:
            owner = sums.owner()
        return (
            f"{self._file.key}: no byte came for {self._line.stall_s:g} s, and {len(missing) * BLOCK:,} bytes are missing; "
            f"process {owner} asked for them last. Check the network and the store, or wait longer with stall_s="
        )

    def _fill(self, sums: Sums, part: int) -> None:
        try:
            with doing(f"fetching {self._file.key}"):
                stop = min((part + 1) * PART_BLOCKS, self._file.key.blocks)
                absent = np.flatnonzero(sums.read(part * PART_BLOCKS, stop) == 0) + part * PART_BLOCKS
                for first, after in runs_of(
                    np.array([each for each in absent.tolist() if each in self._wanted], np.int64)
                ):
                    self._fetch(sums, first, after)
        except OSError as error:
            raise refused(error, f"{self._file.key}: {self._file.path}", "cannot be written") from error
        finally:
            self._ended(sums)

    def _ended(self, sums: Sums) -> None:
        sums.close()
        self._line.slots.release()
        self._file.release()
        with self._line.moved:
            self._line.moved.notify_all()

    def _over(self) -> bool:
        return self._stopped or self._line.closing.is_set()

    def _fetch(self, sums: Sums, first: int, stop: int) -> None:
        """Fetch a run of blocks, however often it takes."""
        extent = first * BLOCK, min(stop * BLOCK, self._file.key.size) - first * BLOCK
        since = time.monotonic()
        if self._over():
            return
        while not self._line.room.reserve(self._file.handle, sums, (first, stop), extent):
            if time.monotonic() - since > self._line.stall_s:
                raise CacheError(self._crowded())
            if self._over() or self._line.closing.wait(_LOOK_S):
                return
        failed = 0
        while first < stop and not self._over():
            reached, why = self._once(sums, first, stop)
            if reached == stop:
                return
            failed = 1 if reached > first else failed + 1
            first = reached
            if failed >= ATTEMPTS:
                raise SourceError(self._unfetched(first, stop, why)) from (why if isinstance(why, Exception) else None)
            self._line.counters.add(retries=1)
            pause_s = min(_MOST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failed - 1))
            self._line.closing.wait(pause_s * (0.5 + time.monotonic_ns() % 1000 / 2000))

    def _once(self, sums: Sums, first: int, stop: int) -> tuple[int, object]:
        """Ask once; the block reached, and why it ended there."""
        blocks = _Blocks(self._file, sums, first, stop, self._over)
        self._line.counters.add(downloads=1)
        try:
            got = self._download(first * BLOCK, blocks.end - first * BLOCK)
            for each in (got,) if isinstance(got, bytes | bytearray | memoryview) else got:
                blocks.put(each)
            blocks.finish()
        except (SpiralError, OSError) as error:
            if isinstance(error, SpiralError) or blocks.failed:
                raise
            return blocks.next, error
        except Exception as error:  # noqa: BLE001  clients raise what they like
            return blocks.next, error
        finally:
            self._line.counters.add(bytes=blocks.bytes, again=blocks.bytes if self._again else 0)
        return blocks.next, f"{blocks.bytes:,} bytes came of {blocks.end - first * BLOCK:,}"

    def _unfetched(self, first: int, stop: int, why: object) -> str:
        said = f"{type(why).__name__}: {printable(str(why))}" if isinstance(why, Exception) else str(why)
        end = min(stop * BLOCK, self._file.key.size)
        return (
            f"{self._file.key}: bytes {first * BLOCK:,} to {end:,} cannot be fetched, asked for {ATTEMPTS} times ({said}). "
            "Check the network and the store; what came so far is kept, and a saved state resumes"
        )

    def _crowded(self) -> str:
        limit = self._line.room.limit
        return (
            f"{self._file.key}: the node cache {self._line.room.root} is full: its limit is {limit:,} bytes, and the files in it "
            f"were held for {self._line.stall_s:g} s. Raise $SPIRAL_NODE_CACHE_BYTES, or hold fewer files at a time"
        )


@final
class _Blocks:
    """Writes bytes that come in pieces, block by block."""

    def __init__(self, file: NodeFile, sums: Sums, first: int, stop: int, over: Callable[[], bool]) -> None:
        self._file, self._sums, self._over = file, sums, over
        self.next, self.end = first, min(stop * BLOCK, file.key.size)
        self.bytes, self.failed = 0, False
        self._rest = bytearray()

    def put(self, piece: Buffer) -> None:
        """Take the next bytes.

        Raises:
            SourceError: more came than were asked for.
            OSError: they cannot be written, or nobody waits for them any more.
        """
        if self._over():
            msg = f"{self._file.key}: nobody waits for it any more"
            raise InterruptedError(msg)
        view = memoryview(piece).cast("B")
        self.bytes += len(view)
        left = self.end - self.next * BLOCK - len(self._rest)
        if len(view) > left:
            msg = (
                f"{self._file.key}: {len(view) - left:,} bytes more came than were asked for, up to byte {self.end:,}. "
                "Its server, or a proxy, does not know ranges: read it from another one"
            )
            raise SourceError(msg)
        if self._rest:
            more = min(BLOCK - len(self._rest), len(view))
            self._rest += view[:more]
            view = view[more:]
            if len(self._rest) == BLOCK:
                self._write(memoryview(bytes(self._rest)))
                self._rest.clear()
        whole = len(view) // BLOCK * BLOCK
        if whole:
            self._write(view[:whole])
        self._rest += view[whole:]
        if self._rest and self.next * BLOCK + len(self._rest) == self.end:
            self.finish()

    def finish(self) -> None:
        """Write the last block, which may be short."""
        if self._rest and self.next * BLOCK + len(self._rest) == self._file.key.size:
            self._write(memoryview(bytes(self._rest)))
            self._rest.clear()

    def _write(self, data: memoryview) -> None:
        try:
            self._file.write(self.next * BLOCK, data)
            self._sums.write(self.next, sums_of(data))
        except OSError:
            self.failed = True
            raise
        self.next += -(-len(data) // BLOCK)

"""The metrics of a running stream: counts, and seconds by stage."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, final

from spiral_stream.storage.counters import Traffic


@final
@dataclass
class Metrics:
    """Totals since the stream was made. ``fetch_s`` and ``transform_s`` add up the seconds of all threads."""

    batches: int = 0  # this and the next: what the loop was given
    samples: int = 0
    cached_rows: int = 0
    source_rows: int = 0
    source_bytes: int = 0
    table_rows: int = 0  # this and the next: read of kept columns, which are mapped; also by those who form batches
    table_bytes: int = 0
    refused: int = 0  # samples of delivered batches that could not be read; the next two say what happened to them
    skipped: int = 0
    substituted: int = 0
    filtered: int = 0  # this and the next three: samples in windows that were formed here, each time they were
    dropped: int = 0
    truncated: int = 0
    alone: int = 0
    short_clips: int = 0  # segments with too few frames, which were padded or looped
    frames_kept: int = 0  # this and the next: frames of clips decoded from originals
    frames_decoded: int = 0
    plan_s: float = 0.0
    fetch_s: float = 0.0
    transform_s: float = 0.0  # of pixels, decoding included; `as_dict` adds what maps and collation take
    decode_s: float = 0.0  # of ``transform_s``
    map_s: float = 0.0  # users' functions and tokenizers
    collate_s: float = 0.0  # writing token fields
    copy_s: float = 0.0  # of the loop: handing batches to the framework and its device
    consumer_waited_s: float = 0.0
    feeder_waited_s: float = 0.0
    queued: int = 0  # batches that are begun and not taken: the sum of the next two
    raw_depth: int = 0  # whose payload is being read or decoded
    ready_depth: int = 0  # which are whole
    rows_not_read: int | None = (
        None  # of this rank's epoch, that no batch was begun with; None without a loop, or unknown
    )
    cost: float = (
        0.0  # of delivered microsteps, by the plan's cost: of a rank on average, and below that of the slowest one
    )
    slowest_cost: float = 0.0
    peak_queue_bytes: int = 0  # most bytes of batches ahead: arrays, and Python values as `object_bytes` counts them
    peak_batch_bytes: int = 0  # bytes of the largest batch so far
    network: Traffic = field(default_factory=Traffic)  # what was asked of object stores and web servers
    _columns: dict[str, list[int]] = field(default_factory=dict, repr=False)  # rows, bytes
    _functions: dict[str, float] = field(
        default_factory=dict, repr=False
    )  # of ``map_s``: users' functions and tokenizers
    _lock: AbstractContextManager[Any] = field(
        default_factory=threading.RLock, repr=False
    )  # the collector may close a stream from inside

    def add(self, **amounts: float) -> None:
        """Add to several totals at once."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def handed_over(self, copy_s: float, waited_s: float, samples: int) -> None:
        """Count a batch that the loop was given. `add`, which is given names, costs twice as much."""
        with self._lock:
            self.copy_s += copy_s
            self.consumer_waited_s += waited_s
            self.batches += 1
            self.samples += samples

    def read(self, rows: int, sizes: Mapping[str, int]) -> None:
        """Count rows read from a source, and the bytes of each column."""
        with self._lock:
            self.source_rows += rows
            for name, nbytes in sizes.items():
                self.source_bytes += nbytes
                self._count(name, rows, nbytes)

    def read_table(self, rows: int, sizes: Mapping[str, int]) -> None:
        """Count rows read from kept columns, and the bytes of each."""
        with self._lock:
            self.table_rows += rows
            for name, nbytes in sizes.items():
                self.table_bytes += nbytes
                self._count(name, rows, nbytes)

    def _count(self, name: str, rows: int, nbytes: int) -> None:
        column = self._columns.setdefault(name, [0, 0])
        column[0] += rows
        column[1] += nbytes

    @contextmanager
    def locked(self) -> Iterator["Metrics"]:
        """Hold the totals, to set several of them at once."""
        with self._lock:
            yield self

    def as_dict(self) -> dict[str, Any]:
        """Return the totals, the cache's hit rate, and a verdict on what bounds the stream."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
        out["network"] = self.network.as_dict()
        out["columns"] = {name: {"rows": rows, "bytes": size} for name, (rows, size) in sorted(self._columns.items())}
        out["functions"] = dict(self._functions)
        out["stages"] = self._stages()
        out["transform_s"] = self._transformed()
        rows = self.cached_rows + self.source_rows
        out["cache_hit_rate"] = self.cached_rows / rows if rows else None
        out["step_wait_share"] = 1.0 - self.cost / self.slowest_cost if self.slowest_cost else None
        out["bound_by"] = self._verdict()
        return out

    def _transformed(self) -> float:
        """Seconds of all work on values."""
        return self.transform_s + self.map_s + self.collate_s

    def _stages(self) -> dict[str, float]:
        """Seconds by stage: of all threads together, but for ``copy`` and ``wait``, which are the loop's."""
        decode = min(self.decode_s, self.transform_s)
        return {
            "form": self.plan_s,
            "read": self.fetch_s,
            "decode": decode,
            "transform": self.transform_s - decode,
            "map": self.map_s,
            "collate": self.collate_s,
            "copy": self.copy_s,
            "wait": self.consumer_waited_s,
        }

    def _verdict(self) -> str:
        if self.batches == 0:
            return "unknown: nothing was delivered yet. Loop over some batches first"
        if self.consumer_waited_s <= self.feeder_waited_s:
            return "consumer"
        return "fetch" if self.fetch_s > self._transformed() else "transform"


@final
class timed:  # noqa: N801  read as a word: ``with timed(metrics, "fetch_s"):``
    """Add the wall time of the block to a total.

    A class, because a generator costs three times as much, and every batch has six of these.

    Args:
        metrics: of the stream.
        name: of the total.
        function: whose own seconds the time is added to as well: that of a user, or a tokenizer.
    """

    __slots__ = ("_begun", "_function", "_metrics", "_name")

    def __init__(self, metrics: Metrics, name: str, function: str | None = None) -> None:
        self._metrics, self._name, self._function = metrics, name, function

    def __enter__(self) -> None:
        self._begun = perf_counter()

    def __exit__(self, *_: object) -> None:
        metrics, name, elapsed_s = self._metrics, self._name, perf_counter() - self._begun
        with metrics._lock:  # noqa: SLF001  `add` with a keyword costs twice as much
            setattr(metrics, name, getattr(metrics, name) + elapsed_s)
            if self._function is not None:
                called = metrics._functions  # noqa: SLF001  as above
                called[self._function] = called.get(self._function, 0.0) + elapsed_s

"""Rows sorted by the hash of their identity: one index for every seed and bucket count.

Identities are hashed with the unseeded 128-bit hash of `seeding.identity_hashes`
and sorted by (high word, low word). Equal hashes mean equal identities, which is
an error. The sort goes through 64 partitions by leading bits, so memory is a
64th of 24 bytes per row; what is left are three memory-mapped arrays, 16 to 24 bytes per row.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, PlanError
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import mended, publish
from spiral_stream.seeding import identity_hashes

UInt64 = NDArray[np.uint64]
Identities = Any  # Sequence[str | bytes | int], pa.Array or pa.ChunkedArray; pyarrow ships no types

VERSION: Final = 1
_PARTITIONS: Final = 64
_PARTITION_BITS: Final = np.uint64(58)  # the top 6 bits of 64
_MOST_BUCKETS: Final = 2**32
_HALF: Final = np.uint64(32)


@final
class IdentityIndex:
    """A `BucketIndex` on disk. Thread-safe; pickling passes the path."""

    def __init__(self, directory: Path) -> None:
        """Map an index that `build_index` made.

        Raises:
            DamageError: it is missing, or not what was written.
            CacheError: it is of another version, or the operating system refuses.
        """
        file = directory / "index.json"
        meta = seal.read_json(file)
        with seal.reading(file):
            if meta["version"] != VERSION:
                msg = f"index {directory} has format {meta['version']}, this is {VERSION}. Delete it to build it again"
                raise CacheError(msg)
            self._high, self._rows, self._ranks = (
                seal.array(directory / f"{name}.npy") for name in ("high", "rows", "ranks")
            )
            if {len(self._high), len(self._rows), len(self._ranks)} != {meta["total"]}:
                raise seal.damaged(directory, f"it has {len(self._high):,} rows of {meta['total']:,}")
        self.path = directory
        self.total = len(self._high)

    def __reduce__(self) -> tuple[Any, ...]:
        return (IdentityIndex, (self.path,))

    def starts(self, bucket_count: int) -> UInt64:
        """Where each bucket begins: bucket b holds the rows with ``(high word * bucket_count) >> 64 == b``.

        Returns:
            shape [bucket_count + 1], uint64.

        Raises:
            PlanError: the count is not between 1 and 2**32.
        """
        if not 1 <= bucket_count <= _MOST_BUCKETS:
            msg = f"bucket_count is {bucket_count}; it must be between 1 and {_MOST_BUCKETS}"
            raise PlanError(msg)
        # the least high word of bucket b is ceil(b * 2**64 / count), by long division in two halves
        by = np.uint64(bucket_count)
        high, rest = np.divmod(np.arange(bucket_count, dtype=np.uint64) << _HALF, by)
        low, rest = np.divmod(rest << _HALF, by)
        least = ((high << _HALF) | low) + (rest > 0)
        found = np.searchsorted(self._high, least).astype(np.uint64)
        return np.append(found, np.uint64(self.total))

    def rows(self, ranks: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the row at each place of the sorted rows."""
        return np.asarray(self._rows[ranks], dtype=np.uint64)

    def ranks(self, rows: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the inverse of `rows`."""
        return np.asarray(self._ranks[rows], dtype=np.uint64)


def build_index(directory: Path, stream: str, chunks: Iterable[tuple[UInt64, Identities]]) -> IdentityIndex:
    """Write an index, or open it if it is there.

    Args:
        directory: its place; the name must be a fingerprint of all that decides the content.
        stream: name of the stream in a mixture, "" without one.
        chunks: rows and their identities, in any order; together the rows are 0 to N - 1, each once.

    Raises:
        PlanError: an identity repeats (both rows are named) or is missing.
        CacheError: the folder cannot be written.
    """

    def build() -> None:
        with publish(directory) as work:
            total = _spool(work, stream, chunks)
            _sort(work, total)
            (work / "index.json").write_text(
                json.dumps({"version": VERSION, "total": total, "stream": stream, "sealed": True})
            )

    return mended(directory, lambda: IdentityIndex(directory), build)


def _spool(work: Path, stream: str, chunks: Iterable[tuple[UInt64, Identities]]) -> int:
    """Hash all identities into one file a partition; returns how many there were."""
    total = 0
    handles = [(work / f"part-{k}").open("wb") for k in range(_PARTITIONS)]
    try:
        for rows, identities in chunks:
            values = identities.to_pylist() if isinstance(identities, pa.Array | pa.ChunkedArray) else identities
            if None in values:
                at = list(values).index(None)
                msg = f"sample: the identity of row {rows[at]} is null. Filter such rows out, or name another identity"
                raise PlanError(msg)
            records = np.column_stack([identity_hashes(stream, values), np.asarray(rows, dtype=np.uint64)])
            part = (records[:, 0] >> _PARTITION_BITS).astype(np.int64)
            order = np.argsort(part, kind="stable")
            ends = np.cumsum(np.bincount(part, minlength=_PARTITIONS))
            for handle, piece in zip(handles, np.split(records[order], ends[:-1]), strict=True):
                handle.write(piece.astype("<u8").tobytes())
            total += len(records)
    finally:
        for handle in handles:
            handle.close()
    return total


def _sort(work: Path, total: int) -> None:
    kind = np.uint32 if total <= np.iinfo(np.uint32).max else np.uint64
    kinds = {"high": np.uint64, "rows": kind, "ranks": kind}
    out = {name: _created(work / f"{name}.npy", k, total) for name, k in kinds.items()}
    done = 0
    for partition in range(_PARTITIONS):
        file = work / f"part-{partition}"
        records = np.fromfile(file, "<u8").reshape(-1, 3)
        file.unlink()
        high, low, rows = records[np.lexsort((records[:, 1], records[:, 0]))].T
        twins = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
        if len(twins):
            a, b = sorted((int(rows[twins[0]]), int(rows[twins[0] + 1])))
            msg = (
                f"sample: an identity repeats in rows {a} and {b} of the selection. "
                "Name a unique column as identity, several as identity=[...], or keep one row each with .distinct(...)"
            )
            raise PlanError(msg)
        span = np.arange(done, done + len(rows))
        out["high"][span], out["rows"][span], out["ranks"][rows] = high, rows, span
        done += len(rows)
    for array in out.values():
        if isinstance(array, np.memmap):
            array.flush()


def _created(path: Path, kind: type[np.unsignedinteger[Any]], size: int) -> NDArray[Any]:
    if size == 0:  # an empty file cannot be mapped
        np.save(path, np.zeros(0, kind))
        return np.zeros(0, kind)
    return np.lib.format.open_memmap(path, "w+", kind, (size,))

"""What a cache holds at a pinned version: where each stored row lies in mapped memory.

Readers memory-map the packed ``.blob`` files and gather by (address, size) with no
Lance call a batch (decision 9). A shard costs 12 bytes a row in memory, 4 more if
only some of its rows are stored, and what its kind keeps beside the payload; opening
one reads its descriptors through Lance at 0.2 to 0.5 us a row. The shards used last
stay open up to a byte limit.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import CacheError

ROW: Final = "row"  # column: offset inside the source shard
REFUSED: Final = "refused"  # column: why the row has no payload
PAYLOAD: Final = "payload"  # column: the blob descriptor
PARTS: Final = b"spiral:parts"  # of the schema's metadata: [content key, fragment file] of every part
_PACKED: Final = 1  # kind of a blob that lies in a packed file; one of no bytes is nowhere
_BLOB_ID: Final = 1  # Lance names packed files by the reversed bits of a 32-bit id that starts at 1

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


@final
class CachedShard:
    """The N stored rows of one source shard, memory-mapped, ascending by their offset in it."""

    def __init__(self, parts: list[tuple[pa.Table, NDArray[np.uint8]]]) -> None:
        tables = [table for table, _ in parts]
        self._maps = [mapped for _, mapped in parts]  # held, so that addresses stay valid
        offsets, first = np.unique(np.concatenate([_numpy(t[ROW]) for t in tables]), return_index=True)

        def column(pieces: Iterable[NDArray[Any]]) -> NDArray[Any]:
            joined: NDArray[Any] = np.concatenate(list(pieces))[first]
            return joined

        sizes = column(_descriptor(t, "size") for t in tables)
        small = not len(sizes) or int(sizes.max()) <= np.iinfo(np.uint32).max
        self.sizes = sizes.astype(np.uint32 if small else np.int64)  # [N] bytes
        self.addresses: UInt64 = column(_descriptor(t, "position") + np.uint64(m.ctypes.data) for t, m in parts)  # [N]
        names = [name for name in tables[0].column_names if name not in (ROW, REFUSED, PAYLOAD)]
        self.beside: Mapping[str, NDArray[np.int32]] = {name: column(_numpy(t[name]) for t in tables) for name in names}
        dense = len(offsets) == int(offsets[-1]) + 1
        self._offsets = None if dense else offsets
        self._reasons = _reasons(tables, first)
        low = int(np.bitwise_or.reduce(self.addresses | sizes)) | 1 << 12
        self.alignment = low & -low  # bytes that every address and size is a multiple of, up to a page

    @property
    def nbytes(self) -> int:
        """Resident bytes, mapped payload aside."""
        arrays = [self.sizes, self.addresses, *self.beside.values()]
        offsets = 0 if self._offsets is None else self._offsets.nbytes
        return sum(each.nbytes for each in arrays) + offsets + sum(100 + len(text) for text in self._reasons.values())

    @property
    def leading(self) -> int:
        """Rows from the shard's first on that are all stored; row k of them stands at k in the arrays."""
        return len(self.sizes) if self._offsets is None else 0

    def find(self, offsets: Int64 | UInt64) -> Int64:
        """Where each row stands in this shard's arrays; -1 where it is not stored."""
        wanted = offsets.astype(np.int64, copy=False)
        if self._offsets is None:
            return np.where(wanted < len(self.sizes), wanted, -1)
        at = np.searchsorted(self._offsets, wanted.astype(np.uint32))
        at[at == len(self._offsets)] = 0
        return np.where(self._offsets[at] == wanted, at, -1).astype(np.int64)

    def refused(self, at: int) -> str | None:
        """Why the row was refused when the cache was built, or None."""
        return self._reasons.get(at)

    @property
    def any_refused(self) -> bool:
        """Whether a row of the shard was refused."""
        return bool(self._reasons)

    def locate(self, at: Int64) -> tuple[UInt64, Int64]:
        """Where stored rows lie in memory, and their bytes; valid while this shard is held.

        Args:
            at: shape [P], int64, from `find`.

        Returns:
            shape [P] each: uint64 addresses in the mapped files, int64 sizes.
        """
        return self.addresses[at], self.sizes[at].astype(np.int64)


def _numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy()
    return values


def _descriptor(table: pa.Table, name: str) -> UInt64:
    return np.asarray(pc.struct_field(descriptors(table), name).fill_null(0), dtype=np.uint64)


def _reasons(tables: list[pa.Table], first: NDArray[np.intp]) -> dict[int, str]:
    """Why rows were refused, by their place in the shard's arrays."""
    if all(t[REFUSED].null_count == len(t) for t in tables):
        return {}
    column = pa.chunked_array([chunk for t in tables for chunk in t[REFUSED].chunks], pa.string()).take(pa.array(first))
    places = np.flatnonzero(column.is_valid().to_numpy())
    return dict(zip(places.tolist(), column.drop_null().to_pylist(), strict=True))


def descriptors(table: pa.Table) -> pa.StructArray:
    """The payload column as one array of struct<kind, position, size, blob_id, blob_uri>."""
    column = table[PAYLOAD].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


@final
class CacheReader:
    """A pinned version of a cache. Thread-safe; keeps opened shards up to a byte limit."""

    def __init__(self, dataset: Any, folder: Path, resident_bytes: int = 256 << 20) -> None:
        self.version = int(dataset.version)
        self._folder = folder
        self._limit = resident_bytes
        parts = json.loads((dataset.schema.metadata or {}).get(PARTS, b"[]"))
        self._files: dict[str, list[str]] = {}
        for key, file in parts:
            self._files.setdefault(key, []).append(file)
        self._fragments = {f.metadata.files[0].path: f for f in dataset.get_fragments()}
        self._open: OrderedDict[str, CachedShard] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def shard(self, key: str) -> CachedShard | None:
        """The stored rows of the shard with this content key, or None.

        Raises:
            CacheError: its files are not what its rows say.
        """
        if key not in self._files:
            return None
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        shard = CachedShard([self._part(file) for file in self._files[key]])
        with self._lock:
            if key not in self._open:
                self._open[key] = shard
                self._bytes += shard.nbytes
                while self._bytes > self._limit and len(self._open) > 1:
                    self._bytes -= self._open.popitem(last=False)[1].nbytes
            return self._open[key]

    def _part(self, file: str) -> tuple[pa.Table, NDArray[np.uint8]]:
        table = self._fragments[file].to_table()
        position, size = _descriptor(table, "position"), _descriptor(table, "size")
        stored = size > 0
        if not stored.any():
            return table, np.empty(0, dtype=np.uint8)
        ids, kinds = _descriptor(table, "blob_id"), _descriptor(table, "kind")
        if set(ids[stored]) != {_BLOB_ID} or set(kinds[stored]) != {_PACKED}:
            msg = f"cache: {self._folder}/data/{file} is not one packed blob file; drop the cache folder and build it again"
            raise CacheError(msg)
        path = self._folder / "data" / Path(file).stem / (f"{_BLOB_ID:032b}"[::-1] + ".blob")
        need, held = int((position + size).max()), path.stat().st_size if path.exists() else 0
        if held < need:  # readers follow addresses, so a short file would end the process
            msg = f"cache: {path} has {held:,} bytes, its rows need {need:,}; drop the cache folder and build it again"
            raise CacheError(msg)
        return table, np.memmap(path, dtype=np.uint8, mode="r")

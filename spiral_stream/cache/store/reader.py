"""Read a cache at a pinned version: where each stored row lies in mapped memory.

Readers memory-map the packed ``.blob`` files and gather by (address, size) with no
Lance call per batch (docs/decisions/0026). A shard costs 12 bytes per row in memory, 4 more if
only some of its rows are stored, and its kind has columns next to the payload; opening
one verifies its descriptors and reads them through Lance, at 0.2 to 0.5 us per row. The shards used last
stay open up to a byte limit. Payload is verified where it is touched: whoever follows addresses asks `verify` first.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.cache.store.checksums import PartFiles
from spiral_stream.errors import CacheError, DamageError, is_failure
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import SHIFT, Mapped, need_sound, verify_rows
from spiral_stream.integrity.locks import Held
from spiral_stream.integrity.one_look import size_of

ROW: Final = "row"  # column: offset inside the source shard
REFUSED: Final = "refused"  # column: why the row has no payload
PAYLOAD: Final = "payload"  # column: the blob descriptor
PARTS: Final = b"spiral:parts"  # of the schema's metadata: [content key, fragment file] of every part
SUMS: Final = b"spiral:sums"  # of the schema's metadata: the digest of a part's sums, by fragment file
_PACKED: Final = 1  # kind of a blob that lies in a packed file; one of no bytes is nowhere
_BLOB_ID: Final = 1

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


@final
class CachedShard:
    """The N stored rows of one source shard, memory-mapped, ascending by their offset in it."""

    def __init__(self, parts: list[tuple[pa.Table, Mapped | None]]) -> None:
        tables = [table for table, _ in parts]
        self._maps = [mapped for _, mapped in parts]  # held, so that addresses stay valid
        self._stamps = [(mapped.path, _stamp(mapped.path)) for mapped in self._maps if mapped is not None]
        offsets, first = np.unique(np.concatenate([_numpy(t[ROW]) for t in tables]), return_index=True)

        def column(pieces: Iterable[NDArray[Any]]) -> NDArray[Any]:
            joined: NDArray[Any] = np.concatenate(list(pieces))[first]
            return joined

        sizes = column(_descriptor(t, "size") for t in tables)
        small = not len(sizes) or int(sizes.max()) <= np.iinfo(np.uint32).max
        self.sizes = sizes.astype(np.uint32 if small else np.int64)  # [N] bytes
        self.addresses: UInt64 = column(
            _descriptor(t, "position") + np.uint64(0 if m is None else m.address) for t, m in parts
        )  # [N]
        names = [name for name in tables[0].column_names if name not in (ROW, REFUSED, PAYLOAD)]
        self.narrow: Mapping[str, NDArray[np.int32]] = {name: column(_numpy(t[name]) for t in tables) for name in names}
        dense = len(offsets) == int(offsets[-1]) + 1
        self._offsets = None if dense else offsets
        self._reasons = _reasons(tables, first)
        low = int(np.bitwise_or.reduce(self.addresses | sizes)) | 1 << 12
        self.alignment = low & -low  # bytes that every address and size is a multiple of, up to a page

    @property
    def nbytes(self) -> int:
        """Resident bytes, mapped payload aside."""
        arrays = [self.sizes, self.addresses, *self.narrow.values()]
        offsets = 0 if self._offsets is None else self._offsets.nbytes
        return sum(each.nbytes for each in arrays) + offsets + sum(100 + len(text) for text in self._reasons.values())

    def changed(self) -> bool:
        """Whether a payload file was removed or written since it was mapped."""
        return any(_stamp(path) != stamp for path, stamp in self._stamps)

    @property
    def leading(self) -> int:
        """Rows from the shard's first on that are all stored; row k of them stands at k in the arrays."""
        return len(self.sizes) if self._offsets is None else 0

    def find(self, offsets: Int64 | UInt64) -> Int64:
        """Return the place of each row in this shard's arrays; -1 where it is not stored."""
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
        """Return the memory addresses of stored rows, and their bytes; valid while this shard is held.

        Args:
            at: shape [P], int64, from `find`.

        Returns:
            shape [P] each: uint64 addresses in the mapped files, int64 sizes.
        """
        return self.addresses[at], self.sizes[at].astype(np.int64)


def _stamp(path: str) -> tuple[int, ...] | None:
    """Return facts of a file that change when it is written or replaced; None if there is no such file."""
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


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
    refused_at = np.flatnonzero(column.is_valid().to_numpy())
    return dict(zip(refused_at.tolist(), column.drop_null().to_pylist(), strict=True))


def descriptors(table: pa.Table) -> pa.StructArray:
    """Return the payload column as one array of struct<kind, position, size, blob_id, blob_uri>."""
    column = table[PAYLOAD].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


@final
class OpenShards:
    """Shards of one cache by their files, those used last up to a byte limit. Thread-safe.

    Args:
        resident_bytes: how much they may take, mapped payload aside.
    """

    def __init__(self, resident_bytes: int = 256 << 20) -> None:
        self._limit = resident_bytes
        self._open: OrderedDict[tuple[str, ...], CachedShard] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, files: tuple[str, ...]) -> CachedShard | None:
        """Return the shard that was opened from these files, or None."""
        with self._lock:
            if files in self._open:
                self._open.move_to_end(files)
            return self._open.get(files)

    def put(self, files: tuple[str, ...], shard: CachedShard) -> CachedShard:
        """Enter a shard and return it; one that another thread has entered meanwhile wins."""
        with self._lock:
            if files not in self._open:
                self._open[files] = shard
                self._bytes += shard.nbytes
                while self._bytes > self._limit and len(self._open) > 1:
                    self._bytes -= self._open.popitem(last=False)[1].nbytes
            return self._open[files]

    def forget_changed(self) -> None:
        """Drop the shards whose payload files were removed or written since they were mapped."""
        with self._lock:
            for files in [files for files, shard in self._open.items() if shard.changed()]:
                self._bytes -= self._open.pop(files).nbytes


@final
class CacheReader:
    """A pinned version of a cache. Thread-safe.

    Args:
        dataset: the version.
        folder: of the dataset.
        shards: those that were opened before; they are shared with other readers of the folder.
        held: a lock for as long as the reader lives: nobody removes files of this version meanwhile.
        fetch: lets the files of a part be here.
    """

    def __init__(
        self,
        dataset: Any,
        folder: Path,
        shards: OpenShards,
        held: Held | None = None,
        fetch: Callable[[PartFiles], None] = lambda _: None,
    ) -> None:
        self.version = int(dataset.version)
        self._folder = folder
        self._shards = shards
        self._held = held
        self._fetch = fetch
        self._sums: dict[str, str] = json.loads((dataset.schema.metadata or {}).get(SUMS, b"{}"))
        self._files: dict[str, list[str]] = {}
        self._keys: dict[str, str] = {}
        for key, file in parts_of(dataset):
            self._files.setdefault(key, []).append(file)
            self._keys[file] = key
        self._fragments = {f.metadata.files[0].path: f for f in dataset.get_fragments()}

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def shard(self, key: str) -> CachedShard | None:
        """Return the stored rows of the shard with this content key, or None.

        Raises:
            DamageError: its files are not what was written.
            CacheError: they cannot be read.
        """
        if key not in self._files:
            return None
        files = tuple(self._files[key])
        found = self._shards.get(files)
        return found or self._shards.put(files, CachedShard([self._part(file) for file in files]))

    def verify(self, addresses: UInt64, sizes: Int64) -> None:
        """Verify the payload of stored rows, except blocks that were verified before.

        Args:
            addresses: shape [P], of rows of this reader's shards, or of memory that is no file's.
            sizes: shape [P]: their bytes.

        Raises:
            DamageError: a row's bytes are not what was written; names the file and the shard.
        """
        verify_rows(addresses, sizes, self._damage)

    def _damage(self, path: Path, found: str) -> DamageError:
        need_sound()  # a file that became shorter has zeros
        return self._named(f"{path.parent.name}.lance").damage(path, found)

    def _named(self, file: str) -> PartFiles:
        return PartFiles(self._folder.parent, self._keys.get(file, ""), file, self._sums.get(file, ""))

    def _part(self, file: str) -> tuple[pa.Table, Mapped | None]:
        part = self._named(file)
        self._fetch(part)
        sums = part.verify_data()
        try:
            with seal.reading(part.data):
                table = self._fragments[file].to_table()
        except BaseException as error:
            if isinstance(error, CacheError) or not is_failure(error):
                raise
            raise part.damage(part.data, str(error)[:200]) from error
        position, size = _descriptor(table, "position"), _descriptor(table, "size")
        stored = size > 0
        if not stored.any():
            return table, None
        ids, kinds = _descriptor(table, "blob_id"), _descriptor(table, "kind")
        if set(ids[stored]) != {_BLOB_ID} or set(kinds[stored]) != {_PACKED}:
            raise part.damage(part.data, "its payload is not one packed blob file")
        need, held = int((position + size).max()), size_of(part.blob)
        if held < need:
            raise part.damage(part.blob, f"it has {held:,} bytes, its rows need {need:,}")
        with seal.reading(part.blob):
            mapped = Mapped(str(part.blob))
            mapped.expect(sums, SHIFT)
        return table, mapped


def parts_of(dataset: Any) -> list[list[str]]:
    """Return [content key, fragment file] of every committed part."""
    parts: list[list[str]] = json.loads((dataset.schema.metadata or {}).get(PARTS, b"[]"))
    return parts


def files_of(dataset: Any) -> list[str]:
    """Return the data file of every committed part; none without a dataset."""
    return [] if dataset is None else [file for _, file in parts_of(dataset)]

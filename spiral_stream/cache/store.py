"""One cache on disk: a Lance dataset, and the ledger of finished shards beside it.

    <caches>/<fingerprint>/data.lance      fragments; payload in packed blob v2 files
    <caches>/<fingerprint>/ledger/*.json   one file a finished part of a shard, written atomically
    <caches>/<fingerprint>/cache.json      what the fingerprint covers

A part is a fragment with the rows of one source shard, addressed by the shard's
content key. Writing parts needs no lock: fragment names are unique and a ledger
file appears whole or not at all. `commit` makes the parts of the ledger the
dataset's fragments in one Overwrite and repeats until no part is left out, so two
writers end with the union. Readers pin a version, memory-map the ``.blob`` files
and gather by (position, size) with no Lance call per batch (decision 9).
"""

import base64
import json
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, write_fragments
from numpy.typing import NDArray

from spiral_stream.errors import CacheError

_ONE_FILE: Final = 1 << 42  # bytes; above any shard, so that a fragment has exactly one .blob file
_ALL_ROWS: Final = (1 << 31) - 1
_PARTS: Final = b"spiral:parts"
_PAYLOAD: Final = lance.blob_field(
    "payload",
    nullable=True,
    inline_size_threshold=0,
    dedicated_size_threshold=_ONE_FILE,
    pack_file_size_threshold=_ONE_FILE,
)
_SCHEMA: Final = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),  # offset inside the source shard
        pa.field("height", pa.int32(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("refused", pa.string()),  # why the row has no payload
        _PAYLOAD,
    ]
)
_BLOB_ID: Final = 1  # Lance names packed files by the reversed bits of a 32-bit id that starts at 1
_COMMIT_TRIES: Final = 20


@final
@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one shard on their way into a part."""

    offsets: NDArray[np.uint32]
    heights: NDArray[np.int32]
    widths: NDArray[np.int32]
    payloads: list[Any]  # bytes-like, or None where refused
    refused: list[str | None]


@final
class CachedShard:
    """The stored rows of one source shard, memory-mapped."""

    def __init__(self, parts: list[tuple[pa.Table, NDArray[np.uint8]]]) -> None:
        tables = [table for table, _ in parts]
        self._maps = [mapped for _, mapped in parts]  # held, so that addresses stay valid
        self._bases = np.array([mapped.ctypes.data for mapped in self._maps], dtype=np.uint64)
        which = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
        offsets = np.concatenate([t["row"].to_numpy() for t in tables])
        order = np.argsort(offsets, kind="stable")
        self._offsets, self._which = offsets[order], which[order]

        def column(get: Any) -> NDArray[Any]:
            joined: NDArray[Any] = np.concatenate([get(t) for t in tables])[order]
            return joined

        def descriptor(name: str) -> Any:
            return lambda t: pc.struct_field(_struct(t), name).fill_null(0).to_numpy()

        self.heights = column(lambda t: t["height"].to_numpy())
        self.widths = column(lambda t: t["width"].to_numpy())
        self._starts = column(descriptor("position")).astype(np.uint64)
        self._sizes = column(descriptor("size")).astype(np.int64)
        reasons = (
            [reason for t in tables for reason in t["refused"].to_pylist()]
            if any(t["refused"].null_count < len(t) for t in tables)
            else []
        )
        self._refused = {at: reasons[i] for at, i in enumerate(order) if reasons[i] is not None} if reasons else {}

    @property
    def nbytes(self) -> int:
        """Resident bytes, mapped payload aside."""
        return 28 * len(self._offsets)

    def find(self, offsets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Where each row stands in this shard's arrays; -1 where it is not stored."""
        wanted = offsets.astype(np.uint32)
        at = np.searchsorted(self._offsets, wanted)
        at[at == len(self._offsets)] = 0
        return np.where(self._offsets[at] == wanted, at, -1).astype(np.int64)

    def refused(self, at: int) -> str | None:
        """Why the row was refused when the cache was built, or None."""
        return self._refused.get(at)

    def addresses(self, at: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Where stored rows lie in memory, and their bytes; valid while this shard is held.

        Args:
            at: shape [P], int64, from `find`.

        Returns:
            shape [P] each: uint64 addresses in the mapped files, int64 lengths.
        """
        return self._bases[self._which[at]] + self._starts[at], self._sizes[at].astype(np.int64)

    @property
    def any_refused(self) -> bool:
        """Whether a row of the shard was refused."""
        return bool(self._refused)


@final
class CacheReader:
    """A pinned version of a cache. Thread-safe; keeps opened shards up to a byte limit."""

    def __init__(self, dataset: Any, folder: Path, resident_bytes: int = 256 << 20) -> None:
        self.version = int(dataset.version)
        self._folder = folder
        self._limit = resident_bytes
        parts = json.loads((dataset.schema.metadata or {}).get(_PARTS, b"[]"))
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
        """The stored rows of the shard with this content key, or None."""
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
        ids = _struct(table).field("blob_id").to_numpy(zero_copy_only=False)
        kinds = _struct(table).field("kind").to_numpy(zero_copy_only=False)
        stored = ~np.asarray(table["payload"].is_null().to_numpy(zero_copy_only=False))
        if not stored.any():
            return table, np.empty(0, dtype=np.uint8)
        if set(ids[stored]) != {_BLOB_ID} or set(kinds[stored]) != {1}:
            msg = f"cache: {self._folder}/data/{file} is not one packed blob file; drop the cache folder and build it again"
            raise CacheError(msg)
        path = self._folder / "data" / Path(file).stem / (f"{_BLOB_ID:032b}"[::-1] + ".blob")
        position, size = (_struct(table).field(name).to_numpy(zero_copy_only=False) for name in ("position", "size"))
        need, held = int((position[stored] + size[stored]).max()), path.stat().st_size if path.exists() else 0
        if held < need:  # readers follow addresses, so a short file would end the process
            msg = f"cache: {path} has {held:,} bytes, its rows need {need:,}; drop the cache folder and build it again"
            raise CacheError(msg)
        return table, np.memmap(path, dtype=np.uint8, mode="r")


def _struct(table: pa.Table) -> pa.StructArray:
    column = table["payload"].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


@final
class CacheStore:
    """The folder of one cache: write parts, commit them, open what is committed."""

    def __init__(self, folder: Path, facts: Mapping[str, object]) -> None:
        self.folder = folder
        self._facts = facts
        self._data = folder / "data.lance"
        self._ledger = folder / "ledger"

    def covered(self) -> dict[str, NDArray[np.bool_]]:
        """Which rows are finished: a mask over each shard, by content key; committed or not."""
        out: dict[str, NDArray[np.bool_]] = {}
        for entry in self._entries():
            mask = _unpack(entry["rows"], entry["covered"])
            out[entry["key"]] = mask | out[entry["key"]] if entry["key"] in out else mask
        return out

    def write(self, key: str, shard_rows: int, chunks: Iterator[Rows]) -> int:
        """Write one part and enter it into the ledger.

        Args:
            key: content key of the source shard.
            shard_rows: rows of the whole source shard.
            chunks: the rows to store, each at most once.

        Returns:
            bytes of payload written.

        Raises:
            CacheError: the folder cannot be written; names it.
        """
        mask = np.zeros(shard_rows, dtype=np.bool_)
        written = 0
        failed: list[BaseException] = []

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal written
            try:
                for rows in chunks:
                    mask[rows.offsets] = True
                    batch = _batch(rows)
                    written += sum(len(p) for p in rows.payloads if p is not None)
                    yield batch
            except Exception as error:
                failed.append(error)  # Lance would wrap it as its own
                raise

        try:
            self._ledger.mkdir(parents=True, exist_ok=True)
            _write_atomically(self.folder / "cache.json", dict(self._facts))
            self._create()
            reader = pa.RecordBatchReader.from_batches(_SCHEMA, batches())
            made = write_fragments(
                reader,
                str(self._data),
                schema=_SCHEMA,
                mode="overwrite",  # gives the fields ids 0..n; commits nothing
                data_storage_version="2.2",
                max_rows_per_file=_ALL_ROWS,
                max_bytes_per_file=_ONE_FILE,
            )
            assert len(made) == 1, made
            entry = {
                "key": key,
                "rows": shard_rows,
                "covered": _pack(mask),
                "bytes": written,
                "fragment": made[0].to_json(),
            }
            _write_atomically(self._ledger / f"{key}.{uuid.uuid4().hex}.json", entry)
        except OSError as error:
            if failed:
                raise failed[0] from None
            msg = (
                f"cache: cannot write under {self.folder} ({error}); make it writable, free space, "
                "or set $SPIRAL_CACHE to another folder"
            )
            raise CacheError(msg) from error
        return written

    def commit(self) -> int:
        """Make every finished part visible to readers that open from now on.

        Returns:
            the dataset's version.
        """
        for _ in range(_COMMIT_TRIES):
            entries = self._needed()
            if not entries:
                return 0
            fragments = [FragmentMetadata.from_json(json.dumps(e["fragment"])) for e in entries]
            parts = [[e["key"], e["fragment"]["files"][0]["path"]] for e in entries]
            present = self._parts()
            if present is not None and sorted(present[1]) == sorted(parts):
                return present[0]
            schema = _SCHEMA.with_metadata({_PARTS: json.dumps(parts).encode()})
            operation = lance.LanceOperation.Overwrite(schema, fragments)
            try:
                lance.LanceDataset.commit(str(self._data), operation, enable_stable_row_ids=True)
            except OSError as error:
                if "conflict" not in str(error).lower():
                    msg = f"cache: cannot commit {self._data} ({error}); check that the folder is writable and build again"
                    raise CacheError(msg) from error
        msg = f"cache: {self._data} was committed by others {_COMMIT_TRIES} times in a row; run the build again"
        raise CacheError(msg)

    def open(self) -> CacheReader | None:
        """The committed cache, pinned at its present version; None if nothing is committed."""
        if not self._exists():
            return None
        return CacheReader(lance.dataset(str(self._data)), self._data)

    def stored_bytes(self) -> int:
        """Payload bytes of all finished parts."""
        return sum(int(e["bytes"]) for e in self._entries())

    def _create(self) -> None:
        """Make the dataset, empty, unless it is there."""
        if not self._exists():
            with suppress(OSError):  # another writer was first
                lance.write_dataset(
                    _SCHEMA.empty_table(),
                    str(self._data),
                    mode="create",
                    data_storage_version="2.2",
                    enable_stable_row_ids=True,
                )

    def _exists(self) -> bool:
        return (self._data / "_versions").exists()

    def _parts(self) -> tuple[int, list[list[str]]] | None:
        if not self._exists():
            return None
        dataset = lance.dataset(str(self._data))
        return int(dataset.version), json.loads((dataset.schema.metadata or {}).get(_PARTS, b"[]"))

    def _entries(self) -> list[dict[str, Any]]:
        files = sorted(self._ledger.glob("*.json")) if self._ledger.exists() else []
        return [json.loads(file.read_text()) for file in files]

    def _needed(self) -> list[dict[str, Any]]:
        """Parts that add a row no earlier part of the same shard has, in ledger order."""
        seen: dict[str, NDArray[np.bool_]] = {}
        out = []
        for entry in self._entries():
            mask = _unpack(entry["rows"], entry["covered"])
            have = seen.get(entry["key"])
            if have is None or (mask & ~have).any():
                out.append(entry)
                seen[entry["key"]] = mask if have is None else have | mask
        return out


def _batch(rows: Rows) -> pa.RecordBatch:
    sizes = [0 if p is None else len(p) for p in rows.payloads]
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    joined = b"".join(p for p in rows.payloads if p is not None)
    nulls = pa.array([p is None for p in rows.payloads])
    count = len(sizes)
    data = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(joined)])
    storage = pa.StructArray.from_arrays(
        [data, pa.nulls(count, pa.utf8()), pa.nulls(count, pa.uint64()), pa.nulls(count, pa.uint64())],
        fields=list(_PAYLOAD.type.storage_type),
        mask=nulls,
    )
    columns = [
        pa.array(rows.offsets, pa.uint32()),
        pa.array(rows.heights, pa.int32()),
        pa.array(rows.widths, pa.int32()),
        pa.array(rows.refused, pa.string()),
        pa.ExtensionArray.from_storage(_PAYLOAD.type, storage),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _pack(mask: NDArray[np.bool_]) -> str:
    return "all" if mask.all() else base64.b64encode(np.packbits(mask).tobytes()).decode()


def _unpack(rows: int, text: str) -> NDArray[np.bool_]:
    if text == "all":
        return np.ones(rows, dtype=np.bool_)
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(bits, count=rows).astype(np.bool_)


def _write_atomically(path: Path, value: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)

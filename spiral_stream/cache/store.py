"""One cache on disk: a Lance dataset, and the ledger of finished shards beside it.

    <caches>/<fingerprint>/data.lance      fragments; payload in packed blob v2 files
    <caches>/<fingerprint>/ledger/*.json   one file a finished part of a shard, written atomically
    <caches>/<fingerprint>/cache.json      what the fingerprint covers

A part is a fragment with the rows of one source shard, addressed by the shard's
content key. Writing parts needs no lock: fragment names are unique and a ledger
file appears whole or not at all. `commit` makes the parts of the ledger the
dataset's fragments in one Overwrite and repeats until no part is left out, so two
writers end with the union. What is kept beside the payload (height and width of an
image, nothing of tokens) is the kind's own: the rows of the first part bring the
columns, and the dataset has them from then on.
"""

import base64
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from numpy.typing import NDArray

from spiral_stream.cache.kind import Rows
from spiral_stream.cache.reader import PARTS, PAYLOAD, REFUSED, ROW, CacheReader
from spiral_stream.errors import CacheError

Chunk = tuple[NDArray[np.uint32], Rows]  # [P] offsets inside the source shard, and what is kept of those rows

_ONE_FILE: Final = 1 << 42  # bytes; above any shard, so that a fragment has exactly one .blob file
_ALL_ROWS: Final = (1 << 31) - 1
_PAYLOAD: Final = lance.blob_field(
    PAYLOAD,
    nullable=True,
    inline_size_threshold=0,
    dedicated_size_threshold=_ONE_FILE,
    pack_file_size_threshold=_ONE_FILE,
)
_COMMIT_TRIES: Final = 20


@final
class CacheStore:
    """The folder of one cache: write parts, commit them, open what is committed."""

    def __init__(self, folder: Path, facts: Mapping[str, object]) -> None:
        self.folder = folder
        self._facts = facts
        self._data = folder / "data.lance"
        self._ledger = folder / "ledger"

    def covered(self, committed: bool = False) -> dict[str, NDArray[np.bool_]]:
        """Which rows are finished: a mask over each shard, by content key. Reads the ledger only.

        Args:
            committed: leave out parts that no reader sees yet, such as those of a build that was killed.
        """
        out: dict[str, NDArray[np.bool_]] = {}
        visible = (
            {file for _, file in _parts(lance.dataset(str(self._data)))} if committed and self._exists() else set()
        )
        for entry in self._entries():
            if committed and _file(entry) not in visible:
                continue
            mask = _unpack(entry["rows"], entry["covered"])
            out[entry["key"]] = mask | out[entry["key"]] if entry["key"] in out else mask
        return out

    def write(self, key: str, shard_rows: int, chunks: Iterator[Chunk]) -> int:
        """Write one part and enter it into the ledger.

        Args:
            key: content key of the source shard.
            shard_rows: rows of the whole source shard.
            chunks: the rows to store, at least one chunk, each row at most once.

        Returns:
            bytes of payload written.

        Raises:
            CacheError: the folder cannot be written; names it.
        """
        first = next(chunks)
        schema = _schema(first[1].beside)
        part = _Part(schema, shard_rows)
        try:
            self._ledger.mkdir(parents=True, exist_ok=True)
            self._create(schema)
            reader = pa.RecordBatchReader.from_batches(schema, part.batches(chain([first], chunks)))
            made = write_fragments(
                reader,
                str(self._data),
                schema=schema,
                mode="overwrite",  # gives the fields ids 0..n; commits nothing
                data_storage_version="2.2",
                max_rows_per_file=_ALL_ROWS,
                max_bytes_per_file=_ONE_FILE,
            )
            assert len(made) == 1, made
            entry = {
                "key": key,
                "rows": shard_rows,
                "covered": _pack(part.mask),
                "bytes": part.bytes,
                "fragment": made[0].to_json(),
            }
            _write_atomically(self._ledger / f"{key}.{uuid.uuid4().hex}.json", entry)
        except OSError as error:
            if part.failed is not None:
                raise part.failed from None
            msg = (
                f"cache: cannot write under {self.folder} ({error}); make it writable, free space, "
                "or set $SPIRAL_CACHE to another folder"
            )
            raise CacheError(msg) from error
        return part.bytes

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
            parts = [[e["key"], _file(e)] for e in entries]
            dataset = lance.dataset(str(self._data))
            if sorted(_parts(dataset)) == sorted(parts):
                return int(dataset.version)
            schema = dataset.schema.with_metadata({PARTS: json.dumps(parts).encode()})
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

    def _create(self, schema: pa.Schema) -> None:
        """Make the dataset, empty, unless it is there."""
        if not self._exists():
            _write_atomically(self.folder / "cache.json", dict(self._facts))
            with suppress(OSError):  # another writer was first
                lance.write_dataset(
                    schema.empty_table(),
                    str(self._data),
                    mode="create",
                    data_storage_version="2.2",
                    enable_stable_row_ids=True,
                )

    def _exists(self) -> bool:
        return (self._data / "_versions").exists()

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


@final
class _Part:
    """The rows of one part on their way to the disk, counted as they pass."""

    def __init__(self, schema: pa.Schema, shard_rows: int) -> None:
        self._schema = schema
        self.mask = np.zeros(shard_rows, dtype=np.bool_)
        self.bytes = 0
        self.failed: BaseException | None = None  # Lance would wrap it as its own

    def batches(self, chunks: Iterable[Chunk]) -> Iterator[pa.RecordBatch]:
        try:
            for offsets, rows in chunks:
                self.mask[offsets] = True
                self.bytes += int(rows.sizes.sum())
                yield _batch(self._schema, offsets, rows)
        except Exception as error:
            self.failed = error
            raise


def _schema(beside: Iterable[str]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(ROW, pa.uint32(), nullable=False),
            *(pa.field(name, pa.int32(), nullable=False) for name in beside),
            pa.field(REFUSED, pa.string()),
            _PAYLOAD,
        ]
    )


def _batch(schema: pa.Schema, offsets: NDArray[np.uint32], rows: Rows) -> pa.RecordBatch:
    count = len(offsets)
    ends = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(rows.sizes, out=ends[1:])
    mask = np.zeros(count, dtype=np.bool_)
    mask[list(rows.refused)] = True
    reasons = [None] * count if not rows.refused else [rows.refused.get(at) for at in range(count)]
    data = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(rows.payload)])
    storage = pa.StructArray.from_arrays(
        [data, pa.nulls(count, pa.utf8()), pa.nulls(count, pa.uint64()), pa.nulls(count, pa.uint64())],
        fields=list(_PAYLOAD.type.storage_type),
        mask=pa.array(mask),
    )
    columns = [
        pa.array(offsets, pa.uint32()),
        *(pa.array(values, pa.int32()) for values in rows.beside.values()),
        pa.array(reasons, pa.string()),
        pa.ExtensionArray.from_storage(_PAYLOAD.type, storage),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _parts(dataset: Any) -> list[list[str]]:
    """[content key, fragment file] of every committed part."""
    parts: list[list[str]] = json.loads((dataset.schema.metadata or {}).get(PARTS, b"[]"))
    return parts


def _file(entry: Mapping[str, Any]) -> str:
    """The fragment file of a ledger entry."""
    file: str = entry["fragment"]["files"][0]["path"]
    return file


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

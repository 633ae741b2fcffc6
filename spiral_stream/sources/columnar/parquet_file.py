"""One Parquet file, local or on an object store: its footer, and how Arrow reads its pages."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, SpiralError, cut
from spiral_stream.integrity.regular_files import open_file
from spiral_stream.sources.arrow.table import plain
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.source import SCAN_ROWS, Unit
from spiral_stream.storage.file_object import Part, RemoteFile, look, read_parts
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import is_object

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FOOTER_GUESS: Final = 64 << 10  # bytes at the end of an object that are read first
_SCAN_BYTES: Final = 32 << 20  # of a scanned batch, about
_TAIL_BYTES: Final = 8  # footer length (4, little endian) and b"PAR1"


@dataclass(frozen=True, slots=True, eq=False)
class ParquetFile:
    """What is held of one file."""

    name: str
    path: str
    footer: "pq.FileMetaData"
    schema: pa.Schema
    content_key: str
    size_bytes: int
    mtime_ns: int
    has_views: bool  # whether columns are cast to the types of ``schema``
    held: "tuple[ObjectStat, list[Part]] | None"  # of an object: what it is like, and its footer; None for a local file
    group_rows: NDArray[np.uint64]  # [G] rows of each row group
    starts: NDArray[np.uint64]  # [G + 1] first row of each row group in the file, and the rows of the file

    @property
    def unit(self) -> Unit:
        """The file as a unit."""
        return Unit(self.name, self.footer.num_rows, self.size_bytes, self.content_key, tuple(self.group_rows.tolist()))


def opened_file(file: ParquetFile, ranges: Sequence[tuple[int, int]] = ()) -> Any:
    """Return what Arrow reads a file by: its path, or an object with some ranges (first byte, length) fetched together."""
    if file.held is None:
        return file.path
    facts, footer = file.held
    return RemoteFile(file.path, facts, [*footer, *read_parts(file.path, facts, ranges)])


def chunks_of(file: ParquetFile, groups: Sequence[int], columns: Sequence[str]) -> list[tuple[int, int]]:
    """Return where columns of row groups lie in an object: first byte and length of each; nothing for a local file."""
    found = []
    for group in groups if file.held is not None else ():
        facts = file.footer.row_group(group)
        for at in range(facts.num_columns):
            chunk = facts.column(at)
            if chunk.path_in_schema.split(".")[0] in columns:
                pages = [each for each in (chunk.dictionary_page_offset, chunk.data_page_offset) if each is not None]
                found.append((min(pages), chunk.total_compressed_size))
    return found


def rows_at_once(file: ParquetFile, group: int, columns: Sequence[str]) -> int:
    """Return how many rows a scan decodes at a time: `SCAN_ROWS`, or fewer where rows are wide."""
    rows, size = int(file.group_rows[group]), _bytes_of(file, group, columns)
    return max(1, min(SCAN_ROWS, _SCAN_BYTES * max(rows, 1) // max(size, 1)))


def scan_runs(file: ParquetFile, groups: Sequence[int], columns: Sequence[str]) -> list[list[int]]:
    """Return row groups in runs of some 32 MiB of these columns, or one group that is larger."""
    runs, room = list[list[int]](), 0
    for group in groups:
        if room <= 0:
            runs.append([])
            room = _SCAN_BYTES
        runs[-1].append(group)
        room -= _bytes_of(file, group, columns)
    return runs


def _bytes_of(file: ParquetFile, group: int, columns: Sequence[str]) -> int:
    """Bytes of columns of a row group, unpacked; 2 us per column of the file."""
    facts = file.footer.row_group(group)
    chunks = (facts.column(at) for at in range(facts.num_columns))
    return sum(each.total_uncompressed_size for each in chunks if each.path_in_schema.split(".")[0] in columns)


def _remote_footer(uri: str) -> "tuple[bytes, pq.FileMetaData, ObjectStat, list[Part]]":
    """The footer of an object: two requests, or three where it is long."""
    import pyarrow.parquet as pq

    facts = look(uri)
    start = max(0, facts.size - _FOOTER_GUESS)
    parts = read_parts(uri, facts, [(start, facts.size - start)])
    tail = bytes(parts[0][1][-_TAIL_BYTES:]) if parts else b""
    length = int.from_bytes(tail[:4], "little")
    first = max(0, facts.size - _TAIL_BYTES - length)
    if first < start:
        parts = read_parts(uri, facts, [(first, facts.size - first)])
    with RemoteFile(uri, facts, parts) as file:
        metadata = pq.read_metadata(file)
        file.seek(first)
        return file.read(length), metadata, facts, [(first, parts[0][1][first - parts[0][0] :])]


def read_footer(root: str, name: str, mark: str) -> ParquetFile:
    """Read the footer of a file.

    Args:
        root: the folder or prefix that it lies below.
        name: relative to that.
        mark: what its name says of its rows.

    Raises:
        SourceError: it is missing, or no Parquet file.
    """
    import pyarrow.parquet as pq

    if is_object(root):
        uri = f"{root}/{name}"
        try:
            footer, metadata, object_facts, parts = _remote_footer(uri)
        except (OSError, pa.ArrowException, ValueError) as error:
            msg = f"Parquet file {cut(uri)}: {error}. Replace the object, or leave it out of the path"
            raise SourceError(msg) from error
        key = content_key(footer, object_facts.size, object_facts.mark)
        return _described(name, uri, metadata, content_key(key, mark, name) if mark else key, object_facts, parts)
    path = os.path.join(root, name)  # noqa: PTH118
    try:
        number, facts = open_file(path)
        with open(number, "rb") as handle:  # noqa: PTH123
            handle.seek(max(0, facts.st_size - _TAIL_BYTES))
            length = int.from_bytes(handle.read(4), "little")
            handle.seek(max(0, facts.st_size - _TAIL_BYTES - length))
            footer = handle.read(length)
            handle.seek(0)
            metadata = pq.read_metadata(handle)
        key = content_key(footer, facts.st_size, facts.st_mtime_ns)
        found = ObjectStat(facts.st_size, modified_ns=facts.st_mtime_ns)
        return _described(name, path, metadata, content_key(key, mark, name) if mark else key, found, None)
    except (OSError, pa.ArrowException, ValueError) as error:
        msg = f"Parquet file {path}: {error}. Replace the file, or leave it out of the path"
        raise SourceError(msg) from error


def _described(
    name: str, path: str, metadata: "pq.FileMetaData", key: str, facts: ObjectStat, parts: list[Part] | None
) -> ParquetFile:
    schema = metadata.schema.to_arrow_schema().remove_metadata()
    types = plain(schema)
    rows = np.array([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)], dtype=np.uint64)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)
    held = None if parts is None else (facts, parts)
    found = (facts.size, facts.modified_ns, types != schema)
    return ParquetFile(name, path, metadata, types, key, *found, held, rows, starts)


@contextmanager
def parquet_storage(file: ParquetFile) -> Iterator[None]:
    """Turn Arrow's failures into SourceError.

    Raises:
        SourceError: names the file.
    """
    try:
        yield
    except SpiralError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        msg = f"Parquet file {file.path}: {error}. Check that the file is whole and has not changed"
        raise SourceError(msg) from error

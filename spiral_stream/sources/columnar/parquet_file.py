"""One Parquet file, local or on an object store: its footer, and how Arrow reads its pages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, SpiralError, cut
from spiral_stream.sources.arrow.table import plain
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.source import SCAN_ROWS, Unit
from spiral_stream.storage.file_object import Part, RemoteFile, look, maps, read_parts
from spiral_stream.storage.store import ObjectStat

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FOOTER_GUESS: Final = 64 << 10  # bytes at the end that are read first
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


def _tail(path: str, facts: ObjectStat, most: int) -> memoryview:
    """The last bytes of a file."""
    start = max(0, facts.size - most)
    return next((data for _, data in read_parts(path, facts, [(start, facts.size - start)])), memoryview(b""))


def read_footer(root: str, name: str, mark: str) -> ParquetFile:
    """Read the footer of a file: of an object in two requests, or three where it is long.

    Args:
        root: the folder or prefix that it lies below.
        name: relative to that.
        mark: what its name says of its rows.

    Raises:
        SourceError: it is missing, or no Parquet file.
    """
    import pyarrow.parquet as pq

    path = f"{root.rstrip('/')}/{name}"
    try:
        facts = look(path)
        tail = _tail(path, facts, _FOOTER_GUESS)
        length = int.from_bytes(tail[-_TAIL_BYTES:][:4], "little")
        if length + _TAIL_BYTES > len(tail):
            tail = _tail(path, facts, length + _TAIL_BYTES)
        tail = tail[-length - _TAIL_BYTES :]
        metadata = pq.read_metadata(pa.BufferReader(tail))
    except (OSError, pa.ArrowException, ValueError) as error:
        msg = f"Parquet file {cut(path)}: {error}. Replace the file, or leave it out of the path"
        raise SourceError(msg) from error
    key = content_key(bytes(tail[:length]), facts.size, facts.mark)
    key = content_key(key, mark, name) if mark else key
    schema = metadata.schema.to_arrow_schema().remove_metadata()
    types = plain(schema)
    rows = np.array([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)], dtype=np.uint64)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)
    held = None if maps(path) else (facts, [(facts.size - len(tail), tail)])
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

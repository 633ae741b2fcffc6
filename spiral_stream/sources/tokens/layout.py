r"""How files of token ids are laid out: flat ``.bin``, NumPy's ``.npy``, and the ``.idx`` that Megatron-LM writes.

An index (version 1) is, little endian: the 9 bytes ``MMIDIDX\0\0``; uint64 version; uint8 type of the ids; uint64 S
sequences; uint64 D marks; int32 [S] ids of each sequence; int64 [S] the byte that each begins at; int64 [D] the number of
sequences before each document, and at the end. Format: NVIDIA Megatron-LM, ``indexed_dataset`` of its core.
"""

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from tokenize import TokenError
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut
from spiral_stream.storage.file_object import RemoteFile, look, mapped, read_parts
from spiral_stream.storage.store import ObjectStat

Int64 = NDArray[np.int64]

ITEMS: Final = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_MAGIC: Final = b"MMIDIDX\x00\x00"
_HEADER: Final = struct.Struct("<9sQBQQ")
_TYPES: Final = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_HEAD_BYTES: Final = 4096  # of a file: what a header of NumPy takes
_NPY: Final = b"\x93NUMPY"


@final
@dataclass(frozen=True, slots=True)
class TokenLayout:
    """Where the ids of one file lie."""

    dtype: str  # of the ids
    offset: int  # bytes before the first id
    count: int  # ids
    columns: int | None = None  # ids of each row of a table


def layout_of(path: str, dtype: str | None) -> TokenLayout:
    """Return where the ids of a file lie.

    Args:
        path: of a ``.npy`` file, or of one that holds nothing but ids.
        dtype: of the ids; None takes that of a ``.npy`` file, and uint16 for others.

    Raises:
        SourceError: the file cannot be read, or holds something else.
    """
    try:
        seen = look(path)
        size = seen.size
        with RemoteFile(path, seen, read_parts(path, seen, [(0, min(_HEAD_BYTES, size))])) as file:
            if file.read(len(_NPY)) == _NPY:
                file.seek(0)
                shape, by_column, found = _read_npy(file)
                return _npy(path, size, shape, by_column=by_column, found=found, at=file.tell(), dtype=dtype)
    except (OSError, ValueError) as error:
        msg = f"{cut(path)}: {_said(error)}. Replace the file, or leave it out"
        raise SourceError(msg) from error
    item = np.dtype(dtype or "uint16").itemsize
    if size % item:
        msg = f"{cut(path)} has {size:,} bytes, which is no number of {dtype or 'uint16'} ids. Give another dtype="
        raise SourceError(msg)
    return TokenLayout(dtype or "uint16", 0, size // item)


@lru_cache(maxsize=4)
def _bytes_of(path: str, seen: ObjectStat) -> NDArray[np.uint8]:
    """The bytes of an index as it is at one time."""
    return np.frombuffer(mapped(path, seen), np.uint8)


def _read_npy(file: RemoteFile) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of an array, as its header says.

    Raises:
        ValueError: the header is none.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        return read(file)
    except (MemoryError, RecursionError, SyntaxError, TokenError, TypeError) as error:  # it is a literal of Python
        msg = f"its header cannot be read ({type(error).__name__})"
        raise ValueError(msg) from error


def _npy(
    path: str, size: int, shape: tuple[int, ...], *, by_column: bool, found: np.dtype, at: int, dtype: str | None
) -> TokenLayout:
    is_table = len(shape) > 1
    if found.name not in ITEMS or not found.isnative or len(shape) not in (1, 2) or (by_column and is_table):
        order = " in Fortran order" if by_column else ""
        msg = f"{cut(path)} is an array of {found} of shape {shape}{order}. Write integers of shape [N] or [N, length]"
        raise SourceError(msg)
    if dtype not in (None, found.name):
        msg = f"{cut(path)} holds {found.name}, and dtype={dtype!r}. Leave dtype out"
        raise SourceError(msg)
    if min(shape) < 0 or (is_table and not shape[1]):
        msg = f"{cut(path)} is of shape {shape}, which has no documents. Write integers of shape [N] or [N, length]"
        raise SourceError(msg)
    count = math.prod(shape)
    if size < at + count * found.itemsize:
        msg = f"{cut(path)} is cut short: it has {size:,} bytes, and its header says {at + count * found.itemsize:,}. Replace it"
        raise SourceError(msg)
    return TokenLayout(found.name, at, count, shape[1] if is_table else None)


def index_dtype(path: str) -> str:
    """Return the type of the ids that an index is of: its header is read.

    Raises:
        SourceError: it is no index of version 1.
    """
    seen = look(path)
    head = b"".join(bytes(data) for _, data in read_parts(path, seen, [(0, min(_HEADER.size, seen.size))]))
    try:
        return _TYPES[_read_header(head, seen.size)[0]]
    except ValueError as error:
        raise _no_index(path, error) from error


def _no_index(path: str, error: Exception) -> SourceError:
    return SourceError(
        f"{cut(path)}: {_said(error)}. Replace the file, or say how documents are cut with separator= or length="
    )


@final
class MegatronIndex:
    """An index file, mapped where it lies on this machine.

    Args:
        path: of the ``.idx`` file.

    Raises:
        SourceError: it is none of version 1, or is cut short.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._data = _bytes_of(path, look(path))
            code, self.sequences, self.marks = _read_header(self._data[: _HEADER.size].tobytes(), len(self._data))
        except (OSError, ValueError) as error:
            raise _no_index(path, error) from error
        self.dtype = _TYPES[code]

    def documents(self, first: int, last: int, ids: int) -> tuple[Int64, Int64]:
        """Return where documents begin, in ids, and how many ids each has.

        Args:
            first: number of the first document.
            last: one past the last.
            ids: in the file that the index is of.

        Raises:
            SourceError: the index lies about the file.
        """
        marks = self._array(np.int64, 12 * self.sequences, self.marks)[first : last + 1]
        if (marks < 0).any() or (marks > self.sequences).any() or (np.diff(marks) < 0).any():
            raise self._lies("its documents are not in order")
        low, high = int(marks[0]), int(marks[-1])
        lengths = self._array(np.int32, 0, self.sequences)[low:high].astype(np.int64)
        begins = self._array(np.int64, 4 * self.sequences, self.sequences)[low:high].copy()
        item = np.dtype(self.dtype).itemsize
        if (lengths < 0).any() or (begins < 0).any() or (begins % item).any():
            raise self._lies("a sequence begins or ends between two ids")
        begins //= item
        ends = begins + lengths
        if len(ends) and int(ends.max()) > ids:
            how = f"a sequence ends at id {int(ends.max()):,}, and the file has {ids:,}"
            raise self._lies(how)
        within = np.ones(max(0, len(begins) - 1), np.bool_)
        within[(marks[1:-1] - low - 1)[(marks[1:-1] > low) & (marks[1:-1] < high)]] = False
        if (begins[1:] != ends[:-1])[within].any():
            raise self._lies("the sequences of a document do not lie one after the other")
        before = np.concatenate([[0], np.cumsum(lengths)])
        counts = before[marks[1:] - low] - before[marks[:-1] - low]
        firsts = np.append(begins, 0)[marks[:-1] - low]
        return firsts, counts

    @property
    def document_count(self) -> int:
        """How many documents there are."""
        return max(0, int(self.marks) - 1)

    def _array(self, kind: type, after: int, count: int) -> NDArray[np.signedinteger]:
        return np.frombuffer(self._data, kind, count, _HEADER.size + after)

    def _lies(self, how: str) -> SourceError:
        msg = f"{cut(self.path)}: {how}. It is not the index of this file: write both again"
        return SourceError(msg)


def _said(error: Exception) -> str:
    return cut(error.strerror if isinstance(error, OSError) and error.strerror else str(error))


def _read_header(head: bytes, size: int) -> tuple[int, int, int]:
    """The type of the ids, the sequences and the marks of an index of ``size`` bytes.

    Raises:
        ValueError: it is none, or is cut short.
    """
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise ValueError("it is no index of Megatron-LM: it does not begin with MMIDIDX")
    _, version, code, sequences, marks = _HEADER.unpack(head)
    if version != 1 or code not in _TYPES:
        msg = f"it is of version {version}, with ids of type {code}; version 1 with integers is read"
        raise ValueError(msg)
    needed = _HEADER.size + 12 * sequences + 8 * marks
    if size < needed:
        msg = f"it is cut short: it has {size:,} bytes, and its header says {needed:,}"
        raise ValueError(msg)
    return code, sequences, marks

"""The formation index: how many batches each chapter of an epoch has, on disk.

Every process that forms a chapter appends a record, so that no other has to form it to know where the next one begins
(docs/decisions/0007).
A record carries a checksum. One that a killed writer left torn is ignored; any other damage sets the file aside.

Beside it lies what each chapter could not fill (docs/decisions/0057): its *rest*, rows of up to four whole numbers, less
than a batch of them for most formations. A rest that is torn or damaged is skipped, for its chapter can be formed again.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import warn
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.publish import set_aside, write_file
from spiral_stream.keeping.in_use import used
from spiral_stream.planner.prepared_data.usage import PLAN
from spiral_stream.seeding import key

Int64 = NDArray[np.int64]

RESTS: Final = ".rests"  # what the file of rests ends with
_HEAD: Final = np.dtype(
    [("lane", "<i8"), ("chapter", "<i8"), ("rows", "<i4"), ("columns", "<i4"), ("check", "<u8")]
)  # before a rest; both fill whole blocks of this size
_RECORD: Final = np.dtype([("lane", "<i8"), ("chapter", "<i8"), ("batches", "<i8"), ("check", "<u8")])


@final
class FormationIndex:
    """The records of one epoch. Any process may append to them at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0  # bytes that `read` and `news` have seen
        self._rests_read = 0  # bytes of rests that were seen

    @property
    def folder(self) -> Path:
        """The folder that it lies in, with what else is kept of the plan's formation."""
        return self._file.parent

    def read(self) -> dict[tuple[int, int], int]:
        """Return the number of batches of each known chapter, by (lane, chapter).

        Warns of damaged records, and sets the file aside.
        """
        known, damaged, self._read = _records(self._file)
        if damaged:
            self._mend(damaged)
            known, _, self._read = _records(self._file)
        return {(lane, chapter): batches for lane, chapter, batches, _ in known}

    def news(self) -> dict[tuple[int, int], int]:
        """Return what was appended since `read` or the last call, by whichever process. Damage waits for the next `read`."""
        known, _, self._read = _records(self._file, self._read)
        return {(lane, chapter): batches for lane, chapter, batches, _ in known}

    def rests(self) -> dict[tuple[int, int], Int64]:
        """Return the rests that were appended since the last call, by (lane, chapter); shape [N, C] each."""
        found, self._rests_read, _ = _read_rests(self._file.with_suffix(RESTS), self._rests_read)
        return found

    def append_rest(self, lane: int, chapter: int, rest: Int64) -> None:
        """Add what a chapter could not fill.

        Raises:
            CacheError: the folder cannot be written.
            DamageError: a file that the chapter was formed from has become shorter meanwhile.
        """
        need_sound()
        values = np.ascontiguousarray(rest, dtype="<i8").tobytes()
        shape = rest.shape
        head = np.array([(lane, chapter, *shape, key(lane, chapter, *shape, values))], dtype=_HEAD).tobytes()
        _append(self._file.with_suffix(RESTS), head + values + bytes(-len(values) % _HEAD.itemsize), _HEAD.itemsize)

    def _mend(self, damaged: int) -> None:
        """Set the file aside, and append its sound records to a new one."""
        aside = set_aside(self._file)
        if aside is None:
            return
        sound, _, _ = _records(aside)
        warn(
            f"formation index: {damaged} records of {self._file} are damaged; each would have to be as it was written. It was "
            f"set aside as {aside.name}, and those chapters are counted again when they are needed"
        )
        for lane, chapter, batches, _ in sound:
            self.append(lane, chapter, batches)

    def append(self, lane: int, chapter: int, batches: int) -> None:
        """Add a chapter. A record is shorter than a disk block, so records of several writers do not mix.

        Raises:
            CacheError: the folder cannot be written.
            DamageError: a file that the chapter was formed from has become shorter meanwhile.
        """
        need_sound()
        record = np.array([(lane, chapter, batches, key(lane, chapter, batches))], dtype=_RECORD).tobytes()
        _append(self._file, record, _RECORD.itemsize)


def _append(file: Path, record: bytes, block: int) -> None:
    """Append to a file, which consists of whole blocks, in one write.

    Raises:
        CacheError: the folder cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab", buffering=0) as handle:
            torn = -handle.tell() % block
            handle.write(bytes(torn) + record)
    except OSError as error:
        otherwise = "Make the folder writable, or set $SPIRAL_CACHE"
        raise failed(error, otherwise, "formation index: cannot write", file) from error


def _read_rests(file: Path, begin: int) -> tuple[dict[tuple[int, int], Int64], int, int]:
    """Read rests from a byte on. Returns the sound ones, where they end, and how many blocks belong to none."""
    data, block = _bytes_from(file, begin), _HEAD.itemsize
    out: dict[tuple[int, int], Int64] = {}
    at = skipped = end = 0
    while at + block <= len(data):
        found = _rest_at(data, at)
        if found is None:
            at, skipped = at + block, skipped + any(data[at : at + block])
            continue
        chapter, rest, at = found
        out[chapter] = rest
        end = at
    return out, begin + end, skipped


def _rest_at(data: bytes, at: int) -> tuple[tuple[int, int], Int64, int] | None:
    """Return the rest at a byte, whose it is, and where the next one begins; None if there is none."""
    lane, chapter, rows, columns, check = np.frombuffer(data, dtype=_HEAD, count=1, offset=at)[0].item()
    size, first = 8 * rows * columns, at + _HEAD.itemsize
    if rows < 0 or columns < 1 or first + size > len(data):
        return None
    values = data[first : first + size]
    if check != key(lane, chapter, rows, columns, values):
        return None
    rest = np.frombuffer(values, dtype="<i8").astype(np.int64).reshape(rows, columns)
    return (lane, chapter), rest, first + size + -size % _HEAD.itemsize


def _bytes_from(file: Path, begin: int) -> bytes:
    """Return a file's bytes from one on; none if there is no file."""
    try:
        with file.open("rb") as handle:
            handle.seek(begin)
            return handle.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise failed(error, "See that it is a file on a disk that works", "formation index:", file) from error


def _records(file: Path, begin: int = 0) -> tuple[list[tuple[int, int, int, int]], int, int]:
    """Read the records from a byte on.

    Returns:
        the sound ones (lane, chapter, batches, checksum); how many are damaged, torn ones left out; and where they end.
    """
    data = _bytes_from(file, begin)
    full_bytes = len(data) // _RECORD.itemsize * _RECORD.itemsize
    records = np.frombuffer(data[:full_bytes], dtype=_RECORD).tolist()
    sound = [record for record in records if record[3] == key(*record[:3])]
    failed_checks = len(records) - len(sound)
    # A writer that was killed leaves a record without its end, which the next writer fills with zeros.
    torn = failed_checks and sum(data[at] == 0 for at in range(_RECORD.itemsize - 1, full_bytes, _RECORD.itemsize))
    return sound, max(0, failed_checks - torn), begin + full_bytes


def name_plan(folder: Path, fingerprint: str) -> None:
    """Note of which plan a folder of formation indexes is, and that it is used now. Where nothing can be written, not."""
    used(folder)
    file = folder / PLAN
    if not file.exists():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_file(file, fingerprint.encode())


def verify_index(file: Path) -> bool:
    """Verify the records of a formation index. Returns True: they always have checksums.

    Raises:
        DamageError: a record is damaged.
    """
    _, damaged, _ = _records(file)
    if damaged:
        raise seal.damaged(file, f"{damaged} records fail their checks")
    return True


def verify_rests(file: Path) -> bool:
    """Verify the rests beside a formation index. Returns True: they always have checksums.

    Raises:
        DamageError: one is damaged, or torn.
    """
    _, _, skipped = _read_rests(file, 0)
    if skipped:
        raise seal.damaged(file, f"{skipped} blocks fail their checks")
    return True

"""How many batches each chapter of an epoch has, and with which batch of its lane it begins, as far as anybody knows.

Counts come from the chapters formed here and from the *formation index* on disk, to which
whoever forms a chapter appends (docs/decisions/0007); beginnings from counts, and from the anchors of a
loaded state. Finding the chapter that a batch is in or after is a binary search.
"""

import warnings
from bisect import bisect_left, bisect_right
from operator import itemgetter
from pathlib import Path
from typing import Final, final

import numpy as np

from spiral_stream.errors import SpiralWarning
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.publish import set_aside
from spiral_stream.seeding import key

_CHAPTER, _FIRST = itemgetter(0), itemgetter(1)
_RECORD: Final = np.dtype([("lane", "<i8"), ("chapter", "<i8"), ("batches", "<i8"), ("check", "<u8")])


@final
class FormationIndex:
    """The number of batches of each chapter of one epoch, on disk: records that anybody may append."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[tuple[int, int], int]:
        """(lane, chapter) -> batches."""
        known, damaged = _records(self._file)
        if damaged:
            self._mend(damaged)
            known, _ = _records(self._file)
        return {(lane, chapter): batches for lane, chapter, batches, _ in known}

    def _mend(self, damaged: int) -> None:
        """Set the file aside, and keep what is sound of it; the rest is counted again."""
        aside = set_aside(self._file)
        if aside is None:
            return
        sound = _records(aside)[0]
        warnings.warn(
            f"formation index: {damaged} records of {self._file} are damaged; each would have to be as it was written. It was "
            f"set aside as {aside.name}, and those chapters are counted again when they are needed",
            SpiralWarning,
            stacklevel=2,
        )
        for lane, chapter, batches, _ in sound:
            self.append(lane, chapter, batches)

    def append(self, lane: int, chapter: int, batches: int) -> None:
        """Enter a chapter; a record is shorter than any block, so appenders do not mix, and a torn one fails its check.

        Raises:
            CacheError: the folder cannot be written.
            DamageError: what it was counted from became shorter meanwhile.
        """
        need_sound()
        record = np.array([(lane, chapter, batches, key(lane, chapter, batches))], dtype=_RECORD).tobytes()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab", buffering=0) as file:
                torn = -file.tell() % _RECORD.itemsize
                file.write(bytes(torn) + record)
        except OSError as error:
            otherwise = "make the folder writable, or set $SPIRAL_CACHE"
            raise failed(error, otherwise, "formation index: cannot write", self._file) from error


def _records(file: Path) -> tuple[list[tuple[int, int, int, int]], int]:
    """The records that pass their check, and how many others there are that no torn writing explains."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise failed(error, "see that it is a file on a disk that works", "formation index:", file) from error
    whole = len(data) // _RECORD.itemsize * _RECORD.itemsize
    records = np.frombuffer(data[:whole], dtype=_RECORD).tolist()
    good = [record for record in records if record[3] == key(*record[:3])]
    torn = len(records) - len(good) and sum(
        not any(data[at + _RECORD.itemsize - 1 : at + _RECORD.itemsize]) for at in range(0, whole, _RECORD.itemsize)
    )  # of a writer that was killed the end is missing, and the next one wrote zeros there
    return good, max(0, len(records) - len(good) - torn)


def verify_index(file: Path) -> bool:
    """Verify the records of a formation index; they always have sums.

    Raises:
        DamageError: some are not what was written.
    """
    damaged = _records(file)[1]
    if damaged:
        raise seal.damaged(file, f"{damaged} records fail their checks")
    return True


@final
class Counts:
    """What is known of one epoch."""

    def __init__(self, index: FormationIndex, lanes: int) -> None:
        self._index = index
        self._batches = index.read()
        # of each lane, ascending: (chapter, its first batch), entered in one step, so that no interrupt leaves half of it
        self._begins = [[(0, 0)] for _ in range(lanes)]

    def forget(self) -> None:
        """Forget where chapters begin, as far as counts do not say it: another state may know better."""
        self._begins = [[(0, 0)] for _ in self._begins]

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self, lane: int, chapter: int) -> int | None:
        """How many batches a chapter has; None where nobody formed it."""
        return self._batches.get((lane, chapter))

    def enter(self, lane: int, chapter: int, batches: int) -> None:
        """Learn how many batches a chapter has, and tell others."""
        if (lane, chapter) not in self._batches:
            self._index.append(lane, chapter, batches)  # first: whoever is interrupted here enters it again
            self._batches[lane, chapter] = batches

    def begin(self, lane: int, chapter: int, first: int) -> None:
        """Learn with which batch of its lane a chapter begins."""
        begins = self._begins[lane]
        at = bisect_left(begins, chapter, key=_CHAPTER)
        if at == len(begins) or begins[at][0] != chapter:
            begins.insert(at, (chapter, first))

    def nearest(self, lane: int, k: int) -> tuple[int, int]:
        """The last chapter whose beginning is known and is not after the k-th batch of its lane.

        Returns:
            its number, and its first batch.
        """
        begins = self._begins[lane]
        return begins[bisect_right(begins, k, key=_FIRST) - 1]

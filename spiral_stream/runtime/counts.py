"""How many batches each chapter of an epoch has, and with which batch of its lane it begins, as far as anybody knows.

Counts come from the chapters formed here and from the *formation index* on disk, to which
whoever forms a chapter appends (decision 1); beginnings from counts, and from the anchors of a
loaded state. Finding the chapter that a batch is in or after is a binary search.
"""

from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Final, final

import numpy as np

from spiral_stream.errors import CacheError
from spiral_stream.seeding import key

_RECORD: Final = np.dtype([("lane", "<i8"), ("chapter", "<i8"), ("batches", "<i8"), ("check", "<u8")])


@final
class FormationIndex:
    """The number of batches of each chapter of one epoch, on disk: records that anybody may append."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[tuple[int, int], int]:
        """(lane, chapter) -> batches."""
        if not self._file.exists():
            return {}
        data = self._file.read_bytes()
        records = np.frombuffer(data[: len(data) // _RECORD.itemsize * _RECORD.itemsize], dtype=_RECORD)
        known = [(int(r["lane"]), int(r["chapter"]), int(r["batches"]), int(r["check"])) for r in records]
        return {
            (lane, chapter): batches for lane, chapter, batches, check in known if check == key(lane, chapter, batches)
        }

    def append(self, lane: int, chapter: int, batches: int) -> None:
        """Enter a chapter; a record is shorter than any block, so appenders do not mix, and a torn one fails its check.

        Raises:
            CacheError: the folder cannot be written.
        """
        record = np.array([(lane, chapter, batches, key(lane, chapter, batches))], dtype=_RECORD).tobytes()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab", buffering=0) as file:
                torn = -file.tell() % _RECORD.itemsize
                file.write(bytes(torn) + record)
        except OSError as error:
            msg = f"formation index: cannot write {self._file} ({error.strerror}); make the folder writable, or set $SPIRAL_CACHE"
            raise CacheError(msg) from error


@final
class Counts:
    """What is known of one epoch."""

    def __init__(self, index: FormationIndex, lanes: int) -> None:
        self._index = index
        self._batches = index.read()
        self._firsts = [[0] for _ in range(lanes)]  # of each lane, ascending: first batch of the chapters beside
        self._chapters = [[0] for _ in range(lanes)]

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self, lane: int, chapter: int) -> int | None:
        """How many batches a chapter has; None where nobody formed it."""
        return self._batches.get((lane, chapter))

    def enter(self, lane: int, chapter: int, batches: int) -> None:
        """Learn how many batches a chapter has, and tell others."""
        if (lane, chapter) not in self._batches:
            self._batches[lane, chapter] = batches
            self._index.append(lane, chapter, batches)

    def begin(self, lane: int, chapter: int, first: int) -> None:
        """Learn with which batch of its lane a chapter begins."""
        chapters = self._chapters[lane]
        at = bisect_left(chapters, chapter)
        if at == len(chapters) or chapters[at] != chapter:
            chapters.insert(at, chapter)
            self._firsts[lane].insert(at, first)

    def nearest(self, lane: int, k: int) -> tuple[int, int]:
        """The last chapter whose beginning is known and is not after the k-th batch of its lane.

        Returns:
            its number, and its first batch.
        """
        at = bisect_right(self._firsts[lane], k) - 1
        return self._chapters[lane][at], self._firsts[lane][at]

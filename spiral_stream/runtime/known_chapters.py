"""What is known of an epoch's chapters: how many batches each has, and with which batch of its lane it begins.

Counts come from the chapters formed here, and from the formation index, which knows those that other processes formed.
Beginnings follow from counts; a loaded state adds some, its *anchors*. A batch is then found by binary search and a walk
from the nearest known beginning.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import final

from spiral_stream.batching.lanes import Lanes
from spiral_stream.errors import ResumeError
from spiral_stream.planner.saved_state import Anchor
from spiral_stream.runtime.formation_index import FormationIndex

_CHAPTER, _FIRST = itemgetter(0), itemgetter(1)


@final
class KnownChapters:
    """The chapters of one epoch. Not thread-safe.

    Args:
        index: holds the counts that other processes found; those found here are appended.
        lanes: of the epoch.
        span: positions of a chapter.
    """

    def __init__(self, index: FormationIndex, lanes: Lanes, span: int) -> None:
        self._index, self._lanes = index, lanes
        self._in_lane = [lanes.chapter_count(lane, span) for lane in range(lanes.count)]
        self._counts = index.read()
        # Per lane, ascending: (chapter, its first batch). One assignment per entry, so an interrupt leaves no half of one.
        self._begins = [[(0, 0)] for _ in range(lanes.count)]
        self.rounds = 0  # every lane is known to have its first `rounds` batches
        self.totals: list[int] | None = None  # batches of each lane, once known

    # ---- counts

    def in_lane(self, lane: int) -> int:
        """Return how many chapters a lane has."""
        return self._in_lane[lane]

    def unknown(self) -> int:
        """Return how many chapters of the epoch have no known count."""
        return sum(self._in_lane) - len(self._counts)

    def batches(self, lane: int, chapter: int) -> int | None:
        """Return how many batches a chapter has; None if nobody formed it."""
        return self._counts.get((lane, chapter))

    def enter(self, lane: int, chapter: int, batches: int) -> None:
        """Learn how many batches a chapter has, and append it to the index."""
        if (lane, chapter) not in self._counts:
            self._index.append(lane, chapter, batches)  # first: if this is interrupted, it is entered again
            self._counts[lane, chapter] = batches

    # ---- beginnings

    def begin(self, lane: int, chapter: int, first: int) -> None:
        """Learn with which batch of its lane a chapter begins."""
        begins = self._begins[lane]
        at = bisect_left(begins, chapter, key=_CHAPTER)
        if at == len(begins) or begins[at][0] != chapter:
            begins.insert(at, (chapter, first))

    def nearest(self, lane: int, k: int) -> tuple[int, int]:
        """Return the last chapter that is known to begin at or before batch ``k`` of its lane, and its first batch."""
        begins = self._begins[lane]
        return begins[bisect_right(begins, k, key=_FIRST) - 1]

    # ---- anchors

    def anchors(self, number: int) -> list[Anchor]:
        """Return, for each lane, the chapter nearest to batch ``number`` of the epoch; forms nothing."""
        out = []
        for lane in range(self._lanes.count):
            k = self._lanes.before(lane, number)  # exact while no lane has ended
            chapter, first = self.nearest(lane, k)
            while (count := self.batches(lane, chapter)) is not None and first + count <= k:
                first, chapter = first + count, chapter + 1
            out.append((lane, chapter, first))
        return out

    def follow(self, anchors: Iterable[Anchor]) -> None:
        """Learn beginnings from a state, in place of those known so far."""
        self._begins = [[(0, 0)] for _ in self._begins]
        self.rounds = 0
        for lane, chapter, first in anchors:
            self.begin(lane, chapter, first)

    def certain(self, number: int, anchors: Iterable[Anchor]) -> list[Anchor]:
        """Refuse anchors that cannot be those of a state at batch ``number``; forms nothing.

        Returns:
            the anchors that counts confirm, because all chapters before them are known.

        Raises:
            ResumeError: says which anchor cannot be.
        """
        out = []
        for lane, chapter, first in anchors:
            if lane >= self._lanes.count or chapter > self.in_lane(lane):  # one past the last: the lane has ended
                raise _impossible(lane, chapter, first, "the plan has no such chapter")
            if first > self._lanes.before(lane, number):
                raise _impossible(lane, chapter, first, f"it begins after batch {number}, where the state stands")
            counts = [self.batches(lane, each) for each in range(chapter)]
            known = [count for count in counts if count is not None]
            if sum(known) > first or (len(known) == chapter and sum(known) != first):
                raise _impossible(lane, chapter, first, f"the chapters before it have {sum(known)} batches")
            out += [(lane, chapter, first)] if len(known) == chapter else []
        return out


def _impossible(lane: int, chapter: int, first: int, why: str) -> ResumeError:
    return ResumeError(
        f"resume: the state says that chapter {chapter} of lane {lane} begins with batch {first} of it, which cannot be: "
        f"{why}. Pass what state_dict() returned, unchanged"
    )


Known = dict[int, KnownChapters]  # by epoch

"""Refuse implicit counts that would take long.

The number of batches before a place is known once the chapters before it are counted. Counting 4 M samples whose
lengths are stored takes two to three seconds and happens at once. For more, or where lengths are computed, a few windows
are formed first; if the rest takes longer than two seconds, an error says how long, and what counts it. What that forms
is not formed again by the count.
"""

from typing import Final, final

from spiral_stream.runtime.forming.cost import (
    CHAPTERS_AT_ONCE,
    COUNTED_AT_ONCE,
    QUICK_S,
    behind_uncounted,
    not_counted,
)
from spiral_stream.runtime.forming.open_chapters import OpenChapters
from spiral_stream.runtime.numbering.numbering import CountLimits, batch_number

_TOLERANCE: Final = 0.5  # of a chapter: how many batches it has is an estimate


@final
class FormedLimits(CountLimits):
    """Refuses what takes long because chapters are not counted.

    Args:
        chapters: of the stream.
    """

    def __init__(self, chapters: OpenChapters) -> None:
        self._chapters = chapters
        self._lanes = chapters.forming.stages.batches.lanes

    def need_countable(self, epoch: int, argument: str) -> None:
        chapters, forming = self._unknown(epoch), self._chapters.forming
        if self._is_quick(chapters):
            return
        with self._chapters.request(f"{argument} of epoch {epoch}"):
            self._chapters.probe(epoch)
            chapters, left = self._chapters.known_of(epoch).uncounted, self._chapters.left(epoch)
        if left * (self._chapters.cost.per_sample_s or 0.0) > QUICK_S:
            samples = min(chapters * forming.span, self._chapters.lanes_of(epoch).total)
            raise not_counted(argument, chapters, samples, self._chapters.cost, forming.unknown(), forming.ways_out())

    def need_near(self, epoch: int, number: int, argument: str) -> None:
        number = batch_number(number)
        what = f"{argument}: batch {number:,} of epoch {epoch}"
        with self._chapters.request(what):
            if number < 0 and self._chapters.known_of(epoch).unknown:
                msg = f"batch {number} is below 0. Give a number from 0 up, below stream.count()"
                raise IndexError(msg)
            k = max(0, number) // self._lanes.count
            short = self._short(epoch, k)
            if self._is_quick(sum(left for _, _, _, left in short)):
                return
            self._chapters.probe(epoch, short[0][:2])
            each, chapters = self._chapters.batches_per_chapter(epoch), 0
            for _, _, first, left in self._short(epoch, k):
                chapters += min(left, int((k - first) / each - _TOLERANCE)) if each else left
            self._need_quick(what, chapters)

    def _short(self, epoch: int, k: int) -> list[tuple[int, int, int, int]]:
        """The lanes in which nobody knows where batch ``k`` is.

        Returns:
            for each: the lane, the first chapter that nobody counted, its first batch, and how many chapters come after it.
        """
        known = self._chapters.known_of(epoch)
        reached = [(lane, *known.walk(lane, k)) for lane in range(self._lanes.count)]
        return [
            (lane, chapter, first, known.in_lane(lane) - chapter - 1)
            for lane, chapter, first in reached
            if self._may_be_later(epoch, lane, chapter, first, k)
        ]

    def _may_be_later(self, epoch: int, lane: int, chapter: int, first: int, k: int) -> bool:
        """Whether batch ``k`` of a lane may lie after a chapter, as far as that is known without forming anything."""
        known = self._chapters.known_of(epoch)
        if chapter >= known.in_lane(lane) or known.batches(lane, chapter) is not None or k == first:
            return False
        opened = self._chapters.open.get((epoch, lane, chapter))
        return opened is None or len(opened.batches) <= k - first

    def need_row_near(self, epoch: int, last: int) -> None:
        """Refuse to look for a row if the chapters before it are not counted, and counting takes long.

        Args:
            epoch: the epoch.
            last: number of the chapter that holds it, in whichever lane.

        Raises:
            StreamError: says how long it takes, and how to count them.
        """
        known = self._chapters.known_of(epoch)
        missing = sum(len(known.unknown_of(lane, last)) for lane in range(self._lanes.count))
        if not self._is_quick(missing):
            self._chapters.probe(epoch)
            self._need_quick(f"locate: chapter {last:,} of epoch {epoch}, which holds the sample", missing)

    def is_quick(self, epoch: int) -> bool:
        """Whether the whole epoch is counted at once without any measurement."""
        return self._is_quick(self._unknown(epoch))

    def _is_quick(self, chapters: int) -> bool:
        """Whether chapters are counted at once without any measurement."""
        forming = self._chapters.forming
        few = chapters <= CHAPTERS_AT_ONCE and chapters * forming.span <= COUNTED_AT_ONCE
        return not chapters or forming.arithmetic or (few and not forming.unknown())

    def _need_quick(self, what: str, chapters: int) -> None:
        samples = chapters * self._chapters.forming.span
        if not self._is_quick(chapters) and samples * (self._chapters.cost.per_sample_s or 0.0) > QUICK_S:
            computed = self._chapters.forming.unknown()
            raise behind_uncounted(
                what, chapters, samples, self._chapters.cost, computed, self._chapters.forming.ways_out()
            )

    def _unknown(self, epoch: int) -> int:
        with self._chapters.lock:
            return self._chapters.known_of(epoch).uncounted

"""What a stream refuses to start unasked: counting chapters that takes long.

The number of batches before a place is known once the chapters before it are counted. Counting 4 M samples whose
lengths are stored takes about two seconds and happens at once. More, or samples whose lengths are computed, is measured
first: a few windows are formed, and an error says how long the rest takes and what counts it.
"""

from collections.abc import Sequence
from typing import final

from spiral_stream.runtime.counting import At
from spiral_stream.runtime.counting_cost import COUNTED_AT_ONCE, QUICK_S, behind_uncounted, not_counted
from spiral_stream.runtime.numbering import CountLimits, batch_number
from spiral_stream.runtime.open_chapters import OpenChapters


@final
class FormedLimits(CountLimits):
    """Refuses what takes long because chapters are not counted.

    Args:
        chapters: of the stream.
    """

    def __init__(self, chapters: OpenChapters) -> None:
        self._chapters = chapters
        self._lanes = chapters.forming.stages.batches.lanes

    def need_countable(self, epoch: int, asked: str) -> None:
        left = min(self._unknown(epoch) * self._chapters.forming.span, self._chapters.lanes_of(epoch).total)
        computed = self._chapters.forming.unknown() if left else []
        if left <= COUNTED_AT_ONCE and not computed:
            return
        if not computed:
            with self._chapters.request(f"{asked} of epoch {epoch}"):
                self._chapters.probe(epoch)
        raise not_counted(
            asked, self._unknown(epoch), left, self._chapters.cost, computed, self._chapters.forming.ways_out()
        )

    def need_near(self, epoch: int, number: int, asked: str) -> None:
        number = batch_number(number)
        what = f"{asked}: batch {number:,} of epoch {epoch}"
        with self._chapters.request(what):
            known, lanes = self._chapters.known_of(epoch), range(self._lanes.count)
            if number < 0 and known.unknown:
                msg = f"batch {number} is below 0. Give a number from 0 up, below stream.count()"
                raise IndexError(msg)
            k = max(0, number) // self._lanes.count
            reached = [(lane, *known.walk(lane, k)) for lane in lanes]
            short = [at for at in reached if self._may_be_later(epoch, *at, k)]
            most = sum(known.in_lane(lane) - chapter - 1 for lane, chapter, _ in short)
            if self._is_quick(most):
                return
            self._chapters.probe(epoch)
            each = self._chapters.batches_each(epoch)
            passed = [int((k - first) / each) if each else most for _, _, first in short]
            later = [known.in_lane(lane) - chapter - 1 for lane, chapter, _ in short]
            self._need_quick(what, sum(map(min, later, passed)))

    def _may_be_later(self, epoch: int, lane: int, chapter: int, first: int, k: int) -> bool:
        """Whether batch ``k`` of a lane may lie after a chapter, as far as that is known without forming anything."""
        known = self._chapters.known_of(epoch)
        if chapter >= known.in_lane(lane) or known.batches(lane, chapter) is not None or k == first:
            return False
        opened = self._chapters.open.get((epoch, lane, chapter))
        return opened is None or len(opened.batches) <= k - first

    def need_row_near(self, epoch: int, places: Sequence[At]) -> None:
        """Refuse to look for a row if the chapters before it are not counted, and counting takes long.

        Args:
            epoch: the epoch.
            places: lane and number of the chapters that hold it.

        Raises:
            StreamError: says how long it takes, and how to count them.
        """
        known = self._chapters.known_of(epoch)
        last = max((number for _, number in places), default=0)
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
        return not chapters or (chapters * forming.span <= COUNTED_AT_ONCE and not forming.unknown())

    def _need_quick(self, what: str, chapters: int) -> None:
        samples = chapters * self._chapters.forming.span
        if not self._is_quick(chapters) and samples * (self._chapters.cost.per_sample_s or 0.0) > QUICK_S:
            computed = self._chapters.forming.unknown()
            raise behind_uncounted(
                what, chapters, samples, self._chapters.cost, computed, self._chapters.forming.ways_out()
            )

    def _unknown(self, epoch: int) -> int:
        with self._chapters.lock:
            return self._chapters.known_of(epoch).unknown

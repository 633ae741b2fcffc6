"""The chapters of a stream that are open: formed as far as somebody asked, and counted once they are complete.

All of it happens under one lock, by one request at a time, which reports what it costs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, final

from spiral_stream.batching.lanes import Lanes
from spiral_stream.runtime.chapters import Chapter, Grown
from spiral_stream.runtime.counting import At
from spiral_stream.runtime.counting_cost import ENOUGH_S, CountingCost
from spiral_stream.runtime.formation_index import FormationIndex
from spiral_stream.runtime.forming import Forming
from spiral_stream.runtime.known_chapters import Known, KnownChapters
from spiral_stream.runtime.outlook import Outlook, Request
from spiral_stream.threads import ToldLock

_OPEN_CHAPTERS: Final = 4  # kept besides one per lane; they serve random access
_SEEN: Final = 1 / 8  # of a chapter, to tell how many batches it will have


@final
class OpenChapters:
    """The open chapters of all epochs, and what is known of the others. Hold `lock`, or a `request`.

    Args:
        forming: what the chapters share.
        folder: of the formation index.
        known: what is known already.
    """

    def __init__(self, forming: Forming, folder: Path, known: Known) -> None:
        self.forming, self.folder, self.known = forming, folder, known
        self.lock = ToldLock("the chapters of the stream")
        self.open: dict[tuple[int, int, int], Chapter] = {}  # by epoch, lane and number; last used comes last
        self.cost = CountingCost()
        self._lanes = forming.stages.batches.lanes
        self._requests: list[Outlook] = []  # the request under way, and those that it makes itself

    def request(self, what: str) -> Request:
        """Hold the lock; if much has to be formed, a warning says what it costs."""
        return Request(self.lock, self._requests, what, self.forming.span)

    def lanes_of(self, epoch: int) -> Lanes:
        """Return the lanes of an epoch."""
        return self.forming.stages.batches_of(epoch).lanes

    def known_of(self, epoch: int) -> KnownChapters:
        """What is known of an epoch's chapters; reads the formation index once."""
        if epoch not in self.known:
            index = FormationIndex(self.folder / f"epoch-{epoch}.index")
            self.known[epoch] = KnownChapters(index, self.lanes_of(epoch), self.forming.span)
        return self.known[epoch]

    def missing(self, epoch: int, lane: int, upto: int | None = None) -> list[At]:
        """Return the chapters of a lane, before ``upto``, that nobody counted yet."""
        return [(lane, number) for number in self.known_of(epoch).unknown_of(lane, upto).tolist()]

    def missing_of(self, epoch: int) -> list[At]:
        """Return all chapters of an epoch that nobody counted yet."""
        return [at for lane in range(self._lanes.count) for at in self.missing(epoch, lane)]

    def chapter(self, epoch: int, lane: int, number: int, index: int = 0) -> Chapter:
        """Return a chapter as far as it has been formed; a new one if batch ``index`` can no longer be drawn from it."""
        key = (epoch, lane, number)
        chapter = self.open.pop(key, None)
        if chapter is None or not chapter.sound or chapter.drawn > index:
            chapter = Chapter(self.forming, epoch, lane, number)
        self.open[key] = chapter
        while len(self.open) > _OPEN_CHAPTERS + self._lanes.count:
            self.open.pop(next(iter(self.open)))
        return chapter

    def form(self, epoch: int, lane: int, number: int, index: int) -> int:
        """Form a chapter up to batch ``index``, or completely if it has fewer. Returns the batches formed so far."""
        chapter = self.open.get((epoch, lane, number))
        if chapter is None or not chapter.sound:
            chapter = self.chapter(epoch, lane, number)
        if len(chapter.batches) <= index:
            self._report(chapter, partial(chapter.has, index), partial(_samples_to, index))
        if chapter.complete:
            self.known_of(epoch).enter(lane, number, len(chapter.batches))
        return len(chapter.batches)

    def count(self, epoch: int, todo: Sequence[At]) -> None:
        """Count chapters that nobody counted yet."""
        for at, (lane, number) in enumerate(todo):
            chapter = self.open.get((epoch, lane, number))
            if chapter is None or not chapter.sound:
                chapter = Chapter(self.forming.for_counting(), epoch, lane, number)
            left = (len(todo) - at) * self.forming.span
            self._report(chapter, chapter.finish, lambda _, left=left: left)  # type: ignore[misc]  # a default
            self.known_of(epoch).enter(lane, number, len(chapter.batches))

    def _report(self, chapter: Chapter, form: Callable[[Grown], object], needed: Callable[[Chapter], float]) -> None:
        """Form windows of a chapter, and report each to the request under way.

        Args:
            chapter: the chapter.
            form: forms windows, and calls what it is given after each.
            needed: samples to form for the request, from the chapter's beginning on; later chapters included.
        """
        outlook, before, at = self._requests[0], chapter.formed, chapter.formed

        def grown(chapter: Chapter) -> None:
            nonlocal at
            self.cost.window(chapter.formed - at)
            at = chapter.formed
            outlook.window(chapter.formed - before, needed(chapter) - before)

        self.cost.begin()
        form(grown)
        outlook.chapter(chapter.formed - before)

    def probe(self, epoch: int, at: At | None = None) -> None:
        """Form windows until it is known what a sample costs, and about how many batches a chapter has.

        Where a function of the user's is called, the cost is the time that passes, not CPU time alone.

        Args:
            epoch: the epoch.
            at: of which chapter; None takes the first one that nobody counted.
        """
        self.cost.passed = self.forming.calls_functions
        known = self.known_of(epoch)
        first = ((lane, known.unknown_of(lane)[:1]) for lane in range(self._lanes.count))
        at = at or next(((lane, int(found[0])) for lane, found in first if len(found)), None)
        if at is None or known.batches(*at) is not None:
            return
        chapter, until_s = self.chapter(epoch, *at), self.cost.spent_s + ENOUGH_S
        while not chapter.complete:
            seen = chapter.formed >= self.forming.span * _SEEN or self.cost.spent_s >= until_s
            if self.cost.measured and seen and self.batches_each(epoch):
                return
            self._report(chapter, partial(chapter.has, len(chapter.batches)), lambda chapter: chapter.formed)
        known.enter(*at, len(chapter.batches))

    def left(self, epoch: int) -> int:
        """Return how many samples nobody formed yet, of the chapters that are not counted."""
        known, total = self.known_of(epoch), self.lanes_of(epoch).total
        begun = [
            each.formed for (of, lane, at), each in self.open.items() if of == epoch and known.batches(lane, at) is None
        ]
        return max(0, min(known.unknown * self.forming.span, total) - sum(begun))

    def batches_each(self, epoch: int) -> float:
        """Return about how many batches a chapter has; 0 if no batch was formed yet."""
        known = self.known_of(epoch)
        chapters = sum(known.in_lane(lane) for lane in range(self._lanes.count)) - known.unknown
        if chapters:
            return known.total / chapters
        opened = [each for (of, _, _), each in self.open.items() if of == epoch and each.formed]
        return max((len(each.batches) * self.forming.span / each.formed for each in opened), default=0.0)


def _samples_to(index: int, chapter: Chapter) -> float:
    """About how many samples of a chapter are formed when its batch ``index`` is; 0 before its first batch."""
    return (index + 1) * chapter.formed / len(chapter.batches) if chapter.batches else 0.0

"""The chapters that a stream is forming: each as far as somebody asked, counted once it is complete.

All of it happens under one lock, by one request at a time, which reports what it costs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.lanes import Lanes
from spiral_stream.batching.tail import PadPartial
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.forming.chapter import Chapter, Grown
from spiral_stream.runtime.forming.cost import ENOUGH_S, CountingCost, Outlook, Request
from spiral_stream.runtime.forming.counting import At
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.forming.remainder import Fill, Rests
from spiral_stream.runtime.numbering.formation_index import FormationIndex
from spiral_stream.runtime.numbering.known_chapters import Known, KnownChapters
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import WatchedLock

_OPEN_CHAPTERS: Final = 4  # kept besides one per lane; they serve random access
_SEEN: Final = 1 / 8  # of a chapter, to tell how many batches it will have
_HELD: Final = 1 << 14  # samples that assemble made and chapters left, kept so that these are not formed again

Int64 = NDArray[np.int64]


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
        self.lock = WatchedLock("the chapters of the stream")
        self.open: dict[tuple[int, int, int], Chapter] = {}  # by epoch, lane and number; last used comes last
        self.cost = CountingCost()
        self._lanes = forming.stages.batches.lanes
        # After assemble: what chapters left, with its numbers; the oldest go first.
        self._held: dict[tuple[int, int, int], tuple[Int64, Samples, UInt64]] = {}
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
            mixture = self.forming.stages.epochs.mixture
            decided = "" if mixture is None else mixture.mark(epoch)
            index = FormationIndex(self.folder / f"epoch-{epoch}{decided}.index")
            lanes, rests = self.lanes_of(epoch), self.forming.leaves
            self.known[epoch] = KnownChapters(index, lanes, self.forming.span, rests=rests)
        return self.known[epoch]

    def missing(self, epoch: int, lane: int, upto: int | None = None) -> list[At]:
        """Return the chapters of a lane, before ``upto``, that nobody counted yet."""
        return [(lane, number) for number in self.known_of(epoch).unknown_of(lane, upto).tolist()]

    def missing_of(self, epoch: int) -> list[At]:
        """Return all chapters of an epoch that nobody counted yet, those first that have positions of their own."""
        known = self.known_of(epoch)
        found = [at for lane in range(self._lanes.count) for at in self.missing(epoch, lane)]
        found += [] if known.end is None else self.missing(epoch, known.end)
        return sorted(found, key=lambda at: (at[0] == known.end, at[1] == known.of_positions(at[0])))

    def chapter(self, epoch: int, lane: int, number: int, index: int = 0) -> Chapter:
        """Return a chapter as far as it has been formed; a new one if batch ``index`` can no longer be drawn from it."""
        key = (epoch, lane, number)
        chapter = self.open.pop(key, None)
        if chapter is None or not chapter.sound or chapter.drawn > index:
            chapter = self._new(epoch, lane, number)
        self.open[key] = chapter
        while len(self.open) > _OPEN_CHAPTERS + self._lanes.count:
            self.open.pop(next(iter(self.open)))
        return chapter

    def _new(self, epoch: int, lane: int, number: int, *, counting: bool = False) -> Chapter:
        """A chapter of which nothing is formed."""
        forming, known = self.forming.for_counting() if counting else self.forming, self.known_of(epoch)
        is_known = lane != known.end and number < known.of_positions(lane)
        return Chapter(forming, epoch, lane, number, None if is_known else self.rests(epoch, lane))

    def apart(self, epoch: int, lane: int, number: int) -> Chapter:
        """Return a chapter of which nothing is formed and no batch is drawn, to look at."""
        return self._new(epoch, lane, number, counting=True)

    def form(self, epoch: int, lane: int, number: int, index: int) -> int:
        """Form a chapter up to batch ``index``, or completely if it has fewer. Returns the batches formed so far."""
        chapter = self.open.get((epoch, lane, number))
        if chapter is None or not chapter.sound:
            chapter = self.chapter(epoch, lane, number)
        if len(chapter.batches) <= index:
            self._report(chapter, partial(chapter.has, index), partial(_samples_to, index))
        if chapter.complete:
            self.enter(epoch, chapter)
            if self.forming.assembles and number < self.known_of(epoch).of_positions(lane):
                self._hold(epoch, chapter)
        return len(chapter.batches)

    def _hold(self, epoch: int, chapter: Chapter) -> None:
        """Keep what a chapter left, as long as that is little."""
        numbers = chapter.rest()[:, 1]
        if not len(numbers):
            return
        self._held[epoch, chapter.lane, chapter.number] = (numbers, *chapter.samples_of(numbers))
        while sum(len(each) for each, _, _ in self._held.values()) > _HELD:
            self._held.pop(next(iter(self._held)))

    def count(self, epoch: int, todo: Sequence[At]) -> None:
        """Count chapters that nobody counted yet; those made of rests come last."""
        for at, (lane, number) in enumerate(todo):
            if self.known_of(epoch).batches(lane, number) is None:
                self._finish(epoch, lane, number, (len(todo) - at) * self.forming.span)

    def _finish(self, epoch: int, lane: int, number: int, needed: int) -> None:
        """Form a chapter completely, and learn what it has; ``needed`` samples are to be formed from here on."""
        chapter = self.open.get((epoch, lane, number))
        if chapter is None or not chapter.sound:
            chapter = self._new(epoch, lane, number, counting=True)
        self._report(chapter, chapter.finish, lambda _: needed)
        self.enter(epoch, chapter)

    def enter(self, epoch: int, chapter: Chapter) -> None:
        """Learn what a chapter has, which is complete."""
        known, lane, number = self.known_of(epoch), chapter.lane, chapter.number
        leaves = self.forming.leaves and lane != known.end
        if known.batches(lane, number) is not None and (not leaves or known.rest(lane, number) is not None):
            return
        known.enter(lane, number, len(chapter.batches), chapter.rest() if leaves else None)

    # ---- what chapters leave

    def rests(self, epoch: int, lane: int) -> Rests:
        """Return what the chapters of a lane left; of the lane at the epoch's end, what the lanes left.

        Chapters whose rest is not known are formed first. Where batches are arithmetic, so are rests.
        """
        known, forming = self.known_of(epoch), self.forming
        if lane != known.end:
            last = known.of_positions(lane)
            numbers = range(last, last + 1) if forming.arithmetic else range(last)  # all but the last are whole batches
            parts = [(lane, self._rest(epoch, lane, number)) for number in numbers]
        else:
            parts = [(each, self._rest(epoch, each, known.of_positions(each))) for each in range(self._lanes.count)]
        rests = Rests.of(parts, len(forming.rest_columns), ends=lane == known.end)
        fill = self._fill(epoch) if rests.ends and len(rests) else None
        return replace(rests, fill=fill, again=partial(self._again, epoch) if forming.assembles else None)

    def waiting(self, epoch: int, upto: int) -> list[UInt64]:
        """Return the positions that the chapters of lane 0 before one have left; none are left by assemble."""
        leaves = self.forming.leaves and not self.forming.arithmetic
        rests = [self._rest(epoch, 0, number)[:, 0] for number in range(upto)] if leaves else []
        return [each.astype(np.uint64) for each in rests if len(each)]

    def _rest(self, epoch: int, lane: int, number: int) -> Int64:
        """What a chapter leaves."""
        known = self.known_of(epoch)
        if self.forming.arithmetic:
            last, positions = self.forming.last_of(epoch, lane)
            if number < min(last, known.of_positions(lane)):
                return np.empty((0, 1), dtype=np.int64)
            if positions is not None:
                return positions.astype(np.int64)[:, None]
            number = last
        rest = known.rest(lane, number)
        if rest is None:
            left = len(known.unknown_of(lane, known.of_positions(lane)))
            self._finish(epoch, lane, number, max(1, left) * self.forming.span)
            rest = known.rest(lane, number)
            assert rest is not None
        return rest

    def _fill(self, epoch: int) -> Fill | None:
        """The epoch's first batch, where `PadPartial` repeats its rows; None if it is in the chapter at the epoch's end."""
        if not isinstance(self.forming.stages.batches.last, PadPartial):
            return None
        for lane in range(self._lanes.count):
            known = self.known_of(epoch)
            for number in range(known.in_lane(lane)):
                chapter = self._new(epoch, lane, number)
                if chapter.has(0):
                    return chapter.fill_of(chapter.batches[0])
        return None

    def _again(self, epoch: int, lane: int, number: int, numbers: Int64) -> tuple[Samples, UInt64]:
        """Return samples of a chapter that assemble made, which is formed again for them."""
        held = self._held.get((epoch, lane, number))
        if held is not None and np.isin(numbers, held[0]).all():
            at = np.searchsorted(held[0], numbers)
            return held[1].take(at), held[2][at]
        chapter = self._new(epoch, lane, number)
        chapter.finish()
        return chapter.samples_of(numbers)

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
        first = ((lane, known.unknown_of(lane, known.of_positions(lane))[:1]) for lane in range(self._lanes.count))
        at = None if at is None or at[1] >= known.of_positions(at[0]) else at
        at = at or next(((lane, int(found[0])) for lane, found in first if len(found)), None)
        if at is None or known.batches(*at) is not None:
            return
        chapter, until_s = self.chapter(epoch, *at), self.cost.spent_s + ENOUGH_S
        while not chapter.complete:
            seen = chapter.formed >= self.forming.span * _SEEN or self.cost.spent_s >= until_s
            if self.cost.measured and seen and self.batches_per_chapter(epoch):
                return
            self._report(chapter, partial(chapter.has, len(chapter.batches)), lambda chapter: chapter.formed)
        self.enter(epoch, chapter)

    def left(self, epoch: int) -> int:
        """Return how many samples nobody formed yet, of the chapters that are not counted."""
        known, total = self.known_of(epoch), self.lanes_of(epoch).total
        begun = [
            each.formed for (of, lane, at), each in self.open.items() if of == epoch and known.batches(lane, at) is None
        ]
        return max(0, min(known.uncounted * self.forming.span, total) - sum(begun))

    def batches_per_chapter(self, epoch: int) -> float:
        """Return about how many batches a chapter has; 0 if no batch was formed yet."""
        known = self.known_of(epoch)
        chapters = sum(known.of_positions(lane) for lane in range(self._lanes.count)) - known.uncounted
        if chapters:
            return known.total / chapters
        opened = [each for (of, _, _), each in self.open.items() if of == epoch and each.formed]
        return max((len(each.batches) * self.forming.span / each.formed for each in opened), default=0.0)


def _samples_to(index: int, chapter: Chapter) -> float:
    """About how many samples of a chapter are formed when its batch ``index`` is; 0 before its first batch."""
    return (index + 1) * chapter.formed / len(chapter.batches) if chapter.batches else 0.0

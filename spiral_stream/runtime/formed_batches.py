"""The batches of a plan with a formation, by number.

Batches are numbered by taking one of each lane in turn (docs/decisions/0024, `batching.lanes`), and the k-th batch of a
lane is found through the number of batches in each chapter before it. `known_chapters` holds what is known of these
numbers; chapters in between are formed, from the nearest known beginning on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np

from spiral_stream import threads
from spiral_stream.batching.lanes import Lanes
from spiral_stream.batching.tail import PadPartial
from spiral_stream.derived.executors import Builders
from spiral_stream.errors import CacheError, ResumeError
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.planner.saved_state import Anchor
from spiral_stream.runtime.chapters import Chapter, Drawn, Grown
from spiral_stream.runtime.counting import At, Counting, Work
from spiral_stream.runtime.counting_cost import COUNTED_AT_ONCE, QUICK_S, CountingCost, behind_uncounted, not_counted
from spiral_stream.runtime.formation_index import FormationIndex
from spiral_stream.runtime.forming import Forming
from spiral_stream.runtime.known_chapters import Known, KnownChapters
from spiral_stream.runtime.numbering import Numbering, batch_number
from spiral_stream.runtime.outlook import Outlook, Request
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import ToldLock

_OPEN_CHAPTERS: Final = 4  # kept besides one per lane; they serve random access


class _Found(NamedTuple):
    """Where a batch is: its lane, its chapter, and its number in the chapter."""

    lane: int
    chapter: int
    batch: int


@final
class FormedBatches(Numbering):
    """Batches of a formation: chapters, formed as far as batches are asked for.

    Args:
        forming: what the chapters share.
        folder: of the formation index.
        known: what another `FormedBatches` of the same batches knew.
    """

    def __init__(self, forming: Forming, folder: Path, known: Known | None = None) -> None:
        self.forming = forming
        self.folder = folder
        self.known: Known = {} if known is None else known
        self.last = forming.stages.batches.last
        self._lanes = forming.stages.batches.lanes
        self._open: dict[tuple[int, int, int], Chapter] = {}  # by epoch, lane and number; last used comes last
        self._lock = ToldLock("the chapters of the stream")
        self._requests: list[Outlook] = []  # the request under way, and those that it makes itself
        self._cost = CountingCost()

    def held(self, asked: str) -> AbstractContextManager[None]:
        way_out = f"{asked} gave up. Leave the loop, which keeps its place and waits for no thread, then ask again"
        return self._lock.within(threads.PLACE_TIMEOUT_S, way_out)

    # ---- what a state says

    def anchors(self, epoch: int, number: int) -> list[Anchor]:
        with self._lock:
            return self._known(epoch).anchors(number)

    def anchor(self, epoch: int, anchors: Iterable[Anchor]) -> None:
        with self._lock:
            self._known(epoch).follow(anchors)

    def possible(self, epoch: int, number: int, anchors: Iterable[Anchor]) -> list[Anchor]:
        with self._lock:
            return self._known(epoch).certain(number, anchors)

    @property
    def handed_on(self) -> tuple[Path, Known]:
        return self.folder, self.known

    # ---- what the stream asks

    def exists(self, epoch: int, number: int) -> bool:
        known = self.known.get(epoch)
        if known is not None and 0 <= number < known.rounds * self._lanes.count:
            return True
        with self._request(f"batch {number:,} of epoch {epoch}"):
            return self._find(epoch, number) is not None

    def total(self, epoch: int) -> int:
        with self._request(f"count of epoch {epoch}"):
            self._count(epoch, list(chain.from_iterable(self._missing(epoch, n) for n in range(self._lanes.count))))
            return self._known(epoch).total()

    def count_together(
        self, epoch: int, pool: Builders, work: Work, given: Any, report: Callable[[int, int], None]
    ) -> int:
        """Return the batches of a whole epoch, before the tail rule; shares the work with whoever counts it too.

        Args:
            epoch: the epoch.
            pool: where chapters are formed.
            work: forms one; called with ``given``, the epoch, the lane and the chapter.
            given: what ``work`` forms chapters from.
            report: called with the samples that are counted, of how many.
        """
        with self._lock:
            known, total = self._known(epoch), self._lanes_of(epoch).total
            missing = [at for lane in range(self._lanes.count) for at in self._missing(epoch, lane)]

        def tell() -> None:
            report(max(0, total - known.unknown() * self.forming.span), total)

        Counting(known, epoch, self._lock, tell).run(pool, work, given, missing)
        return known.total()

    def unknown(self, epoch: int) -> int:
        with self._lock:
            return self._known(epoch).unknown()

    def draw(self, epoch: int, number: int) -> Drawn:
        number = batch_number(number)
        with self._request(f"batch {number:,} of epoch {epoch}"):
            found = None if number < 0 else self._find(epoch, number)
            if found is None and number >= 0 and isinstance(self.last, PadPartial):
                found = self._find(epoch, number % max(1, self.total(epoch)))
            if found is None:
                msg = f"batch {number} of an epoch of {self.total(epoch)}. Give a number from 0 up, below that"
                raise IndexError(msg)
            chapter = self._chapter(epoch, found.lane, found.chapter, found.batch)
            if not chapter.has(found.batch):
                msg = (
                    f"formation index: {self.folder} says that chapter {found.chapter} has more batches than the "
                    f"{found.batch} it has; it was written by other code under the same versions. Remove that folder: it is "
                    "made again"
                )
                raise CacheError(msg)
            return chapter.draw(found.batch)

    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        with self._request(f"batch {number:,} of epoch {epoch}"):
            found = self._find_in_lane(epoch, 0, number)
            if found is None:
                return np.empty(0, dtype=np.uint64), self._lanes_of(epoch).total
            chapter = Chapter(self.forming.for_counting(), epoch, 0, found.chapter)
            chapter.finish()
            return chapter.positions_from(found.batch), chapter.end

    def find(self, epoch: int, stream: int, row: int) -> Iterator[int]:
        positions = self.forming.stages.epochs.positions(epoch, stream, row)
        places = sorted({self.forming.chapter_of(epoch, at) for at in positions})
        need_sound()
        alone = self._lanes.count == 1  # then each chapter's batches come after those of the chapters before it
        for some in [[place] for place in places] if alone else [places]:
            yield from sorted(self._holding(epoch, some, stream, row))

    def _holding(self, epoch: int, places: Sequence[At], stream: int, row: int) -> set[int]:
        """The batches of some chapters that hold a surviving row of a stream."""
        out = set()
        with self._request(f"the place of a row in epoch {epoch}"):
            self._need_row_near(epoch, places)
            for lane, number in places:
                chapter = Chapter(self.forming.for_counting(), epoch, lane, number)
                self._known(epoch).enter(lane, number, chapter.finish())
                for index in chapter.holding(stream, row):
                    self._count(epoch, self._missing(epoch, lane, number))
                    out.add(self._number(epoch, lane, self._known(epoch).before(lane, number) + index))
            need_sound()
        return out

    def need_known(self, world_size: int, workers: int) -> None:
        self.forming.need_known(world_size, workers)

    # ---- what is refused because it takes long

    def need_countable(self, epoch: int, asked: str) -> None:
        left = min(self.unknown(epoch) * self.forming.span, self._lanes_of(epoch).total)
        computed = self.forming.unknown() if left else []
        if left <= COUNTED_AT_ONCE and not computed:
            return
        if not computed:
            with self._request(f"{asked} of epoch {epoch}"):
                self._probe(epoch)
        raise not_counted(asked, self.unknown(epoch), left, self._cost, computed, self.forming.ways_out())

    def need_near(self, epoch: int, number: int, asked: str) -> None:
        number = batch_number(number)
        what = f"{asked}: batch {number:,} of epoch {epoch}"
        with self._request(what):
            known, lanes = self._known(epoch), range(self._lanes.count)
            if number < 0 and known.unknown():
                msg = f"batch {number} is below 0. Give a number from 0 up, below stream.count()"
                raise IndexError(msg)
            k = max(0, number) // self._lanes.count
            reached = [(lane, *known.walk(lane, k)) for lane in lanes]
            short = [at for at in reached if self._may_be_later(epoch, *at, k)]
            most = sum(known.in_lane(lane) - chapter - 1 for lane, chapter, _ in short)
            if self._is_quick(most):
                return
            self._probe(epoch)
            each = self._batches_each(epoch)
            passed = [int((k - first) / each) if each else most for _, _, first in short]
            later = [known.in_lane(lane) - chapter - 1 for lane, chapter, _ in short]
            self._need_quick(what, sum(map(min, later, passed)))

    def _may_be_later(self, epoch: int, lane: int, chapter: int, first: int, k: int) -> bool:
        """Whether batch ``k`` of a lane may lie after a chapter, as far as that is known without forming anything."""
        known = self._known(epoch)
        if chapter >= known.in_lane(lane) or known.batches(lane, chapter) is not None or k == first:
            return False
        opened = self._open.get((epoch, lane, chapter))
        return opened is None or len(opened.batches) <= k - first

    def _need_row_near(self, epoch: int, places: Sequence[At]) -> None:
        """Refuse to look for a row if the chapters before it are not counted, and counting takes long."""
        known = self._known(epoch)
        last = max((number for _, number in places), default=0)
        missing = sum(len(known.unknown_of(lane, last)) for lane in range(self._lanes.count))
        if not self._is_quick(missing):
            self._probe(epoch)
            self._need_quick(f"locate: chapter {last:,} of epoch {epoch}, which holds the sample", missing)

    def is_quick(self, epoch: int) -> bool:
        """Whether the whole epoch is counted at once without any measurement."""
        return self._is_quick(self.unknown(epoch))

    def _is_quick(self, chapters: int) -> bool:
        """Whether chapters are counted at once without any measurement."""
        return not chapters or (chapters * self.forming.span <= COUNTED_AT_ONCE and not self.forming.unknown())

    def _need_quick(self, what: str, chapters: int) -> None:
        samples = chapters * self.forming.span
        if not self._is_quick(chapters) and samples * (self._cost.per_sample_s or 0.0) > QUICK_S:
            computed = self.forming.unknown()
            raise behind_uncounted(what, chapters, samples, self._cost, computed, self.forming.ways_out())

    def _probe(self, epoch: int) -> None:
        """Form windows of the first chapter that nobody counted, until it is known what a sample costs."""
        known = self._known(epoch)
        at = next((at for lane in range(self._lanes.count) for at in self._missing(epoch, lane)), None)
        if at is None or (self._cost.measured and self._batches_each(epoch)):
            return
        chapter = self._chapter(epoch, *at)
        while not chapter.complete and not (self._cost.measured and self._batches_each(epoch)):
            self._report(chapter, partial(chapter.has, len(chapter.batches)), lambda chapter: chapter.formed)
        if chapter.complete:
            known.enter(*at, len(chapter.batches))

    def _batches_each(self, epoch: int) -> float:
        """About how many batches a chapter has; 0 if no batch was formed yet."""
        known = self._known(epoch)
        chapters = sum(known.in_lane(lane) for lane in range(self._lanes.count)) - known.unknown()
        if chapters:
            return known.total() / chapters
        opened = [each for (of, _, _), each in self._open.items() if of == epoch and each.formed]
        return max((len(each.batches) * self.forming.span / each.formed for each in opened), default=0.0)

    def _lanes_of(self, epoch: int) -> Lanes:
        return self.forming.stages.batches_of(epoch).lanes

    # ---- finding a batch

    def _find(self, epoch: int, number: int) -> _Found | None:
        """Find a batch of the epoch; None past the end.

        Raises:
            ResumeError: the anchors of a loaded state are wrong.
        """
        known = self._known(epoch)
        k, lane = divmod(number, self._lanes.count)
        if k < known.rounds:
            return self._find_in_lane(epoch, lane, k)
        same_round = [self._find_in_lane(epoch, each, k) for each in range(self._lanes.count)]
        if None not in same_round:  # no lane has ended by this round
            known.rounds = k + 1
            return same_round[lane]
        turn = None if len(same_round) == 1 else self._lanes.turn(number, self._totals(epoch))
        if turn is None:
            return None
        found = self._find_in_lane(epoch, *turn)
        if found is None:
            msg = (
                f"resume: where the state says that chapters begin, batch {number} of epoch {epoch} is in none of them. Pass "
                "what state_dict() returned, unchanged"
            )
            raise ResumeError(msg)
        return found

    def _find_in_lane(self, epoch: int, lane: int, k: int) -> _Found | None:
        """Find the k-th batch of a lane; None if the lane has fewer."""
        known = self._known(epoch)
        while True:
            number, first = known.walk(lane, k)
            if number >= known.in_lane(lane):
                return None
            if known.batches(lane, number) is not None or k < first + self._form(epoch, lane, number, k - first):
                return _Found(lane, number, k - first)

    def _number(self, epoch: int, lane: int, k: int) -> int:
        """The epoch's number of the k-th batch of a lane, which the lane has."""
        if all(self._find_in_lane(epoch, each, k) is not None for each in range(self._lanes.count)):
            return k * self._lanes.count + lane
        return self._lanes.number(lane, k, self._totals(epoch))

    # ---- forming

    def _known(self, epoch: int) -> KnownChapters:
        if epoch not in self.known:
            index = FormationIndex(self.folder / f"epoch-{epoch}.index")
            self.known[epoch] = KnownChapters(index, self._lanes_of(epoch), self.forming.span)
        return self.known[epoch]

    def _missing(self, epoch: int, lane: int, upto: int | None = None) -> list[At]:
        """The chapters of a lane, before ``upto``, that nobody counted yet."""
        return [(lane, number) for number in self._known(epoch).unknown_of(lane, upto).tolist()]

    def _chapter(self, epoch: int, lane: int, number: int, index: int = 0) -> Chapter:
        """A chapter as far as it has been formed; a new one if batch ``index`` can no longer be drawn from it."""
        key = (epoch, lane, number)
        chapter = self._open.pop(key, None)
        if chapter is None or not chapter.sound or chapter.drawn > index:
            chapter = Chapter(self.forming, epoch, lane, number)
        self._open[key] = chapter
        while len(self._open) > _OPEN_CHAPTERS + self._lanes.count:
            self._open.pop(next(iter(self._open)))
        return chapter

    def _form(self, epoch: int, lane: int, number: int, index: int) -> int:
        """Form a chapter up to batch ``index``, or completely if it has fewer. Returns the batches formed so far."""
        chapter = self._open.get((epoch, lane, number))
        if chapter is None or not chapter.sound:
            chapter = self._chapter(epoch, lane, number)
        if len(chapter.batches) <= index:
            self._report(chapter, partial(chapter.has, index), partial(_samples_to, index))
        if chapter.complete:
            self._known(epoch).enter(lane, number, len(chapter.batches))
        return len(chapter.batches)

    def _count(self, epoch: int, todo: Sequence[At]) -> None:
        """Count chapters that nobody counted yet."""
        for at, (lane, number) in enumerate(todo):
            chapter = self._open.get((epoch, lane, number))
            if chapter is None or not chapter.sound:
                chapter = Chapter(self.forming.for_counting(), epoch, lane, number)
            left = (len(todo) - at) * self.forming.span
            self._report(chapter, chapter.finish, lambda _, left=left: left)  # type: ignore[misc]  # a default
            self._known(epoch).enter(lane, number, len(chapter.batches))

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
            self._cost.window(chapter.formed - at)
            at = chapter.formed
            outlook.window(chapter.formed - before, needed(chapter) - before)

        self._cost.begin()
        form(grown)
        outlook.chapter(chapter.formed - before)

    def _totals(self, epoch: int) -> list[int]:
        """Batches of each lane."""
        known = self._known(epoch)
        if known.totals is None:
            for lane in range(self._lanes.count):
                self._count(epoch, self._missing(epoch, lane))
            known.totals = [known.before(lane, known.in_lane(lane)) for lane in range(self._lanes.count)]
        return known.totals

    def _request(self, what: str) -> Request:
        """Hold the lock; if much has to be formed, a warning says what it costs."""
        return Request(self._lock, self._requests, what, self.forming.span)


def _samples_to(index: int, chapter: Chapter) -> float:
    """About how many samples of a chapter are formed when its batch ``index`` is; 0 before its first batch."""
    return (index + 1) * chapter.formed / len(chapter.batches) if chapter.batches else 0.0

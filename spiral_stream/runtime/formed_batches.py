"""The batches of a plan with a formation, by number.

Batches are numbered by taking one of each lane in turn (docs/decisions/0024, `batching.lanes`), and the k-th batch of a
lane is found through the number of batches in each chapter before it. `known_chapters` holds what is known of these
numbers; chapters in between are formed, from the nearest known beginning on.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np

from spiral_stream import threads
from spiral_stream.batching.lanes import Lanes
from spiral_stream.batching.tail import PadPartial
from spiral_stream.errors import BindError, CacheError, ResumeError
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.planner.saved_state import Anchor
from spiral_stream.runtime.chapters import Chapter, Drawn, Grown
from spiral_stream.runtime.formation_index import FormationIndex
from spiral_stream.runtime.forming import Forming
from spiral_stream.runtime.known_chapters import Known, KnownChapters
from spiral_stream.runtime.numbering import Numbering, batch_number
from spiral_stream.runtime.outlook import Outlook
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import ToldLock

_OPEN_CHAPTERS: Final = 4  # kept besides one per lane; they serve random access
_COUNTED_AT_ONCE: Final = 1 << 22  # samples: about a second of forming


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
            return self._count(epoch, chain.from_iterable(self._chapters(epoch, n) for n in range(self._lanes.count)))

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
            chapter = Chapter(self.forming, epoch, 0, found.chapter)
            chapter.finish()
            return chapter.positions_from(found.batch), chapter.end

    def find(self, epoch: int, stream: int, row: int) -> list[int]:
        positions = self.forming.stages.epochs.positions
        with self._request(f"the place of a row in epoch {epoch}"):
            out = set()
            for lane, number in sorted({self._chapter_of(epoch, at) for at in positions(epoch, stream, row)}):
                chapter = Chapter(self.forming, epoch, lane, number)
                self._known(epoch).enter(lane, number, chapter.finish())
                for index in chapter.holding(stream, row):
                    first = self._count(epoch, [(lane, each) for each in range(number)])
                    out.add(self._number(epoch, lane, first + index))
            need_sound()
            return sorted(out)

    def need_known(self, world_size: int, workers: int) -> None:
        if world_size * workers == 1 or not (unknown := self.forming.unknown()):
            return
        who = f"{world_size} ranks" if world_size > 1 else f"{workers} workers"
        msg = (
            f"bind: who shares a batch is decided by {', '.join(unknown)}, which is not known before it is computed, and "
            f"{who} would compute it for all samples again. Build it once: {'; '.join(self.forming.ways_out())}; or read "
            "with one rank and no workers"
        )
        raise BindError(msg)

    def need_countable(self, epoch: int) -> None:
        left = min(self.unknown(epoch) * self.forming.span, self._lanes_of(epoch).total)
        computed = self.forming.unknown() if left else []
        if left > _COUNTED_AT_ONCE or computed:
            why = f"{', '.join(computed)} is not known" if computed else f"about {left:,} samples are not formed yet"
            ways_out = "".join(f"{each}; " for each in self.forming.ways_out()) if computed else ""
            msg = (
                f"len: the number of batches is formed, not counted, and {why}. Call stream.count() to form the epoch "
                f"once (it is kept in the formation index); {ways_out}or loop without len()"
            )
            raise TypeError(msg)

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

    def _chapter_of(self, epoch: int, position: int) -> tuple[int, int]:
        """The lane and the chapter of a position."""
        lanes = self._lanes_of(epoch)
        lane = lanes.lane_of(position)
        number = (position - lanes.begin(lane)) // self.forming.span
        while self.forming.begin(epoch, lane, number) > position:  # chapters of a mixture begin up to a slice later
            number -= 1
        return lane, number

    # ---- forming

    def _known(self, epoch: int) -> KnownChapters:
        if epoch not in self.known:
            index = FormationIndex(self.folder / f"epoch-{epoch}.index")
            self.known[epoch] = KnownChapters(index, self._lanes_of(epoch), self.forming.span)
        return self.known[epoch]

    def _chapters(self, epoch: int, lane: int) -> list[tuple[int, int]]:
        return [(lane, number) for number in range(self._known(epoch).in_lane(lane))]

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

    def _count(self, epoch: int, chapters: Iterable[tuple[int, int]]) -> int:
        """How many batches some chapters (lane, number) have together; forms those that are not known."""
        known, chapters = self._known(epoch), list(chapters)
        todo = [each for each in chapters if known.batches(*each) is None]
        for at, (lane, number) in enumerate(todo):
            chapter, left = self._chapter(epoch, lane, number), (len(todo) - at) * self.forming.span
            self._report(chapter, chapter.finish, lambda _, left=left: left)  # type: ignore[misc]  # a default
            known.enter(lane, number, len(chapter.batches))
        return sum(known.batches(*each) or 0 for each in chapters)

    def _report(self, chapter: Chapter, form: Callable[[Grown], object], needed: Callable[[Chapter], float]) -> None:
        """Form windows of a chapter, and report each to the request under way.

        Args:
            chapter: the chapter.
            form: forms windows, and calls what it is given after each.
            needed: samples to form for the request, from the chapter's beginning on; later chapters included.
        """
        outlook, before = self._requests[0], chapter.formed
        form(lambda chapter: outlook.window(chapter.formed - before, needed(chapter) - before))
        outlook.chapter(chapter.formed - before)

    def _totals(self, epoch: int) -> list[int]:
        """Batches of each lane."""
        known = self._known(epoch)
        if known.totals is None:
            known.totals = [self._count(epoch, self._chapters(epoch, lane)) for lane in range(self._lanes.count)]
        return known.totals

    # ---- telling the caller what it costs

    def _request(self, what: str) -> "_Request":
        """Hold the lock; if much has to be formed, a warning says what it costs."""
        return _Request(self._lock, self._requests, what, self.forming.span)


@final
class _Request:
    """Holds the lock of the chapters; the outermost of nested requests reports what it costs."""

    __slots__ = ("_lock", "_outlook", "_requests")

    def __init__(self, lock: ToldLock, requests: list[Outlook], what: str, span: int) -> None:
        self._lock, self._requests, self._outlook = lock, requests, Outlook(what, span)

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._requests.append(self._outlook)

    def __exit__(self, *_: object) -> None:
        self._requests.pop().__exit__()
        self._lock.__exit__()


def _samples_to(index: int, chapter: Chapter) -> float:
    """About how many samples of a chapter are formed when its batch ``index`` is; 0 before its first batch."""
    return (index + 1) * chapter.formed / len(chapter.batches) if chapter.batches else 0.0

"""Which samples form batch g of an epoch, and where the epoch's batches end.

With a fixed count both are arithmetic. With a formation, batches are numbered by
(k, lane), skipping lanes that have ended (docs/decisions/0024): the k-th batch of a lane is found
through the number of batches of each chapter before it. What is known of these counts
comes from three places, all of which say the same: chapters that were formed here, the
*formation index* on disk (whoever forms a chapter appends to it), and the anchors of a
loaded state. Without any of them chapters are formed from the lane's start.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from operator import index
from pathlib import Path
from typing import Final, final

import numpy as np

from spiral_stream import threads
from spiral_stream.batching.formation import DropPartial, Membership, PadPartial, Tail
from spiral_stream.errors import BindError, CacheError, ResumeError, SpiralWarning, shown
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.planner.bind import Bound
from spiral_stream.planner.physical import Stages
from spiral_stream.planner.resume import Anchor
from spiral_stream.runtime.chapters import Chapter, Drawn, Forming, Grown, chapter_count
from spiral_stream.runtime.formation_index import Counts, FormationIndex
from spiral_stream.runtime.outlook import Outlook
from spiral_stream.runtime.samples import Samples
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import ToldLock

_OPEN_CHAPTERS: Final = 4  # kept a lane-turn; one is in use, others serve random access
_COUNTED_AT_ONCE: Final = 1 << 22  # samples: about a second of forming

Known = dict[int, Counts]  # by epoch


class Numbering(ABC):
    """Batches by number, in every epoch. Thread-safe."""

    last: Tail

    @abstractmethod
    def exists(self, epoch: int, number: int) -> bool:
        """Whether the epoch has this batch, before the tail rule; forms no further than needed."""

    @abstractmethod
    def total(self, epoch: int) -> int:
        """Batches of a whole epoch, before the tail rule; forms what is not known."""

    @abstractmethod
    def knows(self, epoch: int) -> bool:
        """Whether `total` and `exists` answer without forming anything."""

    @abstractmethod
    def draw(self, epoch: int, number: int) -> Drawn:
        """The samples of a batch. With `PadPartial` batches past the end repeat those of the start.

        Raises:
            IndexError: the epoch has no such batch.
        """

    @staticmethod
    def whole(number: object) -> int:
        """A batch's number as an integer; NumPy's integers are integers too.

        Raises:
            TypeError: it is none.
        """
        try:
            if not isinstance(number, bool):
                return index(number)  # type: ignore[arg-type]  # whether it is one is the question
        except TypeError:
            pass
        msg = f"batch {shown(number)} is a {type(number).__name__}; give an integer in [0, stream.count())"
        raise TypeError(msg)

    @abstractmethod
    def find(self, epoch: int, stream: int, row: int) -> list[int]:
        """The batches that hold a surviving row, ascending."""

    @abstractmethod
    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        """Return the positions (uint64) that batch ``number`` and later ones still owe of its chapter, and the chapter's end.

        From that end on, every position is undelivered. There is one lane only.
        """

    def admits(self, epoch: int, first: int, group: int, own: range) -> range | None:
        """What a rank delivers of the batches that it is due at a step; None where its steps end.

        Args:
            epoch: the epoch.
            first: the step's first batch.
            group: batches of the step, over all ranks.
            own: the rank's own.
        """
        if isinstance(self.last, DropPartial):
            return own if self.exists(epoch, first + group - 1) else None
        if isinstance(self.last, PadPartial):
            return own if self.exists(epoch, first) else None
        there = [number for number in own if self.exists(epoch, number)]
        return range(own.start, there[-1] + 1) if there else None

    def need_countable(self, epoch: int) -> None:  # noqa: B027  arithmetic counts at once
        """Refuse (`TypeError`) to count the batches of an epoch where that takes long; say how to count them."""

    def anchors(self, epoch: int, number: int) -> list[Anchor] | None:
        """Where chapters begin around batch ``number``, as far as known; None where there are no chapters. Forms nothing."""
        del epoch, number
        return None

    def possible(self, epoch: int, number: int, anchors: Iterable[Anchor]) -> list[Anchor]:
        """Return the certain anchors of a state at batch ``number``; refuse (`ResumeError`) impossible ones. Forms nothing."""
        del epoch, number, anchors
        return []

    def anchor(self, epoch: int, anchors: Iterable[Anchor]) -> None:  # noqa: B027  arithmetic needs none
        """Learn from a saved state where chapters begin, and forget the chapters before them."""

    def handed_on(self) -> tuple[Path, Known] | None:
        """Return what a new numbering of the same batches may know from this one, by the folder of its index."""
        return None

    def need_known(self, world_size: int, workers: int) -> None:  # noqa: B027  arithmetic is always known
        """Refuse several readers where membership needs what each would have to compute again.

        Raises:
            BindError: says what, and the ways out.
        """

    def held(self, asked: str) -> AbstractContextManager[None]:
        """What is known of batches, for this thread alone; fixed ones share nothing.

        Raises:
            StreamError: another thread holds it past the deadline; says which, and what it is doing.
        """
        del asked
        return nullcontext()

    def warn_of_nothing(self, epoch: int, bound: Bound) -> None:
        """Say why a pass over a whole epoch delivered nothing to this rank."""
        total, group = self.total(epoch), bound.world_size * bound.merge
        found = f"{total:,} batches do not make a step of {bound.world_size:,} ranks with merge={bound.merge:,}"
        way_out = f"Read with at most {total // bound.merge:,} ranks, lower the batch size, or give last=PadPartial"
        if not total:
            found, way_out = "no batch is left", "Lower the batch size, loosen the filters, or give last=KeepPartial"
        elif total < bound.merge:
            way_out = "Lower merge or the batch size, or give last=PadPartial"
        elif not isinstance(self.last, DropPartial):
            found = f"its {total:,} batches go to the ranks before it"
        msg = (
            f"iter: rank {bound.rank:,} gets nothing in epoch {epoch:,}: {found} ({group:,} batches a step). {way_out}"
        )
        warnings.warn(msg, SpiralWarning, stacklevel=3)

    def steps(self, epoch: int, world_size: int, merge: int, rank: int) -> int:
        """Steps of a whole epoch for a rank."""
        total, group = self.total(epoch), world_size * merge
        if isinstance(self.last, DropPartial):
            return total // group
        if isinstance(self.last, PadPartial):
            return -(-total // group)
        return max(0, -(-(-(-total // merge) - rank) // world_size))


@final
class CountedBatches(Numbering):
    """Batches of a fixed count: arithmetic."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._batches = stages.batches
        self.last = stages.batches.last

    def exists(self, epoch: int, number: int) -> bool:
        del epoch
        return 0 <= number < self._batches.formed

    def total(self, epoch: int) -> int:
        del epoch
        return self._batches.formed

    def knows(self, epoch: int) -> bool:
        del epoch
        return True

    def draw(self, epoch: int, number: int) -> Drawn:
        places = self._stages.epochs.places(epoch, self._batches.positions(self.whole(number)))
        return Drawn(Samples.at(places), Membership(np.arange(len(places)), len(places)))

    def find(self, epoch: int, stream: int, row: int) -> list[int]:
        found = [self._batches.locate(at) for at in self._stages.epochs.positions(epoch, stream, row)]
        need_sound()
        return sorted({number for number in found if number is not None})

    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        del epoch
        return np.empty(0, dtype=np.uint64), min(number * self._batches.batch_size, self._batches.total)


@final
class FormedBatches(Numbering):
    """The batches of a formation: chapters, formed as far as they are asked for.

    Args:
        forming: what its chapters share.
        folder: of the formation index.
        known: what another `FormedBatches` of these batches knew.
    """

    def __init__(self, forming: Forming, folder: Path, known: Known | None = None) -> None:
        self.forming = forming
        self.folder = folder
        self._lanes = forming.stages.batches.lanes
        self._total = forming.stages.epochs.total
        self.last = forming.stages.batches.last
        self.known: Known = {} if known is None else known
        self._open: dict[tuple[int, int, int], Chapter] = {}
        self._lock = ToldLock("the chapters of the stream")
        self._requests: list[Outlook] = []  # the one under way, and its parts

    # ---- what is known

    def held(self, asked: str) -> AbstractContextManager[None]:
        way_out = f"{asked} gave up. Leave the loop, which keeps its place and waits for no thread, then ask again"
        return self._lock.within(threads.PLACE_TIMEOUT_S, way_out)

    def anchor(self, epoch: int, anchors: Iterable[Anchor]) -> None:
        with self._lock:
            self._known(epoch).forget()
            for lane, chapter, first in anchors:
                self._known(epoch).begin(lane, chapter, first)

    def anchors(self, epoch: int, number: int) -> list[Anchor]:
        with self._lock:
            known, out = self._known(epoch), []
            for lane in range(self._lanes):
                k = max(0, (number - lane + self._lanes - 1) // self._lanes)  # exact while no lane has ended
                chapter, first = known.nearest(lane, k)
                while (count := known.batches(lane, chapter)) is not None and first + count <= k:
                    first, chapter = first + count, chapter + 1
                out.append((lane, chapter, first))
            return out

    def handed_on(self) -> tuple[Path, Known]:
        return self.folder, self.known

    def possible(self, epoch: int, number: int, anchors: Iterable[Anchor]) -> list[Anchor]:
        out = []
        with self._lock:
            for lane, chapter, first in anchors:
                if lane >= self._lanes or chapter > self._chapters(lane):  # the one after the last: the lane has ended
                    raise _impossible(lane, chapter, first, "the plan has no such chapter")
                if first > max(0, (number - lane + self._lanes - 1) // self._lanes):
                    raise _impossible(lane, chapter, first, f"it begins after batch {number}, where the state stands")
                counts = [self._known(epoch).batches(lane, each) for each in range(chapter)]
                before = [count for count in counts if count is not None]
                if sum(before) > first or (len(before) == chapter and sum(before) != first):
                    raise _impossible(lane, chapter, first, f"the chapters before it have {sum(before)} batches")
                out += [(lane, chapter, first)] if len(before) == chapter else []
        return out

    def _known(self, epoch: int) -> Counts:
        if epoch not in self.known:
            self.known[epoch] = Counts(FormationIndex(self.folder / f"epoch-{epoch}.index"), self._lanes)
        return self.known[epoch]

    def _chapters(self, lane: int) -> int:
        return chapter_count(self._total, self._lanes, lane, self.forming.span)

    # ---- forming

    def _chapter(self, epoch: int, lane: int, number: int) -> Chapter:
        """A chapter, as far as it has been formed."""
        key = (epoch, lane, number)
        found = self._open.pop(key, None)
        if found is None or not found.sound:
            found = Chapter(self.forming, epoch, lane, number)
        self._open[key] = found  # last used comes last
        while len(self._open) > _OPEN_CHAPTERS + self._lanes:
            self._open.pop(next(iter(self._open)))
        return found

    def _asked(self, what: str) -> "_Request":
        """Hold the lock, and tell what it costs where much has to be formed."""
        return _Request(self._lock, self._requests, what, self.forming.span)

    @property
    def _outlook(self) -> Outlook | None:
        return self._requests[0] if self._requests else None

    def _learn(self, epoch: int, chapter: Chapter) -> None:
        self._known(epoch).enter(chapter.lane, chapter.number, len(chapter.batches))
        if self._outlook is not None:
            self._outlook.chapter(chapter.formed)

    def _grown(self, needed: Callable[[Chapter], float]) -> Grown:
        """What is told after each window of a chapter, with ``needed``: how many samples from its beginning on."""
        outlook = self._outlook
        return lambda chapter: None if outlook is None else outlook.window(chapter.formed, needed(chapter))

    def _batches(self, epoch: int, chapters: Iterable[tuple[int, int]]) -> int:
        """How many batches some chapters (lane, number) have together; those are formed of which that is not known."""
        known, chapters = self._known(epoch), list(chapters)
        todo = [each for each in chapters if known.batches(*each) is None]
        for at, (lane, number) in enumerate(todo):
            chapter, left = self._chapter(epoch, lane, number), len(todo) - at
            chapter.finish(self._grown(lambda _, left=left: left * self.forming.span))  # type: ignore[misc]  # a default
            self._learn(epoch, chapter)
        return sum(known.batches(*each) or 0 for each in chapters)

    def _find(self, epoch: int, lane: int, k: int) -> tuple[int, int] | None:
        """The chapter that holds the k-th batch of a lane, and its place in it; None if the lane has fewer."""
        known = self._known(epoch)
        start, first = known.nearest(lane, k)
        for chapter in range(start, self._chapters(lane)):
            known.begin(lane, chapter, first)
            count = known.batches(lane, chapter)
            if count is None:  # a chapter under way answers before it is formed to its end
                found = self._chapter(epoch, lane, chapter)
                there = found.has(k - first, self._grown(partial(_samples_to, k - first)))
                count = len(found.batches)
                if found.done:
                    self._learn(epoch, found)
                if there:
                    return chapter, k - first
            if k < first + count:
                return chapter, k - first
            first += count
        return None

    def _lane_total(self, epoch: int, lane: int) -> int:
        return self._batches(epoch, self._of_lane(lane))

    def _of_lane(self, lane: int) -> list[tuple[int, int]]:
        return [(lane, number) for number in range(self._chapters(lane))]

    def _turn(self, epoch: int, number: int) -> tuple[int, int] | None:
        """The lane and the number in it of a batch; None past the end."""
        k, lane = divmod(number, self._lanes)
        if self._lanes == 1:
            return (lane, k) if self._find(epoch, lane, k) is not None else None
        if all(self._find(epoch, each, k) is not None for each in range(self._lanes)):
            return lane, k  # no lane has ended by this round
        totals = np.array([self._lane_total(epoch, each) for each in range(self._lanes)])
        ends = np.unique(totals)
        begin = before = 0
        for end in ends.tolist():  # between two ends the same lanes take turns
            active = np.flatnonzero(totals > before)
            size = (end - before) * len(active)
            if number < begin + size:
                turn, place = divmod(number - begin, len(active))
                return int(active[place]), before + turn
            begin, before = begin + size, end
        return None

    def _number(self, epoch: int, lane: int, k: int) -> int:
        """The number of the k-th batch of a lane, which it has."""
        if self._lanes == 1:
            return k
        if all(self._find(epoch, each, k) is not None for each in range(self._lanes)):
            return k * self._lanes + lane
        totals = [self._lane_total(epoch, each) for each in range(self._lanes)]
        return sum(min(total, k) for total in totals) + sum(total > k for total in totals[:lane])

    # ---- what the stream asks

    def exists(self, epoch: int, number: int) -> bool:
        with self._asked(f"batch {number:,} of epoch {epoch}"):
            return self._turn(epoch, number) is not None

    def total(self, epoch: int) -> int:
        with self._asked(f"count of epoch {epoch}"):
            return self._batches(epoch, chain.from_iterable(map(self._of_lane, range(self._lanes))))

    def knows(self, epoch: int) -> bool:
        return self.unknown(epoch) == 0

    def unknown(self, epoch: int) -> int:
        """Chapters of the epoch whose number of batches is not known."""
        with self._lock:
            return sum(self._chapters(lane) for lane in range(self._lanes)) - len(self._known(epoch))

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
        left = min(self.unknown(epoch) * self.forming.span, self._total)
        computed = self.forming.unknown() if left else []
        if left > _COUNTED_AT_ONCE or computed:
            why = f"{', '.join(computed)} is not known" if computed else f"about {left:,} samples are not formed yet"
            ways_out = "".join(f"{each}; " for each in self.forming.ways_out()) if computed else ""
            msg = (
                f"len: the number of batches is formed, not counted, and {why}. Call stream.count() to form the epoch "
                f"once (it is kept in the formation index); {ways_out}or loop without len()"
            )
            raise TypeError(msg)

    def draw(self, epoch: int, number: int) -> Drawn:
        number = self.whole(number)
        with self._asked(f"batch {number:,} of epoch {epoch}"):
            turn = None if number < 0 else self._turn(epoch, number)
            if turn is None and number >= 0 and isinstance(self.last, PadPartial):
                turn = self._turn(epoch, number % max(1, self.total(epoch)))
            at = None if turn is None else self._find(epoch, *turn)
            if turn is not None and at is None:
                msg = (
                    f"resume: where the state says that chapters begin, batch {number} of epoch {epoch} is in none of them; pass "
                    "what state_dict() returned, unchanged"
                )
                raise ResumeError(msg)
            if turn is None or at is None:
                msg = f"batch {number} of an epoch of {self.total(epoch)}; give a number from 0 up, below that"
                raise IndexError(msg)
            if self._chapter(epoch, turn[0], at[0]).drawn > at[1]:  # what it held may be gone
                self._open.pop((epoch, turn[0], at[0]))
            chapter = self._chapter(epoch, turn[0], at[0])
            if not chapter.has(at[1]):
                msg = (
                    f"formation index: {self.folder} says that chapter {at[0]} has more batches than the {at[1]} it has; it "
                    "was written by other code under the same versions. Remove that folder: it is made again"
                )
                raise CacheError(msg)
            chapter.skip(at[1])
            return chapter.draw(at[1])

    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        with self._asked(f"batch {number:,} of epoch {epoch}"):
            found = self._find(epoch, 0, number)
            if found is None:
                return np.empty(0, dtype=np.uint64), self._total
            chapter = Chapter(self.forming, epoch, 0, found[0])
            chapter.finish()
            return chapter.positions_from(found[1]), chapter.end

    def find(self, epoch: int, stream: int, row: int) -> list[int]:
        epochs = self.forming.stages.epochs
        with self._asked(f"the place of a row in epoch {epoch}"):
            out = []
            for lane, number in sorted({self._place(epoch, p) for p in epochs.positions(epoch, stream, row)}):
                chapter = Chapter(self.forming, epoch, lane, number)
                self._known(epoch).enter(lane, number, chapter.finish())
                for place in chapter.holding(stream, row):
                    first = self._batches(epoch, [(lane, each) for each in range(number)])
                    out.append(self._number(epoch, lane, first + place))
            need_sound()
            return sorted(set(out))

    def _place(self, epoch: int, position: int) -> tuple[int, int]:
        """The lane and the chapter of a position."""
        lane = ((position + 1) * self._lanes - 1) // self._total
        number = (position - self.forming.begin(epoch, lane, 0)) // self.forming.span
        while self.forming.begin(epoch, lane, number) > position:  # at most a slice further on than its place
            number -= 1
        return lane, number


@final
class _Request:
    """Holds the lock of the chapters; the outermost of nested ones tells what it costs. Entered twice a batch."""

    __slots__ = ("_lock", "_outlook", "_requests")

    def __init__(self, lock: ToldLock, requests: list[Outlook], what: str, span: int) -> None:
        self._lock, self._requests, self._outlook = lock, requests, Outlook(what, span)

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._requests.append(self._outlook)

    def __exit__(self, *_: object) -> None:
        self._requests.pop().__exit__()
        self._lock.__exit__()


def _impossible(lane: int, chapter: int, first: int, why: str) -> ResumeError:
    return ResumeError(
        f"resume: the state says that chapter {chapter} of lane {lane} begins with batch {first} of it, which cannot be: "
        f"{why}. Pass what state_dict() returned, unchanged"
    )


def _samples_to(k: int, chapter: Chapter) -> float:
    """Samples up to the one that batch ``k`` ends with, both counted from a chapter's beginning; 0 where nothing tells yet."""
    return (k + 1) * chapter.formed / len(chapter.batches) if chapter.batches else 0.0

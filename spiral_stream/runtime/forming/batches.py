"""The batches of a plan with a formation, by number.

Batches are numbered by taking one of each lane in turn (docs/decisions/0024, `batching.lanes`), and the k-th batch of a
lane is found through the number of batches in each chapter before it. `known_chapters` holds what is known of these
numbers; chapters in between are formed, from the nearest known beginning on. The last chapter of a lane is made of what
its others could not fill. The batches of what the lanes could not fill come last (docs/decisions/0057). Where counted
samples pass no filter, all of this is arithmetic.

Payload of the next epoch is fetched before that epoch begins. For it, `FormedAhead` forms the first batches of each lane
apart from those that are delivered, so states, counts and metrics are the same whether it ran or not.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from heapq import merge
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream import threads
from spiral_stream.batching.tail import PadPartial, batches, fills_with_value
from spiral_stream.errors import CacheError, ResumeError
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.state.saved_state import Anchor
from spiral_stream.runtime.forming.chapter import Chapter
from spiral_stream.runtime.forming.counting_limits import FormedLimits
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.forming.open_chapters import OpenChapters
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.known_chapters import Known
from spiral_stream.runtime.numbering.numbering import BatchStore
from spiral_stream.sampling.order import UInt64


@final
class FormedAhead(BatchStore):
    """The first batches of an epoch, for whoever looks at them before it begins. Not thread-safe.

    Each is drawn once, in ascending order. That changes neither what is known of batches nor what is counted.

    Args:
        forming: what the chapters share.
    """

    def __init__(self, forming: Forming) -> None:
        self._forming = forming.for_counting()
        self._lanes = forming.stages.batches.lanes
        self.last = forming.stages.batches.last
        self._chapters: dict[tuple[int, int], Chapter] = {}  # by epoch and lane

    def total(self, epoch: int) -> int:
        raise NotImplementedError

    def exists(self, epoch: int, number: int) -> bool:
        """Return whether the first chapter of a lane has this batch, as long as no lane has ended."""
        k, lane = divmod(number, self._lanes.count)
        return number >= 0 and self._chapter(epoch, lane).has(k)

    def draw(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        out = []
        for number in numbers:
            if not self.exists(epoch, number):
                msg = f"batch {number} is not among the first ones of epoch {epoch}. Ask the numbering of the stream for it"
                raise IndexError(msg)
            k, lane = divmod(number, self._lanes.count)
            out.append(self._chapter(epoch, lane).draw(k))
        return out

    def _chapter(self, epoch: int, lane: int) -> Chapter:
        if (epoch, lane) not in self._chapters:
            self._chapters[epoch, lane] = Chapter(self._forming, epoch, lane, 0)
        return self._chapters[epoch, lane]


Int64 = NDArray[np.int64]


class _Holding(NamedTuple):
    """Where a batch is: its lane, its chapter, and its number in the chapter."""

    lane: int
    chapter: int
    batch: int


def _blank(drawn: Drawn) -> Drawn:
    """A batch that comes again only to fill a step: no row of it is a sample."""
    return replace(drawn, membership=replace(drawn.membership, filler=np.arange(drawn.membership.rows)))


@final
class FormedBatches(BatchStore):
    """Batches of a formation: chapters, formed as far as batches are asked for.

    Args:
        forming: what the chapters share.
        folder: of the formation index.
        known: what another `FormedBatches` of the same batches knew.

    Attributes:
        in_lanes: whether batches are looked for in their own lanes, because no lane has ended yet.
    """

    def __init__(self, forming: Forming, folder: Path, known: Known | None = None) -> None:
        self.forming = forming
        self.folder = folder
        self.known: Known = {} if known is None else known
        self.last = forming.stages.batches.last
        self.chapters = OpenChapters(forming, folder, self.known)
        self.limits: FormedLimits = FormedLimits(self.chapters)
        self._lanes = forming.stages.batches.lanes
        self.in_lanes = False

    def by_lane(self) -> "FormedBatches":
        if self.in_lanes or not self.forming.unknown():  # else it is known how many batches there are
            return self
        out = copy(self)  # it shares the chapters and what is known of them
        out.in_lanes = True
        return out

    def held(self, argument: str) -> AbstractContextManager[None]:
        way_out = f"{argument} gave up. Leave the loop, which keeps its place and waits for no thread, then ask again"
        return self.chapters.lock.within(threads.POSITION_TIMEOUT_S, way_out)

    # ---- what a state says

    def anchors(self, epoch: int, number: int) -> list[Anchor]:
        with self.chapters.lock:
            return self.chapters.known_of(epoch).anchors(number)

    def anchor(self, epoch: int, anchors: Iterable[Anchor]) -> None:
        with self.chapters.lock:
            self.chapters.known_of(epoch).follow(anchors)

    def possible(self, epoch: int, number: int, anchors: Iterable[Anchor]) -> list[Anchor]:
        with self.chapters.lock:
            return self.chapters.known_of(epoch).certain(number, anchors)

    @property
    def handed_on(self) -> tuple[Path, Known]:
        return self.folder, self.known

    # ---- where other shares may take over

    def begun(self, epoch: int, number: int) -> int | None:
        if self._lanes.count > 1:
            return None
        with self.chapters.lock:
            found = self._holder(epoch, number)
            chapters = self.chapters.known_of(epoch).of_positions(0)
            return (
                self.chapters.lanes_of(epoch).total
                if found is None
                else self.forming.begin(epoch, 0, min(found[0], chapters))
            )

    def next_chapter(self, epoch: int, number: int) -> tuple[int, int] | None:
        if not number:
            return 0, 0
        self.limits.need_near(epoch, number, "decide")
        with self.chapters.request(f"the chapter after batch {number:,} of epoch {epoch}"):
            found = self._find(epoch, number)
            known = self.chapters.known_of(epoch)
            if found is None or found.lane != 0 or found.chapter >= known.of_positions(0):
                return None
            chapter, first = found.chapter, number - found.batch
            if found.batch:
                first += self._batches_in(epoch, chapter)
                chapter += 1
            position = self.forming.decided_from(epoch, chapter)
            if chapter >= known.of_positions(0) or position >= self.chapters.lanes_of(epoch).total:
                return None
            return first, position

    def _batches_in(self, epoch: int, chapter: int) -> int:
        """How many batches a chapter of lane 0 has; forms it if nobody knows."""
        if self.forming.arithmetic:
            return self.forming.first_of(epoch, 0, chapter + 1) - self.forming.first_of(epoch, 0, chapter)
        self.chapters.count(epoch, [(0, chapter)])
        counted = self.chapters.known_of(epoch).batches(0, chapter)
        assert counted is not None
        return counted

    def follow(self, before: "FormedBatches", epoch: int, position: int) -> None:
        """Take over what is known of chapters that end before a position of an epoch, where other shares take over.

        Args:
            before: the same batches up to there.
            epoch: the epoch.
            position: the position.
        """
        with before.chapters.lock, self.chapters.lock:
            self.known.update({of: known for of, known in before.known.items() if of < epoch})
            if position and epoch in before.known and not self.forming.arithmetic:
                upto = self.forming.first_from(epoch, position)
                self.chapters.known_of(epoch).follow_counts(before.known[epoch], upto)

    # ---- what the stream asks

    def exists(self, epoch: int, number: int) -> bool:
        known = self.known.get(epoch)
        if known is not None and 0 <= number < known.rounds * self._lanes.count:
            return True
        with self.chapters.request(f"batch {number:,} of epoch {epoch}"):
            return self._find(epoch, number) is not None

    def total(self, epoch: int) -> int:
        if self.forming.arithmetic:
            lanes = self.chapters.lanes_of(epoch)
            totals = [self.forming.batches_of(epoch, lane) for lane in range(lanes.count)]
            rest = lanes.total - sum(totals) * self.forming.rows
            return sum(totals) + batches(self.last, rest, self.forming.rows)
        with self.chapters.request(f"count of epoch {epoch}"):
            self.chapters.count(epoch, self.chapters.missing_of(epoch))
            return self.chapters.known_of(epoch).total

    def unknown(self, epoch: int) -> int:
        if self.forming.arithmetic:
            return 0
        with self.chapters.lock:
            return self.chapters.known_of(epoch).unknown

    def uncounted(self, epoch: int) -> int:
        with self.chapters.lock:
            return self.chapters.known_of(epoch).uncounted

    def not_indexed(self, epoch: int) -> int:
        if not self.forming.leaves or self.forming.arithmetic:
            return 0
        with self.chapters.lock:
            return self.chapters.known_of(epoch).rests_unknown

    def ready(self, epoch: int, number: int) -> int:
        if self._lanes.count > 1:  # whose batches take turns
            return 0
        with self.chapters.lock:
            found = self._holder(epoch, number)
            chapter = None if found is None else self.chapters.open.get((epoch, 0, found[0]))
            if found is None or chapter is None or not chapter.sound or found[1] < chapter.drawn:
                return 0
            return max(0, len(chapter.batches) - found[1])

    def _holder(self, epoch: int, number: int) -> tuple[int, int] | None:
        """In one lane: the chapter of a batch, and its number there, as far as that is known; None past the end."""
        if self.forming.arithmetic:
            return self.forming.holder_of(epoch, 0, number)
        at, first = self.chapters.known_of(epoch).walk(0, number)
        return at, number - first

    def draw(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        out = list[Drawn]()
        with self.chapters.request(f"batch {numbers[0]:,} of epoch {epoch}"):
            while len(out) < len(numbers):
                left = numbers[len(out) :]
                first = left[0]
                chapter, index, again = self._formed(epoch, first)
                there = len(chapter.batches) - index if self._lanes.count == 1 else 1  # batches of lanes take turns
                drawn = chapter.draw_several([index + number - first for number in left if number - first < there])
                out += map(_blank, drawn) if again and fills_with_value(self.last) else drawn
        return out

    def _formed(self, epoch: int, number: int) -> tuple[Chapter, int, bool]:
        """Return the chapter of a batch, formed as far as that, the batch's number in it, and whether it comes again.

        Raises:
            IndexError: the epoch has no such batch.
            CacheError: the formation index says otherwise.
        """
        found = None if number < 0 else self._find(epoch, number)
        again = found is None and number >= 0 and isinstance(self.last, PadPartial)
        if again:
            found = self._find(epoch, number % max(1, self.total(epoch)))
        if found is None:
            end = "" if self.in_lanes else f" of an epoch of {self.total(epoch)}"
            msg = f"batch {number}{end}. Give a number from 0 up, below that"
            raise IndexError(msg)
        chapter = self.chapters.chapter(epoch, found.lane, found.chapter, found.batch)
        if not chapter.has(found.batch):
            msg = (
                f"formation index: {self.folder} says that chapter {found.chapter} has more batches than the "
                f"{found.batch} it has; it was written by other code under the same versions. Remove that folder: it is "
                "made again"
            )
            raise CacheError(msg)
        return chapter, found.batch, again

    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        with self.chapters.request(f"batch {number:,} of epoch {epoch}"):
            found = self._find(epoch, number)
            end = self.chapters.lanes_of(epoch).total
            if found is None:
                return np.empty(0, dtype=np.uint64), end
            chapter = self.chapters.apart(epoch, found.lane, found.chapter)
            chapter.finish()
            owed = [chapter.positions_from(found.batch)]
            if found.lane != 0 or found.chapter == self.chapters.known_of(epoch).of_positions(0):
                return owed[0], end  # at the lane's end or the epoch's: all that is owed lies there
            owed += self.chapters.waiting(epoch, found.chapter)
            behind, lent = (
                self.forming.begin(epoch, 0, found.chapter + 1),
                self.forming.lent(epoch, 0, found.chapter + 1),
            )
            if len(lent):  # delivered already, though they lie behind the chapter
                end = int(lent[-1]) + 1
                owed.append(np.setdiff1d(np.arange(behind, end, dtype=np.uint64), lent))
                behind = end
            return np.unique(np.concatenate(owed)), behind

    def find(self, epoch: int, stream: int, row: int) -> Iterator[int]:
        positions = np.sort(np.asarray(self.forming.stages.epochs.positions(epoch, stream, row), dtype=np.int64))
        need_sound()
        begins = self.chapters.lanes_of(epoch).begins()[1:-1].astype(np.int64)
        of_lanes = np.split(positions, np.searchsorted(positions, begins))
        return merge(*(self._holding(epoch, numbers, stream, row) for numbers in of_lanes if len(numbers)))

    def _holding(self, epoch: int, positions: Int64, stream: int, row: int) -> Iterator[int]:
        """The batches of one lane that hold a surviving row of a stream, ascending; its chapters are formed one by one.

        Args:
            epoch: the epoch.
            positions: where the row stands in the lane, ascending.
            stream: the stream.
            row: the row.
        """
        seen, lane, left = -1, 0, False
        for position in positions.tolist():
            lane, number = self.forming.chapter_of(epoch, position)
            if number > seen:
                seen = number
                found, leaves = self._holding_in(epoch, lane, number, stream, row)
                left |= leaves
                yield from found
        known = self.chapters.known_of(epoch)
        for at in ((lane, known.of_positions(lane)), (known.end, 0)) if known.end is not None and left else ():
            if left and at[0] is not None:
                found, left = self._holding_in(epoch, at[0], at[1], stream, row)
                yield from found

    def _holding_in(self, epoch: int, lane: int, number: int, stream: int, row: int) -> tuple[list[int], bool]:
        """The batches of one chapter that hold a row, ascending, and whether a sample of it waits there."""
        known = self.chapters.known_of(epoch)
        with self.chapters.request(f"the place of a row in epoch {epoch}"):
            is_known = lane != known.end and number < known.of_positions(lane)
            if not self.forming.arithmetic:
                self.limits.need_row_near(
                    epoch, number if is_known else max(map(known.of_positions, range(self._lanes.count)))
                )
            chapter = self.chapters.apart(epoch, lane, number)
            chapter.finish()
            found, leaves = chapter.holding(stream, row), chapter.leaves(stream, row)
            if self.forming.arithmetic:
                need_sound()
                return [self._number_of(epoch, lane, number, index) for index in found], leaves
            self.chapters.enter(epoch, chapter)
            if found:
                self.chapters.count(epoch, self.chapters.missing(epoch, lane, number))
            need_sound()
            return [self._number_of(epoch, lane, number, index) for index in found], leaves

    def _number_of(self, epoch: int, lane: int, chapter: int, index: int) -> int:
        """The epoch's number of a batch of a chapter; the chapters before it in its lane are counted."""
        known = self.chapters.known_of(epoch)
        if lane == known.end:
            return sum(self._totals(epoch)) + index
        first = self.forming.first_of(epoch, lane, chapter) if self.forming.arithmetic else known.before(lane, chapter)
        return self._number(epoch, lane, first + index)

    def need_known(self, bound: Bound, workers: int, epoch: int) -> None:
        apart = bound.deal is None or bound.deal.policy == "order"  # else each rank looks at all batches of a step
        if apart and self._lanes.count % (bound.world_size * workers * bound.merge) == 0:  # each forms lanes of its own
            if bound.steps is not None:
                return
            if not self.unknown(epoch):
                return
        self.forming.need_known(bound.world_size, workers)

    # ---- finding a batch

    def _find(self, epoch: int, number: int) -> _Holding | None:
        """Find a batch of the epoch; None past the end.

        Raises:
            ResumeError: the anchors of a loaded state are wrong.
        """
        known = self.chapters.known_of(epoch)
        k, lane = divmod(number, self._lanes.count)
        if k < known.rounds or self.in_lanes:
            return self._find_in_lane(epoch, lane, k)
        same_round = [self._find_in_lane(epoch, each, k) for each in range(self._lanes.count)]
        if None not in same_round:  # no lane has ended by this round
            known.rounds = k + 1
            return same_round[lane]
        turn = None if len(same_round) == 1 else self._lanes.turn(number, self._totals(epoch))
        if turn is None:
            return (
                None if known.end is None else self._find_in_lane(epoch, known.end, number - sum(self._totals(epoch)))
            )
        found = self._find_in_lane(epoch, *turn)
        if found is None:
            msg = (
                f"resume: where the state says that chapters begin, batch {number} of epoch {epoch} is in none of them. Pass "
                "what state_dict() returned, unchanged"
            )
            raise ResumeError(msg)
        return found

    def _find_in_lane(self, epoch: int, lane: int, k: int) -> _Holding | None:
        """Find the k-th batch of a lane; None if the lane has fewer."""
        known = self.chapters.known_of(epoch)
        if self.forming.arithmetic and lane != known.end:
            holder = self.forming.holder_of(epoch, lane, k)
            return None if holder is None else _Holding(lane, *holder)
        while True:
            number, first = known.walk(lane, k)
            if number >= known.in_lane(lane):
                return None
            if known.batches(lane, number) is not None or k < first + self.chapters.form(
                epoch, lane, number, k - first
            ):
                return _Holding(lane, number, k - first)

    def _number(self, epoch: int, lane: int, k: int) -> int:
        """The epoch's number of the k-th batch of a lane, which the lane has."""
        if all(self._find_in_lane(epoch, each, k) is not None for each in range(self._lanes.count)):
            return k * self._lanes.count + lane
        return self._lanes.number(lane, k, self._totals(epoch))

    def _totals(self, epoch: int) -> list[int]:
        """Batches of each lane."""
        known = self.chapters.known_of(epoch)
        if known.totals is None and self.forming.arithmetic:
            known.totals = [self.forming.batches_of(epoch, lane) for lane in range(self._lanes.count)]
        if known.totals is None:
            lanes = [at for at in self.chapters.missing_of(epoch) if at[0] != known.end]
            self.chapters.count(epoch, lanes)
            known.totals = [known.before(lane, known.in_lane(lane)) for lane in range(self._lanes.count)]
        return known.totals

"""Which samples form batch n of an epoch, and where the epoch's batches end.

`Numbering` is the interface of those who draw: five questions. `BatchStore` is all batches of a plan, and says besides what
is known of them. With a fixed number of samples per batch the answers are arithmetic, and that is here; `forming.batches`
is for plans with a formation. What a run delivers of a store is `run_batches`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from operator import index
from pathlib import Path
from typing import final

import numpy as np

from spiral_stream.batching.formation import Membership
from spiral_stream.batching.tail import Tail
from spiral_stream.errors import shown
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.saved_state import Anchor
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.known_chapters import Known
from spiral_stream.sampling.order import LARGEST, UInt64


class CountLimits:
    """What is refused because counting batches would take long. Arithmetic refuses nothing."""

    def need_countable(self, epoch: int, argument: str) -> None:
        """Refuse to count the batches of an epoch if that takes long. Forms a few windows at most, to say how long.

        Raises:
            StreamError: says how long it takes, and how to count them.
        """

    def need_near(self, epoch: int, number: int, argument: str) -> None:
        """Refuse to look for a batch if the chapters before it are not counted, and counting them takes long.

        What takes about two seconds is counted at once, and so are 4 M samples whose lengths are stored.

        Raises:
            StreamError: says how long it takes, and how to count them.
            IndexError: there is no such batch.
        """


class Numbering(ABC):
    """The batches of every epoch, by number. Thread-safe.

    Attributes:
        last: what becomes of an epoch's last batches.
    """

    last: Tail

    @abstractmethod
    def exists(self, epoch: int, number: int) -> bool:
        """Return whether the epoch has this batch, before the tail rule; forms no further than needed."""

    @abstractmethod
    def total(self, epoch: int) -> int:
        """Return the batches of a whole epoch, before the tail rule; forms those that are not known."""

    @abstractmethod
    def draw(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        """Return the samples of some batches, ascending. With `PadPartial`, batches past the end repeat those of the start.

        Raises:
            IndexError: the epoch lacks one of them.
        """

    def find(self, epoch: int, stream: int, row: int) -> Iterable[int]:
        """Yield the batches that hold a surviving row of a stream, ascending; forms no more chapters than are asked for.

        Raises:
            StreamError: the chapters before it are not counted, and counting them takes long.
        """
        raise NotImplementedError

    def ready(self, epoch: int, number: int) -> int:
        """Return how many batches from this one on there are that can be drawn at once, for they are formed.

        0 says nothing: ask `exists`.
        """
        del epoch, number
        return 0


class BatchStore(Numbering):
    """All batches of a plan, and what is known of them: for states, rebases, counts and several readers.

    Batches that are counted know no more than their arithmetic.
    """

    limits = CountLimits()
    in_lanes: bool = False  # whether each batch is looked for in its own lane, because no lane has ended yet

    def by_lane(self) -> "BatchStore":
        """Return the same batches for a run that ends its epochs before a lane ends, looked for in their own lanes.

        So each rank forms the chapters of its own lanes alone. Batches that are known without forming are returned as
        they are.
        """
        return self

    def unknown(self, epoch: int) -> int:
        """Return how many chapters of the epoch `total` has to form first; 0 if it and `exists` know the answer."""
        del epoch
        return 0

    def uncounted(self, epoch: int) -> int:
        """Return how many chapters of the epoch are not counted, apart from those made of what others left."""
        del epoch
        return 0

    def not_indexed(self, epoch: int) -> int:
        """Return how many chapters a run that begins now, in mid-epoch, would form again for what they left."""
        del epoch
        return 0

    def alike(self, drawn: Callable[[int], int]) -> bool:
        """Return whether it is known without counting that all epochs have equally many batches.

        Args:
            drawn: which epoch's order an epoch has.
        """
        return drawn(0) == drawn(1)

    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        """Return the positions of the epoch that batches ``number`` and later will deliver; for one lane only.

        Returns:
            the positions still owed by the chapter of that batch, uint64, and the first position after the chapter:
            everything from there on is undelivered.
        """
        raise NotImplementedError

    def begun(self, epoch: int, number: int) -> int | None:
        """Return the position up to which the batches before one take an epoch's positions; of formed ones, whole chapters.

        None where there are several lanes. Forms nothing.
        """
        raise NotImplementedError

    def next_chapter(self, epoch: int, number: int) -> tuple[int, int] | None:
        """Return the first batch from one on at which other shares may take over, and the position; for one lane only.

        None if there is none before the epoch's end.
        """
        raise NotImplementedError

    def anchors(self, epoch: int, number: int) -> list[Anchor] | None:
        """Return where the chapters around batch ``number`` begin, as far as known; None if there are none. Forms nothing."""
        del epoch, number
        return None

    def possible(self, epoch: int, number: int, anchors: Iterable[Anchor]) -> list[Anchor]:
        """Return the certain anchors of a state at batch ``number``. Forms nothing.

        Raises:
            ResumeError: an anchor cannot be; says which.
        """
        del epoch, number, anchors
        return []

    def anchor(self, epoch: int, anchors: Iterable[Anchor]) -> None:
        """Learn from a saved state where chapters begin, in place of any earlier state."""

    @property
    def handed_on(self) -> tuple[Path, Known] | None:
        """What a new numbering of the same batches may know from this one, with the folder of its index."""
        return None

    def need_known(self, bound: Bound, workers: int, epoch: int) -> None:
        """Refuse several readers if each would have to compute again which samples share a batch.

        Args:
            bound: the run's ranks and merge, and its steps if it says how many.
            workers: how many workers of a DataLoader read for each rank.
            epoch: the epoch whose order is drawn.

        Raises:
            BindError: says what decides it, and the ways out.
        """

    def held(self, argument: str) -> AbstractContextManager[None]:
        """Hold what is known of batches for this thread alone; counted batches share nothing.

        Raises:
            StreamError: another thread holds it past the deadline; says which, and what it is doing.
        """
        del argument
        return nullcontext()


def batch_number(number: object) -> int:
    """Return a batch's number as an integer; NumPy's integers are integers too.

    Raises:
        TypeError: it is not an integer.
        IndexError: no epoch has so many batches.
    """
    found = None
    try:
        if not isinstance(number, bool):
            found = index(number)  # type: ignore[arg-type]  # whether it is one is the question
    except TypeError:
        pass
    if found is not None and found > LARGEST:
        msg = f"batch {found} is beyond every epoch. Give a number in [0, stream.count())"
        raise IndexError(msg)
    if found is not None:
        return found
    msg = f"batch {shown(number)} is a {type(number).__name__}. Give an integer in [0, stream.count())"
    raise TypeError(msg)


def need_not_skipped(delivered: int | None, epoch: int, number: int) -> int:
    """Return how many batches are delivered before one, if the run does not skip it.

    Raises:
        IndexError: it does.
    """
    if delivered is None:
        msg = f"batch {number:,} of epoch {epoch:,} is skipped; stream.skipped() lists what is"
        raise IndexError(msg)
    return delivered


@final
class CountedBatches(BatchStore):
    """Batches of a fixed number of samples: arithmetic."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._batches = lru_cache(2)(stages.batches_of)
        self.last = stages.batches.last

    def exists(self, epoch: int, number: int) -> bool:
        return 0 <= number < self._batches(epoch).formed

    def total(self, epoch: int) -> int:
        return self._batches(epoch).formed

    def alike(self, drawn: Callable[[int], int]) -> bool:
        return self._stages.epochs.mixture is None or drawn(0) == drawn(1)

    def ready(self, epoch: int, number: int) -> int:
        return max(0, self._batches(epoch).formed - number)

    def draw(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        batches = self._batches(epoch)
        positions, counts = batches.positions_of(numbers)
        samples = Samples.at(self._stages.epochs.stream_rows(epoch, positions)).cut(counts)
        every = np.arange(max(counts))
        return [
            Drawn(some, Membership(every[:count], count, filler=batches.filler(number)))
            for number, some, count in zip(numbers, samples, counts, strict=True)
        ]

    def find(self, epoch: int, stream: int, row: int) -> list[int]:
        positions = self._stages.epochs.positions(epoch, stream, row)
        need_sound()
        return sorted({number for number in map(self._batches(epoch).locate, positions) if number is not None})

    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        batches = self._batches(epoch)
        return np.empty(0, dtype=np.uint64), min(number * batches.batch_size, batches.total)

    def begun(self, epoch: int, number: int) -> int | None:
        batches = self._batches(epoch)
        return None if batches.lanes.count > 1 else min(number * batches.batch_size, batches.total)

    def next_chapter(self, epoch: int, number: int) -> tuple[int, int] | None:
        batches = self._batches(epoch)
        position = number * batches.batch_size
        return (number, position) if position < batches.total else None

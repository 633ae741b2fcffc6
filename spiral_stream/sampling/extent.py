"""How much of its order an epoch takes: `limit`, `skip` and `repeat` after `sample`.

Without them, epoch e is pass e of the order. Each part of an extent maps the epochs and positions that come after it to
those before it, by arithmetic, so nothing is read of what is left out. An epoch may be the start of a pass, what comes
after its start, the same samples every time, several passes without a border between them, or passes without an end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from spiral_stream.errors import PlanError
from spiral_stream.sampling.order import LARGEST, UInt64
from spiral_stream.sampling.orders.permutation import permute, unpermute
from spiral_stream.seeding import key

ENDLESS: Final = 1 << 31  # passes of an epoch that has no end
Find = Callable[[int], Sequence[int]]  # a pass -> positions of a row in it
_LOOKED_THROUGH: Final = 1 << 10  # passes of an epoch in which a row is looked for


class Stretch(ABC):
    """One step of an extent: from the epochs and positions after it to those before it."""

    @abstractmethod
    def length(self, before: int) -> int:
        """Return the positions of an epoch, where an epoch had ``before``."""

    @abstractmethod
    def back(self, epochs: UInt64, positions: UInt64, before: int) -> tuple[UInt64, UInt64]:
        """Return the epoch and position that each was before; shape [P] each."""

    def epochs(self, epoch: int, before: int) -> range:
        """Return the epochs before it that an epoch is made of: one, but where several become one."""
        del before
        return range(epoch, epoch + 1)

    @abstractmethod
    def on(self, epoch: int, of: int, positions: UInt64, before: int) -> UInt64:
        """Return the positions in ``epoch`` of positions of the earlier epoch ``of``; those that it leaves out are dropped."""


@final
@dataclass(frozen=True, slots=True)
class Beginning(Stretch):
    """The first ``count`` positions of every epoch."""

    count: int

    def length(self, before: int) -> int:
        return min(self.count, before)

    def back(self, epochs: UInt64, positions: UInt64, before: int) -> tuple[UInt64, UInt64]:
        del before
        return epochs, positions

    def on(self, epoch: int, of: int, positions: UInt64, before: int) -> UInt64:
        del epoch, of, before
        return positions[positions < np.uint64(min(self.count, LARGEST))]


@final
@dataclass(frozen=True, slots=True)
class Rest(Stretch):
    """All but the first ``count`` positions of every epoch."""

    count: int

    def length(self, before: int) -> int:
        if self.count >= before:
            msg = f"skip: {self.count:,} samples are skipped, and an epoch has {before:,}, so none is left. " + (
                f"Skip at most {before - 1:,}" if before > 1 else "Leave skip out"
            )
            raise PlanError(msg)
        return before - self.count

    def back(self, epochs: UInt64, positions: UInt64, before: int) -> tuple[UInt64, UInt64]:
        del before
        return epochs, positions + np.uint64(self.count)

    def on(self, epoch: int, of: int, positions: UInt64, before: int) -> UInt64:
        del epoch, of, before
        return positions[positions >= np.uint64(self.count)] - np.uint64(self.count)


@final
@dataclass(frozen=True, slots=True)
class Fixed(Stretch):
    """What a part takes of epoch 0, in every epoch; permuted in each, unless ``seed`` is None."""

    part: Beginning | Rest
    seed: int | None

    def length(self, before: int) -> int:
        return self.part.length(before)

    def back(self, epochs: UInt64, positions: UInt64, before: int) -> tuple[UInt64, UInt64]:
        keys = np.zeros(len(epochs), dtype=np.uint64)
        for epoch in np.unique(epochs).tolist():
            keys[epochs == epoch] = self._key(epoch)
        restored = positions if self.seed is None else permute(positions, self.length(before), keys)
        return self.part.back(np.zeros_like(epochs), restored, before)

    def epochs(self, epoch: int, before: int) -> range:
        del epoch
        return self.part.epochs(0, before)

    def on(self, epoch: int, of: int, positions: UInt64, before: int) -> UInt64:
        inside = self.part.on(0, of, positions, before)
        return inside if self.seed is None else unpermute(inside, self.length(before), np.uint64(self._key(epoch)))

    def _key(self, epoch: int) -> int:
        return 0 if self.seed is None else key("fixed subset", 1, self.seed, epoch)


@final
@dataclass(frozen=True, slots=True)
class Repeated(Stretch):
    """Several epochs as one, without a border; None takes as many as can be counted."""

    times: int | None

    def length(self, before: int) -> int:
        return before * self._times(before)

    def back(self, epochs: UInt64, positions: UInt64, before: int) -> tuple[UInt64, UInt64]:
        turns = positions // np.uint64(before)
        return epochs * np.uint64(self._times(before)) + turns, positions - turns * np.uint64(before)

    def epochs(self, epoch: int, before: int) -> range:
        times = self._times(before)
        return range(epoch * times, epoch * times + times)

    def on(self, epoch: int, of: int, positions: UInt64, before: int) -> UInt64:
        return positions + np.uint64((of - epoch * self._times(before)) * before)

    def _times(self, before: int) -> int:
        return min(ENDLESS, max(1, LARGEST // before)) if self.times is None else self.times


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """The parts that follow an order, first part first."""

    parts: tuple[Stretch, ...] = ()

    def length(self, size: int) -> int:
        """Return the positions of an epoch, where a pass has ``size``."""
        for part in self.parts:
            size = part.length(size)
        return size

    def back(self, epoch: int, positions: UInt64, size: int) -> tuple[UInt64, UInt64]:
        """Return the pass of each position of an epoch, and the position in it; shape [P] each, uint64."""
        epochs = np.full(len(positions), epoch, dtype=np.uint64)
        for part, before in reversed(self._sized(size)):
            epochs, positions = part.back(epochs, positions, before)
        return epochs, positions

    def on(self, epoch: int, find: Find, size: int) -> list[int]:
        """Return the positions of an epoch at which a row stands, ascending.

        Args:
            epoch: the epoch. Of one that has more than 1,024 passes, the first 1,024 are looked through.
            find: gives the positions of the row in a pass.
            size: positions of a pass.
        """
        found = self._on(self._sized(size), epoch, find)
        return sorted(int(each) for each in found)

    def _on(self, parts: list[tuple[Stretch, int]], epoch: int, find: Find) -> UInt64:
        if not parts:
            return np.array(find(epoch), dtype=np.uint64)
        *inner, (part, before) = parts
        within = part.epochs(epoch, before)[:_LOOKED_THROUGH]
        each = [part.on(epoch, of, self._on(inner, of, find), before) for of in within]
        return np.concatenate([np.empty(0, dtype=np.uint64), *each])

    def _sized(self, size: int) -> list[tuple[Stretch, int]]:
        """Each part, and the positions of an epoch before it."""
        out = []
        for part in self.parts:
            out.append((part, size))
            size = part.length(size)
        return out

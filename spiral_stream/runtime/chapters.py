"""Which samples share a batch, where a formation decides: chapter by chapter, window by window.

A chapter is about 64 windows of a lane, and a pure function of the plan, the data version, the epoch, the lane and its
own number (docs/decisions/0007). A window is taken when somebody asks for a batch that is not formed yet: the columns
that the formation looks at are read or computed, and the plan's `Former` returns the batches that are complete.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream import seeding
from spiral_stream.batching.formation import Former, Membership, Setting, Window
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import PadPartial
from spiral_stream.errors import SourceError
from spiral_stream.plan.context import Context
from spiral_stream.runtime.blame import blaming
from spiral_stream.runtime.forming import Forming
from spiral_stream.runtime.held_samples import HeldSamples
from spiral_stream.runtime.membership import assemblers, remembering_sample, through
from spiral_stream.runtime.samples import Lost, Samples
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import doing

Grown = Callable[["Chapter"], None]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The samples of one batch, and how they lie in it."""

    samples: Samples
    membership: Membership
    lost: tuple[Lost, ...] = ()  # what an assembler could not be given since the batch before it


@final
class Chapter:
    """One chapter, formed as far as batches were asked for. Not thread-safe."""

    def __init__(self, forming: Forming, epoch: int, lane: int, number: int) -> None:
        self._forming, self._epoch = forming, epoch
        self.lane, self.number = lane, number
        self._begin = self._at = forming.begin(epoch, lane, number)  # the next window begins at position _at
        self.end = forming.begin(epoch, lane, number + 1)
        self._assemblers = assemblers(forming.reader, self._context())
        self._former: Former = forming.formation.former(self._setting())
        self.batches: list[Membership] = []
        self._lost: dict[int, list[Lost]] = {}  # by the number of the batch that counts them
        self._short: list[Membership] = []  # batches that `DropPartial` leaves out
        self._samples = HeldSamples()
        self._counted = (0, 0, 0)  # samples dropped, truncated and alone that the metrics have counted
        self.complete = False  # whether all of its batches are formed
        self.drawn = 0  # batches before this one are delivered or skipped, and cannot be drawn
        self.sound = True  # False once an error or an interrupt broke off a step; then the chapter is formed anew

    def _context(self) -> Context:
        forming, place = self._forming, (self._epoch, self.lane, self.number)
        seed = seeding.key("assemble", forming.reader.run_seed, *place)
        return Context(*place, forming.stages.batches.lanes.count, seed)

    def _setting(self) -> Setting:
        forming, mixture = self._forming, self._forming.stages.epochs.mixture
        shares = ahead = None
        if mixture is not None:
            shares = mixture.shares(self._epoch, self._at)
            at_border = mixture.border(self._epoch, self._at) == self._at  # a lane may begin inside a slice
            ahead = mixture.ahead(self._epoch, self._at) if at_border else np.zeros(len(shares))
        return Setting(
            key=seeding.key("chapter", forming.stages.order.run_seed, self._epoch, self.number),
            size=self.end - self._at,
            multiple=forming.multiple,
            batch_size=forming.batch_size,
            even=not forming.only_whole,
            last=forming.stages.batches.last,
            scarce=forming.scarce,
            shares=shares,
            ahead=ahead,
        )

    # ---- forming

    @property
    def formed(self) -> int:
        """Positions that its windows have taken so far."""
        return self._at - self._begin

    def has(self, index: int, grown: Grown | None = None) -> bool:
        """Return whether the chapter has a batch; forms windows until that is known, and calls ``grown`` after each."""
        while not self.complete and len(self.batches) <= index:
            self._grow(grown)
        return index < len(self.batches)

    def finish(self, grown: Grown | None = None) -> int:
        """Return how many batches the chapter has; forms all of them, and calls ``grown`` after each window."""
        while not self.complete:
            self._grow(grown)
        return len(self.batches)

    def _grow(self, grown: Grown | None) -> None:
        self.sound = False
        with doing(f"forming chapter {self.number:,} of lane {self.lane}"):
            self._take_window()
        self.sound = True
        if grown is not None:
            grown(self)

    def _take_window(self) -> None:
        forming, reader = self._forming, self._forming.reader
        take = min(max(1, self._former.room // forming.fan_out), self.end - self._at)
        final = self._at + take >= self.end
        positions = np.arange(self._at, self._at + take, dtype=np.uint64)
        places = forming.stages.epochs.places(self._epoch, positions)
        with blaming(forming.stages, skippable=forming.skippable):
            samples, filtered, lost = through(reader, self._epoch, Samples.at(places), self._assemblers, final=final)
            with remembering_sample(samples):
                reader.need(self._epoch, samples, forming.wanted)
        self._at += take
        self.complete = final
        self._lost.setdefault(len(self.batches), []).extend(lost)
        self._admit(samples, positions, final=final)
        gone = sum(len(each.samples) for at, some in self._lost.items() if at >= len(self.batches) for each in some)
        if final and gone:  # after the last batch, as what the tail rule leaves out
            reader.metrics.add(dropped=gone)
        tally = self._former.tally
        now = (tally.dropped, tally.truncated, tally.alone)
        dropped, truncated, alone = (after - before for before, after in zip(self._counted, now, strict=True))
        self._counted = now
        reader.metrics.add(filtered=filtered, dropped=dropped, truncated=truncated, alone=alone)

    def _admit(self, samples: Samples, positions: UInt64, *, final: bool) -> None:
        """Hand samples to the former: in one window, or in several where flat_map or assemble made more than it has room for."""
        first = 0
        while True:
            last = min(len(samples), first + max(1, self._former.room))
            part = samples if last - first == len(samples) else samples.take(np.arange(first, last))
            with blaming(self._forming.stages), remembering_sample(part):
                window = self._forming.window(part, self._samples.count)
            self._hold(part, positions)
            with blaming(self._forming.stages):
                formed = self._formed(window, final=final and last == len(samples))
            self._expect_repeats(formed)
            self.batches += formed
            first = last
            if first == len(samples):
                return

    def _hold(self, samples: Samples, positions: UInt64) -> None:
        """Number samples, and hold what is known of them."""
        if len(samples):
            costly = samples.only([key for key in samples.columns if self._forming.keeps(key)])
            self._samples.add(costly, positions[samples.origins])

    def _expect_repeats(self, formed: list[Membership]) -> None:
        """Hold samples that `PadPartial` repeats to fill batches until the last of these is drawn."""
        if not isinstance(self._forming.stages.batches.last, PadPartial) or isinstance(self._forming.formation, Packed):
            return
        numbers, counts = np.unique(_numbers(formed), return_counts=True)
        self._samples.repeat(np.repeat(numbers, counts - 1))

    def _formed(self, window: Window, *, final: bool) -> list[Membership]:
        try:
            formed = self._former.form(window, final=final)
            if not final or not self._forming.only_whole:
                return formed
            rows = self._forming.batch_size or 1
            self._short = [batch for batch in formed if batch.rows != rows]
            return [batch for batch in formed if batch.rows == rows]
        except SourceError as error:
            if error.sample is not None:
                error.samples = self._samples.take(np.array([error.sample]))
            raise

    # ---- what a batch holds

    def draw(self, index: int) -> Drawn:
        """Return a batch's samples in batch order; see `draw_several`."""
        return self.draw_several([index])[0]

    def draw_several(self, indices: Sequence[int]) -> list[Drawn]:
        """Return the samples of batches, in the order of each batch. Sixteen cost little more than one.

        Draw each batch once, in ascending order; batches in between are skipped.

        Args:
            indices: at least one batch, all of them formed (see `has`), ascending from `drawn` up.
        """
        some = [self.batches[index] for index in indices]
        samples = self._samples.take(_numbers(some))
        self.sound = False
        self._release(self.batches[self.drawn : indices[-1] + 1])
        self.drawn = indices[-1] + 1
        self.sound = True
        lost = [tuple(self._lost.get(index, ())) for index in indices]
        cut = samples.cut([len(batch.samples) for batch in some])
        return [Drawn(*each) for each in zip(cut, some, lost, strict=True)]

    def _release(self, batches: list[Membership]) -> None:
        """Let go of samples that no batch after these delivers."""
        formation = self._forming.formation
        if batches[0].packing is None:  # of all batches, or of none
            self._samples.release(_numbers(batches))
            return
        for batch in batches:
            assert batch.packing is not None
            begun = batch.samples[batch.packing.offsets == 0]
            if not isinstance(formation, Packed) or formation.oversize != "split":
                self._samples.release(begun)
            elif formation.concatenates:  # a split sample goes on in the batches that follow
                self._samples.release(begun, unfinished=batch.samples)
            # Else the pieces of a split sample come in any order, and all are held to the chapter's end.

    def positions_from(self, index: int) -> UInt64:
        """Return the epoch positions whose samples the batches before ``index`` do not deliver completely.

        The chapter is complete. Samples that the tail rule leaves out are included, samples above the budget are not.
        """
        wanted = np.ones(self._samples.count, dtype=np.bool_)
        wanted[_numbers(self.batches[:index])] = wanted[self._former.tally.first] = False
        wanted[_numbers([*self.batches[index:], *self._short])] = True
        return self._samples.positions_of(wanted)

    def holding(self, stream: int, row: int) -> list[int]:
        """Return the batches that hold a surviving row of a stream; the chapter is complete, and nothing is drawn."""
        wanted = self._samples.numbers_of(stream, row)
        return [at for at, batch in enumerate(self.batches) if np.isin(wanted, batch.samples).any()]


def _numbers(batches: list[Membership]) -> NDArray[np.int64]:
    """The samples of batches, by their numbers in the chapter."""
    if len(batches) == 1:
        return batches[0].samples
    return np.concatenate([np.empty(0, dtype=np.int64), *(batch.samples for batch in batches)])

"""Form a chapter: which samples share a batch, window by window.

A chapter is about 64 windows of a lane, and a pure function of the plan, the data version, the epoch, the lane and its
own number (docs/decisions/0007). What it cannot fill waits (docs/decisions/0057): one more chapter at the lane's end is
made of that, and one at the epoch's end of what the lanes could not fill (`rests`). A window is taken when somebody asks
for a batch that is not formed yet: the columns that the formation looks at are read or computed, and the plan's `Former`
returns the batches that are complete.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream import seeding
from spiral_stream.batching.formation import Former, Left, Membership, Setting, Window
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import DropPartial, PadPartial, fills_with_value
from spiral_stream.errors import DataError, SourceError
from spiral_stream.plan.functions.context import Context
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.row_maps import assemblers, remembering_sample, through
from spiral_stream.runtime.columns.samples import Lost, Samples
from spiral_stream.runtime.forming.held_samples import HeldSamples
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.forming.remainder import Fill, Rests, filled
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import doing

Grown = Callable[["Chapter"], None]


@final
class Chapter:
    """One chapter, formed as far as batches were asked for. Not thread-safe.

    Args:
        forming: what the chapters share.
        epoch: the epoch.
        lane: the lane.
        number: of the chapter in its lane.
        rests: what it is made of, if it is the one at its lane's end, or at the epoch's; None: of its own positions.
    """

    def __init__(self, forming: Forming, epoch: int, lane: int, number: int, rests: Rests | None = None) -> None:
        self._forming, self._epoch, self._rests = forming, epoch, rests
        self.lane, self.number = lane, number
        self._positions = forming.positions(epoch, lane, number) if rests is None else None
        self._count = len(rests if self._positions is None else self._positions)  # type: ignore[arg-type]  # one of them
        self._at = 0  # the next window begins with this one of them
        self._assemblers = assemblers(forming.reader, self._context()) if rests is None else {}
        self._former: Former = forming.former(self._setting())
        self._moves = forming.moves if rests is not None else forming.moves_in(epoch, lane, number)
        self.batches: list[Membership] = []
        self._lost: dict[int, list[Lost]] = {}  # by the number of the batch that counts them
        self._short: list[Membership] = []  # batches that `DropPartial` leaves out
        self.held = HeldSamples()
        self._formed_count = 0  # samples that are its own; those after them fill a batch
        self._counted = (0, 0, 0)  # samples dropped, truncated and alone that the metrics have counted
        self.complete = False  # whether all of its batches are formed
        self.drawn = 0  # batches before this one are delivered or skipped, and cannot be drawn
        self.sound = True  # False once an error or an interrupt broke off a step; then the chapter is formed anew

    def _context(self) -> Context:
        forming, chapter_key = self._forming, (self._epoch, self.lane, self.number)
        seed = seeding.key("assemble", forming.reader.run_seed, *chapter_key)
        return Context(*chapter_key, forming.stages.batches.lanes.count, seed)

    def _setting(self) -> Setting:
        forming = self._forming
        shares, ahead = self._balance() or (None, None)
        ends = not forming.leaves or (self._rests is not None and self._rests.ends)
        chapter_key = (
            ("end", forming.stages.order.run_seed, self._epoch) if self._rests is not None and self._rests.ends else ()
        )
        return Setting(
            key=seeding.key(*(chapter_key or ("chapter", forming.stages.order.run_seed, self._epoch, self.number))),
            size=self._count,
            multiple=forming.multiple,
            batch_size=forming.batch_size,
            ends=ends,
            last=forming.stages.batches.last,
            scarce=forming.scarce,
            shares=shares,
            ahead=ahead,
        )

    def _balance(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The shares of the streams, and how far each is ahead; of rests, what they hold."""
        forming, mixture = self._forming, self._forming.stages.epochs.mixture
        if self._rests is None or mixture is None:
            return forming.balance(self._epoch, self.lane, self.number)
        shares = np.ones(len(forming.stages.streams))
        if len(self._rests) and not forming.assembles:
            streams, _ = mixture.split(self._epoch, self._rests.values[:, 0].astype(np.uint64))
            shares = np.bincount(streams, minlength=len(shares)).astype(np.float64)
        return shares / shares.sum(), np.zeros(len(shares))

    # ---- forming

    @property
    def formed(self) -> int:
        """Positions that its windows have taken so far."""
        return self._at

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
            self.take_window()
        self.sound = True
        if grown is not None:
            grown(self)

    def take_window(self) -> None:
        forming, reader = self._forming, self._forming.reader
        take = min(max(1, self._former.room // forming.fan_out), self._count - self._at)
        final = self._at + take >= self._count
        filtered, lost = 0, list[Lost]()
        with blaming(forming.stages, skippable=forming.skippable):
            if self._positions is None:
                assert self._rests is not None
                values, lanes = (each[self._at : self._at + take] for each in (self._rests.values, self._rests.lanes))
                samples, positions = self._again(values, lanes)
                parts = (values[:, -2], values[:, -1]) if "offset" in forming.rest_columns else None
            else:
                window = self._positions.take(self._at, self._at + take)
                rows_at, parts = forming.stages.epochs.stream_rows(self._epoch, window), None
                begun = Samples.at(rows_at)
                samples, filtered, lost = through(reader, self._epoch, begun, self._assemblers, final=final)
                positions = window[samples.origins]
            with remembering_sample(samples):
                reader.need(self._epoch, samples, forming.wanted)
        self._at += take
        self.complete = final
        self._lost.setdefault(len(self.batches), []).extend(lost)
        self.admit(samples, positions, parts, final=final)
        if final:
            self._count_lost()
        tally = self._former.tally
        now = (tally.dropped, tally.truncated, tally.alone)
        dropped, truncated, alone = (after - before for before, after in zip(self._counted, now, strict=True))
        self._counted = now
        if self._rests is None:  # those of rests were counted with their chapters
            reader.metrics.add(filtered=filtered, dropped=dropped, truncated=truncated, alone=alone)

    def _count_lost(self) -> None:
        """Let the last batch count what an assembler was not given after it; without one it is as what the tail rule drops."""
        late = [at for at in self._lost if at >= len(self.batches)]
        lost = [each for at in late for each in self._lost.pop(at)]
        if lost and self.drawn < len(self.batches):
            self._lost.setdefault(len(self.batches) - 1, []).extend(lost)
        elif lost:
            self._forming.reader.metrics.add(dropped=sum(len(each.samples) for each in lost))

    def _again(self, values: NDArray[np.int64], lanes: NDArray[np.int64]) -> tuple[Samples, UInt64]:
        """Return samples that chapters left, one for each row of ``values``, and their positions."""
        forming = self._forming
        if forming.assembles:
            return self._assembled_again(values, lanes)
        positions, back = np.unique(values[:, 0].astype(np.uint64), return_inverse=True)
        rows_at = forming.stages.epochs.stream_rows(self._epoch, positions)
        samples, *_ = through(forming.reader, self._epoch, Samples.at(rows_at), {}, final=False)
        fan_out = forming.fan_out
        wanted = back * fan_out + (values[:, 1] if "part" in forming.rest_columns else 0)
        found = samples.origins * fan_out + samples.parts
        order = np.argsort(found, kind="stable")
        at = np.searchsorted(found, wanted, sorter=order)
        at = order[np.minimum(at, len(order) - 1)] if len(order) else at
        if len(wanted) and (not len(order) or (found[at] != wanted).any()):
            msg = (
                "collate: a filter or flat_map gives another result than the first time that it saw a sample, so what a chapter "
                "left is not found again. Give a function whose result depends on the sample alone"
            )
            raise DataError(msg)
        return samples.take(at), positions[back]

    def _assembled_again(self, values: NDArray[np.int64], lanes: NDArray[np.int64]) -> tuple[Samples, UInt64]:
        """Return samples that assemble made, chapter by chapter."""
        assert self._rests is not None
        assert self._rests.again is not None
        turns = np.flatnonzero((np.diff(values[:, 0]) != 0) | (np.diff(lanes) != 0)) + 1
        found = [
            self._rests.again(int(lanes[at[0]]), int(values[at[0], 0]), values[at, 1])
            for at in np.split(np.arange(len(values)), turns)
            if len(at)
        ]
        if not found:
            nothing = np.empty(0, dtype=np.uint64)
            samples = Samples.at(self._forming.stages.epochs.stream_rows(self._epoch, nothing))
            return through(self._forming.reader, self._epoch, samples, self._none(), final=False)[0], nothing
        return Samples.concat([samples for samples, _ in found]), np.concatenate([each for _, each in found])

    def _none(self) -> dict[int, Any]:
        """Assemblers that nothing was given to, for the columns of no sample."""
        return assemblers(self._forming.reader, self._context())

    def admit(
        self,
        samples: Samples,
        positions: UInt64,
        parts: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        *,
        final: bool,
    ) -> None:
        """Hand samples to the former: in one window, or in several where flat_map or assemble made more than it has room for."""
        first = 0
        while True:
            last = min(len(samples), first + max(1, self._former.room))
            part = samples if last - first == len(samples) else samples.take(np.arange(first, last))
            with blaming(self._forming.stages), remembering_sample(part):
                window_parts = None if parts is None else (parts[0][first:last], parts[1][first:last])
                window = self._forming.window(part, self.held.count, window_parts, moves=self._moves)
            self.hold(part, positions[first:last])
            with blaming(self._forming.stages):
                formed = self.form_window(window, final=final and last == len(samples))
            self._expect_repeats(formed)
            self.batches += formed
            first = last
            if first == len(samples):
                return

    def hold(self, samples: Samples, positions: UInt64) -> None:
        """Number samples, and hold what is known of them, with the position of each."""
        if len(samples):
            costly = samples.only([key for key in samples.columns if self._forming.keeps(key)])
            self.held.add(costly, positions)

    def _expect_repeats(self, formed: list[Membership]) -> None:
        """Hold samples that `PadPartial` repeats to fill batches until the last of these is drawn."""
        if not isinstance(self._forming.stages.batches.last, PadPartial) or isinstance(self._forming.formation, Packed):
            return
        numbers, counts = np.unique(_numbers(formed), return_counts=True)
        self.held.repeat(np.repeat(numbers, counts - 1))

    def form_window(self, window: Window, *, final: bool) -> list[Membership]:
        try:
            formed = self._former.form(window, final=final)
        except SourceError as error:
            if error.sample is not None:
                error.samples = self.held.take(np.array([error.sample]))
            raise
        self._formed_count = self.held.count
        if final and self._rests is not None and self._rests.ends:
            return self._ended(formed, self._rests)
        if final and not self._forming.leaves and self._forming.formation.counts_samples:  # a formation of the user's
            return self._full_only(formed) if self._drops else formed
        return formed

    @property
    def _drops(self) -> bool:
        return isinstance(self._forming.stages.batches.last, DropPartial)

    def _full_only(self, formed: list[Membership]) -> list[Membership]:
        rows = self._forming.rows
        self._short = [batch for batch in formed if batch.rows != rows]
        return [batch for batch in formed if batch.rows == rows]

    def _ended(self, formed: list[Membership], rests: Rests) -> list[Membership]:
        """The last batches of the epoch, as the tail rule wants them."""
        forming = self._forming
        last, rows = forming.stages.batches.last, forming.rows
        if self._drops:
            return self._full_only(formed)
        if not isinstance(last, PadPartial):
            return formed
        return [batch if batch.rows == rows else self._padded(batch, rests.fill) for batch in formed]

    def _padded(self, batch: Membership, fill: Fill | None) -> Membership:
        """A short batch, filled with rows of the epoch's first batch, or with its own if it is that batch."""
        forming, rows = self._forming, self._forming.rows
        blank = fills_with_value(forming.stages.batches.last)
        if fill is None:
            return filled(batch, batch, batch.samples, rows, forming.multiple, blank=blank)
        samples, positions = self._again(fill.rests.values, fill.rests.lanes)
        numbers = np.arange(self.held.count, self.held.count + len(samples))
        self.hold(samples, positions)
        return filled(batch, fill.batch, numbers, rows, forming.multiple, blank=blank)

    # ---- what it leaves

    @property
    def waiting(self) -> Left:
        """What no batch holds, by the numbers of samples; the chapter is complete."""
        return self._former.left()

    def fill_of(self, batch: Membership) -> Fill:
        """Return a batch of the chapter, for `PadPartial` to repeat."""
        parts = (None, None) if batch.packing is None else (batch.packing.offsets, batch.packing.lengths)
        members = [(self.lane, self.rest_rows(batch.samples, *parts))]
        return Fill(batch, Rests.of(members, len(self._forming.rest_columns)))

    def rest(self) -> NDArray[np.int64]:
        """Return what no batch holds, as rows of `Forming.rest_columns`; the chapter is complete."""
        left = self._former.left()
        return self.rest_rows(left.samples, left.offsets, left.lengths)

    def rest_rows(
        self,
        numbers: NDArray[np.int64],
        offsets: NDArray[np.int64] | None,
        lengths: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """Return samples of the chapter, or parts of them, as rows of `Forming.rest_columns`."""
        columns = self._forming.rest_columns
        if self._rests is not None:
            of = len(columns) - 2 * ("offset" in columns)
            found = list(self._rests.values[numbers, :of].T)
        elif self._forming.assembles:
            found = [np.full(len(numbers), self.number), numbers]
        else:
            positions, parts = self.held.positions_and_parts(numbers)
            found = [positions.astype(np.int64), parts][: 1 + ("part" in columns)]
        if "offset" in columns:
            assert offsets is not None
            assert lengths is not None
            found += [offsets, lengths]
        return np.stack(found, axis=1).astype(np.int64)

    def samples_of(self, numbers: NDArray[np.int64]) -> tuple[Samples, UInt64]:
        """Return samples of the chapter, which is complete and of which none is drawn, and their positions."""
        return self.held.take(numbers), self.held.positions_and_parts(numbers)[0]

    def leaves(self, stream: int, row: int) -> bool:
        """Return whether it leaves a sample of a surviving row of a stream, or a part of one; the chapter is complete."""
        return bool(np.isin(self.held.numbers_of(stream, row), self._former.left().samples).any())

    # ---- what a batch holds

    def draw(self, index: int) -> Drawn:
        """Return a batch's samples in batch order; see `draw_several`."""
        return self.draw_several([index])[0]

    def draw_several(self, indices: Sequence[int]) -> list[Drawn]:
        """Return the samples of batches, in the order of each batch. Two dozen cost little more than one.

        Draw each batch once, in ascending order; batches in between are skipped.

        Args:
            indices: at least one batch, all of them formed (see `has`), ascending from `drawn` up.
        """
        some = [self.batches[index] for index in indices]
        samples = self.held.take(_numbers(some))
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
        if self._rests is not None and batches[0].packing is not None:  # parts, some of samples that began elsewhere
            return
        if batches[0].packing is None:  # of all batches, or of none
            self.held.release(_numbers(batches))
            return
        for batch in batches:
            assert batch.packing is not None
            begun = batch.samples[batch.packing.offsets == 0]
            if not isinstance(formation, Packed) or formation.oversize != "split":
                self.held.release(begun)
            elif formation.concatenates:  # a split sample goes on in the batches that follow
                self.held.release(begun, unfinished=batch.samples)
            # Else the pieces of a split sample come in any order, and all are held to the chapter's end.

    def positions_from(self, index: int) -> UInt64:
        """Return the epoch positions whose samples the batches before ``index`` do not deliver completely.

        The chapter is complete. Samples that the tail rule leaves out are included, samples above the budget are not.
        """
        wanted = np.ones(self.held.count, dtype=np.bool_)
        wanted[_numbers(self.batches[:index])] = wanted[self._former.tally.first] = False
        wanted[_numbers([*self.batches[index:], *self._short])] = True
        wanted[self._former.left().samples] = True
        wanted[self._formed_count :] = False
        return self.held.positions_of(wanted)

    def holding(self, stream: int, row: int) -> list[int]:
        """Return the batches that hold a surviving row of a stream; the chapter is complete, and nothing is drawn."""
        wanted = self.held.numbers_of(stream, row)
        wanted = wanted[wanted < self._formed_count]
        return [at for at, batch in enumerate(self.batches) if np.isin(wanted, batch.samples).any()]


def _numbers(batches: list[Membership]) -> NDArray[np.int64]:
    """The samples of batches, by their numbers in the chapter."""
    if len(batches) == 1:
        return batches[0].samples
    return np.concatenate([np.empty(0, dtype=np.int64), *(batch.samples for batch in batches)])

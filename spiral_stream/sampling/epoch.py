"""Which row of which stream stands at each position of an epoch, and how often it was used before.

Without a mixture, epoch e is pass e of the order; the epoch in which a run was rebased has only the positions of the pass
that were left over (docs/decisions/0039). With one, `Mixture` says how many samples of the stream came before
(the use u), and `stream_end` in which pass of the stream that is (docs/decisions/0021). Cost: that of the mixture, and of
one arrangement for each pass that the positions touch; the last arrangements are kept.

How long an epoch is: see `plan.epoch_length`.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.sampling.extent import Extent
from spiral_stream.sampling.memo import memo
from spiral_stream.sampling.mixing.decided import AnyMixture
from spiral_stream.sampling.mixing.remainder import LeftOver
from spiral_stream.sampling.mixing.stream_end import pass_of, passes_of, use_of
from spiral_stream.sampling.order import Arrangement, Order, Population, UInt64
from spiral_stream.sampling.orders.shuffle import rows_in_turn

_ARRANGEMENTS: Final = 64  # kept at least; each takes O(shards) memory
_LEAST_CHUNK: Final = 8192  # positions of a mixture that are placed together
_PER_STREAM: Final = 64  # and this many more per stream; a position costs 0.09 us with 3 streams, 0.16 us with 1,000
_MOST_CHUNK: Final = 1 << 17
_SPARSE: Final = 64  # positions of chunks for each that is asked for; above, they are placed one by one
_CHUNKS: Final = 16  # kept: 20 bytes per position
_FEW_TURNS: Final = 1 << 15  # streams times the passes that positions lie in


@final
@dataclass(frozen=True, slots=True, eq=False)
class StreamRows:
    """P samples: the row of each, and in which pass over its stream it is read."""

    streams: NDArray[np.int32]  # [P] number of the stream in the mixture, 0 without one
    rows: UInt64  # [P] surviving row of that stream
    passes: UInt64  # [P]
    positions: UInt64 | None = None  # [P] where each stands in the epoch; None for rows of no epoch

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, at: NDArray[np.int64]) -> "StreamRows":
        """Return the samples at these indices, in this order."""
        return StreamRows(
            self.streams[at], self.rows[at], self.passes[at], None if self.positions is None else self.positions[at]
        )

    def run(self, first: int, last: int) -> "StreamRows":
        """Return samples [first, last), as views."""
        part = slice(first, last)
        where = None if self.positions is None else self.positions[part]
        return StreamRows(self.streams[part], self.rows[part], self.passes[part], where)

    @classmethod
    def concat(cls, parts: "Sequence[StreamRows]") -> "StreamRows":
        """Return several, end to end."""
        where = [part.positions for part in parts if part.positions is not None]
        return cls(
            np.concatenate([part.streams for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.passes for part in parts]),
            np.concatenate(where) if len(where) == len(parts) else None,
        )


def _turns(streams: NDArray[np.int32], passes: UInt64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Put the samples of each stream and pass together: the sorted places, and where each turn begins among them."""
    first = passes.min()
    span = int(passes.max() - first) + 1
    turns = streams.astype(np.int64) * span + (passes - first).astype(np.int64)
    if int(turns[int(streams.argmax())]) + span < _FEW_TURNS:  # then NumPy sorts by digits, eight times as fast
        turns = turns.astype(np.int16)
    by = np.argsort(turns, kind="stable")
    return by, np.flatnonzero(np.diff(turns[by], prepend=-1))


@final
class EpochOrder:
    """The positions of every epoch. Thread-safe."""

    def __init__(
        self,
        order: Order,
        populations: Sequence[Population],
        mixture: AnyMixture | None,
        left_overs: Sequence[LeftOver | None] = (),
        rebased: int | None = None,
        extent: Extent | None = None,
    ) -> None:
        """Order the epochs of a plan.

        Args:
            order: of every stream.
            populations: the rows of every stream.
            mixture: None if there is one stream only.
            left_overs: what each stream has left of an earlier plan.
            rebased: without a mixture, the epoch that an earlier plan began; only what is left over belongs to it.
            extent: without a mixture, how much of its passes an epoch takes; None takes one.
        """
        self.order = order
        self.mixture = mixture
        self.extent = extent or Extent()
        self._sizes = [order.size(population) for population in populations]
        self.total = self.extent.length(self._sizes[0]) if mixture is None else mixture.total
        self._populations = tuple(populations)
        self._left_overs = dict(enumerate(left_overs))
        self._rebased = rebased if mixture is None else None
        # Epoch e is pass e of one stream, in which each row stands at one position.
        self._one_pass = mixture is None and not order.repeats_rows and not self.extent.parts
        self._held = 2 * len(populations) if order.large_passes else max(_ARRANGEMENTS, 2 * len(populations))
        self._chunk_size = min(max(_LEAST_CHUNK, _PER_STREAM * len(populations)), _MOST_CHUNK)
        self._remember()

    def mixed_by(self, mixture: AnyMixture) -> "EpochOrder":
        """Return the same streams in another mixture of as many positions; the streams keep their order."""
        out = copy(self)
        out.mixture = mixture
        out._remember()  # noqa: SLF001  an order of our own
        return out

    def _remember(self) -> None:
        """Keep what was asked for last."""
        self._arrangement = memo(self._arranged, self._held)
        self._chunk = memo(self._mixed_rows, _CHUNKS)

    def length(self, epoch: int) -> int:
        """Return how many positions an epoch has."""
        return self.left(0) if epoch == self._rebased else self.total

    def stream_rows(self, epoch: int, positions: UInt64) -> StreamRows:
        """Return the samples at positions of an epoch.

        Args:
            epoch: the epoch.
            positions: shape [P], uint64, each in [0, length).
        """
        found = self._of_one(epoch, positions) if self.mixture is None else self._of_several(epoch, positions)
        return replace(found, positions=positions)

    def _of_several(self, epoch: int, positions: UInt64) -> StreamRows:
        """The samples of positions of a mixture."""
        begins, ends = self._chunks_around(epoch, positions)
        if bool((positions[1:] > positions[:-1]).all()):
            borders = [0, *(np.flatnonzero(begins[1:] != begins[:-1]) + 1).tolist(), len(positions)]
            if len(borders) <= _CHUNKS and len(positions):
                runs = [self._run_of_chunk(epoch, positions, begins, ends, run) for run in pairwise(borders)]
                return runs[0] if len(runs) == 1 else StreamRows.concat(runs)
        chunks, at_first = np.unique(begins, return_index=True)
        if len(chunks) > _CHUNKS and len(chunks) * self._chunk_size > _SPARSE * len(positions):  # no chunk is worth it
            return self._mixed_rows_at(epoch, positions)
        found = []
        for begin, end in zip(chunks.tolist(), ends[at_first].tolist(), strict=True):
            at = np.flatnonzero(begins == begin)
            found.append((at, self._chunk(epoch, begin, end).take((positions[at] - np.uint64(begin)).astype(np.int64))))
        if len(found) == 1:
            return found[0][1]
        if not found:
            return self._mixed_rows(epoch, 0, 0)
        back = np.argsort(np.concatenate([at for at, _ in found]), kind="stable")
        return StreamRows.concat([part for _, part in found]).take(back)

    def _run_of_chunk(
        self, epoch: int, positions: UInt64, begins: UInt64, ends: UInt64, run: tuple[int, int]
    ) -> StreamRows:
        """The samples of a run of rising positions that lie in one chunk: a view, where none is left out."""
        first, last = run
        begin = int(begins[first])
        chunk, at = self._chunk(epoch, begin, int(ends[first])), int(positions[first]) - begin
        if int(positions[last - 1]) - int(positions[first]) == last - 1 - first:
            return chunk.run(at, at + last - first)
        return chunk.take((positions[first:last] - np.uint64(begin)).astype(np.int64))

    def _of_one(self, epoch: int, positions: UInt64) -> StreamRows:
        """The samples of positions, where one stream alone is read."""
        size = self._sizes[0]
        if self._one_pass:
            rows = self._arrangement(0, epoch).rows(self._of_pass(epoch, positions))
            return StreamRows(np.zeros(len(rows), dtype=np.int32), rows, np.full(len(rows), epoch, dtype=np.uint64))
        passes, offsets = self.extent.back(epoch, self._of_pass(epoch, positions), size)
        rows = np.empty(len(offsets), dtype=np.uint64)
        for number in np.unique(passes).tolist():
            at = np.flatnonzero(passes == number)
            rows[at] = self._arrangement(0, number).rows(offsets[at])
        if self.order.repeats_rows:
            passes = self._draws(passes, offsets, np.uint64(size))
        return StreamRows(np.zeros(len(rows), dtype=np.int32), rows, passes)

    @staticmethod
    def _draws(passes: UInt64, offsets: UInt64, sizes: UInt64 | np.uint64) -> UInt64:
        """The number of each draw over all passes, which stands for the pass where a pass may read a row twice."""
        with np.errstate(over="ignore"):
            return passes * sizes + offsets

    def _chunks_around(self, epoch: int, positions: UInt64) -> tuple[UInt64, UInt64]:
        """Where the chunk of each position of a mixture begins and ends; no chunk goes past a decision on other shares."""
        assert self.mixture is not None
        begins = positions - positions % np.uint64(self._chunk_size)
        ends = np.minimum(begins + np.uint64(self._chunk_size), np.uint64(self.total))
        cuts = self.mixture.cuts(epoch)
        if len(cuts):
            at = np.searchsorted(cuts, positions, side="right")
            begins = np.maximum(begins, np.concatenate((np.zeros(1, dtype=np.uint64), cuts))[at])
            ends = np.minimum(ends, np.append(cuts, np.uint64(self.total))[at])
        return begins, ends

    def _mixed_rows(self, epoch: int, begin: int, end: int) -> StreamRows:
        """The samples of a chunk of positions of a mixture: each stream is asked once for many of them."""
        return self._mixed_rows_at(epoch, np.arange(begin, end, dtype=np.uint64))

    def _mixed_rows_at(self, epoch: int, positions: UInt64) -> StreamRows:
        """The samples of some positions of a mixture."""
        streams, uses = self.uses(epoch, positions)
        sizes = np.array(self._sizes, dtype=np.uint64)[streams]
        passes, offsets = pass_of(uses, sizes)
        rows = np.empty(len(streams), dtype=np.uint64)
        if len(streams):
            by, begins = _turns(streams, passes)
            first = by[begins]
            turns = zip(streams[first].tolist(), passes[first].tolist(), strict=True)
            rows[by] = rows_in_turn([self._arrangement(*turn) for turn in turns], begins, offsets[by])
        return StreamRows(streams, rows, self._draws(passes, offsets, sizes) if self.order.repeats_rows else passes)

    def uses(self, epoch: int, positions: UInt64) -> tuple[NDArray[np.int32], UInt64]:
        """Return stream and use of each position of a mixture.

        The use is how many samples of the stream come before in the run, also under the plans that it resumed from.
        """
        assert self.mixture is not None
        streams, uses = self.mixture.split(epoch, positions)
        for stream, left_over in self._left_overs.items():
            if left_over is not None:
                at = streams == stream
                uses[at] = left_over.uses(uses[at])
        return streams, uses

    def next_uses(self, stream: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Translate the mixture's own uses [begin, end) of a stream to uses of the run: ranges (first, past the last)."""
        left_over = self._left_overs.get(stream)
        return [(begin, end)] if left_over is None else left_over.ranges(begin, end)

    def positions_of(self, epoch: int, rows: UInt64) -> UInt64 | None:
        """Shape [P] -> [P], uint64: the position of each row in an epoch; None unless each row has one by arithmetic."""
        if not self._one_pass or epoch == self._rebased or self._sizes[0] != self._populations[0].total:
            return None
        return self._arrangement(0, epoch).positions(rows)

    def left(self, stream: int) -> int:
        """Return how many uses of a stream an earlier plan left over; the mixture's own uses begin with these."""
        left_over = self._left_overs.get(stream)
        return 0 if left_over is None else left_over.count

    def positions(self, epoch: int, stream: int, row: int) -> list[int]:
        """Return the positions of a row in an epoch, ascending: without a mixture most often one, with one per use.

        A row that an earlier plan delivered has none in the epoch in which the run was rebased.
        """
        if self.mixture is None:
            found = self.extent.on(epoch, lambda number: self._arrangement(0, number).positions_of(row), self._sizes[0])
            if epoch == self._rebased:
                begun = np.array(found, dtype=np.uint64) + np.uint64(epoch * self.total)
                bounds = self._left_overs[0].plan_uses(begun)  # type: ignore[union-attr]  # rebased
                return [int(each) for each in bounds if 0 <= each < self.length(epoch)]
            return found
        total = self._sizes[stream]
        uses = []
        for first, end in self.next_uses(stream, *self.mixture.span(epoch, stream)):
            for number in passes_of(first, end, total):
                each = [
                    use_of(number, position, total) for position in self._arrangement(stream, number).positions_of(row)
                ]
                uses += [use for use in each if first <= use < end]
        used = np.array(uses, dtype=np.uint64)
        left_over = self._left_overs.get(stream)
        numbers = used if left_over is None else left_over.plan_uses(used).astype(np.uint64)
        joined = self.mixture.join(epoch, np.full(len(used), stream, dtype=np.int32), numbers)
        return sorted(joined[joined >= 0].tolist())  # after a decision, uses of other epochs may lie between

    def _of_pass(self, epoch: int, positions: UInt64) -> UInt64:
        """Without a mixture, translate positions of an epoch to positions of its pass."""
        if epoch != self._rebased:
            return positions
        first = np.uint64(epoch * self.total)
        return self._left_overs[0].uses(positions) - first  # type: ignore[union-attr]  # rebased: it has something left

    def _arranged(self, stream: int, number: int) -> Arrangement:
        return self.order.arrange(self._populations[stream], number)

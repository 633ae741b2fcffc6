"""Which stream stands at which position of a mixture, and which of its samples that is.

A stream's samples are numbered over all epochs: the *use* of a sample is how many of its stream came before. Uses are
consecutive along the mixture, so nothing is left out or repeated from epoch to epoch. The stream's own order says which
row a use is. Quotas fix how many samples of each stream an epoch has; `slices` says where in the epoch they stand.
Where a stream ends, `stream_end` says what comes.

Cost, in CPU time for 8,192 consecutive positions on one core: `split` takes 1.5 ms with 3 streams and with 1,000, the
same at the start, middle and end of epochs of 10**6 to 10**12 positions, and 1.6 and 4 ms while a schedule moves.
Entering an epoch costs another 1 ms, or 18 ms with 1,000 streams on a schedule. 8,192 random positions, each in a slice of
its own: 20 ms with 3 streams, 0.4 s with 1,000. `join` of 8,192 uses: 4 ms, or 0.2 s on a schedule. `first_uses` is a
product, except over epochs in which a schedule moves: each of these, counted from the nearest epoch that is kept, costs
0.2 ms with 3 streams, 4 ms with 1,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from numbers import Integral
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spiral_stream.errors import PlanError
from spiral_stream.sampling.mixing.schedule import FOREVER, Course, Schedule, Weight, in_integers, shortest_stretch
from spiral_stream.sampling.mixing.sequential_mix import EpochInTurn
from spiral_stream.sampling.mixing.slices import VERSION, Epoch, Int64, slice_count, slice_size
from spiral_stream.sampling.order import LARGEST, UInt64, check_integer

# K streams, P positions

_HELD_EPOCHS: Final = 4  # epochs


def apportion(total: int, weights: Sequence[Weight]) -> list[int]:
    """Divide ``total`` by weights into whole numbers: largest remainder, ties to the earlier stream.

    The result is exact; a float counts as the binary fraction that it is.

    Args:
        total: sum of the result, 0 or more.
        weights: one per stream, 0 or more.

    Returns:
        K integers, each the exact share rounded down or up; 0 for weight 0.

    Raises:
        PlanError: a weight is not a finite number of 0 or more, all weights are 0, or ``total`` is not a count.
    """
    check_integer("mix", "epoch_size", total, least=0)
    integers = in_integers(weights)
    unit = sum(integers)
    shares = [divmod(total * weight, unit) for weight in integers]
    missing = total - sum(share for share, _ in shares)
    raised = set(sorted(range(len(integers)), key=lambda k: (-shares[k][1], k))[:missing])
    return [share + (k in raised) for k, (share, _) in enumerate(shares)]


@final
@dataclass(frozen=True, slots=True, eq=False)
class StreamsLeft:
    """What each of K streams has left: some uses, then every use from one on."""

    ahead: tuple[Int64, ...]  # K arrays of uses, each ascending
    then: Int64  # [K]


@final
class Mixture:
    """The order of K streams over all epochs: a pure function between positions and uses.

    ``total`` is the number of positions per epoch, ``slices`` the number of slices, ``offsets`` what was given. The last
    four epochs asked for are kept, O(K) memory each. Thread-safe.
    """

    VERSION: ClassVar[int] = VERSION  # part of the fingerprint; short schedules have another (`slices.order_version`)

    def __init__(
        self,
        seed: int,
        quotas: Sequence[int] | Schedule,
        *,
        total: int | None = None,
        offsets: ArrayLike | None = None,
        first_epoch: int = 0,
        in_turn: bool = False,
    ) -> None:
        """Mix streams.

        Args:
            seed: the plan's, any integer.
            quotas: samples of each stream per epoch, or the schedule of their weights.
            total: positions per epoch; needed with a schedule, else the sum of the quotas.
            offsets: shape [K], uint64: use of each stream at the start of ``first_epoch``; zeros if None.
            first_epoch: the first epoch that can be asked for. Uses are counted from there; the sample numbers of a
                schedule always count from the start of epoch 0.
            in_turn: lay the streams of an epoch end to end instead of mixing them; not with a schedule.

        Raises:
            PlanError: a quota, total or offset is not a count or is past 2**62, the mixture has no sample, or its
                schedule moves faster than slices can follow.
        """
        check_integer("mix", "seed", seed)
        check_integer("mix", "first_epoch", first_epoch, least=0)
        self._seed, self._first_epoch, self._in_turn = seed, first_epoch, in_turn
        self._quotas: list[int] = []  # of every epoch; empty with a schedule
        self._course: Course | None = None
        if isinstance(quotas, Schedule):
            self.total, self._streams = _checked_total(total, None), quotas.streams
            self.slices = slice_count(self.total, slice_size(self._streams, shortest_stretch(quotas.points)))
            _need_slices(quotas, self.total / self.slices)
            self._course = Course(quotas, self.total, self.slices)
        else:
            self._quotas = _counts("quota", quotas)
            self.total, self._streams = _checked_total(total, sum(self._quotas)), len(self._quotas)
            self.slices = slice_count(self.total, slice_size(self._streams))
        self.offsets = _offsets(offsets, self._streams)
        self._epochs: tuple[
            tuple[Epoch | EpochInTurn, Int64], ...
        ] = ()  # replaced as a whole, so that threads may read it

    def split(self, epoch: int, positions: UInt64) -> tuple[NDArray[np.int32], UInt64]:
        """The stream at each position of an epoch, and which of its samples.

        Args:
            epoch: the epoch.
            positions: shape [P], uint64, each in [0, total).

        Returns:
            streams, shape [P], int32, and uses, shape [P], uint64: how many samples of the stream come before in
            the run, offsets included.

        Raises:
            IndexError: a position or the epoch is outside.
        """
        layout, first = self._epoch(epoch)
        positions_of = np.asarray(positions, dtype=np.uint64)
        if positions_of.size and int(positions_of.max()) >= self.total:
            msg = f"mix: position {positions_of.max()} of an epoch of {self.total}. Ask in [0, {self.total}), or the next epoch"
            raise IndexError(msg)
        streams, samples = layout.split(positions_of.astype(np.int64))
        return streams.astype(np.int32), (first[streams] + samples).astype(np.uint64)

    def join(self, epoch: int, streams: NDArray[np.int32], uses: UInt64) -> Int64:
        """The position of each use in an epoch: the inverse of `split`.

        Args:
            epoch: the epoch.
            streams: shape [P], int32, each in [0, K).
            uses: shape [P], uint64.

        Returns:
            shape [P], int64, each in [0, total), or -1 if the use is not in this epoch.

        Raises:
            IndexError: a stream or the epoch is outside.
        """
        layout, first = self._epoch(epoch)
        owners = np.asarray(streams, dtype=np.int64)
        if owners.size and not 0 <= int(owners.min()) <= int(owners.max()) < self._streams:
            msg = f"mix: stream numbers from {owners.min()} to {owners.max()}. Give numbers in [0, {self._streams})"
            raise IndexError(msg)
        # A use before the epoch wraps around to a number above any quota.
        samples = np.asarray(uses, dtype=np.uint64) - first.astype(np.uint64)[owners]
        inside = np.flatnonzero(samples < layout.quotas.astype(np.uint64)[owners])
        positions = np.full(owners.shape, -1, dtype=np.int64)
        positions[inside] = layout.join(owners[inside], samples[inside].astype(np.int64))
        return positions

    def quotas(self, epoch: int) -> UInt64:
        """Return how many samples of each stream an epoch has; shape [K], uint64, summing to ``total``."""
        return self._epoch(epoch)[0].quotas.astype(np.uint64)

    def first_uses(self, epoch: int) -> UInt64:
        """Return each stream's use at an epoch's start, offsets included; shape [K], uint64."""
        return self._epoch(epoch)[1].astype(np.uint64)

    def border(self, epoch: int, position: int) -> int:
        """Return the first slice border at or after a position in [0, total]; 0 and ``total`` are borders."""
        return self._epoch(epoch)[0].border(self._inside(position))[0]

    def used(self, epoch: int, position: int) -> UInt64:
        """Return each stream's use at a slice border: the offsets of a mixture that takes over there.

        Args:
            epoch: the epoch.
            position: a border, as `border` gives it.

        Returns:
            shape [K], uint64: uses before the border, offsets included.

        Raises:
            IndexError: no slice begins there, or the epoch is outside.
        """
        first = self._epoch(epoch)[1]
        return (first + self._taken(epoch, position)).astype(np.uint64)

    def span(self, epoch: int, stream: int) -> tuple[int, int]:
        """Return a range of uses that holds all those of a stream in an epoch: the first, and one past the last."""
        layout, first = self._epoch(epoch)
        return int(first[stream]), int(first[stream] + layout.quotas[stream])

    def taken(self, epoch: int, position: int) -> Int64:
        """Return how many samples of each stream come before a position in [0, total] of an epoch; shape [K], int64."""
        layout = self._epoch(epoch)[0]
        end, taken = layout.border(self._inside(position))
        streams, _ = layout.split(np.arange(position, end, dtype=np.int64))
        return taken - np.bincount(streams, minlength=len(taken))

    def left(self, epoch: int, position: int) -> "StreamsLeft":
        """Return the uses that no position before one in [0, total) of an epoch has, nor an epoch before."""
        border = self.border(epoch, position)
        streams, uses = self.split(epoch, np.arange(position, border, dtype=np.uint64))
        ahead = [np.sort(uses[streams == k].astype(np.int64)) for k in range(self._streams)]
        return StreamsLeft(tuple(ahead), self.used(epoch, border).astype(np.int64))

    def cuts(self, epoch: int) -> UInt64:
        """Return the positions of an epoch at which shares were decided anew: none."""
        del epoch
        return np.empty(0, dtype=np.uint64)

    def mark(self, epoch: int) -> str:
        """Return what tells the epoch from the same one of other mixtures of the plan: nothing."""
        del epoch
        return ""

    def ahead(self, epoch: int, position: int) -> NDArray[np.float64]:
        """Return how many samples each stream is ahead of its target at a slice border.

        The target is the stream's share, summed from the epoch's start. Arguments and errors are those of `used`.

        Returns:
            shape [K], float64, summing to 0; less than 1 in size, apart from the few positions by which a border is
            off its nominal place.
        """
        return self._epoch(epoch)[0].ahead(position, self._taken(epoch, position))

    def shares(self, epoch: int, position: int) -> NDArray[np.float64]:
        """Return the target share of each stream at a position in [0, total]; shape [K], float64, summing to 1."""
        return self._epoch(epoch)[0].shares(self._inside(position))

    def _taken(self, epoch: int, position: int) -> Int64:
        after, taken = self._epoch(epoch)[0].border(self._inside(position))
        if after != position:
            msg = f"mix: no slice of epoch {epoch} begins at position {position}. Ask at {after}, as border() says"
            raise IndexError(msg)
        return taken

    def _inside(self, position: int) -> int:
        if 0 <= position <= self.total:
            return position
        msg = f"mix: position {position} of an epoch of {self.total}. Ask in [0, {self.total}], or the next epoch"
        raise IndexError(msg)

    def _epoch(self, number: int) -> tuple[Epoch | EpochInTurn, Int64]:
        """An epoch, and each stream's use at its start; shape [K], int64."""
        for layout, first in self._epochs:
            if layout.number == number:
                return layout, first
        if number < self._first_epoch:
            msg = f"mix: epoch {number} of a mixture that begins with epoch {self._first_epoch}. Ask the mixture before it"
            raise IndexError(msg)
        uses = self._first(number)
        if max(uses) + self.total > LARGEST or (number + 1) * self.total > LARGEST:
            msg = f"mix: epoch {number}, of {self.total} positions, goes past sample 2**62. Start a new run before it"
            raise PlanError(msg)
        course = None if self._alike(number) else self._course
        quotas = np.array(self._quotas_of(number), dtype=np.int64)
        made = EpochInTurn(number, quotas) if self._in_turn else Epoch(self._seed, number, quotas, self.slices, course)
        self._epochs = (*self._epochs[1 - _HELD_EPOCHS :], (made, np.array(uses, dtype=np.int64)))
        return self._epochs[-1]

    def _first(self, epoch: int) -> list[int]:
        """The use of each stream at an epoch's start, counted from the nearest epoch that is known."""
        at, uses = self._first_epoch, [int(use) for use in self.offsets]
        for layout, first in self._epochs:
            if at < layout.number <= epoch:
                at, uses = layout.number, first.tolist()
        while at < epoch:
            alike = min(max(1, self._alike(at)), epoch - at)
            uses = [use + alike * quota for use, quota in zip(uses, self._quotas_of(at), strict=True)]
            at += alike
        return uses

    def _alike(self, epoch: int) -> int:
        """How many epochs, from this one on, have the same quotas and shares; 0: the shares move in this epoch."""
        return FOREVER if self._course is None else self._course.level(epoch)

    def _quotas_of(self, epoch: int) -> list[int]:
        return self._quotas if self._course is None else apportion(self.total, self._course.integral(epoch).tolist())


def _need_slices(schedule: Schedule, size: float) -> None:
    """Refuse a schedule that would begin and end inside one slice, where shares are constant.

    Raises:
        PlanError: says how long the schedule has to be.
    """
    begin, end = schedule.moves
    if begin < end < begin + size:
        msg = (
            f"mix: the schedule goes from sample {begin:,} to sample {end:,}, but with {schedule.streams} streams shares "
            f"are kept over slices of {ceil(size):,} samples, so it would be flat. Stretch it over at least "
            f"{ceil(size):,} samples, mix fewer streams, or give a jump: two points one sample apart"
        )
        raise PlanError(msg)


def _counts(name: str, values: Sequence[int] | NDArray[np.uint64]) -> list[int]:
    counts = [int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value for value in values]
    for k, count in enumerate(counts):
        check_integer("mix", f"the {name} of stream {k}", count, least=0)
    return counts


def _checked_total(total: int | None, quotas: int | None) -> int:
    if total is None and quotas is None:
        msg = "mix: a schedule has no size of its own. Give epoch_size"
        raise PlanError(msg)
    size = quotas if total is None else total
    assert size is not None
    check_integer("mix", "epoch_size", size, least=1)
    if quotas not in (None, size):
        msg = f"mix: epoch_size is {size}, the quotas sum to {quotas}. Give quotas of that sum, as apportion() does"
        raise PlanError(msg)
    return size


def _offsets(offsets: ArrayLike | None, streams: int) -> UInt64:
    """Shape [K], uint64; never the caller's array."""
    given = [0] * streams if offsets is None else _counts("offset", np.asarray(offsets).ravel().tolist())
    if len(given) != streams:
        msg = f"mix: {len(given)} offsets for {streams} streams. Give one for each stream"
        raise PlanError(msg)
    return np.array(given, dtype=np.uint64)

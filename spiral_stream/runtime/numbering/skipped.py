"""The batches of a stream that skips some batches or samples: formed whole, then thinned (docs/decisions/0040).

The run counts the batches that it delivers, so places, steps and tail rules need not know what is skipped. Here such a
count becomes the number of a batch. A batch is formed with all of its samples. Those that are skipped leave it then.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError, StreamError, shown
from spiral_stream.plan.nodes import Node, Sample
from spiral_stream.plan.tree import need
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.skips import SkippedSample, Skips, Value
from spiral_stream.runtime.numbering.drawn import Drawn, part_of
from spiral_stream.runtime.numbering.numbering import BatchStore, CountLimits, Drawable, Numbering
from spiral_stream.runtime.numbering.random_access import found_rows
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import LARGEST, UInt64

Int64 = NDArray[np.int64]
MOST_NAMED: Final = 1_000_000  # in one call


@final
class SkippingBatches(Numbering):
    """The batches that are left of another numbering.

    Args:
        batches: all of them.
        skips: what is skipped of them.
        stages: the lowered plan.
    """

    def __init__(self, batches: Numbering, skips: Skips, stages: Stages) -> None:
        self._every = batches
        self.last, self.skips = batches.last, skips
        self._streams = len(stages.streams)
        rows = [_rows(stages, sample) for sample in skips.samples]
        keys = np.concatenate([np.empty(0, dtype=np.uint64), *(self._keys(k, found) for k, found in rows)])
        since = np.repeat(np.array([each.since for each in skips.samples]).reshape(-1, 2), [len(r) for _, r in rows], 0)
        order = np.argsort(keys)
        self._masked, self._since = keys[order], since[order]

    def _keys(self, streams: Any, rows: UInt64) -> UInt64:
        """One number per row of all streams, [R] -> [R]: rows are below 2**62 over all streams."""
        return rows * np.uint64(self._streams) + np.asarray(streams).astype(np.uint64)

    @property
    def every(self) -> Numbering:
        return self._every

    @property
    def store(self) -> BatchStore:
        return self._every.store

    @property
    def limits(self) -> CountLimits:  # type: ignore[override]  # a value elsewhere
        return self._every.limits

    def unknown(self, epoch: int) -> int:
        return self._every.unknown(epoch)

    def by_lane(self) -> Numbering:
        every = self._every.by_lane()
        if every is self._every:
            return self
        out = copy(self)
        out._every = every  # noqa: SLF001  a numbering of our own
        return out

    def exists(self, epoch: int, number: int) -> bool:
        return number >= 0 and self._every.exists(epoch, self.skips.number(epoch, number))

    def total(self, epoch: int) -> int:
        return self._before(epoch, self._every.total(epoch))

    def ready(self, epoch: int, number: int) -> int:
        at = self.skips.number(epoch, number)
        return max(0, self._before(epoch, at + self._every.ready(epoch, at)) - number)

    def _before(self, epoch: int, end: int) -> int:
        """How many batches before one of the others are left."""
        is_left = self.skips.remaining(epoch)
        left = [(first, first + count) for first, count in is_left.left] + [(is_left.then, end)]
        return sum(max(0, min(stop, end) - first) for first, stop in left)

    @property
    def ahead(self) -> Drawable | None:
        every = self._every.ahead
        return None if every is None else SkippingAhead(every, self)

    def draw_several(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        return self.drawn_of(self._every, epoch, numbers)

    def drawn_of(self, batches: Drawable, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        """Return what is left of some batches of others."""
        some = [self.skips.number(epoch, number) if number >= 0 else number for number in numbers]
        drawn = batches.draw_several(epoch, some)
        return [self._left(each, epoch, number) for each, number in zip(drawn, some, strict=True)]

    def _left(self, drawn: Drawn, epoch: int, number: int) -> Drawn:
        left = np.flatnonzero(~self._skipped(drawn.samples.stream_rows, epoch, number))
        if len(left) == len(drawn.samples):
            return drawn
        return Drawn(drawn.samples.take(left), part_of(drawn.membership, left), drawn.lost)

    def _skipped(self, stream_rows: StreamRows, epoch: int, number: int) -> NDArray[np.bool_]:
        """Which samples of a batch are skipped: shape [S]."""
        if not len(self._masked):
            return np.zeros(len(stream_rows), dtype=np.bool_)
        keys = self._keys(stream_rows.streams, stream_rows.rows)
        at = np.minimum(self._masked.searchsorted(keys), len(self._masked) - 1)
        epochs, numbers = self._since[at, 0], self._since[at, 1]
        begun = (epochs < epoch) | ((epochs == epoch) & (numbers <= number))
        out: NDArray[np.bool_] = (self._masked[at] == keys) & begun
        return out

    def find(self, epoch: int, stream: int, row: int) -> Iterator[int]:
        one = np.array([stream], dtype=np.int32), np.array([row], dtype=np.uint64)
        samples = StreamRows(*one, np.zeros(1, dtype=np.uint64))
        for number in self._every.find(epoch, stream, row):
            at = self.skips.delivered(epoch, number)
            if at is not None and not self._skipped(samples, epoch, number).any():
                yield at


@final
class SkippingAhead(Drawable):
    """The batches that are left of those that somebody looks at ahead.

    Args:
        batches: all of them.
        skipping: what is left of them.
    """

    def __init__(self, batches: Drawable, skipping: SkippingBatches) -> None:
        self._batches, self._skipping, self.last = batches, skipping, batches.last

    def exists(self, epoch: int, number: int) -> bool:
        return number >= 0 and self._batches.exists(epoch, self._skipping.skips.number(epoch, number))

    def draw_several(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        return self._skipping.drawn_of(self._batches, epoch, numbers)


def _rows(stages: Stages, sample: SkippedSample) -> tuple[int, UInt64]:
    named = (sample.stream, *sample.identity) if sample.stream else sample.identity
    try:
        return found_rows(stages, named, "resume")
    except KeyError:  # gone since, at a rebase; it is skipped again when it comes back
        return 0, np.empty(0, dtype=np.uint64)


def need_epochs(plan: Node) -> None:
    """Refuse a plan whose epochs are all the same one.

    Raises:
        StreamError: says the way out.
    """
    if isinstance(need(plan, Sample).epoch, int):
        msg = (
            "skip: the plan names its own epoch, so all of its epochs are the same one, and no place is ahead. Leave epoch= "
            "out of sample(...), or leave rows out with .filter(...) before it"
        )
        raise StreamError(msg)


@final
@dataclass(frozen=True, slots=True)
class SkipRequest:
    """What a caller of `skip` names: steps from the place on, batches by number, and identities."""

    steps: Iterable[int] = ()
    batches: Iterable[int] = ()
    identities: Iterable[Any] = ()

    def added(self, skips: Skips, stages: Stages, numbering: Numbering, cursor: Cursor, epoch: int) -> Skips:
        """Return a record with what is asked for.

        Args:
            skips: the record so far.
            stages: the lowered plan.
            numbering: the run's batches.
            cursor: the run's place, after `Cursor.enter` with its world size and merge.
            epoch: the epoch of steps and batches.

        Raises:
            KeyError: the plan keeps no row with such an identity.
            StreamError: a step or a batch was delivered already, or the epoch does not have it; or there are too many.
        """
        since = (cursor.epoch, numbering.skips.number(cursor.epoch, cursor.batch))
        numbers = np.concatenate([self._of_steps(numbering, cursor, epoch), _integer(self.batches, "batches")])
        if len(numbers):
            _need_ahead(numbers, since, epoch, numbering)
            skips = skips.with_batches(epoch, numbers)
        samples = [_named(stages, identity) for identity in _listed(self.identities, "identities", '["a-17"]')]
        return skips.with_samples(since, samples) if samples else skips

    def _of_steps(self, numbering: Numbering, cursor: Cursor, epoch: int) -> Int64:
        """The batches of the steps, as far as the epoch has them: the last step may be short."""
        steps, last = _integer(self.steps, "steps"), cursor.segments[-1]
        here = cursor if epoch == cursor.epoch else Cursor(epoch).enter(last.world_size, last.merge)
        if len(steps) and steps.min() < here.step:
            msg = (
                f"skip: step {int(steps.min()):,} of epoch {epoch:,} was delivered already; the run stands before step "
                f"{here.step:,}. Load a state from before it, then skip"
            )
            raise StreamError(msg)
        group = here.segments[-1].group
        delivered = here.segments[-1].first(0) + steps[:, None] * group + np.arange(group)
        numbers = numbering.skips.numbers(epoch, delivered.ravel())
        most = _most(numbering, epoch)
        firsts = numbers.reshape(-1, group)[:, 0] if len(steps) else numbers
        if most is not None and (firsts >= most).any():
            step = int(steps[firsts >= most].min())
            msg = f"skip: epoch {epoch:,} has no step {step:,} for this many ranks; it has {most:,} batches. Name earlier steps"
            raise StreamError(msg)
        return numbers if most is None else numbers[numbers < most]


def _most(numbering: Numbering, epoch: int) -> int | None:
    """How many batches an epoch has; None where they are not counted."""
    return None if numbering.every.unknown(epoch) else numbering.every.total(epoch)


def _listed(values: object, what: str, example: str) -> list[Any]:
    """The items of what a caller lists.

    Raises:
        StreamError: it is no list, or too long.
    """
    if isinstance(values, Sized) and len(values) > MOST_NAMED:
        msg = f"skip: {what} names {len(values):,}, and may name {MOST_NAMED:,} at a time. Call skip several times"
        raise StreamError(msg)
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        msg = f"skip: {what}={shown(values)}. Give a list, for example {what}={example}"
        raise StreamError(msg)
    return list(values)


def _integer(numbers: object, what: str) -> Int64:
    listed = _listed(numbers, what, "range(100, 200)")
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and 0 <= n <= LARGEST for n in listed):
        msg = f"skip: {what}={shown(numbers)}. Give whole numbers from 0 up, for example {what}=range(100, 200)"
        raise StreamError(msg)
    return np.array(listed, dtype=np.int64)


def _need_ahead(numbers: Int64, since: tuple[int, int], epoch: int, numbering: Numbering) -> None:
    first, last = int(numbers.min()), int(numbers.max())
    if (epoch, first) < since:
        msg = (
            f"skip: batch {first:,} of epoch {epoch:,} was delivered already; the run stands before batch {since[1]:,} of "
            f"epoch {since[0]:,}. Load a state from before it, then skip"
        )
        raise StreamError(msg)
    most = _most(numbering, epoch)
    if most is not None and last >= most:
        msg = f"skip: epoch {epoch:,} has {most:,} batches, so there is no batch {last:,}. Give numbers below that"
        raise StreamError(msg)


def _named(stages: Stages, identity: Any) -> tuple[str, tuple[Value, ...]]:
    """Return the stream and the identity of a sample, as the record has them."""
    identity = tuple(identity) if isinstance(identity, list) else identity  # as JSON returns it
    stream, _ = found_rows(stages, identity, "skip")
    values = (identity if isinstance(identity, tuple) else (identity,))[-len(stages.identity) :]
    return stages.streams[stream].name, tuple(_recorded(value) for value in values)


def _recorded(value: Any) -> Value:
    """Return a value of an identity that was found as the state records it: 5.0 found the row 5 and is that row's 5."""
    plain = value.item() if isinstance(value, np.generic) else value
    plain = int(plain) if isinstance(plain, float) else plain
    if type(plain) not in (str, int, bytes):
        msg = f"skip: {shown(value)} in identities= is a {type(value).__name__}. Give it as a text, an integer or bytes"
        raise StreamError(msg)
    return plain


def carried(skips: Skips, stages: Stages, epoch: int, number: int, begins: int) -> Skips:
    """Return what another plan goes on to skip.

    Args:
        skips: of the run so far.
        stages: the lowered plan that goes on.
        epoch: the epoch in which the run stands.
        number: the number of its next batch.
        begins: the epoch that the other plan begins with.

    Raises:
        ResumeError: batches are skipped that the run has not come to; other batches have their numbers after it.
    """
    if skips.after(epoch, number):
        msg = (
            "rebase: the run skips batches that it has not come to, and the new plan numbers its batches anew. Go past them "
            "first, or load a state from before stream.skip(...)"
        )
        raise ResumeError(msg)
    names = {stream.name for stream in stages.streams}
    return Skips().with_samples((begins, 0), [(e.stream, e.identity) for e in skips.samples if e.stream in names])

"""Which batches a rank delivers at each step, and whether the epoch has a further step.

A pass walks the steps ahead of the loop (`due`, in the feeder), so the end is known one step early. A step is delivered
only if its batches exist (docs/decisions/0023), and a microstep only if those of its optimizer step do (docs/decisions/0087).
The place after the last step is the start of the next epoch (docs/decisions/0018).
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, final

from spiral_stream.batching import tail
from spiral_stream.batching.tail import DropPartial, PadPartial
from spiral_stream.cursor import Cursor, Segment
from spiral_stream.errors import ResumeError, SpiralError, StreamError, warn
from spiral_stream.planner.binding.bindings import Bound, need_unit_border
from spiral_stream.runtime.numbering.numbering import Numbering
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.sampling.assignment import batches_of
from spiral_stream.sampling.dealing import Float64

_RUN: Final = 64  # steps of a run at most


@final
class Steps:
    """The steps of an epoch for one rank.

    Args:
        numbering: which batches there are, by the index of delivery.
        epoch: the epoch whose order is drawn.
        start: where the steps begin, after `Cursor.enter` with the run's world size and merge.
        turn: that of the rank in each step (`sampling.nodes`).
        batches: of the run, where ``numbering`` deals optimizer steps; None: nobody asks what they cost.
    """

    def __init__(
        self, numbering: Numbering, epoch: int, start: Cursor, turn: int, batches: RunBatches | None = None
    ) -> None:
        self.numbering, self.epoch, self.start, self.turn, self.batches = numbering, epoch, start, turn, batches
        self._ends: int | None = None  # the first step that `due` found missing

    def at(self, step: int) -> range | None:
        """Return the batch numbers of the rank at a step; None if it has none."""
        return delivered_at(self.numbering, self.epoch, self.start.segments[-1], step, self.turn)

    def there(self, step: int) -> bool:
        """Return whether any rank has a batch at a step. Only under `KeepPartial` ranks differ, and rank 0 never has fewer."""
        return delivered_at(self.numbering, self.epoch, self.start.segments[-1], step, 0) is not None

    def costs(self, step: int) -> Float64 | None:
        """Return what each rank works on at a step that was delivered, in units of cost: [W]; None where nothing is dealt."""
        segment = self.start.segments[-1]
        if segment.deal is None or self.batches is None:
            return None
        found = self.batches.step(self.epoch, segment.first(step))
        return None if found is None else found.per_rank[(segment.first(step) - found.first) // segment.group]

    def due(self, worker: int, workers: int) -> Iterator[list[range]]:
        """Yield the batch numbers of every ``workers``-th step from the ``worker``-th on, to the end of the epoch.

        They come in runs of steps: only for the first step of a run, batches may have to be formed.
        """
        step = self.start.step + worker
        while (numbers := self.at(step)) is not None:
            run = [numbers, *self._ready(step, workers)]
            yield run
            step += len(run) * workers
        self._ends = step

    def _ready(self, step: int, workers: int) -> list[range]:
        """The batch numbers of those of the next steps whose batches are formed."""
        segment = self.start.segments[-1]
        first, group, merge = segment.first(step), segment.group, segment.merge
        whole = min(self.numbering.ready(self.epoch, first) // group, _RUN * workers)  # steps
        mine = range(first + self.turn * merge, first + whole * group, workers * group)
        return [range(each, each + merge) for each in mine[1:]]

    def ended(self, step: int) -> bool:
        """Return whether the feeder has found that the rank has no step from this one on. Forms nothing."""
        return self._ends is not None and self._ends <= step

    def over(self, step: int, *, for_all: bool = False) -> bool:
        """Return whether the rank, or all ranks, have no step from this one on. An error means no: the loop will raise it."""
        try:
            return not self.there(step) if for_all else self.at(step) is None
        except SpiralError:
            return False


def dealt_steps(numbering: RunBatches, epoch: int, start: Cursor, turn: int) -> Steps:
    """Return the steps of a pass, whose batches are dealt as the segment says that it begins in; arguments as of `Steps`."""
    batches = numbering.dealt(start.segments[-1:])
    return Steps(batches.left, epoch, start, turn, batches)


def delivered_at(numbering: Numbering, epoch: int, segment: Segment, step: int, turn: int) -> range | None:
    """Return the batch numbers of a place (`sampling.nodes`) at a step of a segment; None if its steps have ended."""
    first = segment.first(step)
    due = batches_of(turn, first, segment.merge)
    return tail.admits(numbering.last, segment.border(first), segment.together, due, partial(numbering.exists, epoch))


def steps_of(numbering: RunBatches, epoch: int, bound: Bound, argument: str = "steps_per_epoch") -> int:
    """Return how many steps of a whole epoch the run's rank makes.

    Args:
        numbering: which batches there are.
        epoch: the epoch whose order is drawn.
        bound: the run's rank, world size and merge.
        argument: who asks, as an error names it.

    Raises:
        StreamError: the epoch is not counted, and counting it takes long.
    """
    numbering.limits.need_countable(epoch, argument)
    shape = bound.world_size, bound.merge, bound.turn, bound.together
    return tail.steps(numbering.last, numbering.total(epoch), *shape)


def length_of(numbering: RunBatches, epoch: int, bound: Bound) -> int:
    """Return `steps_of` for ``len()``.

    Raises:
        TypeError: the epoch is not counted, and counting it takes long; `list` and `enumerate` take that for "no length".
    """
    try:
        return steps_of(numbering, epoch, bound, "len")
    except StreamError as error:
        raise TypeError(str(error)) from error


def first_delivery(
    numbering: RunBatches, epoch: int, drawn: int, numbers: Iterable[int], cursor: Cursor, bound: Bound
) -> dict[str, int] | None:
    """Return which of some batches of an epoch is delivered first: its number, step and rank; None if none is.

    Args:
        numbering: which batches there are.
        epoch: the epoch.
        drawn: the epoch whose order is drawn there.
        numbers: the batches.
        cursor: where the run stands, which may be another epoch.
        bound: the run's world size and merge.
    """
    cursor_now = (cursor if epoch == cursor.epoch else Cursor(epoch)).enter(*bound.shape)
    dealt, best = numbering.dealt(cursor_now.segments), dict[str, int]()
    for number in numbers:
        segment = cursor_now.segment_of(number)
        border = segment.border(number)
        if best and border > best["border"]:
            break
        opens = cursor_now.batch_to_step(border)[0]
        if segment.deal is not None and delivered_at(numbering, drawn, segment, opens, 0) is None:
            continue  # the epoch's end drops the optimizer step, so nobody deals it
        index = dealt.index_of(drawn, number)
        step, at = cursor_now.batch_to_step(index)
        due = delivered_at(numbering, drawn, segment, step, at)
        if due is not None and index in due and (not best or index < best["index"]):
            rank = bound.nodes.rank_at(at) if segment.world_size == bound.world_size else at
            best = {"border": border, "index": index, "batch": number, "step": step, "rank": rank}
            if segment.deal is None:
                break
    return {"epoch": epoch, **{name: best[name] for name in ("batch", "step", "rank")}} if best else None


def need_delivered(numbering: RunBatches, epoch: int, drawn: int, number: int, cursor: Cursor, bound: Bound) -> None:
    """Refuse a batch behind those with which `PadPartial` fills the last step. Other tail rules draw none there.

    Args:
        numbering: which batches there are.
        epoch: the epoch.
        drawn: the epoch whose order is drawn there.
        number: how many batches are delivered before it.
        cursor: where the run stands, which may be another epoch.
        bound: the run's world size and merge.

    Raises:
        IndexError: no rank is ever given this batch.
    """
    if number < 0 or not isinstance(numbering.last, PadPartial) or numbering.exists(drawn, number):
        return
    cursor_now = (cursor if epoch == cursor.epoch else Cursor(epoch)).enter(*bound.shape)
    step, at = cursor_now.batch_to_step(number)
    if delivered_at(numbering, drawn, cursor_now.segment_of(number), step, at) is None:
        total = numbering.store.total(drawn)
        msg = (
            f"batch {numbering.skips.number(drawn, number):,} of an epoch of {total:,}: PadPartial repeats batches only to fill "
            f"the last step of {bound.world_size:,} ranks. Give a number in [0, {total:,})"
        )
        raise IndexError(msg)


def entered(numbering: RunBatches, epoch: int, cursor: Cursor, bound: Bound) -> Cursor:
    """Return where a pass starts: at the cursor, or at the next epoch if no rank has a further step in this one.

    Args:
        numbering: which batches there are.
        epoch: the epoch whose order is drawn there.
        cursor: where the run stands.
        bound: the run's world size and merge.

    Raises:
        ResumeError: the cursor lies after the end of its epoch, or inside batches of one shape that ranks would not share.
    """
    start = cursor.enter(*bound.shape)
    need_unit_border(bound, start.segments[-1])
    if start.batch == 0 or Steps(numbering, epoch, start, bound.turn).there(start.step):
        return start
    need_inside(numbering, epoch, cursor)
    return start.next_epoch().enter(*bound.shape)


def need_inside(numbering: Numbering, epoch: int, cursor: Cursor) -> None:
    """Refuse a place whose last step the epoch does not have.

    Raises:
        ResumeError: says how many batches there are.
    """
    last = cursor.last_step()
    if last is not None and delivered_at(numbering, epoch, last[1], last[0], 0) is None:
        msg = (
            f"resume: batch {cursor.batch} lies beyond the end of epoch {cursor.epoch}, which has {numbering.total(epoch)} "
            "batches. Pass what state_dict() returned, or the number of batches that the loop has had, unchanged"
        )
        raise ResumeError(msg)


def need_border(verb: str, cursor: Cursor) -> None:
    """Refuse an edit inside an optimizer step, of which some batches were delivered, in the order of the deal.

    Raises:
        StreamError: says how far the step is.
    """
    if cursor.bordered() != cursor:
        msg = f"{verb}: {_inside(cursor)}. Call it at the step's border, before its first batch or after its last one"
        raise StreamError(msg)


def warn_of_inside(cursor: Cursor, border: Cursor) -> None:
    """Warn that a state is of an earlier place than the loop's: the beginning of the optimizer step."""
    if cursor.epoch == border.epoch and cursor.step > border.step:
        warn(
            f"state_dict: {_inside(cursor)}, so the state is of the step's beginning, and what comes after it is delivered "
            "again. To lose no work, ask after the step's last batch, when its update is done"
        )


def _inside(cursor: Cursor) -> str:
    segment, had = cursor.segments[-1], cursor.step - cursor.bordered().step
    return f"the run stands inside an optimizer step, after {had:,} of its {segment.together // segment.group:,} microsteps"


def warn_of_nothing(numbering: RunBatches, epoch: int, bound: Bound) -> None:
    """Warn that a pass over a whole epoch delivered nothing to this rank, and say why."""
    total, group = numbering.total(epoch), bound.together
    found = f"{total:,} batches do not make a step of {bound.world_size:,} ranks with merge={bound.merge:,}"
    if bound.deal is not None:
        found = f"{total:,} batches do not make an optimizer step of {group:,}"
    way_out = f"Read with at most {total // bound.merge:,} ranks, lower the batch size, or give last=PadPartial"
    if not total and numbering.skips:
        found, way_out = "all of its batches are skipped", "stream.skipped() lists them"
    elif not total:
        found, way_out = "no batch is left", "Lower the batch size, loosen the filters, or give last=KeepPartial"
    elif bound.deal is not None and total < group:
        way_out = f"Give step_batches of at most {total:,}, lower the batch size, or give last=PadPartial"
    elif total < bound.merge:
        way_out = "Lower merge or the batch size, or give last=PadPartial"
    elif not isinstance(numbering.last, DropPartial):
        found = f"its {total:,} batches go to the ranks before it"
    msg = f"iter: rank {bound.rank:,} gets nothing in epoch {epoch:,}: {found} ({group:,} batches a step). {way_out}"
    warn(msg)

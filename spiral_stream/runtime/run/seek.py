"""Where `seek` goes: a position given as numbers, such as steps or samples (docs/decisions/0067).

A place is an epoch and a number of global batches, so a step is arithmetic: it is that many times the batches of a step.
Only whether the epoch has the place, and how many steps the epochs before it have, is asked of the numbering. Of counted
batches both are arithmetic; of formed ones, chapters are counted, within the limits that `batch` and `len` have.
"""

from typing import Any, Final, final

from spiral_stream.arguments import as_integer, door
from spiral_stream.batching import tail
from spiral_stream.cursor import Cursor
from spiral_stream.errors import BindError, ResumeError, StreamError, shown
from spiral_stream.planner.binding.bindings import Bound, epoch_number
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.steps import Steps, delivered_at
from spiral_stream.runtime.run.position import RunPosition
from spiral_stream.runtime.run.stream_run import StreamRun
from spiral_stream.sampling.order import LARGEST

_WALKED: Final = 1 << 16  # epochs whose steps are added up


@final
class SeekOfRun:
    """Moves a run to a place that is named by numbers.

    Args:
        run: the run.
    """

    def __init__(self, run: StreamRun) -> None:
        self._run = run

    @door(BindError)
    def seek(self, *, epoch: int | None = None, batch: int | None = None, step: int | None = None) -> None:
        """Go to a place of which only the number is known; `load_state_dict` checks plan and data too.

        What comes next is what a run of this plan, with the present ranks and merge, delivers there: ``seek(step=1000)``
        goes on after 1,000 steps, counted over epochs from epoch 0. Where batches are counted this is arithmetic. Where a
        formation decides, the chapters before the place are counted: with ``step`` alone, whole epochs.

        Args:
            epoch: the epoch; alone, its start.
            batch: the global batch that comes next, as `batch` and `ledger` number it; of the present epoch without
                ``epoch``. It means the same for every number of ranks.
            step: how many steps of this rank were done before; of ``epoch``, if that is given, else of the run.

        Raises:
            BindError: a number is wrong, or ``batch`` and ``step`` are both given, or nothing is.
            ResumeError: the epoch has no such place, or the run skips the batch.
            StreamError: a loop, or a worker of a DataLoader, reads the stream; or chapters before the place are not counted, and
                that takes long. Says how long, and what counts them.

        Examples:
            >>> stream.seek(step=4)
            >>> next(iter(stream))["id"] == stream.ledger(4)
            True
        """
        run = self._run
        if run.delivery.worker() is not None:
            msg = "seek: this is a worker of a DataLoader. Call it in the main process, which workers follow"
            raise StreamError(msg)
        run.passes.need_idle("seek")
        run.position.move(sought(run.position, run.numbering(), run.bound(), run.opening.rebase, epoch, batch, step))
        run.changed("seek")


def sought(
    position: RunPosition, numbering: RunBatches, bound: Bound, rebase: Rebase | None, epoch: Any, batch: Any, step: Any
) -> Cursor:
    """Return the place that `seek` names, as every rank knows it; an epoch's end is the start of the next one.

    Args:
        position: where the stream stands.
        numbering: which batches there are.
        bound: the run's world size and merge.
        rebase: the run's, if it has one.
        epoch: the epoch; None takes the present one for ``batch``, and counts ``step`` from epoch 0 on.
        batch: number of the global batch that comes next.
        step: steps done before the place.

    Raises:
        BindError: the arguments name no place, or two.
        ResumeError: there is no such place.
        StreamError: chapters before it are not counted, and counting them takes long.
    """
    if (epoch, batch, step) == (None, None, None) or (batch is not None and step is not None):
        found = "no place is named" if batch is None else "batch= and step= name two places"
        msg = f"seek: {found}. Give epoch=, epoch= and batch=, or step= (of the epoch with epoch=, else of the run)"
        raise BindError(msg)
    count = _number("batch", batch) if step is None else _number("step", step)
    try:
        if epoch is not None or step is None:
            at = position.epoch if epoch is None else epoch_number(epoch, "seek")
        else:
            at, count = _epoch_of(position, numbering, bound, rebase, count)
        if rebase is not None and at < rebase.epoch:
            msg = (
                f"seek: epoch {at:,} lies before epoch {rebase.epoch:,}, in which the run was rebased. Seek in a stream of "
                "the plan and data that it had before"
            )
            raise ResumeError(msg)
        drawn = position.drawn(at)
        if step is None:
            return _after_batches(numbering, at, drawn, bound, count)
        return _after_steps(numbering, at, drawn, bound, count)
    except IndexError as error:  # of a batch, or of a mixture that has no such epoch
        msg = f"seek: there is no such place: {error}"
        raise ResumeError(msg) from error


def _number(name: str, value: Any) -> int:
    """Return a number of batches or steps; 0 if there is none.

    Raises:
        BindError: it is not a whole number from 0 up.
    """
    found = 0 if value is None else as_integer(value)
    if found is None or not 0 <= found <= LARGEST:
        msg = f"seek: {name}={shown(value)}. Give a whole number from 0 up, as a state has it"
        raise BindError(msg)
    return found


def _epoch_of(
    position: RunPosition, numbering: RunBatches, bound: Bound, rebase: Rebase | None, step: int
) -> tuple[int, int]:
    """Return the epoch of a step that is counted from epoch 0 on, and the steps before it in that epoch."""
    if rebase is not None:
        msg = "seek: the run was rebased, so its first epochs had other steps. Give the epoch too: seek(epoch=..., step=...)"
        raise ResumeError(msg)
    epoch = 0
    while True:
        steps = _steps(numbering, position.drawn(epoch), bound)
        if not steps:
            msg = (
                f"seek: epoch {epoch:,} has no step of {bound.world_size:,} ranks with merge={bound.merge:,}. Bind fewer, or "
                "give epoch="
            )
            raise ResumeError(msg)
        if step < steps:
            return epoch, step
        if epoch == 0 and numbering.alike(position.drawn):
            return epoch_number(step // steps, "seek"), step % steps
        if epoch == _WALKED:
            msg = (
                f"seek: the step lies past epoch {_WALKED:,}, and epochs may differ in length. Give the epoch too: "
                "seek(epoch=..., step=...)"
            )
            raise ResumeError(msg)
        epoch, step = epoch + 1, step - steps


def _steps(numbering: RunBatches, drawn: int, bound: Bound) -> int:
    """Return the steps of an epoch that any rank makes."""
    numbering.limits.need_countable(drawn, "seek")
    return tail.steps(numbering.last, numbering.total(drawn), bound.world_size, bound.merge, 0, bound.together)


def _need_border(said: str, count: int, together: int, what: str) -> None:
    """Refuse a place inside an optimizer step, whose batches are dealt anew for other ranks.

    Raises:
        ResumeError: says which places there are.
    """
    if inside := count % together:
        msg = (
            f"seek: {said} lies inside an optimizer step of {together:,} {what}, which ranks share. Give one at a border, "
            f"such as {count - inside:,} or {count - inside + together:,}"
        )
        raise ResumeError(msg)


def _after_batches(numbering: RunBatches, epoch: int, drawn: int, bound: Bound, number: int) -> Cursor:
    """Return the place before a global batch, by its number."""
    before = numbering.skips.delivered(drawn, number)
    if before is None:
        msg = f"seek: batch {number:,} of epoch {epoch:,} is skipped. Give another; stream.skipped() lists what is"
        raise ResumeError(msg)
    steps, rest = divmod(before, bound.world_size * bound.merge)
    if bound.deal is not None:
        _need_border(f"batch={number:,}", before, bound.together, "batches")
    if before:
        numbering.store.limits.need_near(drawn, numbering.skips.number(drawn, before - 1), "seek")
        if not numbering.exists(drawn, before - 1):
            raise _beyond(numbering, epoch, drawn, f"batch {number:,}")
    position = Cursor(epoch).enter(*bound.shape).advanced(steps)
    if rest:  # batches that make no step of these ranks count as one, as after a change of ranks
        return position.enter(rest, 1).advanced(1)
    return _or_next(numbering, drawn, bound, position)


def _after_steps(numbering: RunBatches, epoch: int, drawn: int, bound: Bound, step: int) -> Cursor:
    """Return the place after some steps of an epoch."""
    if bound.deal is not None:
        _need_border(f"step={step:,}", step, bound.together // (bound.world_size * bound.merge), "steps of this rank")
    position = Cursor(epoch).enter(*bound.shape)
    last = position.segments[-1].first(step) - 1  # the last batch, unless the last step is short
    if last > LARGEST:
        raise _beyond(numbering, epoch, drawn, f"step {step:,}")
    if step:
        numbering.store.limits.need_near(drawn, numbering.skips.number(drawn, last), "seek")
        if delivered_at(numbering, drawn, position.segments[-1], step - 1, 0) is None:
            raise _beyond(numbering, epoch, drawn, f"step {step:,}")
    return _or_next(numbering, drawn, bound, position.advanced(step))


def _or_next(numbering: RunBatches, drawn: int, bound: Bound, position: Cursor) -> Cursor:
    """Return the place, or the start of the next epoch if no rank has a step from it on."""
    inside = not position.batch or Steps(numbering, drawn, position, bound.turn).there(position.step)
    return position if inside else position.next_epoch()


def _beyond(numbering: RunBatches, epoch: int, drawn: int, what: str) -> ResumeError:
    total = numbering.total(drawn)
    msg = (
        f"seek: {what} lies beyond the end of epoch {epoch:,}, which has {total:,} batches. Give a place inside it, or count "
        "steps over epochs with step= alone"
    )
    return ResumeError(msg)

"""`Leg`: batches that one attempt of a run delivered in a row, within one epoch and without a change between them.

A leg is data: the saved state where it begins, with all edits in it, and a range of batches. Which samples it delivered
follows from both. A bare state answers for its present epoch alone: what it says of earlier ones is that nothing is recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from spiral_stream.cursor import Cursor, Segment
from spiral_stream.errors import ResumeError


@final
@dataclass(frozen=True, slots=True, repr=False)
class Leg:
    """Batches delivered in a row.

    Attributes:
        attempt: of the run; empty for a bare state.
        number: of the leg within its attempt, from 0.
        why: what began it, such as ``open``, ``resume``, ``skip``; ``state`` for a bare state.
        plan: the plan as JSON values, as `catalog.save_stream` stores it; None if only the state's fingerprint names it.
        state: the stream's state where the leg begins: plan, data versions, seed, edits, epoch, batch, step, segments.
        epoch: the epoch of its batches.
        first: its first batch, counted as in ``state["batch"]``: by delivery, so what follows a skipped batch moves up.
        end: the batch after its last one.
        first_step: the step of the run, over epochs, that delivered the first batch; 0 of a bare state, which knows the steps
            of its epoch alone.
        world_size: ranks that batches were delivered to.
        merge: batches that a rank got as one.
        known: False where nothing is recorded: of the epochs of a bare state up to ``epoch``.

    Examples:
        >>> run = catalog.run("walked", stream)
        >>> batches = list(stream)
        >>> run.close()
        >>> [(leg.epoch, leg.batches) for leg in run.legs()]
        [(0, 6)]
    """

    attempt: str
    number: int
    why: str
    plan: Mapping[str, Any] | None
    state: Mapping[str, Any]
    epoch: int
    first: int
    end: int
    first_step: int
    world_size: int
    merge: int
    known: bool = True

    @property
    def batches(self) -> int:
        """How many batches it delivered."""
        return self.end - self.first if self.known else 0

    def __repr__(self) -> str:
        of = f" of attempt {self.attempt}" if self.attempt else ""
        batches = f"epoch {self.epoch:,}, batches {self.first:,} to {self.end:,}" if self.known else "not recorded"
        return f"<Leg {self.number}{of}, {self.why}: {batches}>"

    def step_of(self, number: int) -> int:
        """Return the step of the run that delivered one of its batches; of a bare state, the step of the epoch.

        Args:
            number: counted as ``first`` is.
        """
        if not self.attempt:  # its state knows the ranks that the epoch had before
            return Cursor.from_json(self.state).batch_to_step(number)[0]
        return self.first_step + (number - self.first) // (self.world_size * self.merge)


def leg_rows(legs: Sequence[Leg]) -> list[dict[str, Any]]:
    """Return what is shown of legs."""
    return [
        {
            "attempt": each.attempt or "-", "leg": each.number, "began with": each.why, "epoch": each.epoch,
            "first batch": each.first, "end": each.end, "first step": each.first_step, "ranks": each.world_size,
            "merge": each.merge, "recorded": each.known,
        }
        for each in legs
    ]  # fmt: skip


def legs_of_state(state: Mapping[str, Any], plan: Mapping[str, Any] | None = None) -> tuple[Leg, ...]:
    """Return what a bare state says: a leg of its present epoch, after one of the earlier epochs, which is not recorded.

    A state has the edits of its run as they stand. Skips say from which batch on they hold, and a rebase begins an epoch
    or its rest, so the batches of the present epoch follow from them.

    Args:
        state: what `state_dict` returned.
        plan: as in `Leg`.

    Raises:
        ResumeError: the state's place cannot be read.
    """
    cursor = Cursor.from_json(state)
    last = cursor.segments[-1] if cursor.segments else Segment(cursor.epoch, 0, 0, 1, 1)
    here = Leg("", 0, "state", plan, state, cursor.epoch, 0, cursor.batch, 0, last.world_size, last.merge)
    if not cursor.epoch:
        return (here,)
    return replace(here, epoch=cursor.epoch - 1, end=0, known=False), replace(here, number=1)


def legs_of_states(states: Sequence[Mapping[str, Any]]) -> tuple[Leg, ...]:
    """Return what several states of one run say: a leg per epoch, as far as the last state of the epoch goes.

    What comes between them is not recorded: earlier epochs without a state, and the rest of each epoch but the last.

    Args:
        states: what `state_dict` returned, in any order.

    Raises:
        ResumeError: a state's place cannot be read; or two states are of different runs: of other seeds.
    """
    if len(states) == 1:
        return legs_of_state(states[0])
    seeds = {state.get("run_seed") for state in states}
    if len(seeds) > 1:
        msg = (
            f"state: the states have run seeds {', '.join(sorted(map(str, seeds)))}, so they are of different runs. Give "
            "states of one run; spiral diff compares two"
        )
        raise ResumeError(msg)
    ordered = sorted((Cursor.from_json(state) for state in states), key=lambda cursor: (cursor.epoch, cursor.batch))
    saved = {(cursor.epoch, cursor.batch): state for cursor, state in ((Cursor.from_json(s), s) for s in states)}
    out, epoch = list[Leg](), 0
    for cursor in {cursor.epoch: cursor for cursor in ordered}.values():
        here = legs_of_state(saved[cursor.epoch, cursor.batch])[-1]
        if cursor.epoch > epoch:
            out.append(replace(here, epoch=cursor.epoch - 1, end=0, known=False))
        out.append(here)
        epoch = cursor.epoch
    return tuple(replace(leg, number=k) for k, leg in enumerate(out))


def known_legs(legs: Sequence[Leg]) -> list[Leg]:
    """Return the legs that are recorded."""
    return [leg for leg in legs if leg.known]

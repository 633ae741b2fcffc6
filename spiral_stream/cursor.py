"""Where a run stands, and how that position is saved.

A place is an epoch and a batch number: how many global batches all ranks together have been given. It means the same on
every rank and for every world size. Saving and loading it costs the same wherever it is. A list of segments, one per
(world size, merge) that the run has used, maps steps to batches (docs/decisions/0025). The place after an epoch's last batch is
the start of the next epoch (docs/decisions/0018). The whole saved state of a stream is `planner.state.saved_state.SavedState`.

A run that binds how many batches an optimizer step has (docs/decisions/0087) delivers the batches of a step in another order.
Then numbers here count delivery, and only at the borders of those steps do they say which batches were delivered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, Final

from spiral_stream.arguments import is_integer
from spiral_stream.errors import ResumeError, shown
from spiral_stream.sampling.assignment import batches_of, owner
from spiral_stream.sampling.dealing import POLICIES, StepDeal

STATE_VERSION: Final = 1
LAST_EPOCH: Final = (1 << 31) - 1  # so that 64-bit arithmetic with uses and keys cannot overflow
_LARGEST: Final = 1 << 62  # bound on every other number of a place


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of steps that take ``world_size * merge`` batches each; ``first_step`` begins at ``first_batch``.

    With a ``deal`` they are microsteps, and ``deal.step_batches`` batches make an optimizer step; the first begins here too.
    """

    epoch: int
    first_batch: int
    first_step: int
    world_size: int
    merge: int
    deal: StepDeal | None = None

    @property
    def group(self) -> int:
        """Batches per step, over all ranks."""
        return self.world_size * self.merge

    @property
    def together(self) -> int:
        """Batches that are delivered all or none, over all ranks: of an optimizer step, if the run says so, else of a step."""
        return self.group if self.deal is None else self.deal.step_batches

    def border(self, number: int) -> int:
        """Return where the step begins, or the optimizer step, that delivers a batch of the segment."""
        return number - (number - self.first_batch) % self.together

    def batches(self, step: int, rank: int) -> range:
        """Return the batch numbers that ``rank`` gets at ``step``."""
        return batches_of(rank, self.first(step), self.merge)

    def first(self, step: int) -> int:
        """Return the first batch number of a step."""
        return self.first_batch + (step - self.first_step) * self.world_size * self.merge


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run stands: an epoch, how many of its global batches were delivered, and in which steps."""

    epoch: int = 0
    batch: int = 0
    step: int = 0  # steps done in this epoch
    segments: tuple[Segment, ...] = field(default=())

    def enter(self, world_size: int, merge: int, deal: StepDeal | None = None) -> "Cursor":
        """Return the same place, from which the run goes on with this world size, merge and deal.

        Inside an optimizer step it is the step's beginning, unless nothing changes.
        """
        last = self.segments[-1] if self.segments else None
        shape = world_size, merge, deal
        if last is not None and last.epoch == self.epoch and (last.world_size, last.merge, last.deal) == shape:
            return self
        at = self.bordered()
        segment = Segment(at.epoch, at.batch, at.step, world_size, merge, deal)
        others = tuple(s for s in at.segments if (s.epoch, s.first_batch) != (at.epoch, at.batch))
        return replace(at, segments=(*others, segment))

    def bordered(self) -> "Cursor":
        """Return the last place at which a state may stand: inside an optimizer step that is the step's beginning."""
        last = self.segments[-1] if self.segments else None
        if last is None or last.deal is None or self.batch == last.border(self.batch):
            return self
        batch = last.border(self.batch)
        return replace(self, batch=batch, step=last.first_step + (batch - last.first_batch) // last.group)

    def advanced(self, steps: int) -> "Cursor":
        """Return the place after ``steps`` more steps of the current segment.

        Raises:
            ResumeError: ``steps`` is not a whole number from 0 up.
        """
        try:
            count = -1 if isinstance(steps, bool) else index(steps)
        except TypeError:
            count = -1
        if count < 0:
            msg = f"state_dict: delivered={shown(steps)}. Give the batches that the loop has had, a whole number from 0 up"
            raise ResumeError(msg)
        batch = self.batch + count * self.segments[-1].group
        return Cursor(self.epoch, batch, self.step + count, self.segments)

    def next_epoch(self) -> "Cursor":
        """Return the start of the next epoch."""
        return Cursor(self.epoch + 1, 0, 0, ())

    def step_to_batches(self, step: int, rank: int) -> range:
        """Which batches ``rank`` got, or will get, at a step of the current epoch."""
        here = [s for s in self.segments if s.epoch == self.epoch and s.first_step <= step]
        if not here:
            msg = f"step {step} of epoch {self.epoch} lies before the first recorded one. Pass the state of the run that made it"
            raise ResumeError(msg)
        return here[-1].batches(step, rank)

    def segment_of(self, number: int) -> Segment:
        """Return the segment in which a batch of the present epoch was or will be delivered."""
        return [s for s in self.segments if s.first_batch <= number][-1]

    def batch_to_step(self, number: int) -> tuple[int, int]:
        """Return the step at which a batch of the present epoch was or will be delivered, and the rank that gets it."""
        segment = self.segment_of(number)
        step, rank = owner(number - segment.first_batch, segment.world_size, segment.merge)
        return segment.first_step + step, rank

    def last_step(self) -> tuple[int, Segment] | None:
        """Return the last step that was delivered, and its segment; None at an epoch's start."""
        done = [segment for segment in self.segments if segment.first_step < self.step]
        return (self.step - 1, done[-1]) if done else None

    def to_json(self) -> dict[str, Any]:
        """Return the place as JSON values."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "segments": [
                [s.epoch, s.first_batch, s.first_step, s.world_size, s.merge, *(s.deal.to_json() if s.deal else ())]
                for s in self.segments
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Cursor":
        """Read `to_json` back.

        Raises:
            ResumeError: a value is missing, is not a whole number from 0 up, or contradicts another.
        """
        try:
            rows = [list(row) for row in data["segments"]]
            segments = tuple(_segment_of(row) for row in rows)
            numbers = [data["epoch"], data["batch"], data["step"], *(number for row in rows for number in row[:5])]
        except (KeyError, TypeError, ValueError) as error:
            msg = (
                f"resume: the state's place cannot be read ({shown(error)}). Pass what state_dict() returned, unchanged"
            )
            raise ResumeError(msg) from error
        if not all(is_integer(n, 0, _LARGEST) for n in numbers):
            msg = "resume: the state's place holds something other than whole numbers from 0 up. Pass what state_dict() returned"
            raise ResumeError(msg)
        read = cls(data["epoch"], data["batch"], data["step"], segments)
        if (found := read._contradiction()) is not None:
            msg = f"resume: the state's place cannot be: {found}. Pass what state_dict() returned, unchanged"
            raise ResumeError(msg)
        return read

    def _contradiction(self) -> str | None:
        """Say why no run can stand here; None if one can."""
        if self.epoch > LAST_EPOCH:
            return f"epoch {self.epoch} lies past {LAST_EPOCH}"
        if not self.segments:
            return (
                None if self.batch == self.step == 0 else f"batch {self.batch} and step {self.step} without a segment"
            )
        if any(s.epoch != self.epoch or not s.group for s in self.segments):
            return f"a segment belongs to another epoch than {self.epoch}, or to no rank"
        ends = [*((s.first_batch, s.first_step) for s in self.segments[1:]), (self.batch, self.step)]
        for at, (segment, (batch, step)) in enumerate(zip(self.segments, ends, strict=True), 1):
            if (
                step < segment.first_step
                or segment.first(step) != batch
                or (step == segment.first_step and at < len(ends))
            ):
                return f"segment {at} of {len(ends)} does not lead from its first batch to batch {batch} at step {step}"
            if segment.together % segment.group or batch != segment.border(batch):
                return f"segment {at} of {len(ends)} ends at batch {batch}, inside an optimizer step"
        return None


def _segment_of(row: list[Any]) -> Segment:
    """Read a segment.

    Raises:
        ValueError: it has another number of values, or this version deals no optimizer steps so.
    """
    epoch, first_batch, first_step, world_size, merge, *dealt = row
    if not dealt:
        return Segment(epoch, first_batch, first_step, world_size, merge)
    step_batches, policy = dealt
    if policy not in POLICIES or not is_integer(step_batches, 1, _LARGEST):
        msg = f"a deal of {shown(dealt)}"
        raise ValueError(msg)
    return Segment(epoch, first_batch, first_step, world_size, merge, StepDeal(step_batches, policy))

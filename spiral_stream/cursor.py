"""Where a run stands, and its saved form.

The place is (epoch, batch number): how many global batches the ranks have been
given together. It means the same on every rank and world size, and it costs the
same to save and to load wherever it is. How steps map to batches is a list of
segments, one for every (world size, merge) the run has used (decision 7).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, Final, SupportsIndex

from spiral_stream.errors import ResumeError

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Segment:
    """From ``first_step`` on, step s takes ``world_size * merge`` batches, the first at ``first_batch``."""

    epoch: int
    first_batch: int
    first_step: int
    world_size: int
    merge: int

    def batches(self, step: int, rank: int) -> range:
        """The batch numbers that ``rank`` gets at ``step``."""
        start = self.first_batch + ((step - self.first_step) * self.world_size + rank) * self.merge
        return range(start, start + self.merge)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run stands: an epoch, global batches delivered in it, and how it got there."""

    epoch: int = 0
    batch: int = 0
    step: int = 0  # steps of the run so far in this epoch
    segments: tuple[Segment, ...] = field(default=())

    def enter(self, world_size: int, merge: int) -> "Cursor":
        """The same place, going on with this world size and merge."""
        last = self.segments[-1] if self.segments else None
        if last is not None and last.epoch == self.epoch and (last.world_size, last.merge) == (world_size, merge):
            return self
        segment = Segment(self.epoch, self.batch, self.step, world_size, merge)
        kept = tuple(s for s in self.segments if (s.epoch, s.first_batch) != (self.epoch, self.batch))
        return replace(self, segments=(*kept, segment))

    def advanced(self, steps: int) -> "Cursor":
        """The place after ``steps`` more steps of the current segment.

        Raises:
            ResumeError: that is no whole number from 0 up.
        """
        if not isinstance(steps, SupportsIndex) or isinstance(steps, bool) or index(steps) < 0:
            msg = f"state_dict: delivered={steps!r}; give the batches that the loop has had, a whole number from 0 up"
            raise ResumeError(msg)
        steps, current = index(steps), self.segments[-1]
        return replace(self, batch=self.batch + steps * current.world_size * current.merge, step=self.step + steps)

    def next_epoch(self) -> "Cursor":
        """The canonical form of an exhausted epoch: the beginning of the next."""
        return Cursor(self.epoch + 1, 0, 0, ())

    def step_to_batches(self, step: int, rank: int) -> range:
        """Which batches ``rank`` got, or will get, at a step of the current epoch."""
        here = [s for s in self.segments if s.epoch == self.epoch and s.first_step <= step]
        if not here:
            msg = f"step {step} of epoch {self.epoch} lies before this run's record; pass the state of the run that made it"
            raise ResumeError(msg)
        return here[-1].batches(step, rank)

    def segment_of(self, number: int) -> Segment:
        """The segment in which a batch of the current epoch was or will be delivered."""
        return [s for s in self.segments if s.first_batch <= number][-1]

    def batch_to_step(self, number: int) -> tuple[int, int]:
        """The step at which a batch of the current epoch was or will be delivered, and the rank that gets it."""
        segment = self.segment_of(number)
        group = (number - segment.first_batch) // segment.merge
        return segment.first_step + group // segment.world_size, group % segment.world_size

    def to_json(self) -> dict[str, Any]:
        """The place as JSON values."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "segments": [[s.epoch, s.first_batch, s.first_step, s.world_size, s.merge] for s in self.segments],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Cursor":
        """Read `to_json` back.

        Raises:
            ResumeError: a field is missing or is not a whole number from 0 up.
        """
        try:
            numbers = [data["epoch"], data["batch"], data["step"], *(n for s in data["segments"] for n in s)]
            segments = tuple(Segment(*s) for s in data["segments"])
        except (KeyError, TypeError) as error:
            msg = f"resume: the state's place cannot be read ({error!r}); pass what state_dict() returned, unchanged"
            raise ResumeError(msg) from error
        if not all(isinstance(n, int) and n >= 0 for n in numbers):
            msg = "resume: the state's place holds something other than whole numbers from 0 up; pass what state_dict() returned"
            raise ResumeError(msg)
        return cls(data["epoch"], data["batch"], data["step"], segments)

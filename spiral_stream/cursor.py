"""Where a run stands, and its saved form.

The place is (epoch, batch number): how many global batches the ranks have been
given together. It means the same on every rank and world size, and it costs the
same to save and to load wherever it is. How steps map to batches is a list of
segments, one for every (world size, merge) the run has used (docs/decisions/0025). The place
after an epoch's last batch is the start of the next (docs/decisions/0018).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, Final

from spiral_stream.errors import ResumeError, shown

STATE_VERSION: Final = 1
LAST_EPOCH: Final = (1 << 31) - 1  # an epoch takes part in 64-bit arithmetic of uses and keys
_LARGEST: Final = 1 << 62  # of every other number of a place


@dataclass(frozen=True, slots=True)
class Segment:
    """From ``first_step`` on, step s takes ``world_size * merge`` batches, the first at ``first_batch``."""

    epoch: int
    first_batch: int
    first_step: int
    world_size: int
    merge: int

    @property
    def group(self) -> int:
        """Batches of a step, over all ranks."""
        return self.world_size * self.merge

    def batches(self, step: int, rank: int) -> range:
        """The batch numbers that ``rank`` gets at ``step``."""
        start = self.first(step) + rank * self.merge
        return range(start, start + self.merge)

    def first(self, step: int) -> int:
        """The first batch number of a step."""
        return self.first_batch + (step - self.first_step) * self.group


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
        try:
            count = -1 if isinstance(steps, bool) else index(steps)
        except TypeError:
            count = -1
        if count < 0:
            msg = f"state_dict: delivered={shown(steps)}; give the batches that the loop has had, a whole number from 0 up"
            raise ResumeError(msg)
        batch = self.batch + count * self.segments[-1].group
        return Cursor(self.epoch, batch, self.step + count, self.segments)

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

    def last_step(self) -> tuple[int, Segment] | None:
        """The step that was delivered last, and its segment; None at an epoch's start."""
        done = [segment for segment in self.segments if segment.first_step < self.step]
        return (self.step - 1, done[-1]) if done else None

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
            ResumeError: a field is missing, is not a whole number from 0 up, or contradicts another.
        """
        try:
            rows = [list(row) for row in data["segments"]]
            numbers = [data["epoch"], data["batch"], data["step"], *(number for row in rows for number in row)]
            segments = tuple(Segment(*row) for row in rows)
        except (KeyError, TypeError) as error:
            msg = (
                f"resume: the state's place cannot be read ({shown(error)}); pass what state_dict() returned, unchanged"
            )
            raise ResumeError(msg) from error
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _LARGEST for n in numbers):
            msg = "resume: the state's place holds something other than whole numbers from 0 up; pass what state_dict() returned"
            raise ResumeError(msg)
        read = cls(data["epoch"], data["batch"], data["step"], segments)
        if (found := read._contradiction()) is not None:
            msg = f"resume: the state's place cannot be: {found}; pass what state_dict() returned, unchanged"
            raise ResumeError(msg)
        return read

    def _contradiction(self) -> str | None:
        """What no run can have come to, in words."""
        if self.epoch > LAST_EPOCH:
            return f"epoch {self.epoch} lies past {LAST_EPOCH}"
        if not self.segments:
            return (
                None if self.batch == self.step == 0 else f"batch {self.batch} and step {self.step} without a segment"
            )
        if any(s.epoch != self.epoch or not s.group for s in self.segments):
            return f"a segment is of another epoch than {self.epoch}, or of no rank"
        ends = [*((s.first_batch, s.first_step) for s in self.segments[1:]), (self.batch, self.step)]
        for at, (segment, (batch, step)) in enumerate(zip(self.segments, ends, strict=True), 1):
            if (
                step < segment.first_step
                or segment.first(step) != batch
                or (step == segment.first_step and at < len(ends))
            ):
                return f"segment {at} of {len(ends)} does not lead from its first batch to batch {batch} at step {step}"
        return None

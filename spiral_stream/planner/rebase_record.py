"""The record of a run that went on with another plan; the state keeps it (docs/decisions/0013)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from spiral_stream.errors import ResumeError, shown
from spiral_stream.sampling.left_over import LeftOver
from spiral_stream.sampling.order import LARGEST


@final
@dataclass(frozen=True, slots=True)
class Rebase:
    """The epoch that began with this plan, and what each stream of the earlier plan had left to deliver."""

    epoch: int
    left_overs: tuple[tuple[str, LeftOver], ...]

    def left_over(self, stream: str) -> LeftOver | None:
        """Return what a stream has left; None for a stream that the earlier plan did not have."""
        return dict(self.left_overs).get(stream)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        streams = {name: {"left": [list(each) for each in c.left], "then": c.then} for name, c in self.left_overs}
        return {"epoch": self.epoch, "streams": streams}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> "Rebase | None":
        """Read `to_json` back.

        Raises:
            ResumeError: it cannot be read.
        """
        if data is None:
            return None
        try:
            left_overs = tuple(
                (str(name), LeftOver(tuple((first, n) for first, n in each["left"]), each["then"]))
                for name, each in data["streams"].items()
                if _need_ranges(each["left"], each["then"])
            )
            epoch = data["epoch"]
            _need_counts(epoch)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"resume: the state's rebase cannot be read ({shown(error)}). Pass what state_dict() returned, unchanged"
            raise ResumeError(msg) from error
        return cls(epoch, left_overs)


def _need_ranges(left: Any, then: Any) -> bool:
    """Refuse ranges that are empty, overlap, do not ascend, or lie after the uses that follow them."""
    _need_counts(then, *(number for pair in left for number in pair))
    ends = [0, *(first + count for first, count in left)]
    begins = [*(first for first, _ in left), then]
    if any(begin < end for begin, end in zip(begins, ends, strict=True)) or any(count == 0 for _, count in left):
        msg = "its ranges do not ascend"
        raise ValueError(msg)
    return True


def _need_counts(*numbers: Any) -> None:
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= LARGEST for n in numbers):
        msg = "it holds something other than whole numbers from 0 up"
        raise ValueError(msg)

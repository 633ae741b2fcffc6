"""The record of a rebase in a saved state: the run went on with another plan (docs/decisions/0013)."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from spiral_stream.arguments import is_integer
from spiral_stream.errors import ResumeError, shown
from spiral_stream.sampling.mixing.remainder import LeftOver, as_ranges
from spiral_stream.sampling.order import LARGEST

ALONE: Final = ""  # the one stream of a plan without a mixture
_MANY: Final = 64  # ranges that are always listed
_MANY_OF_A_STREAM: Final = 1 << 14  # in a mixture; old states list fewer, and their checksum covers the form
_BITS_PER_RANGE: Final = 100  # about as many characters as a listed range takes


@final
@dataclass(frozen=True, slots=True)
class Rebase:
    """The epoch that began with this plan, and what each stream of the earlier plan had left to deliver.

    Without a mixture it is the epoch that the earlier plan began, and what is left of it in the order of this plan.
    """

    epoch: int
    left_overs: tuple[tuple[str, LeftOver], ...]

    def left_over(self, stream: str) -> LeftOver | None:
        """Return what a stream has left; None for a stream that the earlier plan did not have."""
        return dict(self.left_overs).get(stream)

    def is_of(self, rows: int) -> bool:
        """Return whether it is what a plan without a mixture has left of one epoch of this many rows."""
        left_over = self.left_over(ALONE)
        begin, end = self.epoch * rows, (self.epoch + 1) * rows
        if left_over is None or len(self.left_overs) > 1 or not left_over.left:
            return False
        return left_over.then == end and left_over.left[0][0] >= begin

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        streams = {name: _packed(c, _MANY if name == ALONE else _MANY_OF_A_STREAM) for name, c in self.left_overs}
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
            read = {str(name): (_ranges(each), each["then"]) for name, each in data["streams"].items()}
            left_overs = tuple(
                (name, LeftOver(tuple((first, n) for first, n in left), then))
                for name, (left, then) in read.items()
                if _need_ranges(left, then)
            )
            epoch = data["epoch"]
            _need_counts(epoch)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"resume: the state's rebase cannot be read ({shown(error)}). Pass what state_dict() returned, unchanged"
            raise ResumeError(msg) from error
        return cls(epoch, left_overs)


def _listed(left_over: LeftOver) -> dict[str, Any]:
    return {"left": [list(each) for each in left_over.left], "then": left_over.then}


def _packed(left_over: LeftOver, many: int) -> dict[str, Any]:
    """Where there are many ranges, one bit per use is shorter."""
    if len(left_over.left) <= many or left_over.then - left_over.left[0][0] > _BITS_PER_RANGE * len(left_over.left):
        return _listed(left_over)
    begin = left_over.left[0][0]
    bits = np.zeros(left_over.then - begin, dtype=np.bool_)
    for first, count in left_over.left:
        bits[first - begin : first - begin + count] = True
    return {"first": begin, "bits": b64encode(np.packbits(bits).tobytes()).decode(), "then": left_over.then}


def _ranges(held: Mapping[str, Any]) -> Any:
    """The ranges of one stream, as they are listed or packed."""
    if "bits" not in held:
        return held["left"]
    first, then = held["first"], held["then"]
    _need_counts(first, then)
    data = np.frombuffer(b64decode(held["bits"], validate=True), dtype=np.uint8)
    if len(data) != -(-(then - first) // 8):
        msg = "its bits are cut"
        raise ValueError(msg)
    return as_ranges(np.flatnonzero(np.unpackbits(data, count=then - first)) + first)


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
    if not all(is_integer(n, 0, LARGEST) for n in numbers):
        msg = "it holds something other than whole numbers from 0 up"
        raise ValueError(msg)

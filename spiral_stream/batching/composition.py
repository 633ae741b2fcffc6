"""How the streams of a mixture share a batch: each of all of them, or each of one.

These are the plan's values; the arithmetic is in `stratified` and `one_stream`.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.batching.budget import check_whole
from spiral_stream.batching.formation import Composition
from spiral_stream.errors import PlanError

MAX_BATCHES: Final = 2**20  # ranks of one step


@final
@dataclass(frozen=True, slots=True)
class StratifiedByStream(Composition):
    """Every batch holds each stream's share: after every batch, each stream's count is its target rounded down or up.

    That takes a window in which the others can wait for a stream that comes late; preparing a stream warns of a smaller
    one, with the smallest that does.

    Args:
        column: the column that says which stream a sample is of.

    Raises:
        PlanError: it is no column's name.
    """

    SCARCE: ClassVar[int] = 2  # the version of what it forms in windows that may fill up while a stream is late
    column: str = "stream_id"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            msg = f"StratifiedByStream: column is {self.column!r}. Give the name that mix gives it, 'stream_id'"
            raise PlanError(msg)


@final
@dataclass(frozen=True, slots=True)
class OneStream(Composition):
    """Every batch is of one stream; the streams take turns so that their samples keep the shares.

    Args:
        batches: so many batches in a row share the stream: 1, or the number of ranks for steps of one stream.

    Raises:
        PlanError: it is no such number.
    """

    batches: int = 1

    def __post_init__(self) -> None:
        check_whole("OneStream: batches", self.batches, MAX_BATCHES)

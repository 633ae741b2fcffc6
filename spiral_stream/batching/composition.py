"""How the streams of a mixture share batches: every batch holds all streams, or every batch holds one.

These are the plan's values; the arithmetic is in `stratified` and `one_stream`.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.arguments import check, class_door, integer, text
from spiral_stream.batching.formation import Composition
from spiral_stream.errors import PlanError

MAX_BATCHES: Final = 2**20  # in a row


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class StratifiedByStream(Composition):
    """Every batch holds each stream's share: after every batch, each stream's count is its target rounded down or up.

    This needs a window large enough for the other streams to wait in while one comes late. If the window is too small,
    preparing the stream warns and names the smallest that is large enough.

    Args:
        column: the column that says which stream a sample comes from.

    Raises:
        PlanError: ``column`` is not a name.

    Examples:
        >>> streams = [
        ...     spiral.Stream("web", texts.filter(col("doc_id") < 20), proportion=0.75),
        ...     spiral.Stream("code", texts.filter(col("doc_id") >= 20), proportion=0.25),
        ... ]
        >>> even = (
        ...     spiral.mix(streams)
        ...     .sample(order=shuffle)
        ...     .collate(
        ...         batch_size=8,
        ...         composition=spiral.StratifiedByStream("stream_id"),
        ...         fields={"from": spiral.List("stream_id")},
        ...     )
        ... )
        >>> sorted(even.to_numpy()[0]["from"])
        ['code', 'code', 'web', 'web', 'web', 'web', 'web', 'web']
    """

    SCARCE: ClassVar[int] = 2  # version of the batches it forms if the window may fill up while a stream is late
    column: str = "stream_id"

    def __post_init__(self) -> None:
        check(self, "StratifiedByStream", " is ", column=text("the name that mix gives it, 'stream_id'"))


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class OneStream(Composition):
    """Every batch holds samples of one stream; the streams take turns so that their samples keep the shares.

    Args:
        batches: how many batches in a row come from the same stream. Give the number of ranks if all batches of a step
            should.

    Raises:
        PlanError: ``batches`` is not an integer of at least 1.

    Examples:
        >>> streams = [
        ...     spiral.Stream("web", texts.filter(col("doc_id") < 20), proportion=0.5),
        ...     spiral.Stream("code", texts.filter(col("doc_id") >= 20), proportion=0.5),
        ... ]
        >>> alone = (
        ...     spiral.mix(streams)
        ...     .sample(order=shuffle)
        ...     .collate(batch_size=4, composition=spiral.batching.OneStream(), fields={"from": spiral.List("stream_id")})
        ... )
        >>> len(set(alone.to_numpy()[0]["from"]))
        1
    """

    batches: int = 1

    def __post_init__(self) -> None:
        check(self, "OneStream", " is ", batches=integer(1, MAX_BATCHES))

"""Which samples a delivered batch holds, taken at delivery: what a run's record needs of a batch beside its values.

A batch that is delivered says this only where a run records it (`runs.run`). What is drawn for a batch and what is delivered
differ: samples are refused, others stand in for them, packed rows hold several. So the key is made when the batch is settled,
and it goes with the batch through workers, pinned memory and whatever reads ahead.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Membership
from spiral_stream.fields.sequence import SequenceLayout
from spiral_stream.runtime.columns.samples import Int64, Samples
from spiral_stream.sampling.order import UInt64


class TokenSpans(NamedTuple):
    """Where the tokens of S samples lie in rows of T places."""

    width: int  # T
    lines: Int64  # [S] row of the batch
    starts: Int64  # [S]
    lengths: Int64  # [S]


@final
@dataclass(slots=True, eq=False)
class BatchKey:
    """Which samples a batch holds, and where it stands. Opaque to users; it pickles.

    ``leg`` counts the moves of the stream in the process of the loop, ``epoch_step`` the steps of its epoch; ``step`` is the
    step of the run, which the process of the loop knows.
    """

    numbers: range  # of the delivered batches that are joined, as places count them
    ledger: tuple[int, ...]  # their numbers as `ledger` counts them
    counts: Int64  # [numbers] samples of each
    streams: NDArray[np.int32]  # [S]
    rows: UInt64  # [S] surviving rows of the streams
    parts: Int64  # [S]
    size: int  # B, rows of the batch
    lines: Int64 | None = None  # [S] the row of the batch that each sample lies in; None: row i is sample i
    spans: tuple[TokenSpans, ...] = ()
    leg: int = 0
    epoch: int = 0
    epoch_step: int = 0
    after: int = 0  # batches of the epoch that all ranks have had after this step
    step: int | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.rows)


def key_of(
    numbers: range,
    ledger: Iterable[int],
    counts: Iterable[int],
    samples: Samples,
    shape: Membership,
    delivered: Int64 | None,
    layouts: Iterable[SequenceLayout],
) -> BatchKey:
    """Return the key of a batch that is filled.

    Args:
        numbers: of the batches that are joined in it.
        ledger: their numbers as `ledger` counts them.
        counts: how many of the samples each has.
        samples: that it was filled with.
        shape: how they lie in it.
        delivered: which of the filled rows each delivered row holds; None: all rows are delivered as they were filled.
        layouts: where its token sequences lie.
    """
    stream_rows, size, sizes = samples.stream_rows, len(samples), np.fromiter(counts, np.int64)
    streams, rows, parts = np.asarray(stream_rows.streams), stream_rows.rows, samples.parts
    if shape.packing is None and delivered is None and shape.filler is None:  # as most often: row i is sample i
        spans = [TokenSpans(each.T, each.rows, each.starts, each.lengths) for each in layouts]
        return BatchKey(numbers, tuple(ledger), sizes, streams, rows, parts, size, None, tuple(spans))
    of, some, lines = np.repeat(np.arange(len(numbers)), sizes), np.arange(size), np.arange(size)
    size = shape.rows
    if shape.packing is not None:
        lines = shape.packing.rows
    elif delivered is not None:
        some, lines, size = delivered, np.arange(len(delivered)), len(delivered)
    if shape.filler is not None:  # rows that hold a value, and no sample
        held = ~np.isin(some, shape.filler)
        some, lines = some[held], lines[held]
    spans = [TokenSpans(each.T, lines, each.starts[some], each.lengths[some]) for each in layouts]
    left = np.bincount(of[some], minlength=len(numbers)).astype(np.int64)
    return BatchKey(numbers, tuple(ledger), left, streams[some], rows[some], parts[some], size, lines, tuple(spans))


@final
class KeyedBatch(dict[str, Any]):
    """A batch with its key. It is a dict as any batch, and keeps the key when it is copied, pinned, pickled or moved.

    Attributes:
        key: the key; None where somebody has made the batch anew without it.
    """

    __slots__ = ("key",)

    def __init__(self, *args: Any, key: BatchKey | None = None, **values: Any) -> None:
        super().__init__(*args, **values)
        self.key = key

    def to(self, *args: Any, **options: Any) -> Self:
        """Return the batch with what can be moved on another device; accelerate and Lightning call this.

        Args:
            *args: as for ``torch.Tensor.to``.
            **options: likewise.
        """
        moved = {name: each.to(*args, **options) if hasattr(each, "to") else each for name, each in self.items()}
        return type(self)(moved, key=self.key)


@final
class KeysOnTheWay:
    """Takes the keys of the batches of a feed, and gives them to what is delivered of them, in the same order."""

    def __init__(self, feed: Any) -> None:
        self._feed, self._keys = feed, deque[BatchKey | None]()

    def get(self) -> Any:
        """Return the feed's next batch; None after the last."""
        batch = self._feed.get()
        if batch is not None:
            self._keys.append(batch.key)
        return batch

    def at_once(self) -> bool:
        """Return whether `get` returns without waiting."""
        return bool(self._feed.at_once())

    def keyed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the delivered batches with their keys."""
        for batch in batches:
            yield KeyedBatch(batch, key=self._keys.popleft())

"""Where the values of an MDS shard lie: its header, its offsets, and the sizes at the head of each sample.

A shard is ``uint32 samples, uint32 offsets[samples + 1], JSON, samples``; a sample is a uint32 size for each value whose
size varies, then the values. Every size is compared with the others before a byte of a value is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError
from spiral_stream.sources.mds.index import Shard, need_header, unsound

ROWS: Final = 8192  # of a batch
BYTES: Final = 32 << 20  # of the samples of a batch, unless one has more
Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The values of one column for some neighbouring samples."""

    data: memoryview  # of the shard
    first: int  # the first sample
    starts: Int64  # [P]
    lengths: Int64  # [P]
    wrong: list[tuple[int, str]] = field(default_factory=list)  # samples of the span that cannot be read, and why

    def __len__(self) -> int:
        return len(self.starts)

    def bytes_of(self, row: int) -> memoryview:
        """Return the bytes of one value."""
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])]

    def gathered(self) -> pa.LargeBinaryArray:
        """Return all values in one piece, copied by Arrow."""
        return gathered(self.data, self.starts, self.lengths)


def gathered(data: memoryview, starts: Int64, lengths: Int64) -> pa.LargeBinaryArray:
    """Return byte ranges in one piece: those of an array whose even values they are, and whose odd ones are the gaps.

    Args:
        data: that the ranges are of.
        starts: shape [P], ascending; no range overlaps another.
        lengths: shape [P].
    """
    if not len(starts):
        return pa.array([], pa.large_binary())
    begin, end = int(starts[0]), int(starts[-1] + lengths[-1])
    offsets = np.empty(2 * len(starts), np.int64)
    offsets[0::2], offsets[1::2] = starts - begin, starts + lengths - begin
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * len(starts) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data[begin:end])]
    )
    return pieces.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def batches_of(offsets: Int64) -> Iterator[tuple[int, int]]:
    """Yield the first sample of each batch, and one past its last.

    Args:
        offsets: shape [P + 1]: where each sample begins, and where the last ends.
    """
    at, count = 0, len(offsets) - 1
    while at < count:
        far = int(np.searchsorted(offsets, offsets[at] + BYTES, side="right")) - 1
        stop = max(at + 1, min(at + ROWS, far, count))
        yield at, stop
        at = stop


@final
class MdsSamples:
    """The samples of one shard."""

    def __init__(self, path: str, data: memoryview, shard: Shard) -> None:
        """Read and check the header and the offsets.

        Raises:
            SourceError: they contradict the index, or each other.
        """
        self._path, self._data, self._shard = path, data, shard
        count = shard.samples
        head = 4 + 4 * (count + 1)
        found = int(np.frombuffer(data[:4], "<u4")[0]) if len(data) >= 4 else 0  # noqa: PLR2004
        if found != count or len(data) < head:
            raise unsound(
                self._path, f": the shard has {found:,} samples in {len(data):,} bytes, and the index says {count:,}"
            )
        self._offsets = np.frombuffer(data[4:head], "<u4").astype(np.int64)
        first, last = int(self._offsets[0]), int(self._offsets[-1])
        if first < head or last != len(data) or (np.diff(self._offsets) < 0).any():
            raise unsound(
                self._path,
                f": the offsets of its samples go from {first:,} to {last:,}, and it has {len(data):,} bytes",
            )
        need_header(path, bytes(data[head:first]), shard)

    def spans(self) -> Iterator[list[Span]]:
        """Yield a batch of samples at a time, as one span per column.

        Raises:
            SourceError: the sizes of a sample contradict its offsets.
        """
        for at, stop in batches_of(self._offsets):
            yield self._spans(at, stop)

    def _spans(self, at: int, stop: int) -> list[Span]:
        begins, ends = self._offsets[at:stop], self._offsets[at + 1 : stop + 1]
        varying = [size is None for size in self._shard.sizes]
        head = 4 * sum(varying)
        if (short := np.flatnonzero(ends - begins < head)).size:
            raise self._sample(at + int(short[0]), f"has no room for the {head} bytes of its sizes")
        offsets = begins[:, None] + np.arange(head)
        sizes_PV = np.frombuffer(self._data, np.uint8)[offsets].view("<u4").astype(np.int64) if head else None
        starts, spans, k = begins + head, [], 0
        for size in self._shard.sizes:
            if size is None:
                assert sizes_PV is not None
                lengths, k = sizes_PV[:, k], k + 1
            else:
                lengths = np.full(stop - at, size, np.int64)
            spans.append(Span(self._data, at, starts, lengths))
            starts = starts + lengths
        if (wrong := np.flatnonzero(starts != ends)).size:
            row = int(wrong[0])
            have, said = int(ends[row] - begins[row]), int(starts[row] - begins[row])
            raise self._sample(at + row, f"has {have:,} bytes, and its sizes add up to {said:,}")
        return spans

    def _sample(self, row: int, found: str) -> SourceError:
        return unsound(self._path, f": sample {row:,} {found}")

"""Where the samples of a shard of lines lie: JSON objects, or values between separators, one sample after the other.

A meta file is ``uint32 samples, uint32 offsets[samples + 1], JSON``, and the offsets say where each sample begins in the
data. Nothing is quoted: a value holds no separator and no newline. Every offset, the header of separated values, and the
newline after each sample are compared before a value is read.
"""

from collections.abc import Iterator
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import shown
from spiral_stream.sources.mds.index import Shard, need_header, unsound
from spiral_stream.sources.mds.samples import Int64, Span, batches_of, gathered


@final
class LineSamples:
    """The samples of one shard of lines."""

    def __init__(self, path: str, data: memoryview, meta: memoryview, shard: Shard) -> None:
        """Read and check the offsets.

        Raises:
            SourceError: they contradict the index, or the data.
        """
        assert shard.lines is not None
        self._path, self._data, self._shard, self._lines = path, data, shard, shard.lines
        head = 4 + 4 * (shard.samples + 1)
        found = int(np.frombuffer(meta[:4], "<u4")[0]) if len(meta) >= 4 else 0  # noqa: PLR2004
        if found != shard.samples or len(meta) < head:
            raise unsound(self._path, f": the meta file has {found:,} samples, and the index says {shard.samples:,}")
        self._offsets = np.frombuffer(meta[4:head], "<u4").astype(np.int64)
        need_header(path, bytes(meta[head:]), shard)
        names = f"{self._lines.separator.join(shard.names)}{self._lines.newline}" if self._lines.separator else ""
        first, last = int(self._offsets[0]), int(self._offsets[-1])
        if first != len(names.encode()) or last != len(data) or (np.diff(self._offsets) < 0).any():
            raise unsound(
                self._path,
                f": the offsets of its samples go from {first:,} to {last:,}, and it has {len(data):,} bytes",
            )
        if bytes(data[:first]) != names.encode():
            raise unsound(
                self._path,
                f": its first line is {shown(bytes(data[:first]), 60)}, and the index says {shown(names, 60)}",
            )
        self._need_newlines()

    def spans(self) -> Iterator[list[Span]]:
        """Yield a batch of samples at a time: of JSON as one span, of separated values as one span per column."""
        end = len(self._lines.newline.encode())
        for at, stop in batches_of(self._offsets):
            begins, lengths = self._offsets[at:stop], np.diff(self._offsets[at : stop + 1]) - end
            if not self._lines.separator:
                yield [Span(self._data, at, begins, lengths)]
            else:
                yield self._split(at, gathered(self._data, begins, lengths))

    def _need_newlines(self) -> None:
        """Refuse samples that do not end with the newline."""
        mark = np.frombuffer(self._lines.newline.encode(), np.uint8)
        ends = self._offsets[1:]
        ended = np.diff(self._offsets) >= len(mark)
        letters = np.frombuffer(self._data, np.uint8)
        for back, letter in enumerate(mark[::-1], start=1):
            ended[ended] = letters[ends[ended] - back] == letter
        if not ended.all():
            row = int(np.flatnonzero(~ended)[0])
            raise unsound(self._path, f": sample {row:,} does not end with {shown(self._lines.newline)}")

    def _split(self, at: int, samples: pa.LargeBinaryArray) -> list[Span]:
        """The values of samples; one that has too many or too few is noted as wrong."""
        count = len(self._shard.names)
        parts = pc.split_pattern(samples, pattern=self._lines.separator.encode())
        counts = parts.value_lengths().to_numpy().astype(np.int64)
        sound = counts == count
        values = pc.list_flatten(parts.filter(pa.array(sound)))
        _, ends, data = values.buffers()
        borders = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
        begins_PC, ends_PC = borders[:-1].reshape(-1, count), borders[1:].reshape(-1, count)
        # P sound samples, C columns
        view = memoryview(b"") if data is None else memoryview(data).cast("B").toreadonly()
        wrong = [
            (row, f"is one of {counts[row]} values of a line, and the index names {count} columns")
            for row in np.flatnonzero(~sound).tolist()
        ]
        spans = []
        for column in range(count):
            starts, lengths = _spread(begins_PC[:, column], ends_PC[:, column], sound)
            spans.append(Span(view, at, starts, lengths, list(wrong)))
        return spans


def _spread(begins: Int64, ends: Int64, sound: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Starts and lengths of all samples; nothing of those that are not sound."""
    stops = np.zeros(len(sound), np.int64)
    stops[sound] = ends
    starts = np.maximum.accumulate(stops) if len(stops) else stops
    starts[sound] = begins
    return starts, np.where(sound, stops - starts, 0)

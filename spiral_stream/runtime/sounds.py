"""Sound of samples: the bytes that references name, decoded to one part of each recording."""

from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.decoders.sound import decode_sound
from spiral_stream.errors import DataError, renumbered
from spiral_stream.fields.field import write
from spiral_stream.planner.physical import SoundStage
from spiral_stream.planner.streams import split
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sampling.epoch import Places
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import uniforms, view_keys
from spiral_stream.sources.reference import resolve

# P samples, C channels, N values per channel


@final
class SoundField:
    """One field of sound, for samples of one or several streams. Thread-safe."""

    def __init__(self, stage: SoundStage, metrics: Metrics) -> None:
        self._stage, self._metrics = stage, metrics

    def render(
        self, places: Places, references: pa.Array, times: list[pa.Array], keys: UInt64, out_PCN: NDArray[Any]
    ) -> None:
        """Read and decode sound into ``out_PCN``.

        Args:
            places: P samples.
            references: shape [P]: the column.
            times: where each row's segment lies: start and length in ms, shape [P] each; none for whole files.
            keys: shape [P], uint64: random keys of the samples.
            out_PCN: shape [P, C, N], float32 or bfloat16.

        Raises:
            DataError: a recording cannot be decoded; ``row`` is its place in ``places``.
            SourceError: storage failed; likewise.
        """
        stage = self._stage
        with self._metrics.timed("fetch_s"):
            data = self._bytes(places, references)
        self._metrics.read(len(data), {stage.column: sum(map(len, data))})
        draws = np.zeros(len(data))
        if not stage.selection.deterministic:
            draws = uniforms(view_keys(keys, stage.view), "sound", 0, 1)[:, 0]
        starts, lengths = ([each.to_pylist() for each in times]) if times else ([None] * len(data),) * 2
        with self._metrics.timed("transform_s"), self._metrics.timed("decode_s"):
            for row, encoded in enumerate(data):  # decoding takes a millisecond and more per row
                try:
                    segment = _segment(starts[row], lengths[row]) if times else None
                    found = decode_sound(encoded, stage.selection, float(draws[row]), segment, stage.limits)
                    write(found, out_PCN[row])
                except DataError as error:
                    error.row = row
                    raise

    def _bytes(self, places: Places, references: pa.Array) -> list[memoryview]:
        payloads, most = self._stage.payloads, self._stage.limits.bytes
        if len(payloads) == 1:
            return resolve(references, payloads[0].relation.base, most)
        out: list[Any] = [None] * len(places)
        for stream, where in split(places):
            with renumbered(where):
                found = resolve(references.take(pa.array(where)), payloads[stream].relation.base, most)
            for at, each in zip(where.tolist(), found, strict=True):  # moves references: nothing next to decoding
                out[at] = each
        return out


def _segment(start: int | None, length: int | None) -> tuple[int, int]:
    if start is None or length is None:
        msg = "audio: start_time_ms or duration_ms is null. Fill it in, or filter the row out"
        raise DataError(msg)
    return start, length

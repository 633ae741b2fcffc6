"""Sound of samples: the bytes that references name, decoded to one part of each recording."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.decoders.sound.sound import decode_sound
from spiral_stream.decoders.sound.sound_selection import SOUNDS, SoundSelection
from spiral_stream.errors import DataError, renumbered
from spiral_stream.extras import need as need_package
from spiral_stream.fields.field import Field, FieldSpec, write
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan.fields.clips import TIMES, limits_of
from spiral_stream.plan.fields.sounds import is_sound, sound_selection
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.columns.streams import split
from spiral_stream.planner.field_stages import FieldStage, Lowering
from spiral_stream.runtime.columns.samples import as_lists
from spiral_stream.runtime.fetch import chunks, need_all, submitted
from spiral_stream.runtime.fields.draft import TASK_ROWS, Draft
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import uniforms, view_keys
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.resolve import Resolved, resolve, resolve_or_errors

# P samples, C channels, N values per channel


@final
@dataclass(frozen=True, slots=True, eq=False)
class SoundStage(FieldStage):
    """A field of sound: which part of each recording, read anew for every batch."""

    DECODES: ClassVar[bool] = True

    selection: SoundSelection
    limits: SampleLimits
    times: tuple[str, ...]  # columns that say where the row's segment lies in its file; none: it is the whole file
    view: str | None  # of the random numbers

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`."""
        if not is_sound(field):
            return None
        need_package("av", f"collate: field {name!r} (decode={field.decode!r})")
        times = TIMES if set(TIMES) <= set(lowering.have.names) else ()
        payloads, chosen = lowering.payloads(name, field.column), sound_selection(field)
        limits = limits_of(field, SOUNDS)
        return cls(name, field.column, spec, chosen, limits, times, field.view, payloads=payloads)

    def opened(self, lineage: Lineage, metrics: Metrics) -> PayloadField:
        """See `FieldStage`."""
        return SoundField(self, metrics, lineage)

    @property
    def read(self) -> tuple[str, ...]:
        """See `FieldStage`."""
        return (self.column, *self.times)

    @property
    def draws(self) -> bool:
        """See `FieldStage`: the part of a recording."""
        return not self.selection.deterministic

    @property
    def when(self) -> str:
        """See `FieldStage`."""
        return ""

    def task_rows(self, rows: int) -> int:
        """See `FieldStage`."""
        return max(1, rows // 4)

    @property
    def sample_rate(self) -> int | None:
        """See `FieldStage`."""
        return self.selection.sample_rate


@final
class SoundField(PayloadField):
    """A field of one part of a recording per sample."""

    task_rows = TASK_ROWS // 4

    def __init__(self, stage: SoundStage, metrics: Metrics, lineage: Lineage) -> None:
        super().__init__(stage.name, stage.column, stage.payloads)
        self._stage, self._metrics = stage, metrics
        self._keys = lineage.keys(stage.read, lineage.end)

    def start(self, draft: Draft) -> None:
        """See `PayloadField`."""
        stage, at_rows = self._stage, draft.samples.stream_rows
        columns = [draft.samples.columns[key] for key in self._keys]
        references, *times = [as_lists(each) if isinstance(each, Ragged) else each for each in columns]
        shape = (len(at_rows), stage.selection.channels, stage.selection.length)
        out = draft.filling.rows(shape, stage.spec.dtype or "float32")
        draft.fields[stage.name] = out
        batch = _SoundBatch(self, at_rows, references, times, draft.keys, out)
        for start, stop in chunks(len(at_rows), stage.task_rows(draft.filling.task_rows)):
            attempt = partial(draft.refusals.attempt, stage.name, start, stop)
            draft.parts.append(submitted(draft.pool, batch.fetching(start, stop), partial(batch.fill, start, attempt)))

    def fetch_far(self, stream_rows: StreamRows, values: pa.Array | None) -> list[Resolved]:
        """See `PayloadField`."""
        assert values is not None
        return self.fetch(stream_rows, values)

    def waits(self, references: pa.Array) -> bool:
        """Whether any recording comes over a network."""
        return any(names_objects(references, each.relation.base) for each in self._stage.payloads)

    def fetch(self, stream_rows: StreamRows, references: pa.Array) -> list[Resolved]:
        """Fetch what `render` needs for some samples, and waits for otherwise."""
        out: list[Any] = [None] * len(stream_rows)
        with timed(self._metrics, "fetch_s"):
            for stream, where in split(stream_rows):
                some = references.take(pa.array(where))
                found = resolve_or_errors(some, self._stage.payloads[stream].relation.base, self._stage.limits.bytes)
                for at, each in zip(where.tolist(), found, strict=True):
                    out[at] = each
        return out

    def render(
        self,
        stream_rows: StreamRows,
        references: pa.Array,
        times: list[pa.Array],
        keys: UInt64,
        out_PCN: NDArray[Any],
        held: list[Resolved] | None = None,
    ) -> None:
        """Read and decode sound into ``out_PCN``.

        Args:
            stream_rows: P samples.
            references: shape [P]: the column.
            times: where each row's segment lies: start and length in ms, shape [P] each; none for whole files.
            keys: shape [P], uint64: random keys of the samples.
            out_PCN: shape [P, C, N], float32 or bfloat16.
            held: what `fetch` returned for these samples; None reads here.

        Raises:
            DataError: a recording cannot be decoded; ``row`` is its place in ``stream_rows``.
            SourceError: storage failed; likewise.
        """
        stage = self._stage
        with timed(self._metrics, "fetch_s"):
            data = self._bytes(stream_rows, references) if held is None else need_all(held)
        self._metrics.read(len(data), {stage.column: sum(map(len, data))})
        draws = np.zeros(len(data))
        if not stage.selection.deterministic:
            draws = uniforms(view_keys(keys, stage.view), "sound", 0, 1)[:, 0]
        starts, lengths = ([each.to_pylist() for each in times]) if times else ([None] * len(data),) * 2
        with timed(self._metrics, "transform_s"), timed(self._metrics, "decode_s"):
            for row, encoded in enumerate(data):  # decoding takes a millisecond and more per row
                try:
                    segment = _segment(starts[row], lengths[row]) if times else None
                    found = decode_sound(encoded, stage.selection, float(draws[row]), segment, stage.limits)
                    write(found, out_PCN[row])
                except DataError as error:
                    error.row = row
                    raise

    def _bytes(self, stream_rows: StreamRows, references: pa.Array) -> list[memoryview]:
        payloads, most = self._stage.payloads, self._stage.limits.bytes
        if len(payloads) == 1:
            return resolve(references, payloads[0].relation.base, most)
        out: list[Any] = [None] * len(stream_rows)
        for stream, where in split(stream_rows):
            with renumbered(where):
                found = resolve(references.take(pa.array(where)), payloads[stream].relation.base, most)
            for at, each in zip(where.tolist(), found, strict=True):  # moves references: nothing next to decoding
                out[at] = each
        return out


@final
@dataclass(frozen=True, slots=True, eq=False)
class _SoundBatch:
    """One field of sound of one batch, filled piece by piece; P samples."""

    field: SoundField
    stream_rows: StreamRows
    references: pa.Array  # [P]
    times: list[pa.Array]
    keys: UInt64  # [P]
    out: NDArray[Any]  # [P, C, N]

    def fetching(self, start: int, stop: int) -> Callable[[], list[Resolved]] | None:
        """Return what fetches the recordings of a piece; None where nothing waits for a network."""
        some = self.references.slice(start, stop - start)
        return (
            partial(self.field.fetch, self.stream_rows.take(np.arange(start, stop)), some)
            if self.field.waits(some)
            else None
        )

    def fill(
        self, start: int, attempt: Callable[[Callable[[int, int], None]], None], held: list[Resolved] | None
    ) -> None:
        """Decode a piece that begins at ``start``; ``attempt`` is called with what decodes a run of samples."""

        def render(a: int, b: int) -> None:
            some, some_times = self.references.slice(a, b - a), [each.slice(a, b - a) for each in self.times]
            held_rows = None if held is None else held[a - start : b - start]
            part = self.stream_rows.take(np.arange(a, b))
            self.field.render(part, some, some_times, self.keys[a:b], self.out[a:b], held_rows)

        attempt(render)


def _segment(start: int | None, length: int | None) -> tuple[int, int]:
    if start is None or length is None:
        msg = "audio: start_time_ms or duration_ms is null. Fill it in, or filter the row out"
        raise DataError(msg)
    return start, length

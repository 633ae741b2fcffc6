"""Build one batch: membership -> columns -> tokens and pixels -> fields.

Membership and small columns are settled at once. Fields that are costly to decode or to copy are cut into pieces of
consecutive rows. The pieces run in parallel, and each writes straight into its part of the batch's slot.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.formation import Formation, Membership, Packing
from spiral_stream.errors import StreamError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.segments import CuSeqlens
from spiral_stream.fields.sequence import Placed, TokenField
from spiral_stream.integrity.blocks import moment, sound
from spiral_stream.plan.clips import clip_costs
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.physical import ClipStage, ImageStage, PlainStage, SequenceStage, Stages
from spiral_stream.runtime.bad_samples import BatchRefusals, Refusals
from spiral_stream.runtime.blame import blaming
from spiral_stream.runtime.buffers import Slots
from spiral_stream.runtime.clips import ClipFeed, ClipField, Found
from spiral_stream.runtime.images import ImageField, fill_rows
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering import Numbering
from spiral_stream.runtime.placing import as_ragged, cuts, joined, place, sample_count
from spiral_stream.runtime.samples import SampleReader, Samples, as_lists
from spiral_stream.sampling.order import UInt64

PIECE_ROWS: Final = 64  # rows that a task fetches and decodes: 6 MB of JPEGs, 60 ms of work; with 32, 4 % more calls
# What a Python value takes in addition to its bytes: 48 bytes for bytes and str, 24 for int, and 8 for its place in a
# list.
OBJECT_BYTES: Final = 56


@final
@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one rank, on the host."""

    numbers: range  # global numbers of the batches that are joined in it
    fields: dict[str, Any]  # NumPy arrays and lists, in the plan's order


class Pending:
    """A batch that is being built.

    Args:
        finish: makes the batch, once its fields are filled.
        parts: the pieces of work that fill the fields.
        fields: name -> array or list; None for a field whose size is known only once a piece is done.
        listed: bytes of the fields that are lists.
        begun: when the reading of mapped files began.
    """

    def __init__(
        self,
        finish: Callable[[], Batch],
        parts: Sequence[Future[None]],
        fields: Mapping[str, Any],
        listed: int,
        begun: int = 0,
    ) -> None:
        self._finish, self._parts = finish, parts
        self._fields, self._listed = fields, listed
        self._begun = begun
        self._settled = False  # once it is True, `_count` does nothing: it is asked three times per batch, 10 us
        self._bytes = 0

    @property
    def settled(self) -> bool:
        """Whether every field's size is known."""
        self._count()
        return self._settled

    @property
    def nbytes(self) -> int:
        """Bytes of the fields whose size is known."""
        self._count()
        return self._bytes

    def _count(self) -> None:
        if not self._settled:
            values = list(self._fields.values())
            self._bytes = self._listed + sum([value.nbytes for value in values if isinstance(value, np.ndarray)])
            self._settled = not any(value is None for value in values)

    def wait(self, timeout_s: float) -> bool:
        """Whether all pieces are done. Waits up to ``timeout_s`` for each."""
        for part in self._parts:
            try:
                part.exception(timeout_s)
            except TimeoutError:
                return False
            except CancelledError:
                return True
        return True

    def result(self) -> Batch:
        """Wait for the pieces, and return the batch. Raises the error of the first piece that failed.

        Raises:
            DamageError: a mapped file was truncated while the batch was read.
        """
        with sound(self._begun):
            for part in self._parts:
                part.result()
        return self._finish()

    def cancel(self) -> None:
        """Cancel the pieces that have not begun."""
        for part in self._parts:
            part.cancel()


@final
@dataclass(slots=True, eq=False)
class _Draft:
    """A batch whose fields are being filled."""

    samples: Samples
    shape: Membership
    keys: UInt64  # [S] random keys of the samples; zeros where nothing draws
    refusals: BatchRefusals
    pool: Executor
    fields: dict[str, Any]
    parts: list[Future[None]] = field(default_factory=list)
    listed: int = 0  # bytes of the fields that are lists


@final
class BatchBuilder:
    """Builds the batches of a stream. ``begin`` is called by one thread at a time."""

    def __init__(
        self,
        stages: Stages,
        numbering: Numbering,
        reader: SampleReader,
        metrics: Metrics,
        slots: Slots,
        refusals: Refusals,
        merge: int = 1,
        split: frozenset[str] = frozenset(),
    ) -> None:
        self._stages = stages
        self._numbering = numbering
        self._reader = reader
        self._metrics = metrics
        self._merge = merge
        self._slots = slots
        self._refusals = refusals
        self._images = {stage.name: ImageField(stage, metrics) for stage in stages.images}
        self._clips = {stage.name: ClipField(stage, metrics) for stage in stages.clips}
        pixels: tuple[ImageStage | ClipStage, ...] = (*stages.images, *stages.clips)
        self._programs = {
            stage.name: stage.program.on_device()[0] if stage.name in split else stage.program for stage in pixels
        }
        self._draws = any(not stage.program.deterministic for stage in pixels) or any(
            not stage.selection.deterministic for stage in stages.clips
        )
        lineage = reader.lineage
        columns = [stage.field.column for stage in stages.plains]
        self._plain_keys = {column: lineage.key(column, lineage.end) for column in columns}
        columns = [stage.field.column for stage in stages.sequences]
        self._sequence_keys = {column: lineage.key(column, lineage.end) for column in columns}
        self.batch_bytes = batch_bytes(stages, merge)

    def begin(self, epoch: int, numbers: range, pool: Executor) -> Pending:
        """Settle membership and columns, and start the pieces."""
        begun = moment()
        with sound(begun):
            return self._begin(epoch, numbers, pool, begun)

    def _begin(self, epoch: int, numbers: range, pool: Executor, begun: int) -> Pending:
        with self._metrics.timed("plan_s"), blaming(self._stages, None):
            each = [self._numbering.draw(epoch, number) for number in numbers]
        drawn, counts = joined(each), [len(one.samples) for one in each]
        samples = drawn.samples
        if not len(samples):
            raise _all_skipped(epoch, self._numbering.skips.number(epoch, numbers[0]))
        with blaming(self._stages, samples):
            self._reader.need(epoch, samples, [*self._plain_keys.values(), *self._sequence_keys.values()])
        named = [self._numbering.skips.number(epoch, number) for number in numbers]
        refusals = self._refusals.of(epoch, named, samples, counts)
        refusals.know_unread()
        fields: dict[str, Any] = dict.fromkeys(self._stages.field_names)
        keys = self._reader.random_keys(epoch, samples) if self._draws else np.zeros(len(samples), dtype=np.uint64)
        draft = _Draft(samples, drawn.membership, keys, refusals, pool, fields)
        for plain in self._stages.plains:
            self._fill_plain(draft, plain)
        for column in self._sequence_keys:
            self._fill_sequences(draft, column)
        for image in self._stages.images:
            self._fill_images(draft, image)
        for clip in self._stages.clips:
            self._fill_clips(draft, clip)
        self._metrics.add(batches=1, samples=sample_count(drawn))
        return Pending(lambda: Batch(numbers, refusals.settled(fields)), draft.parts, fields, draft.listed, begun)

    # ---- fields that are copied from a column

    def _fill_plain(self, draft: _Draft, stage: PlainStage) -> None:
        values = draft.samples.columns[self._plain_keys[stage.field.column]]
        if isinstance(values, Ragged):
            values = as_lists(values)
        if stage.spec.dtype is None:
            draft.listed += object_bytes(values)
        if draft.shape.packing is not None:
            draft.fields[stage.name] = self._packed_lists(draft, draft.shape.packing, stage, values)
            return
        rows = draft.shape.rows
        filled: Any = [None] * rows
        if stage.spec.dtype is not None:
            filled = self._slots.take(stage.shape(rows), stage.spec.dtype, _room(self._stages, rows, self._merge))
        draft.fields[stage.name] = filled

        def fill(a: int, b: int) -> None:
            into = None if stage.spec.dtype is None else filled[a:b]
            found = stage.field.fill(values.slice(a, b - a), into)
            if found is not into:
                filled[a:b] = found

        draft.refusals.attempt(stage.name, 0, rows, fill)

    def _packed_lists(self, draft: _Draft, packing: Packing, stage: PlainStage, values: pa.Array) -> list[Any]:
        """One list per row of a packed batch, with a value per piece; the plan allows no arrays here."""
        with blaming(self._stages, draft.samples, 0):
            flat = stage.field.fill(values, None)
        borders = np.searchsorted(packing.rows, np.arange(draft.shape.rows + 1))
        return [list(flat[a:b]) for a, b in pairwise(borders)]

    # ---- fields of token sequences

    def _fill_sequences(self, draft: _Draft, column: str) -> None:
        """Fill the fields of one token column: they share one placement, and are written together."""
        tokens = as_ragged(draft.samples.columns[self._sequence_keys[column]])
        alone = len(self._sequence_keys) == 1
        placed = place(tokens, draft.shape, self._stages.multiple(column), alone=alone)
        written: list[tuple[TokenField, NDArray[Any]]] = []
        for stage in self._stages.sequences:
            if stage.field.column != column:
                continue
            if isinstance(stage.field, CuSeqlens):
                draft.fields[stage.name] = stage.field.cu_seqlens(placed)
                continue
            assert isinstance(stage.field, TokenField), stage.field
            draft.fields[stage.name] = self._tokens_slot(stage, placed)
            written.append((stage.field, draft.fields[stage.name]))
        whose = None if draft.shape.packing is None else draft.samples  # in packed rows a piece, not a row, is a sample

        def fill(first: int, last: int) -> None:
            part, pieces = placed.part(first, last)
            some = tokens.take(np.arange(pieces.start, pieces.stop))
            with self._metrics.timed("transform_s"), blaming(self._stages, whose, pieces.start):
                for each, out in written:
                    each.fill_tokens(some, part, out[first:last])

        borders = cuts(placed)
        if len(borders) == 2:  # noqa: PLR2004  one run of rows: a handover to another thread costs as much as the work
            draft.refusals.attempt(column, borders[0], borders[1], fill)
            return
        draft.parts += [draft.pool.submit(draft.refusals.attempt, column, a, b, fill) for a, b in pairwise(borders)]

    def _tokens_slot(self, stage: SequenceStage, placed: Placed) -> NDArray[Any]:
        items = placed.B * placed.T
        assert stage.spec.dtype is not None
        room = _capacity(self._stages, items, self._merge)
        return self._slots.take((items,), stage.spec.dtype, room).reshape(placed.B, placed.T)

    # ---- fields of pixels

    def _fill_images(self, draft: _Draft, stage: ImageStage) -> None:
        feed, program, places = self._images[stage.name], self._programs[stage.name], draft.samples.places
        count = len(places)
        if program.output_shape is None:
            draft.parts.append(draft.pool.submit(self._fill_unsized, draft, stage))
            return
        out = self._pixels_slot(draft, stage, program.output_shape)

        def render(a: int, b: int) -> None:
            feed.render(places.take(np.arange(a, b)), draft.keys[a:b], program, out[a:b])

        for start in range(0, count, PIECE_ROWS):
            stop = min(start + PIECE_ROWS, count)
            draft.parts.append(draft.pool.submit(draft.refusals.attempt, stage.name, start, stop, render))

    def _fill_unsized(self, draft: _Draft, stage: ImageStage) -> None:
        """Fill a field whose size is that of its images: all of them are read before there is an array."""
        feed, program, places = self._images[stage.name], self._programs[stage.name], draft.samples.places
        count = len(places)
        pixels: list[Any] = [None] * count

        def read(a: int, b: int) -> None:
            pixels[a:b] = feed.pixels(places.take(np.arange(a, b)))

        draft.refusals.attempt(stage.name, 0, count, read)
        good = np.array([row for row in range(count) if pixels[row] is not None], dtype=np.int64)
        if not len(good):
            return
        some, keys = [pixels[row] for row in good.tolist()], draft.keys[good]
        with blaming(self._stages, draft.samples.take(good), 0):
            sizes = np.array([each.shape[:2] for each in some], dtype=np.int32)
            shape = program.shape(program.geometry(sizes[:, 0], sizes[:, 1], keys))
            done = np.empty((len(good), *shape), dtype=program.dtype)
            program.run(some, keys, done)
        draft.fields[stage.name] = done if len(good) == count else spread(done, good, count)

    def _fill_clips(self, draft: _Draft, stage: ClipStage) -> None:
        program = self._programs[stage.name]
        assert program.output_shape is not None  # the plan fixes a clip's size
        out = self._pixels_slot(draft, stage, (stage.frames, *program.output_shape))
        with blaming(self._stages, draft.samples, 0):
            pieces = self._clips[stage.name].find(draft.samples.places)

        def piece(feed: ClipFeed, found: Found, part: list[int], rows: NDArray[np.int64]) -> None:
            def render(a: int, b: int) -> None:
                mine = rows[a:b]
                fill_rows(out, mine, lambda own: feed.render(found, part[a:b], draft.keys[mine], program, own))

            draft.refusals.attempt(stage.name, 0, len(rows), render, rows)

        draft.parts += [draft.pool.submit(piece, *each) for each in pieces]

    def _pixels_slot(self, draft: _Draft, stage: ImageStage | ClipStage, shape: tuple[int, ...]) -> NDArray[Any]:
        count = len(draft.samples)
        room = _room(self._stages, count, self._merge)
        out = self._slots.take((count, *shape), self._programs[stage.name].dtype, room)
        draft.fields[stage.name] = out
        return out


def spread(done: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Spread the rows of an array over ``count`` rows. The other rows are zeros."""
    out = np.zeros((count, *done.shape[1:]), dtype=done.dtype)
    out[rows] = done
    return out


def object_bytes(values: pa.Array) -> int:
    """Estimate the bytes that a column's values take as Python objects, from above.

    It counts by column, not by value. Small integers and interned texts are shared, so less may be used.
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return OBJECT_BYTES * len(values) + object_bytes(values.flatten())
    if pa.types.is_struct(kind):
        return OBJECT_BYTES * len(values) + sum(map(object_bytes, values.flatten()))
    return OBJECT_BYTES * len(values) + int(values.nbytes)


def _room(stages: Stages, rows: int, merge: int) -> int:
    """Rows to allocate: a full batch, or, if a formation decides, the next power of two, so that few slot sizes exist."""
    if stages.formation is None:
        return stages.batches.batch_size * merge
    return 1 << max(0, rows - 1).bit_length()


def _capacity(stages: Stages, items: int, merge: int) -> int:
    """Items that a slot of token fields has room for: the budget if the batch keeps it."""
    most = stages.formation and stages.formation.most_tokens(stages.batches.batch_size)
    return most * merge if most and items <= most * merge else 1 << max(0, items - 1).bit_length()


def batch_bytes(stages: Stages, merge: int) -> int:
    """Bytes of a batch's arrays, about: what is reserved in the queue before it is built."""
    formation = stages.formation
    if formation is None:
        return stages.batch_bytes(stages.batches.batch_size * merge)
    tokens = formation.most_tokens(stages.batches.batch_size)
    if tokens is None:
        return stages.batch_bytes(_most_samples(stages, formation) * merge)
    sizes = [np.dtype(stage.spec.dtype).itemsize for stage in stages.sequences if stage.spec.dtype]
    return max(1, tokens * merge * sum(sizes))


def _most_samples(stages: Stages, formation: Formation) -> int:
    """The most samples that a batch of a formation without a token limit may hold."""
    collate = need(stages.plan, Collate)
    return formation.most_samples(collate.batch_size, clip_costs(collate.fields))


def _all_skipped(epoch: int, number: int) -> StreamError:
    msg = f"batch {number:,} of epoch {epoch:,}: all of its samples are skipped. Skip it as well: stream.skip(batches=[{number}])"
    return StreamError(msg)

"""Build one batch: membership -> columns -> tokens and pixels -> fields, pieces of it in parallel.

Membership and small columns are settled at once; what is costly to decode or to copy is
cut into pieces of consecutive rows that write straight into their part of the batch's slot.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.formation import Formation, Membership, Packing
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.segments import CuSeqlens
from spiral_stream.fields.sequence import Placed, TokenField
from spiral_stream.integrity.blocks import moment, sound
from spiral_stream.plan.clips import clip_costs
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.physical import ClipStage, ImageStage, PlainStage, Stages
from spiral_stream.runtime.blame import blaming
from spiral_stream.runtime.buffers import Slots
from spiral_stream.runtime.chapters import Drawn
from spiral_stream.runtime.clips import ClipFeed, ClipField, Found
from spiral_stream.runtime.images import ImageField
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering import Numbering
from spiral_stream.runtime.refusals import BatchRefusals, Refusals
from spiral_stream.runtime.samples import SampleReader, Samples, as_lists
from spiral_stream.sampling.order import UInt64

PIECE_ROWS: Final = 64  # rows a task fetches and decodes: about 6 MB of JPEGs, 60 ms of work; 32 costs 4 % more calls
OBJECT_BYTES: Final = (
    56  # of a Python value beside its bytes: 48 of bytes and str, 24 of int, and 8 of the place in a list
)
PIECE_ITEMS: Final = 1 << 18  # tokens of each field that a task writes: 2 MB of int64, 1 ms


@final
@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one rank on the host: what the loop gets."""

    numbers: range  # global batch numbers concatenated in it
    fields: dict[str, Any]  # NumPy arrays and lists, in the plan's order


class Pending:
    """A batch that is being built.

    Args:
        finish: makes the batch of its fields, once they are filled.
        parts: the pieces of work that fill them.
        fields: None stands for one whose size a piece finds out.
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
        self._settled = False  # once it is, nobody counts again: three questions a batch cost 10 us
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
        """Whether all pieces are done; waits so long for each."""
        for part in self._parts:
            try:
                part.exception(timeout_s)
            except TimeoutError:
                return False
            except CancelledError:
                return True
        return True

    def result(self) -> Batch:
        """Wait for the pieces; raise what the first of them failed with.

        Raises:
            DamageError: a mapped file became shorter while the batch was read.
        """
        with sound(self._begun):
            for part in self._parts:
                part.result()
        return self._finish()

    def cancel(self) -> None:
        """Drop pieces that have not begun."""
        for part in self._parts:
            part.cancel()


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
        self._images = {stage.name: ImageField(stage, metrics) for stage in stages.images}
        self._programs = {
            stage.name: stage.program.on_device()[0] if stage.name in split else stage.program
            for stage in stages.images
        }
        self._clips = {stage.name: ClipField(stage, metrics) for stage in stages.clips}
        self._programs |= {
            stage.name: stage.program.on_device()[0] if stage.name in split else stage.program for stage in stages.clips
        }
        self._slots = slots
        self._refusals = refusals
        end = reader.end
        columns = dict.fromkeys(stage.field.column for stage in stages.plains)
        self._plain = {name: reader.key(name, end) for name in columns}
        self._sequence = {stage.field.column: reader.key(stage.field.column, end) for stage in stages.sequences}
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
        samples, shape = drawn.samples, drawn.membership
        with blaming(self._stages, samples):
            self._reader.need(epoch, samples, [*self._plain.values(), *self._sequence.values()])
        refusals = self._refusals.of(epoch, numbers, samples, counts)
        refusals.know_unread()
        fields: dict[str, Any] = dict.fromkeys(self._stages.field_names)
        listed = self._plains(samples, shape, fields, refusals)
        parts = self._sequences(samples, shape, fields, refusals, pool)
        pixels = self._stages.images or self._stages.clips
        keys = self._keys(epoch, samples) if pixels else np.empty(0, dtype=np.uint64)
        for stage in self._stages.images:
            parts += self._image(stage, samples, keys, fields, refusals, pool)
        for clip in self._stages.clips:
            parts += self._clip(clip, samples, keys, fields, refusals, pool)
        self._metrics.add(batches=1, samples=len(samples) if shape.packing is None else _distinct(shape))
        return Pending(lambda: Batch(numbers, refusals.settled(fields)), parts, fields, listed, begun)

    def _plains(self, samples: Samples, shape: Membership, fields: dict[str, Any], refusals: BatchRefusals) -> int:
        """Fill the fields that are copied from a column; returns the bytes of those that are lists."""
        listed = 0
        for plain in self._stages.plains:
            dtype = plain.spec.dtype
            values = samples.columns[self._plain[plain.field.column]]
            if isinstance(values, Ragged):
                values = as_lists(values)
            listed += object_bytes(values) if dtype is None else 0
            if shape.packing is not None:  # the plan allows lists only: one of each row's pieces
                rows = np.searchsorted(shape.packing.rows, np.arange(shape.rows + 1))
                with blaming(self._stages, samples, 0):
                    flat = plain.field.fill(values, None)
                fields[plain.name] = [list(flat[a:b]) for a, b in pairwise(rows)]
                continue
            out = None
            if dtype is not None:
                items = plain.shape(1)[1:]
                room = _room(self._stages, shape.rows, self._merge) * int(np.prod(items, dtype=np.int64))
                flat_out = self._slots.take((shape.rows * int(np.prod(items, dtype=np.int64)),), dtype, room)
                out = flat_out.reshape(plain.shape(shape.rows))
            filled: Any = [None] * shape.rows if out is None else out

            def fill(a: int, b: int, plain: PlainStage = plain, values: Any = values, filled: Any = filled) -> None:
                into = None if isinstance(filled, list) else filled[a:b]
                found = plain.field.fill(values.slice(a, b - a), into)
                if found is not into:
                    filled[a:b] = found

            refusals.attempt(plain.name, 0, shape.rows, fill)
            fields[plain.name] = filled
        return listed

    def _sequences(
        self, samples: Samples, shape: Membership, fields: dict[str, Any], refusals: BatchRefusals, pool: Executor
    ) -> list[Future[None]]:
        parts: list[Future[None]] = []
        for column, key in self._sequence.items():
            tokens = as_ragged(samples.columns[key])
            placed = place(tokens, shape, self._stages.multiple(column), alone=len(self._sequence) == 1)
            stages = [stage for stage in self._stages.sequences if stage.field.column == column]
            cuts = _cuts(placed)
            for stage in stages:
                if isinstance(stage.field, CuSeqlens):
                    fields[stage.name] = stage.field.cu_seqlens(placed)
                    continue
                items = placed.B * placed.T
                room = _capacity(self._stages, items, self._merge)
                assert stage.spec.dtype is not None
                fields[stage.name] = self._slots.take((items,), stage.spec.dtype, room).reshape(placed.B, placed.T)

            def fill(
                first: int, last: int, tokens: Ragged = tokens, placed: Placed = placed, stages: Any = stages
            ) -> None:
                part, pieces = placed.part(first, last)
                some = tokens.take(np.arange(pieces.start, pieces.stop))
                whose = None if shape.packing is None else samples  # rows of packed samples are told apart by piece
                with self._metrics.timed("transform_s"), blaming(self._stages, whose, pieces.start):
                    for stage in stages:
                        if isinstance(stage.field, TokenField):
                            stage.field.fill_tokens(some, part, fields[stage.name][first:last])

            if len(cuts) == 2:  # noqa: PLR2004  one run of rows: a handover to another thread costs as much as the work
                refusals.attempt(column, cuts[0], cuts[1], fill)
                continue
            parts += [pool.submit(refusals.attempt, column, a, b, fill) for a, b in pairwise(cuts)]
        return parts

    def _keys(self, epoch: int, samples: Samples) -> UInt64:
        clips = all(stage.program.deterministic and stage.selection.deterministic for stage in self._stages.clips)
        if clips and all(stage.program.deterministic for stage in self._stages.images):
            return np.zeros(len(samples), dtype=np.uint64)
        return self._reader.random_keys(epoch, samples)

    def _image(
        self,
        stage: ImageStage,
        samples: Samples,
        keys: UInt64,
        fields: dict[str, Any],
        refusals: BatchRefusals,
        pool: Executor,
    ) -> list[Future[None]]:
        feed, program, places = self._images[stage.name], self._programs[stage.name], samples.places
        shape, count = program.output_shape, len(places)
        if shape is None:  # the size is that of the images, so all of them are read before there is a slot

            def whole() -> None:
                pixels: list[Any] = [None] * count

                def read(a: int, b: int) -> None:
                    pixels[a:b] = feed.pixels(places.take(np.arange(a, b)))

                refusals.attempt(stage.name, 0, count, read)
                good = np.array([row for row in range(count) if pixels[row] is not None], dtype=np.int64)
                if not len(good):
                    return
                with blaming(self._stages, samples.take(good), 0):
                    sizes = np.array([pixels[row].shape[:2] for row in good.tolist()], dtype=np.int32)
                    shape = program.shape(program.geometry(sizes[:, 0], sizes[:, 1], keys[good]))
                    done = np.empty((len(good), *shape), dtype=program.dtype)
                    program.run([pixels[row] for row in good.tolist()], keys[good], done)
                fields[stage.name] = done if len(good) == count else spread(done, good, count)

            return [pool.submit(whole)]
        out = self._slots.take((count, *shape), program.dtype, _room(self._stages, count, self._merge))
        fields[stage.name] = out

        def render(a: int, b: int) -> None:
            feed.render(places.take(np.arange(a, b)), keys[a:b], program, out[a:b])

        def piece(start: int) -> None:
            refusals.attempt(stage.name, start, min(start + PIECE_ROWS, count), render)

        return [pool.submit(piece, start) for start in range(0, count, PIECE_ROWS)]

    def _clip(
        self,
        stage: ClipStage,
        samples: Samples,
        keys: UInt64,
        fields: dict[str, Any],
        refusals: BatchRefusals,
        pool: Executor,
    ) -> list[Future[None]]:
        program, count = self._programs[stage.name], len(samples)
        assert program.output_shape is not None  # the plan fixes a clip's size
        shape = (stage.frames, *program.output_shape)
        out = self._slots.take((count, *shape), program.dtype, _room(self._stages, count, self._merge))
        fields[stage.name] = out
        with blaming(self._stages, samples, 0):
            pieces = self._clips[stage.name].find(samples.places)

        def piece(feed: ClipFeed, found: Found, part: list[int], rows: NDArray[np.int64]) -> None:
            def render(a: int, b: int) -> None:
                mine = rows[a:b]
                own = out[mine[0] : mine[-1] + 1] if _together(mine) else np.empty((b - a, *shape), dtype=out.dtype)
                feed.render(found, part[a:b], keys[mine], program, own)
                if not _together(mine):
                    out[mine] = own

            refusals.attempt(stage.name, 0, len(rows), render, rows)

        return [pool.submit(piece, *each) for each in pieces]


def spread(done: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Rows of an array at their places among ``count``; what lies at the others has no meaning."""
    out = np.zeros((count, *done.shape[1:]), dtype=done.dtype)
    out[rows] = done
    return out


def joined(drawn: Sequence[Drawn]) -> Drawn:
    """Several batches as one: ``merge`` (docs/decisions/0025)."""
    if len(drawn) == 1:
        return drawn[0]
    parts = [each.membership for each in drawn]
    rows = np.cumsum([0, *(part.rows for part in parts)])
    packing = None
    if parts[0].packing is not None:
        packed = [part.packing for part in parts if part.packing is not None]
        packing = Packing(
            np.concatenate([part.rows + begin for part, begin in zip(packed, rows, strict=False)]),
            *(np.concatenate([getattr(part, name) for part in packed]) for name in ("starts", "offsets", "lengths")),
        )
    known = [part.lengths for part in parts if part.lengths is not None]
    lengths = np.concatenate(known) if len(known) == len(parts) else None
    numbers = np.concatenate([part.samples for part in parts])  # of several chapters: nobody looks at them after this
    width = max(part.width for part in parts)
    return Drawn(
        Samples.concat([each.samples for each in drawn]), Membership(numbers, int(rows[-1]), width, lengths, packing)
    )


def place(tokens: Ragged, shape: Membership, multiple: int, *, alone: bool) -> Placed:
    """Where a batch's sequences lie.

    Args:
        tokens: one a sample, or one a piece.
        shape: the batch; its width is that of the only sequence column, else each has its own.
        multiple: what the width is a multiple of.
        alone: whether there is one sequence column.
    """
    packing = shape.packing
    if packing is not None:
        return Placed(packing.rows, packing.starts, packing.offsets, packing.lengths, shape.rows, shape.width)
    lengths = tokens.lengths if shape.lengths is None else np.minimum(tokens.lengths, shape.lengths)
    width = shape.width if alone else 0
    if not width:
        width = -(-max(1, int(lengths.max(initial=0))) // multiple) * multiple
    return Placed.whole(lengths, width)


def as_ragged(column: pa.Array | Ragged) -> Ragged:
    """A sequence column as addresses."""
    return column if isinstance(column, Ragged) else Ragged.of_arrow(column)


def object_bytes(values: pa.Array) -> int:
    """Bytes that a column's values take as Python objects, about: each has a head and a place in its list.

    Counted by column, not by value. At most: small integers and interned texts are shared.
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return OBJECT_BYTES * len(values) + object_bytes(values.flatten())
    if pa.types.is_struct(kind):
        return OBJECT_BYTES * len(values) + sum(map(object_bytes, values.flatten()))
    return OBJECT_BYTES * len(values) + int(values.nbytes)


def _together(rows: NDArray[np.int64]) -> bool:
    return int(rows[-1] - rows[0]) == len(rows) - 1


def _cuts(placed: Placed) -> list[int]:
    """Borders of runs of rows that one task writes."""
    rows = max(1, PIECE_ITEMS // max(1, placed.T))
    return [*range(0, placed.B, rows), placed.B]


def _distinct(shape: Membership) -> int:
    assert shape.packing is not None
    return int(np.count_nonzero(shape.packing.offsets == 0))


def _room(stages: Stages, rows: int, merge: int) -> int:
    """Rows that a slot has room for: those of a full batch; of a formation's, a power of two, so that few sizes are in use."""
    if stages.formation is None:
        return stages.batches.batch_size * merge
    return 1 << max(0, rows - 1).bit_length()


def _capacity(stages: Stages, items: int, merge: int) -> int:
    """Items that a slot of token fields has room for: the budget if the batch keeps it."""
    budget = getattr(getattr(stages.formation, "budget", None), "max_tokens", None)
    return budget * merge if budget is not None and items <= budget * merge else 1 << max(0, items - 1).bit_length()


def batch_bytes(stages: Stages, merge: int) -> int:
    """Bytes of a batch's arrays, about: what is reserved in the queue before it is built."""
    formation = stages.formation
    if formation is None:
        return stages.batch_bytes(stages.batches.batch_size * merge)
    tokens = getattr(getattr(formation, "budget", None), "max_tokens", None)
    if tokens is None:
        tokens = getattr(formation, "max_tokens", 0) * stages.batches.batch_size
    if not tokens:
        return stages.batch_bytes(_most_samples(stages, formation) * merge)
    sizes = [np.dtype(stage.spec.dtype).itemsize for stage in stages.sequences if stage.spec.dtype]
    return max(1, tokens * merge * sum(sizes))


def _most_samples(stages: Stages, formation: Formation) -> int:
    """Samples that a batch without tokens may have: as the plan counts them, or as many as its budget holds clips."""
    collate = need(stages.plan, Collate)
    most = formation.window_size if collate.batch_size is None else min(collate.batch_size, formation.window_size)
    costs = clip_costs(collate.fields)
    for name in formation.cost_names:
        most = min(most, getattr(getattr(formation, "budget", None), f"max_{name}") // costs[name])
    return int(most)

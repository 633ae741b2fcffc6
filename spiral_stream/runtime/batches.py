"""Build one batch: positions -> rows -> columns -> pixels -> fields, pieces of it in parallel.

Membership is arithmetic and columns are small, so both are settled at once; the
decoding of a batch is cut into pieces of consecutive rows that write straight
into their part of the batch's slot.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream import seeding
from spiral_stream.errors import DataError, SourceError
from spiral_stream.planner.physical import ImageStage, Stages
from spiral_stream.runtime.buffers import Slots
from spiral_stream.runtime.images import ImageFeed
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sampling.order import Arrangement, UInt64

PIECE_ROWS: Final = 64  # rows a task fetches and decodes: about 6 MB of JPEGs, 60 ms of work; 32 costs 4 % more calls


@final
@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one rank on the host: what the loop gets, and which samples it holds."""

    numbers: range  # global batch numbers concatenated in it
    fields: dict[str, Any]  # NumPy arrays and lists, in the plan's order
    identities: pa.Table


class Pending:
    """A batch that is being built."""

    def __init__(self, finish: Callable[[], Batch], parts: Sequence[Future[None]]) -> None:
        self._finish = finish
        self._parts = parts

    def result(self) -> Batch:
        """Wait for the pieces; raise what the first of them failed with."""
        for part in self._parts:
            part.result()
        return self._finish()

    def cancel(self) -> None:
        """Drop pieces that have not begun, and wait for those that have."""
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()


@final
class BatchBuilder:
    """Builds the batches of a stream. ``begin`` is called by one thread at a time."""

    def __init__(
        self,
        stages: Stages,
        run_seed: int,
        metrics: Metrics,
        slots: Slots,
        merge: int = 1,
        split: frozenset[str] = frozenset(),
    ) -> None:
        self._stages = stages
        self._run_seed = run_seed
        self._metrics = metrics
        self._rows = stages.batches.batch_size * merge
        self._feeds = {
            stage.name: ImageFeed(stages.base, stage.prefix, stage.store.open(), metrics) for stage in stages.images
        }
        self._programs = {
            stage.name: stage.program.on_device()[0] if stage.name in split else stage.program
            for stage in stages.images
        }
        self._slots = slots
        self._arranged: tuple[int, Arrangement] | None = None
        self.batch_bytes = stages.batch_bytes(self._rows)

    def positions(self, numbers: Sequence[int]) -> UInt64:
        """The positions of the epoch in these batches, one after the other."""
        return np.concatenate([self._stages.batches.positions(number) for number in numbers])

    def rows(self, epoch: int, positions: UInt64) -> UInt64:
        """Which surviving rows stand at these positions; without a mix the pass is the epoch."""
        if self._arranged is None or self._arranged[0] != epoch:
            self._arranged = (epoch, self._stages.order.arrange(self._stages.population, epoch))
        return self._arranged[1].rows(positions)

    def begin(self, epoch: int, numbers: range, pool: Executor) -> Pending:
        """Settle membership and columns, and start the pieces."""
        with self._metrics.timed("plan_s"):
            rows = self.rows(epoch, self.positions(numbers))
        with self._metrics.timed("fetch_s"):
            table = self._stages.selected.columns.fetch(rows, self._stages.columns)
        identities = table.select(list(self._stages.identity))
        fields: dict[str, Any] = dict.fromkeys(self._stages.field_names)
        parts: list[Future[None]] = []
        for plain in self._stages.plains:
            dtype = plain.spec.dtype
            out = None if dtype is None else self._slots.take(plain.shape(len(rows)), dtype, self._rows)
            values = table[plain.field.column].combine_chunks()
            with _naming(self._stages, identities, 0):
                fields[plain.name] = plain.field.fill(values, out)
        keys = self._keys(epoch, identities) if self._stages.images else np.empty(0, dtype=np.uint64)
        ordinals = self._stages.selected.columns.ordinals(rows) if self._stages.images else rows
        for stage in self._stages.images:
            parts += self._images(stage, ordinals, keys, identities, fields, pool)
        self._metrics.add(batches=1, samples=len(rows))
        return Pending(lambda: Batch(numbers, fields, identities), parts)

    def _keys(self, epoch: int, identities: pa.Table) -> UInt64:
        if all(stage.program.deterministic for stage in self._stages.images):
            return np.zeros(len(identities), dtype=np.uint64)
        stream = self._stages.population.stream
        columns = [column.to_pylist() for column in identities.columns]
        values = columns[0] if len(columns) == 1 else [repr(row) for row in zip(*columns, strict=True)]
        hashes = seeding.identity_hashes(stream, values)
        return seeding.sample_keys(self._run_seed, epoch, hashes, np.full(len(values), epoch, dtype=np.uint64))

    def _images(
        self,
        stage: ImageStage,
        ordinals: UInt64,
        keys: UInt64,
        identities: pa.Table,
        fields: dict[str, Any],
        pool: Executor,
    ) -> list[Future[None]]:
        feed, program = self._feeds[stage.name], self._programs[stage.name]
        shape, count = program.output_shape, len(ordinals)
        if shape is None:  # the size is that of the images, so all of them are read before there is a slot

            def whole() -> None:
                with _naming(self._stages, identities, 0):
                    pixels = feed.pixels(ordinals)
                    sizes = np.array([image.shape[:2] for image in pixels], dtype=np.int32)
                    shape = program.shape(program.geometry(sizes[:, 0], sizes[:, 1], keys))
                    out = np.empty((count, *shape), dtype=program.dtype)
                    program.run(pixels, keys, out)
                    fields[stage.name] = out

            return [pool.submit(whole)]
        out = self._slots.take((count, *shape), program.dtype, self._rows)
        fields[stage.name] = out

        def piece(start: int) -> None:
            part = slice(start, start + PIECE_ROWS)
            with _naming(self._stages, identities, start):
                feed.render(ordinals[part], keys[part], program, out[part])

        return [pool.submit(piece, start) for start in range(0, count, PIECE_ROWS)]


@contextmanager
def _naming(stages: Stages, identities: pa.Table, start: int) -> Iterator[None]:
    """Put the sample's identity before an error that carries the row it happened at."""
    try:
        yield
    except SourceError as error:
        row = getattr(error, "row", None)
        if row is None:
            raise
        values = identities.slice(start + row, 1).to_pylist()[0]
        who = ", ".join(f"{name}={value!r}" for name, value in values.items())
        name, value = next(iter(values.items()))
        msg = (
            f"{stages.base.entry.name}: sample {who}: {error}. "
            f'Mend it, or leave it out with .filter(col("{name}") != {value!r}) before sample'
        )
        raise (DataError if isinstance(error, DataError) else SourceError)(msg) from error

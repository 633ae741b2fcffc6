"""A batch whose fields are being filled."""

from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Membership
from spiral_stream.errors import StreamError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.sequence import SequenceLayout
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.bad_samples import BatchRefusals
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.fields.geometry import BatchFollowers
from spiral_stream.runtime.fields.size import room
from spiral_stream.runtime.slots import Slots
from spiral_stream.sampling.order import UInt64
from spiral_stream.transforms.chain import Program, fitted

TASK_ROWS: Final = 64  # rows that a task fetches and decodes: 6 MB of JPEGs, 60 ms of work; with 32, 4 % more calls


@final
@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """How the fields of a pass are filled.

    Attributes:
        stages: the lowered plan.
        slots: the memory of batches.
        merge: how many batches are delivered as one.
        programs: what is done to the pixels of each field.
        task_rows: rows that a task fetches and decodes.
    """

    stages: Stages
    slots: Slots
    merge: int
    programs: Mapping[str, Program]
    task_rows: int

    def rows(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return an array of a shape that the plan fixes, but for its rows."""
        return self.slots.take(shape, dtype, room(self.stages, shape[0], self.merge))

    def items(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return an array of a shape that the data decides: its slot has room for a power of two, so that few sizes exist."""
        items = prod(shape)
        return self.slots.take((items,), dtype, 1 << max(0, items - 1).bit_length()).reshape(shape)


@final
@dataclass(slots=True, eq=False)
class Draft:
    """A batch whose fields are being filled."""

    samples: Samples
    shape: Membership
    keys: UInt64  # [S] random keys of the samples; zeros where nothing draws
    refusals: BatchRefusals
    pool: Executor
    fields: dict[str, Any]
    following: BatchFollowers
    filling: Filling
    parts: list[Future[None]] = field(default_factory=list)
    listed: int = 0  # bytes of the fields that are lists
    layouts: list[SequenceLayout] = field(default_factory=list)  # where its token sequences lie
    placed: dict[str, tuple[Ragged, SequenceLayout]] = field(default_factory=dict)  # the same, with them, by column

    def program(self, name: str) -> Program:
        """Return what is done to the pixels of a field of this batch."""
        program, size = self.filling.programs[name], self.shape.size
        return program if size is None else fitted(program, (size[-2], size[-1]))

    def pixels(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Make the array of a field of pixels, of this shape per sample."""
        take = (
            self.filling.rows if self.shape.size is None else self.filling.items
        )  # else each shape has slots of its own
        out = take((len(self.samples), *shape), self.filling.programs[name].dtype)
        self.fields[name] = out
        return out

    def by_row(self, flat: Any) -> list[list[Any]]:
        """Return one list per row of a packed batch, with the value of each of its pieces."""
        packing = self.shape.packing
        assert packing is not None
        borders = np.searchsorted(packing.rows, np.arange(self.shape.rows + 1))
        return [list(flat[a:b]) for a, b in pairwise(borders)]


def spread(done: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Spread the rows of an array over ``count`` rows. The other rows are zeros."""
    out = np.zeros((count, *done.shape[1:]), dtype=done.dtype)
    out[rows] = done
    return out


def all_skipped(epoch: int, number: int) -> StreamError:
    """Return the error for a batch of which the run skips every sample."""
    msg = f"batch {number:,} of epoch {epoch:,}: all of its samples are skipped. Skip it as well: stream.skip(batches=[{number}])"
    return StreamError(msg)

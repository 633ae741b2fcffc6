"""Fill a field of lists of images, and the masks that tell its images from padding.

Rows are found first, a piece at a time. What they name on a store is fetched by threads that only wait. Decoding begins
when the width of the batch is known: at once where the plan fixes it, else with the last piece that is found.
"""

import threading
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.fields.pad import PadMask
from spiral_stream.planner.stages import ImageStage, PlainStage, Stages
from spiral_stream.runtime.fetch import pieces, submitted
from spiral_stream.runtime.fields.draft import Draft
from spiral_stream.runtime.fields.image_lists import ImageListField, Lists
from spiral_stream.runtime.fields.size import room
from spiral_stream.runtime.slots import Slots
from spiral_stream.seeding import view_keys

PIECE_ROWS: Final = 16  # rows that a task finds, fetches or decodes
Run = tuple[int, Lists]  # the first row of some, and what was found


@final
class ListFilling:
    """Fills one field of lists in one batch."""

    def __init__(
        self,
        draft: Draft,
        stage: ImageStage,
        field: ImageListField,
        slots: Slots,
        merge: int,
        stages: Stages,
    ) -> None:
        self._draft, self._stage, self._field = draft, stage, field
        first = next(each for each in stages.images if each.column == stage.column)  # of several views, one fills masks
        masks = [each for each in stages.plains if is_mask_of_list(each) and each.field.column == stage.column]
        self._masks = masks if first is stage else []
        self._slots, self._merge, self._stages = slots, merge, stages
        self._keys = view_keys(draft.keys, stage.view)
        self._found: list[Run] = []
        self._lock = threading.Lock()
        self._count = len(draft.samples)
        self._out: Any = None
        self._left = -(-self._count // PIECE_ROWS)

    def start(self) -> None:
        """Start the pieces."""
        assert self._stage.listed is not None
        if self._stage.listed.length is not None:
            self._allocate(self._stage.listed.length)
        pool, waits = self._draft.pool, self._field.waits(self._draft.samples.places)
        for begin, end in pieces(self._count, PIECE_ROWS):
            find = partial(self._find, begin, end, waits=waits)
            part = submitted(pool, find, self._go_on) if waits else pool.submit(self._go_on_with, find)
            self._draft.parts.append(part)

    def _find(self, begin: int, end: int, *, waits: bool) -> list[Run]:
        """Find rows, and fetch what comes over a network."""
        runs: list[Run] = []

        def work(a: int, b: int) -> None:
            lists = self._field.find(self._draft.samples.places.take(np.arange(a, b)))
            runs.append((a, lists.fetch() if waits else lists))

        self._draft.refusals.attempt(self._stage.name, begin, end, work)
        return runs

    def _go_on_with(self, find: Callable[[], list[Run]]) -> None:
        self._go_on(find())

    def _go_on(self, runs: list[Run] | None) -> None:
        """Render what a piece has found where the width is known; the last piece makes it known."""
        assert self._stage.listed is not None
        assert runs is not None
        if self._stage.listed.length is not None:
            for run in runs:
                self._decode(*run)
            return
        for run in self._all_found(runs):
            self._draft.parts.append(self._draft.pool.submit(self._decode, *run))

    def _all_found(self, runs: list[Run]) -> list[Run]:
        """Enter what a piece has found. Returns all that was found after the last piece, else nothing."""
        with self._lock:
            self._found += runs
            self._left -= 1
            if self._left:
                return []
        self._allocate(max([1, *(int(lists.counts.max(initial=0)) for _, lists in self._found)]))
        return self._found

    def _decode(self, first: int, lists: Lists) -> None:
        def work(a: int, b: int) -> None:
            self._render(a, b, lists, first)

        self._draft.refusals.attempt(self._stage.name, first, first + len(lists.counts), work)

    def _render(self, a: int, b: int, lists: Lists, first: int) -> None:
        assert self._stage.listed is not None
        low, high = a - first, b - first
        for mask in self._masks:
            into = self._draft.fields[mask.name]
            into[a:b] = np.arange(into.shape[1]) < lists.counts[low:high, None]
        alike = self._stage.listed.alike
        sizes = lists.render(low, high, self._keys[a:b], self._stage.program, self._out[a:b], alike=alike)
        self._draft.following.sized_lists(self._stage.name, a, sizes)

    def _allocate(self, width: int) -> None:
        shape = self._stage.program.output_shape
        assert shape is not None  # the plan fixes the size of an image in a list
        self._out = self._taken((self._count, width, *shape), self._stage.program.dtype)
        for mask in self._masks:
            assert mask.spec.dtype is not None
            self._draft.fields[mask.name] = self._taken((self._count, width), mask.spec.dtype)
        self._draft.fields[self._stage.name] = self._out

    def _taken(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        assert self._stage.listed is not None
        if self._stage.listed.length is not None:
            return self._slots.take(shape, dtype, room(self._stages, shape[0], self._merge))
        items = prod(shape)
        return self._slots.take((items,), dtype, 1 << max(0, items - 1).bit_length()).reshape(shape)


def is_mask_of_list(stage: PlainStage) -> bool:
    """Whether a field tells the images of lists from padding; other fields of `PadMask` are stages of other kinds."""
    return isinstance(stage.field, PadMask)

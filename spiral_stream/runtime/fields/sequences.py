"""Fill the fields of token sequences: those of one column share one placement, and are written together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.formation import Membership
from spiral_stream.fields.labels import LabelField
from spiral_stream.fields.ragged import MOST_FIELDS, Ragged
from spiral_stream.fields.segments import CuSeqlens
from spiral_stream.fields.sequence import SequenceLayout, TokenField, specs_of
from spiral_stream.planner.columns.lineage import Key, Lineage, Made, Stored
from spiral_stream.planner.field_stages import SequenceStage
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.samples import Int64
from spiral_stream.runtime.fields.draft import Draft
from spiral_stream.runtime.fields.layout import (
    TASK_ITEMS,
    as_ragged,
    cuts,
    in_rows,
    lay_out,
    need_items,
    need_room,
    null_items,
)
from spiral_stream.runtime.fields.size import capacity, most_items
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.runtime.slots import Slots


@final
@dataclass(frozen=True, slots=True, eq=False)
class WrittenField:
    """A field of shape [B, T] of a token column."""

    name: str
    field: TokenField
    dtype: str
    labels: LabelField | None  # the field, if a mask says which of its labels count

    @classmethod
    def of(cls, stage: SequenceStage) -> "WrittenField":
        """Return what a stage writes that is no `CuSeqlens`."""
        field = stage.field
        assert isinstance(field, TokenField), field
        assert stage.spec.dtype is not None, stage
        masked = isinstance(field, LabelField) and field.mask is not None
        return cls(stage.name, field, stage.spec.dtype, field if masked else None)  # type: ignore[arg-type]  # it is one then


@final
@dataclass(frozen=True, slots=True, eq=False)
class SequenceColumn:
    """The fields of one token column, and the masks of its labels."""

    name: str
    keys: Mapping[str, Stored | Made]  # by column: of the tokens, then of the masks
    fields: Sequence[SequenceStage]
    written: Sequence[WrittenField]
    borders: Sequence[tuple[str, CuSeqlens]]  # the others, by name
    names: Sequence[str]  # of what is written
    specs: tuple[int, ...]  # of the same: `Ragged.write`
    plain: bool  # whether one call writes them, and no mask of labels changes them

    @classmethod
    def of(cls, name: str, keys: Mapping[str, Stored | Made], fields: Sequence[SequenceStage]) -> "SequenceColumn":
        """Return a column and its fields, sorted by how they are filled."""
        borders = [(stage.name, stage.field) for stage in fields if isinstance(stage.field, CuSeqlens)]
        written = [WrittenField.of(stage) for stage in fields if not isinstance(stage.field, CuSeqlens)]
        names, specs = [each.name for each in written], specs_of([each.field for each in written])
        plain = len(written) <= MOST_FIELDS and all(each.labels is None for each in written)
        return cls(name, keys, fields, written, borders, names, specs, plain)

    def found(self, gathered: Mapping[str, Ragged], columns: Mapping[Key, pa.Array | Ragged]) -> dict[str, Ragged]:
        """The sequences of a batch, by column: those that were gathered, else those of its samples."""
        return {
            name: gathered[name] if name in gathered else as_ragged(columns[key]) for name, key in self.keys.items()
        }

    def with_nulls(
        self, gathered: Mapping[str, Ragged], columns: Mapping[Key, pa.Array | Ragged]
    ) -> dict[str, pa.Array]:
        """The columns of a batch that may hold null items: none that was gathered."""
        stored = {name: columns[key] for name, key in self.keys.items() if name not in gathered}
        return {name: each for name, each in stored.items() if isinstance(each, pa.Array) and null_items(each)}

    def longest(self, found: Mapping[str, Mapping[str, Ragged]]) -> Int64 | None:
        """The length of each sample's longest sequence in the columns that share the width; None if it is one column."""
        lengths = [found[name][name].lengths for name in self.fields[0].together]
        return np.maximum.reduce(lengths) if lengths else None

    def write(
        self,
        found: Mapping[str, Ragged],
        part: SequenceLayout,
        pieces: slice,
        written: Sequence[tuple[WrittenField, NDArray[Any]]],
    ) -> None:
        """Write the fields of some rows of a batch.

        Args:
            found: the sequences of the whole batch, by column.
            part: the rows.
            pieces: which sequences lie in them.
            written: each field with its rows.

        Raises:
            DataError: a token does not fit, or a mask does not fit its tokens; ``row`` counts from the first piece.
        """
        is_all = len(part.rows) == len(found[self.name])
        some = {name: v if is_all else v.take(np.arange(pieces.start, pieces.stop)) for name, v in found.items()}
        for each, out in written:
            each.field.fill_tokens(some[self.name], part, out)
            if each.labels is not None:
                assert each.labels.mask is not None
                each.labels.ignore(some[each.labels.mask], some[self.name], part, out)


@final
class SequenceColumns:
    """The token columns of an opened plan.

    Attributes:
        columns: each with its fields.
        keys: the columns that are read, by name.
        widths: the place and the width of each column that has a width of its own.
    """

    def __init__(self, stages: Stages, lineage: Lineage) -> None:
        widths = {} if stages.formation is None else stages.formation.widths
        self.widths = {name: (at, width) for at, (name, width) in enumerate(widths.items())}
        self.columns: list[SequenceColumn] = []
        for column in dict.fromkeys(stage.field.column for stage in stages.sequences):
            fields = [stage for stage in stages.sequences if stage.field.column == column]
            names = dict.fromkeys(name for stage in fields for name in stage.field.columns)
            keys = {name: lineage.key(name, lineage.end) for name in names}
            self.columns.append(SequenceColumn.of(column, keys, fields))
        self.keys = {name: key for each in self.columns for name, key in each.keys.items()}


@final
class SequenceFilling:
    """Fills the fields of token sequences of a stream's batches.

    Args:
        stages: the lowered plan.
        columns: of the opened plan.
        slots: the memory of batches.
        metrics: where time is counted.
        merge: how many batches are delivered as one.
    """

    def __init__(self, stages: Stages, columns: SequenceColumns, slots: Slots, metrics: Metrics, merge: int) -> None:
        self._stages, self._slots, self._metrics = stages, slots, metrics
        self._columns, self._widths = columns.columns, columns.widths
        self._most = {each.name: most_items(stages, each.name, merge) for each in columns.columns}

    def fill(self, draft: Draft, gathered: Mapping[str, Ragged]) -> None:
        """Fill the fields of a batch; ``gathered`` has its kept token columns."""
        columns = draft.samples.columns
        for each in self._columns:
            for name, values in each.with_nulls(gathered, columns).items():
                self._need_items(draft, name, values)
        found = {each.name: each.found(gathered, columns) for each in self._columns}
        for each in self._columns:
            self._fill(draft, each, found[each.name], each.longest(found))

    def _fill(self, draft: Draft, column: SequenceColumn, found: Mapping[str, Ragged], longest: Int64 | None) -> None:
        tokens, width = found[column.name], column.fields[0].length
        if width is not None:
            lengths = tokens.lengths
            attempt = partial(draft.refusals.attempt, column.name, 0, len(lengths))
            attempt(lambda a, b: need_room(column.name, lengths[a:b], width))
        layout = self.layout_of(column, tokens, draft.shape, longest)
        draft.layouts.append(layout)
        draft.placed[column.name] = tokens, layout
        written = self.made(column, layout, draft.fields)
        whose = None if draft.shape.packing is None else draft.samples  # in packed rows a piece, not a row, is a sample

        def fill(first: int, last: int) -> None:
            part, pieces = layout.part(first, last)
            with timed(self._metrics, "collate_s"), blaming(self._stages, whose, pieces.start):
                column.write(found, part, pieces, [(each, out[first:last]) for each, out in written])

        borders = cuts(layout)
        if len(borders) == 2:  # noqa: PLR2004  one run of rows: a handover to another thread costs as much as the work
            draft.refusals.attempt(column.name, borders[0], borders[1], fill)
            return
        draft.parts += [
            draft.pool.submit(draft.refusals.attempt, column.name, a, b, fill) for a, b in pairwise(borders)
        ]

    def fill_at_once(
        self,
        column: SequenceColumn,
        found: Mapping[str, Mapping[str, Ragged]],
        shape: Membership,
        fields: dict[str, Any],
    ) -> bool:
        """Fill the fields of a column in this thread; False where it takes the long way: `fill` says why, or shares the work."""
        some, first = found[column.name], column.fields[0]
        tokens, longest = some[column.name], column.longest(found)
        if first.length is not None and bool((tokens.lengths > first.length).any()):
            return False
        if shape.packing is None and column.plain and not column.borders:
            alone = len(self._columns) == max(1, len(first.together))
            lengths, width = in_rows(tokens, shape, first.multiple, alone=alone, fixed=first.length, longest=longest)
            if len(lengths) * width > TASK_ITEMS:
                return False
            outs = self._slots_of(column, len(lengths), width)
            fields.update(zip(column.names, outs, strict=True))
            return tokens.write(column.specs, outs, len(lengths), width, lengths) < 0
        layout = self.layout_of(column, tokens, shape, longest)
        if layout.B * layout.T > TASK_ITEMS:
            return False
        written = self.made(column, layout, fields)
        if column.plain:
            return layout.write(tokens, column.specs, tuple(out for _, out in written)) < 0
        column.write(some, layout, slice(0, len(layout.rows)), written)
        return True

    def _need_items(self, draft: Draft, name: str, values: pa.Array) -> None:
        """Refuse the samples whose list has a null item."""
        if draft.shape.packing is None:
            attempt = partial(draft.refusals.attempt, name, 0, len(values))
            attempt(lambda a, b: need_items(name, values.slice(a, b - a)))
            return
        with blaming(self._stages, draft.samples, 0):
            need_items(name, values)

    def layout_of(
        self, column: SequenceColumn, tokens: Ragged, shape: Membership, longest: Int64 | None
    ) -> SequenceLayout:
        """Return where the sequences of a column lie in a batch; ``longest`` as `SequenceColumn.longest` gives it."""
        first = column.fields[0]
        alone = len(self._columns) == max(1, len(first.together))
        widths = self._widths.get(column.name)
        return lay_out(tokens, shape, first.multiple, alone=alone, fixed=first.length, longest=longest, widths=widths)

    def made(
        self, column: SequenceColumn, layout: SequenceLayout, fields: dict[str, Any]
    ) -> list[tuple[WrittenField, NDArray[Any]]]:
        """Make the fields of a column in a batch; returns those of shape [B, T], which are still to be written."""
        for name, borders in column.borders:
            fields[name] = borders.cu_seqlens(layout)
        outs = self._slots_of(column, layout.B, layout.T)
        fields.update(zip(column.names, outs, strict=True))
        return list(zip(column.written, outs, strict=True))

    def _slots_of(self, column: SequenceColumn, rows_B: int, width_T: int) -> tuple[NDArray[Any], ...]:
        """Take the memory of what is written, shape [B, T] each."""
        items, shape = rows_B * width_T, (rows_B, width_T)
        most, take = capacity(self._most[column.name], items), self._slots.take
        return tuple([take((items,), each.dtype, most).reshape(shape) for each in column.written])

"""The way of a batch that needs nothing but copies: rows of kept columns and tokens, in few calls.

Most batches of numbers, texts and tokens need no function, no image, no random number, and no sample of theirs is refused.
What such a batch takes is known when its stream is opened: a list of copies, each with the memory that it writes. It runs in
the thread that begins the batch. Where anything is not as it should be, it gives up without a word, and the builder goes the
long way (`runtime.batch.builder`), which says what is wrong and with which sample, or spreads a large batch over threads.

The arrays are the same on both ways, byte for byte.
"""

from dataclasses import dataclass
from typing import Any, final

from spiral_stream.errors import DataError
from spiral_stream.fields.labels import LabelField
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.segments import CuSeqlens
from spiral_stream.fields.sequence import TokenField
from spiral_stream.planner.columns.lineage import Refusal
from spiral_stream.runtime.batch.look_up import LookedUpBatch
from spiral_stream.runtime.batch.opened_fields import OpenedFields
from spiral_stream.runtime.batch.pending_batch import Batch, Ready
from spiral_stream.runtime.columns.samples import as_lists
from spiral_stream.runtime.fields.layout import TASK_ITEMS, lay_out
from spiral_stream.runtime.fields.sequences import SequenceColumn
from spiral_stream.runtime.fields.size import OBJECT_BYTES, capacity, room
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.runtime.slots import Slots
from spiral_stream.threads import doing


def copies_only(fields: OpenedFields) -> bool:
    """Whether the batches of a plan need nothing but copies of kept columns and of tokens."""
    filled = len(fields.gathered) + sum(len(column.fields) for column in fields.sequences.columns)
    return fields.light and filled == len(fields.stages.fields) and not (fields.draws or fields.followers.wanted)


@final
class BatchProgram:
    """Fills batches that need nothing but copies. For one thread at a time.

    Args:
        fields: of the opened plan; see `copies_only`.
        slots: the memory of batches.
        metrics: where time and bytes are counted.
        merge: how many batches are delivered as one.
    """

    def __init__(self, fields: OpenedFields, slots: Slots, metrics: Metrics, merge: int) -> None:
        self._stages, self._slots, self._metrics, self._merge = fields.stages, slots, metrics, merge
        self._names, self._words = fields.stages.field_names, fields.gathering.words
        self._gathered = [
            (stage.name, stage.spec.dtype, stage.shape(0)[1:], narrow, narrow.column.name)
            for stage, narrow in fields.gathered
        ]
        self._widths = fields.sequences.widths
        self._columns = [_Column.of(column, len(fields.sequences.columns)) for column in fields.sequences.columns]

    def run(self, found: LookedUpBatch) -> Ready | None:
        """Return a batch that is filled; None if it has to go the long way."""
        columns = found.drawn.samples.columns
        refused = any(
            isinstance(key, Refusal) and as_lists(each).null_count < len(each) for key, each in columns.items()
        )
        if found.drawn.membership.filler is not None or any(found.lost) or refused:
            return None
        fields: dict[str, Any] = dict.fromkeys(self._names)
        if self._columns:
            with timed(self._metrics, "collate_s"):
                if not self._place(found, fields):
                    return None
        listed = self._gather(found, fields) if self._gathered else 0
        return Ready(Batch(found.numbers, fields, found.planned), listed, found.begun)

    def _gather(self, found: LookedUpBatch, fields: dict[str, Any]) -> int:
        """Copy rows of kept columns; returns the bytes of those that are lists."""
        rows, listed, read = found.drawn.membership.rows, 0, dict[str, int]()
        slot_rows = room(self._stages, rows, self._merge)
        with timed(self._metrics, "fetch_s"), doing(self._words):
            for name, dtype, shape, narrow, column in self._gathered:
                if dtype is None:
                    fields[name], nbytes = narrow.texts(found.rows[column])
                    listed += OBJECT_BYTES * rows + nbytes
                else:
                    fields[name] = filled = self._slots.take((rows, *shape), dtype, slot_rows)
                    narrow.copy(found.rows[column], filled)
                    nbytes = filled.nbytes
                read[column] = read.get(column, 0) + nbytes
        self._metrics.read_table(rows, read)
        return listed

    def _place(self, found: LookedUpBatch, fields: dict[str, Any]) -> bool:
        """Write the fields of tokens; False if they have to be written the long way."""
        made, columns = found.drawn.samples.columns, self._columns
        tokens: dict[str, dict[str, Any]] = {}
        for column in columns:
            names = column.column.keys.items()
            tokens[column.name] = some = {
                name: found.tokens[name] if name in found.tokens else made[key] for name, key in names
            }
            if not all(type(values) is Ragged for values in some.values()):  # nulls may be among others
                return False
        try:
            return all(self._write(found, column, tokens, fields) for column in columns)
        except DataError:
            return False

    def _write(
        self, found: LookedUpBatch, column: "_Column", tokens: dict[str, dict[str, Ragged]], fields: dict[str, Any]
    ) -> bool:
        some, fixed = tokens[column.name], column.fixed
        sequences = some[column.name]
        if fixed is not None and bool((sequences.lengths > fixed).any()):
            return False
        layout = lay_out(
            sequences,
            found.drawn.membership,
            column.multiple,
            alone=column.alone,
            fixed=fixed,
            longest=column.column.longest(tokens) if column.shares else None,
            widths=self._widths.get(column.name),
        )
        items = layout.B * layout.T
        if items > TASK_ITEMS:
            return False
        most = capacity(self._stages, column.name, items, self._merge)
        for name, field, dtype, mask in column.fields:
            out = self._slots.take((items,), dtype, most).reshape(layout.B, layout.T)
            fields[name] = field.fill_tokens(sequences, layout, out)
            if mask is not None:
                assert isinstance(field, LabelField), field
                field.ignore(some[mask], sequences, layout, out)
        for name, borders in column.borders:
            fields[name] = borders.cu_seqlens(layout)
        return True


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """A token column, and what is known of its fields before a batch is there."""

    name: str
    column: SequenceColumn
    fields: list[tuple[str, TokenField, str, str | None]]  # name, field, dtype, the column of its mask
    borders: list[tuple[str, CuSeqlens]]
    multiple: int
    fixed: int | None
    alone: bool
    shares: bool  # its width with other columns

    @classmethod
    def of(cls, column: SequenceColumn, columns: int) -> "_Column":
        """Return a column of so many."""
        first, written, borders = column.fields[0], [], []
        for stage in column.fields:
            if isinstance(stage.field, CuSeqlens):
                borders.append((stage.name, stage.field))
                continue
            assert isinstance(stage.field, TokenField), stage.field
            assert stage.spec.dtype is not None, stage.name
            mask = stage.field.mask if isinstance(stage.field, LabelField) else None
            written.append((stage.name, stage.field, stage.spec.dtype, mask))
        alone = columns == max(1, len(first.together))
        return cls(column.name, column, written, borders, first.multiple, first.length, alone, bool(first.together))

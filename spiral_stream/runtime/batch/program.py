"""The way of a batch that needs nothing but copies: rows of kept columns and tokens, in few calls.

Most batches of numbers, texts and tokens need no function, no image, no random number, and no sample of theirs is refused.
What such a batch takes is known when its stream is opened: a list of copies, each with the memory that it writes. It runs in
the thread that begins the batch. Where anything is not as it should be, it gives up without a word, and the builder goes the
long way (`runtime.batch.builder`), which says what is wrong and with which sample, or spreads a large batch over threads.

The arrays are the same on both ways, byte for byte.
"""

from typing import Any, final

from spiral_stream.errors import DataError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.planner.columns.lineage import Refusal
from spiral_stream.runtime.batch.look_up import LookedUpBatch
from spiral_stream.runtime.batch.opened_fields import OpenedFields
from spiral_stream.runtime.batch.pending_batch import Batch, Ready
from spiral_stream.runtime.columns.samples import as_lists
from spiral_stream.runtime.fields.sequences import SequenceFilling
from spiral_stream.runtime.fields.size import OBJECT_BYTES, room
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.runtime.slots import Slots
from spiral_stream.threads import doing


def copies_only(fields: OpenedFields) -> bool:
    """Whether the batches of a plan need nothing but copies of kept columns and of tokens."""
    filled = len(fields.gathered) + sum(len(column.fields) for column in fields.sequences.columns)
    return fields.light and filled == len(fields.stages.fields) and not (fields.draws or fields.followers.wanted)


@final
class GatheredFields:
    """Fills the fields that copy rows of kept columns.

    Args:
        fields: of the opened plan.
        slots: the memory of batches.
        metrics: where time and bytes are counted.
        merge: how many batches are delivered as one.
    """

    def __init__(self, fields: OpenedFields, slots: Slots, metrics: Metrics, merge: int) -> None:
        self._stages, self._slots, self._metrics, self._merge = fields.stages, slots, metrics, merge
        self._words, self._copies = fields.gathering.words, fields.gathering.copies
        self._fields = [
            (stage.name, stage.spec.dtype, stage.shape(0)[1:], narrow.column.name) for stage, narrow in fields.gathered
        ]

    def fill(self, found: LookedUpBatch, fields: dict[str, Any]) -> int:
        """Fill those of a batch; returns the bytes of the ones that are lists.

        Raises:
            DamageError: a piece of a kept column is not what was written.
        """
        if not self._fields:
            return 0
        assert found.located is not None
        rows, listed, read = found.drawn.membership.rows, 0, dict[str, int]()
        slot_rows, take = room(self._stages, rows, self._merge), self._slots.take
        with timed(self._metrics, "fetch_s"), doing(self._words):
            outs = [
                None if dtype is None else take((rows, *shape), dtype, slot_rows) for _, dtype, shape, _ in self._fields
            ]
            filled = self._copies.fill(*found.located, outs)
            for (name, dtype, _, column), value in zip(self._fields, filled, strict=True):
                if dtype is None:
                    fields[name], nbytes = value
                    listed += OBJECT_BYTES * rows + nbytes
                else:
                    fields[name], nbytes = value, value.nbytes
                read[column] = read.get(column, 0) + nbytes
        self._metrics.read_table(rows, read)
        return listed


@final
class BatchProgram:
    """Fills batches that need nothing but copies. For one thread at a time.

    Args:
        fields: of the opened plan; see `copies_only`.
        gathered: fills those that copy rows of kept columns.
        sequences: places those of tokens; None if there are none.
        metrics: where time is counted.
    """

    def __init__(
        self, fields: OpenedFields, gathered: GatheredFields, sequences: SequenceFilling | None, metrics: Metrics
    ) -> None:
        self._names, self._gathered, self._sequences, self._metrics = (
            fields.stages.field_names,
            gathered,
            sequences,
            metrics,
        )
        self._columns = fields.sequences.columns

    def run(self, found: LookedUpBatch) -> Ready | None:
        """Return a batch that is filled; None if it has to go the long way."""
        columns = found.drawn.samples.columns
        refused = any(
            isinstance(key, Refusal) and as_lists(each).null_count < len(each) for key, each in columns.items()
        )
        if found.drawn.membership.filler is not None or any(found.lost) or refused:
            return None
        fields: dict[str, Any] = dict.fromkeys(self._names)
        if self._sequences is not None:
            with timed(self._metrics, "collate_s"):
                if not self._place(self._sequences, found, fields):
                    return None
        listed = self._gathered.fill(found, fields)
        return Ready(Batch(found.numbers, fields, found.planned), listed, found.begun)

    def _place(self, sequences: SequenceFilling, found: LookedUpBatch, fields: dict[str, Any]) -> bool:
        """Write the fields of tokens; False if they have to be written the long way."""
        made = found.drawn.samples.columns
        tokens: dict[str, dict[str, Any]] = {}
        for column in self._columns:
            tokens[column.name] = some = {
                name: found.tokens[name] if name in found.tokens else made[key] for name, key in column.keys.items()
            }
            if not all(type(values) is Ragged for values in some.values()):  # nulls may be among others
                return False
        try:
            shape = found.drawn.membership
            return all(sequences.fill_at_once(column, tokens, shape, fields) for column in self._columns)
        except DataError:
            return False

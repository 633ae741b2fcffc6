"""Build one batch: samples -> columns -> tokens and pixels -> fields.

Membership and small columns are settled at once. Fields that are costly to decode or to copy are cut into pieces of
consecutive rows. The pieces run in parallel, and each writes straight into its part of the batch's slot.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.padding_width import padded
from spiral_stream.batching.tail import PadPartial
from spiral_stream.errors import DataError
from spiral_stream.fields.boxes import Following
from spiral_stream.fields.padded_rows import PaddedRows
from spiral_stream.fields.ragged import Ragged
from spiral_stream.integrity.blocks import sound
from spiral_stream.planner.field_stages import PlainStage, StepTotalStage
from spiral_stream.runtime.bad_samples import STAND_INS, BatchRefusals, Refusals
from spiral_stream.runtime.batch.blanks import blank
from spiral_stream.runtime.batch.deferred import Deferred, Here
from spiral_stream.runtime.batch.keys import BatchKey, key_of
from spiral_stream.runtime.batch.look_up import LookedUpBatch, LookingUp
from spiral_stream.runtime.batch.opened_fields import OpenedFields
from spiral_stream.runtime.batch.pending_batch import Batch, Pending, drop, finish
from spiral_stream.runtime.batch.program import BatchProgram, GatheredFields, copies_only
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.samples import SampleReader, as_lists
from spiral_stream.runtime.fields.draft import TASK_ROWS, Draft, Filling, all_skipped
from spiral_stream.runtime.fields.geometry import BatchFollowers
from spiral_stream.runtime.fields.payload_field import payload_fields
from spiral_stream.runtime.fields.sequences import SequenceFilling
from spiral_stream.runtime.fields.size import object_bytes
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.slots import Slots


class _Emptied(Exception):  # noqa: N818  it is caught where it was asked for
    """Nothing is left of some batches, by their place among those that are delivered as one."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.rows = rows


@final
class BatchBuilder:
    """Builds the batches of one pass. ``begin`` is called by one thread at a time.

    Args:
        fields: of the opened plan.
        numbering: which samples form which batch.
        reader: reads their columns.
        metrics: where time and bytes are counted.
        slots: the memory of batches.
        refusals: what happens to samples that cannot be read.
        merge: how many batches are delivered as one.
        split: the image fields that are normalized on the device.
        piece_rows: that a task fetches and decodes at a time; None takes 64.
        keyed: whether batches say which samples they hold.
    """

    def __init__(
        self,
        fields: OpenedFields,
        numbering: RunBatches,
        reader: SampleReader,
        metrics: Metrics,
        slots: Slots,
        refusals: Refusals,
        merge: int = 1,
        split: frozenset[str] = frozenset(),
        piece_rows: int | None = None,
        *,
        keyed: bool = False,
    ) -> None:
        self._keyed = keyed
        self._gathered = GatheredFields(fields, slots, metrics, merge)
        stages = fields.stages
        self._fields, self._stages, self._piece_rows = fields, stages, piece_rows or TASK_ROWS
        self._numbering = numbering
        self._reader = reader
        self._metrics = metrics
        self._refusals = refusals
        self._sparing = refusals.packed and refusals.policy != "raise"
        payloads = payload_fields(stages, reader.lineage, metrics)
        self._by_address = [each for each in payloads if each.by_address]
        self._at_once = [each for each in self._by_address if not each.AFTER_COLUMNS]
        self._after_columns = [each for each in self._by_address if each.AFTER_COLUMNS]
        self._by_column = [each for each in payloads if not each.by_address]
        self._filling = Filling(stages, slots, merge, fields.programs(split), self._piece_rows)
        columns = fields.sequences
        self._sequences = SequenceFilling(stages, columns, slots, metrics, merge) if columns.columns else None
        copies = not keyed and copies_only(fields)
        self._program = BatchProgram(fields, self._gathered, self._sequences, metrics) if copies else None
        self._totals = stages.of(StepTotalStage)
        self._in_tasks = fields.calls or (piece_rows is not None and bool(fields.stored))
        self._looking_up = LookingUp(fields, numbering.left, reader, self._by_address, self._piece_rows, metrics)
        self.batch_bytes = fields.batch_bytes(merge)

    def begin(self, epoch: int, numbers: range, pool: Executor, soon: Iterable[range] = ()) -> Pending:
        """Settle membership and columns, and start the pieces; `LookingUp.of` says what ``soon`` is."""
        try:
            return self._begin(epoch, self._looking_up.of(epoch, numbers, soon), pool)
        except Exception:
            with sound(self._looking_up.begun):  # the error may come of zeros; of a batch, `Pending.result` asks
                raise

    def _begin(self, epoch: int, found: LookedUpBatch, pool: Executor, *, quiet: bool = False) -> Pending:
        samples = found.drawn.samples
        if not len(samples):
            raise all_skipped(epoch, self._numbering.number(epoch, found.numbers[0]))
        later = (
            self._in_tasks
            and bool(self._reader.lineage.missing(self._fields.keys, samples.columns))
            and not self._sparing
        )
        if self._fields.keys and not later:
            with blaming(self._stages, samples, skippable=self._refusals.skippable):
                self._reader.need(epoch, samples, self._fields.keys)
        if self._program is not None and not later:
            done = self._program.run(found)
            if done is not None:
                return done
        refusals = self._refusing(epoch, found)
        if not later:
            refusals.know_unread()
        begin = self._begin_packed if self._sparing else self._filled
        return begin(epoch, found, refusals, pool, partial(self._settled, epoch, found, refusals, quiet), later=later)

    def _refusing(self, epoch: int, found: LookedUpBatch, *, strict: bool = False) -> BatchRefusals:
        drawn = found.drawn.samples, found.counts, found.lost
        return BatchRefusals(self._refusals, epoch, found.numbers, *drawn, self._numbering.number, strict=strict)

    def _begin_packed(
        self,
        epoch: int,
        found: LookedUpBatch,
        refusals: BatchRefusals,
        pool: Executor,
        settled: Callable[[dict[str, Any], BatchKey | None], Batch],
        *,
        later: bool = False,
    ) -> Pending:
        """Fill packed rows without the samples that are refused, again and again until none is: their places stay empty."""
        good = refusals.good()
        if not len(good):
            return Pending(lambda: settled({}, None), [], {}, 0, found.begun)
        left = found if len(good) == len(found.drawn.samples) else found.part(good)

        def mended(error: DataError) -> Pending | None:
            if error.place is None:
                return None
            row = int(good[error.place])
            refusals.refuse_sample_parts(row, self._parts_of_sample(found, row), error)
            return self._begin_packed(epoch, found, refusals, Here(), settled)

        try:
            pending = self._filled(epoch, left, self._refusing(epoch, left, strict=True), pool, settled, later=later)
        except DataError as error:
            again = mended(error)
            if again is None:
                raise
            return again
        pending.mend = mended
        return pending

    @staticmethod
    def _parts_of_sample(found: LookedUpBatch, row: int) -> list[int]:
        """The pieces in the same batch of the sample that a piece is of."""
        borders, numbers = np.cumsum([0, *found.counts]), found.drawn.membership.samples
        at = int(np.searchsorted(borders, row, side="right")) - 1
        first, last = int(borders[at]), int(borders[at + 1])
        return (first + np.flatnonzero(numbers[first:last] == numbers[row])).tolist()

    def _settled(
        self,
        epoch: int,
        found: LookedUpBatch,
        refusals: BatchRefusals,
        quiet: bool,
        fields: dict[str, Any],
        key: BatchKey | None,
    ) -> Batch:
        """The batch without what is refused; one of which nothing is left is what a batch beside it is."""
        if refusals.none:
            return Batch(found.numbers, fields, found.planned, key)
        if not quiet:
            refusals.record()
        emptied = refusals.emptied()
        if emptied and quiet:
            raise _Emptied(emptied)
        if emptied:
            return self._stood_in(epoch, found, refusals, emptied)
        return Batch(found.numbers, refusals.remaining(fields), found.planned, key)

    def _key(self, epoch: int, found: LookedUpBatch, draft: Draft, refusals: BatchRefusals) -> BatchKey | None:
        """Which samples a batch holds that was filled."""
        if not self._keyed:
            return None
        ledger = [self._numbering.number(epoch, each) for each in found.numbers]
        delivered = refusals.delivered_rows()
        return key_of(found.numbers, ledger, found.counts, draft.samples, draft.shape, delivered, draft.layouts)

    def _stood_in(self, epoch: int, found: LookedUpBatch, refusals: BatchRefusals, emptied: list[int]) -> Batch:
        """The batches with others in place of those of which nothing is left."""
        planned, first = [self._numbering.batch_at(epoch, each) for each in found.numbers], emptied[0]
        chosen = list(planned)
        others = {at: self._stand_ins(epoch, number) for at, number in enumerate(planned)}
        while True:
            for at in emptied:
                number = next(others[at], None)
                if number is None:
                    refusals.refuse_batch(first)
                chosen[at] = number
            instead = self._looking_up.instead(found.numbers, partial(self._others, epoch, planned, chosen))
            emptied = [at for at, count in enumerate(instead.counts) if not count]  # the run skips all of it
            if emptied:
                continue
            try:
                batch = self._begin(epoch, instead, Here(), quiet=True).result()
            except _Emptied as again:
                emptied = again.rows
                continue
            rows, samples = next(iter(batch.fields.values())), found.planned
            delivered = instead.planned if self._sparing else len(rows)
            return replace(batch, samples=delivered + samples - refusals.counted(samples))

    def _others(self, epoch: int, numbers: Sequence[int], chosen: Sequence[int]) -> list[Drawn]:
        """Draw the batches that are delivered for some, each itself or another in its place."""
        numbering = self._numbering.undealt()
        return [
            numbering.draw(epoch, [number])[0] if number == planned else numbering.standing_in(epoch, number, planned)
            for planned, number in zip(numbers, chosen, strict=True)
        ]

    def _stand_ins(self, epoch: int, number: int) -> Iterator[int]:
        """The batches that may be delivered in place of one: those after it, then those before it."""
        after = takewhile(lambda each: self._numbering.exists(epoch, each), range(number + 1, number + 1 + STAND_INS))
        before = (each for each in range(number - 1, -1, -1) if self._numbering.exists(epoch, each))
        return islice(chain(after, before), STAND_INS)

    def _filled(
        self,
        epoch: int,
        found: LookedUpBatch,
        refusals: BatchRefusals,
        pool: Executor,
        settled: Callable[[dict[str, Any], BatchKey | None], Batch],
        *,
        later: bool,
    ) -> Pending:
        drawn, samples, count = found.drawn, found.drawn.samples, sum(found.counts)
        shape = drawn.membership
        fields: dict[str, Any] = dict.fromkeys(self._stages.field_names)
        keys = self._reader.random_keys(epoch, samples) if self._fields.draws else np.zeros(count, dtype=np.uint64)
        following = self._fields.nothing_follows or BatchFollowers(self._fields.followers, count, keys, shape.size)
        draft = Draft(samples, shape, keys, refusals, pool, fields, following, self._filling)
        try:
            draft.listed += self._gathered.fill(found, fields)
            if later:
                draft.parts += self._deferred(epoch, draft, found.tokens).start(pool)
            else:
                self._fill_columns(draft, found.tokens)
                self._fill_after_columns(draft)
            if not later or not self._fields.followers.fields:
                self._fill_pixels(draft)
        except BaseException:
            drop(draft.parts)  # `finish` says why
            raise

        totals = self._numbering.step_totals(epoch, found.numbers[0]) if self._totals else {}
        for total in self._totals:
            assert total.spec.dtype is not None
            fields[total.name] = self._filling.rows((draft.shape.rows,), total.spec.dtype)

        def finish() -> Batch:
            following.finish(fields, refusals)
            if drawn.membership.filler is not None and isinstance(self._stages.batches.last, PadPartial):
                masks = {each.name for each in self._stages.fields if each.is_mask}
                blank(fields, drawn.membership.filler, self._stages.batches.last, masks)
            for total in self._totals:
                fields[total.name][...] = totals[total.field.value]
            return settled(fields, self._key(epoch, found, draft, refusals))

        listed = (lambda: draft.listed) if later else draft.listed
        return Pending(finish, draft.parts, fields, listed, found.begun, found.planned)

    def _fill_pixels(self, draft: Draft) -> None:
        for each in self._at_once:
            each.start(draft)

    def _fill_columns(self, draft: Draft, gathered: Mapping[str, Ragged]) -> None:
        for plain, key in self._fields.plains:
            self._fill_plain(draft, plain, draft.samples.columns[key])
        if self._sequences is not None:
            self._sequences.fill(draft, gathered)
        for each in self._by_column:
            each.start(draft)

    def _fill_after_columns(self, draft: Draft) -> None:
        for each in self._after_columns:
            each.start(draft)

    def _deferred(self, epoch: int, draft: Draft, gathered: Mapping[str, Ragged]) -> Deferred:
        """The columns that functions make, and after them the fields: the pieces of a batch's pixels run meanwhile."""

        def fill() -> None:
            part = replace(draft, pool=Here(), parts=[], listed=0)
            draft.refusals.know_unread()
            try:
                self._fill_columns(part, gathered)
            except BaseException:
                drop(part.parts)  # likewise
                raise
            draft.listed += part.listed
            finish(part.parts)
            self._fill_after_columns(draft)
            if self._fields.followers.fields:  # which have to be known before an image is read
                self._fill_pixels(draft)

        skippable, rows = self._refusals.skippable, self._piece_rows
        return Deferred(
            self._reader, self._stages, epoch, draft.samples, self._fields.keys, fill, rows, skippable=skippable
        )

    # ---- fields that are copied from a column

    def _plain_slot(self, stage: PlainStage, rows: int, values: pa.Array) -> NDArray[Any]:
        assert stage.spec.dtype is not None
        if isinstance(stage.field, PaddedRows):
            width = stage.field.length or int(padded(stage.field.longest(values), stage.field.multiple))
            shape = (rows, width, *(size for size in stage.spec.shape[1:] if size is not None))
            return self._filling.items(shape, stage.spec.dtype)
        return self._filling.rows(stage.shape(rows), stage.spec.dtype)

    def _fill_plain(self, draft: Draft, stage: PlainStage, values: pa.Array | Ragged) -> None:
        if isinstance(values, Ragged):
            values = as_lists(values)
        if isinstance(stage.field, Following):
            draft.following.give(stage, values)
            draft.fields[stage.name] = np.empty(
                (draft.shape.rows, 0), dtype=stage.spec.dtype
            )  # made when images are read
            return
        if stage.spec.dtype is None:
            draft.listed += object_bytes(values)
        if draft.shape.packing is not None:  # the plan allows no arrays here
            with blaming(self._stages, draft.samples, 0):
                flat = stage.field.fill(values, None)
            draft.fields[stage.name] = draft.by_row(flat)
            return
        rows = draft.shape.rows
        filled: Any = [None] * rows if stage.spec.dtype is None else self._plain_slot(stage, rows, values)
        draft.fields[stage.name] = filled

        def fill(a: int, b: int) -> None:
            into = None if stage.spec.dtype is None else filled[a:b]
            found = stage.field.fill(values.slice(a, b - a), into)
            if found is not into:
                filled[a:b] = found

        draft.refusals.attempt(stage.name, 0, rows, fill)

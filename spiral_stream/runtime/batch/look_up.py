"""Which samples the next batches hold, and where their rows lie: drawn and looked up for several batches at a time.

A batch of narrow rows or of token lists costs more calls than bytes, and a call for two dozen batches costs about what it
costs for one. So the batches of the next steps are looked up with the one that is begun, if they are formed already, and if
no map makes anything but tokens. Held ahead are addresses, about 100 bytes per sample, for 8,192 samples if batches have
about the same number. Of each token column, at most 16 MiB are brought into memory with them. The memory of a batch is taken
when it is begun, so the queue bounds it as ever.

Rows that come from a disk take long, and a loop should not wait for those of two dozen batches. So twice as many batches are
looked up together each time, and half as many after a time that was not quick. Neither changes a batch.

Columns that are read from a source, and payload (`runtime.columns.rows_ahead`), are read for several small batches
at a time, for 64 rows together at most: a batch of one row would cost a call. The first read is for one batch; each next one is
for twice as many rows, as far as 4 MiB go by the size of those that were read last.

An error belongs to its batch: where looking up together fails, each batch is looked up alone when its turn comes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from time import perf_counter
from typing import Final, final

import numpy as np

from spiral_stream.errors import SourceError
from spiral_stream.fields.ragged import FEW_BYTES, Ragged
from spiral_stream.integrity.blocks import moment, sound
from spiral_stream.planner.columns.lineage import Stored
from spiral_stream.runtime import read_ahead
from spiral_stream.runtime.batch.opened_fields import OpenedFields
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.rows_ahead import least
from spiral_stream.runtime.columns.samples import Int64, Lost, SampleReader, Samples
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.runtime.numbering.drawn import Drawn, joined, part_of, sample_count
from spiral_stream.runtime.numbering.numbering import Numbering
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import doing

BATCHES: Final = 24  # looked up together at most
SAMPLES: Final = 1 << 13  # of all of them; arrays of twice as many (128 KiB) come from the system anew each time
QUICK_S: Final = 0.01  # 0.2 ms where all rows are in memory


@final
@dataclass(slots=True, eq=False)
class LookedUpBatch:
    """One batch, or several that are delivered as one: its samples, and where their rows lie."""

    numbers: range
    drawn: Drawn
    counts: list[int]  # samples of each batch
    planned: int  # samples of all; one that is cut into several pieces counts where it begins
    begun: int  # when the reading of mapped files began
    located: tuple[Int64, UInt64] | None = None  # shard and offset of each in kept columns, where fields are gathered
    tokens: Mapping[str, Ragged] = field(default_factory=dict)  # kept token columns
    looked_up: bool = False
    read: bool = False  # whether its columns were read with those of a batch before it
    lost: Sequence[tuple[Lost, ...]] = ()  # of each batch

    @classmethod
    def of(cls, numbers: range, each: Sequence[Drawn], begun: int) -> "LookedUpBatch":
        """Return batches that were drawn, joined; nothing of them is looked up yet."""
        drawn, counts = joined(each), [len(one.samples) for one in each]
        return cls(numbers, drawn, counts, sample_count(drawn), begun, lost=[one.lost for one in each])

    def part(self, left: Int64) -> "LookedUpBatch":
        """Return the same batches with some of their samples."""
        borders = np.cumsum([0, *self.counts])
        counts = np.diff(np.searchsorted(left, borders)).tolist()
        located = None if self.located is None else (self.located[0][left], self.located[1][left])
        tokens = {name: values.take(left) for name, values in self.tokens.items()}
        drawn = Drawn(self.drawn.samples.take(left), part_of(self.drawn.membership, left))
        state = self.looked_up, self.read, self.lost
        return LookedUpBatch(self.numbers, drawn, counts, sample_count(drawn), self.begun, located, tokens, *state)


@final
class LookingUp:
    """Draws the batches of a stream, and looks their rows up. For one thread at a time.

    Args:
        fields: of the opened plan.
        numbering: which batches there are.
        reader: reads columns of small batches together.
        payloads: the fields whose rows are looked up by address.
        most_rows: that are read together.
        metrics: where time is counted.

    Attributes:
        begun: when the reading of mapped files began, of the batches that were drawn last.
    """

    def __init__(
        self,
        fields: OpenedFields,
        numbering: Numbering,
        reader: SampleReader,
        payloads: Sequence[PayloadField],
        most_rows: int,
        metrics: Metrics,
    ) -> None:
        self._stages, self._numbering = fields.stages, numbering
        self._gathering, self._metrics = fields.gathering, metrics
        self._light, self._gathers, self._brings_near = fields.light, fields.gathers, fields.brings_near
        self._epoch = -1
        self._ahead: deque[LookedUpBatch] = deque()
        self._most = 1  # steps that are looked up together; the first one shows how many samples a step has
        self.begun = 0
        self._reader, self._payloads = reader, payloads
        self._keys: Sequence[Stored] = () if fields.calls else fields.stored  # that are read together
        self._reads = bool(self._keys or payloads)
        self._most_rows, self._rows = most_rows, 0  # that are read together: the limit, and how many were last time
        self._room: int | None = None  # the same limit by the size of the columns that were read last

    def of(self, epoch: int, numbers: range, soon: Iterable[range] = ()) -> LookedUpBatch:
        """Return the samples of some batches that are delivered as one.

        Args:
            epoch: the epoch.
            numbers: the batches.
            soon: those of the steps after it whose batches are formed.

        Raises:
            IndexError: the epoch has no such batch.
            SourceError: a row cannot be looked up; it may come of zeros, where a mapped file was cut since `begun`.
        """
        if not self._ahead or self._epoch != epoch or self._ahead[0].numbers != numbers:
            self._epoch, self._ahead = epoch, self._found(epoch, [numbers, *islice(soon, self._most - 1)])
        found = self._ahead.popleft()
        if not found.looked_up:
            self.locate([found])
        if self._reads and self._ahead and not found.read:
            self._read(found)
        return found

    def _read(self, first: LookedUpBatch) -> None:
        """Read columns of a batch together with those of the next ones, as far as so many rows go."""
        together, rows = [first], len(first.drawn.samples)
        room = least([self._room, *(each.room for each in self._payloads)])
        most = self._most_rows if room is None else min(self._most_rows, room)
        self._rows = max(rows, min(most, 2 * self._rows))
        for each in self._ahead:
            rows += len(each.drawn.samples)
            if rows > self._rows or each.read:
                break
            together.append(each)
        joined = Samples.concat([each.drawn.samples for each in together])
        with suppress(Exception):  # it comes again, at its batch
            if self._keys and len(together) > 1:
                self._need(together, joined)
            for payload in self._payloads if len(first.drawn.samples) <= self._most_rows else ():
                payload.expect(joined.stream_rows)
            for each in together:
                each.read = True

    def _need(self, together: Sequence[LookedUpBatch], samples_read: Samples) -> None:
        self._reader.need(self._epoch, samples_read, self._keys)
        read = samples_read.only(self._keys)
        parts = read.cut([len(each.drawn.samples) for each in together])
        for each, part in zip(together, parts, strict=True):
            each.drawn.samples.columns.update(part.columns)
        self._room = read_ahead.ROWS_BYTES // max(
            1, sum(column.nbytes for column in read.columns.values()) // max(1, len(samples_read))
        )

    def instead(self, numbers: range, draw: Callable[[], list[Drawn]]) -> LookedUpBatch:
        """Return other batches in place of some. It may be called while another thread asks for batches.

        Args:
            numbers: the batches.
            draw: draws what is taken for each.
        """
        begun, drawn = moment(), draw()
        found = LookedUpBatch.of(numbers, drawn, begun)
        found.lost = [()] * len(drawn)  # that of the chosen ones is counted where they are delivered themselves
        with sound(begun):
            self.locate([found])
        return found

    def _found(self, epoch: int, steps: Sequence[range]) -> deque[LookedUpBatch]:
        self.begun = moment()
        with timed(self._metrics, "plan_s"):
            found: list[LookedUpBatch] = []
            if len(steps) > 1:
                with suppress(Exception):  # it comes again, at its batch
                    found = self._drawn(epoch, steps)
            found = found or self._drawn(epoch, steps[:1])
        if self._light:
            most = max(1, min(BATCHES, SAMPLES // max(1, sum(found[-1].counts))))
            self._most = min(most, 2 * self._most)
        if len(found) > 1:
            begun_s = perf_counter()
            with suppress(Exception):  # it comes again, at its batch
                self.locate(found)
            if perf_counter() - begun_s > QUICK_S:
                self._most = max(1, len(found) // 2)
        return deque(found)

    def _drawn(self, epoch: int, steps: Sequence[range]) -> list[LookedUpBatch]:
        with blaming(self._stages, None):
            drawn = iter(self._numbering.draw(epoch, list(chain.from_iterable(steps))))
        return [LookedUpBatch.of(numbers, list(islice(drawn, len(numbers))), self.begun) for numbers in steps]

    def locate(self, found: Sequence[LookedUpBatch]) -> None:
        """Look up the rows of batches in kept columns, all at once, and bring tokens into memory."""
        if self._gathers and any(sum(each.counts) for each in found):  # the run may skip all samples of a batch
            try:
                self._gather(found)
            except SourceError:
                with blaming(self._stages, Samples.concat([each.drawn.samples for each in found])):
                    raise
        if self._brings_near:
            with timed(self._metrics, "fetch_s"):
                for each in found:
                    _bring_near(each.drawn.samples, FEW_BYTES // len(found))
        for each in found:
            each.looked_up = True

    def _gather(self, found: Sequence[LookedUpBatch]) -> None:
        gathering = self._gathering
        with timed(self._metrics, "fetch_s"), doing(gathering.words):
            shards, offsets = gathering.located([each.drawn.samples.stream_rows for each in found])
            tokens = {column: narrow.ragged(shards, offsets).near() for column, narrow in gathering.tokens.items()}
            if tokens:
                self._metrics.read_table(len(offsets), {column: each.nbytes for column, each in tokens.items()})
        first = 0
        for each in found:
            last = first + sum(each.counts)
            each.located = shards[first:last], offsets[first:last]
            each.tokens = {column: values.run(first, last) for column, values in tokens.items()}
            first = last


def _bring_near(samples: Samples, most_bytes: int) -> None:
    """Bring the tokens of a batch into memory, those of each column that has at most so many bytes."""
    columns = samples.columns
    columns.update({key: values.near(most_bytes) for key, values in columns.items() if isinstance(values, Ragged)})

"""Refuse samples that cannot be read, batch by batch, as `plan.bad_samples` says.

While a batch is built, work on its rows goes through `BatchRefusals.attempt`. Work that fails is done again without the
row that failed. A run with k bad rows costs at most 2 k more calls and its work once more; a batch without bad rows
costs nothing. When the batch is delivered, its refused rows are removed from every field, or overwritten, in place.
They are counted and written to the quarantine once per batch.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NoReturn, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.packing import Packed
from spiral_stream.errors import DataError, SourceError, renumbered, shown
from spiral_stream.plan.bad_samples import allowed, budget_text, why_never
from spiral_stream.plan.functions.cached_functions import function_of
from spiral_stream.plan.nodes import Collate, Sampled
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFilter, SampleRecords
from spiral_stream.planner.columns.lineage import Refusal
from spiral_stream.planner.columns.payload import base_payload
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.error_sample import blaming, identities, identity_table, read_identity
from spiral_stream.runtime.columns.samples import Lost, Samples
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.quarantine import PART, Quarantine, renamed
from spiral_stream.semantic import PATH, is_list, semantic_of
from spiral_stream.threads import doing

Int64 = NDArray[np.int64]
_SHOWN: Final = 3  # refused samples that a message names
STAND_INS: Final = 8  # batches that are asked for something to deliver, where nothing is left of one
EPOCHS: Final = 4  # epochs whose counts are remembered: the current one, and those that random access visits

# B rows of a batch as planned


@final
class RefusalTally:
    """How many samples this process refused in each epoch's batches, each batch counted once. Thread-safe."""

    def __init__(self) -> None:
        self._epochs: dict[int, dict[int, int]] = {}  # epoch -> batch -> refused
        self._totals: dict[int, int] = {}
        self._lock = threading.Lock()

    def add(self, epoch: int, counts: Mapping[int, int]) -> tuple[bool, int]:
        """Enter the batches of a delivery. Returns whether any of them is new, and the epoch's total so far."""
        with self._lock:
            seen = self._epochs.pop(epoch, {})
            new = {number: count for number, count in counts.items() if number not in seen}
            seen.update(new)
            self._totals[epoch] = self._totals.pop(epoch, 0) + sum(new.values())
            self._epochs[epoch] = seen  # last used comes last
            while len(self._epochs) > EPOCHS:
                oldest = next(iter(self._epochs))
                del self._epochs[oldest], self._totals[oldest]
            return bool(new), self._totals[epoch]


@final
class Refusals:
    """What one stream does with samples that cannot be read, in one process."""

    def __init__(self, stages: Stages, metrics: Metrics, quarantine: Quarantine, tally: RefusalTally) -> None:
        collate = need(stages.plan, Collate)
        self.stages, self.metrics, self.quarantine, self.tally = stages, metrics, quarantine, tally
        self.policy = collate.on_error
        self.skippable = not why_never(collate.source)
        self.packed = isinstance(collate.formation, Packed)
        self.budget = budget_text(collate.error_budget)
        self.allowed = allowed(collate.error_budget, stages.epochs.total)
        self.order = {name: at for at, name in enumerate(stages.field_names)}


@final
@dataclass(frozen=True, slots=True, order=True)
class _Refusal:
    """Why a row is refused. Of several reasons the first field's is kept, whichever was found first."""

    order: int
    field: str
    reason: str


@final
class BatchRefusals:
    """The refused samples of one batch. `attempt` may be called by several threads at a time.

    Args:
        policy: of the stream.
        epoch: the epoch.
        delivered: how many batches of the epoch are delivered before each of those that are delivered as one.
        samples: the samples of these batches, in order.
        counts: how many samples each batch has.
        lost: of each batch what it counts beside its samples.
        number: gives the number of a batch, of the epoch and of how many are delivered before it; None: they are the same.
        strict: let the errors pass, whatever the plan says.
    """

    def __init__(
        self,
        policy: Refusals,
        epoch: int,
        delivered: Sequence[int],
        samples: Samples,
        counts: Sequence[int],
        lost: Sequence[tuple[Lost, ...]] = (),
        number: Callable[[int, int], int] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._policy, self._stages = policy, policy.stages
        self._epoch, self._delivered, self._counts, self._number = epoch, delivered, counts, number
        self._samples = samples
        self._tolerant = policy.policy != "raise" and not strict
        self._lost = lost if any(lost) else ()
        self._leaving: set[int] = set()  # further pieces of refused samples, which leave with the first
        self.found: dict[int, _Refusal] = {}
        self._unread: list[int] = []  # rows known to be refused before any work began, ascending
        self._lock = threading.Lock()

    @property
    def none(self) -> bool:
        """Whether nothing of the batch is refused or lost, as most often."""
        return not self.found and not self._lost

    @property
    def _numbers(self) -> list[int]:
        """The number of each batch; asked for only where a sample is refused."""
        number = self._number
        return [each if number is None else number(self._epoch, each) for each in self._delivered]

    @property
    def _bounds(self) -> Int64:
        """The first row of each batch, and the end; asked for only where a sample is refused."""
        return np.cumsum([0, *self._counts])

    def know_unread(self) -> None:
        """Refuse the samples for which a map could not be made, before work on the batch begins."""
        for key, column in self._samples.columns.items():
            if isinstance(key, Refusal):
                assert isinstance(column, pa.Array)
                for row in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist():
                    self._refuse(row, _named_map(self._stages.maps[key.at]), column[row].as_py())
        self._unread = sorted(self.found)

    def attempt(
        self, field: str, first: int, last: int, work: Callable[[int, int], None], rows: Int64 | None = None
    ) -> None:
        """Do work on rows [first, last) of the batch, in runs that leave out the rows that fail.

        Args:
            field: the field of the batch that the work is for.
            first: first row of the run.
            last: one past its last row.
            work: called with the first row of a run and one past its last, and again for what is left of a run that
                failed. The ``row`` of a `DataError` that it raises counts from the run's first row.
            rows: if given, all rows above are places in this array, which holds the rows of the batch.

        Raises:
            DataError: a sample cannot be read, and the plan says ``"raise"``; the message names the sample.
            SourceError: storage failed, whatever the plan says; likewise.
        """
        todo = self._runs(first, last, rows)
        while todo:
            begin, end = todo.pop()
            with doing(f"field {field!r}"), blaming(self._stages, self._samples, 0, skippable=self._policy.skippable):
                try:
                    work(begin, end)
                except SourceError as error:
                    todo += self._failed(field, begin, end, error, rows)

    def _failed(
        self, field: str, begin: int, end: int, error: SourceError, rows: Int64 | None
    ) -> list[tuple[int, int]]:
        """Return what is left to do of a run that failed. Raises the error if the plan does not tolerate it."""
        at = None if error.row is None else begin + error.row
        if not self._tolerant or not isinstance(error, DataError):
            try:
                with renumbered(range(begin, end) if rows is None else rows[begin:end]):
                    raise error
            finally:
                del error  # which keeps this frame
        if at is None and end - begin > 1:  # the halves will show which row it is
            middle = (begin + end) // 2
            return [(middle, end), (begin, middle)]
        at = begin if at is None else at
        self._refuse(at if rows is None else int(rows[at]), field, str(error))
        return [(a, b) for a, b in ((at + 1, end), (begin, at)) if a < b]

    def _runs(self, first: int, last: int, rows: Int64 | None) -> list[tuple[int, int]]:
        """Return the runs of [first, last) without the rows that are refused already, the last run first."""
        if not self._unread:
            return [(first, last)]
        rows_of = np.arange(first, last) if rows is None else rows[first:last]
        out = first + np.flatnonzero(np.isin(rows_of, self._unread))
        borders = [first - 1, *out.tolist(), last]
        return [(before + 1, at) for before, at in pairwise(borders) if at > before + 1][::-1]

    def refuse_sample_parts(self, row: int, parts: Iterable[int], error: DataError) -> None:
        """Refuse a sample of packed rows, with its other pieces in the batch."""
        self._refuse(row, "", str(error.__cause__ or error))
        self._leaving |= set(parts) - {row}

    def _refuse(self, row: int, field: str, reason: str) -> None:
        made = _Refusal(self._policy.order.get(field, -1), field, reason)
        with self._lock:
            self.found[row] = min(made, self.found.get(row, made))

    def good(self) -> Int64:
        """Return the rows that are not refused so far, ascending."""
        with self._lock:
            return np.delete(np.arange(int(self._bounds[-1])), sorted(self.found.keys() | self._leaving))

    # ---- the batch is delivered

    def record(self) -> None:
        """Count the refused samples, and write them to the quarantine.

        Raises:
            DataError: the error budget is used up; the message says the ways out.
        """
        rows = np.array(sorted(self.found), dtype=np.int64)
        more = [sum(len(each.samples) for each in some) for some in self._lost] or [0] * len(self._counts)
        counts = {
            number: int(np.count_nonzero((rows >= a) & (rows < b))) + others
            for number, (a, b), others in zip(self._numbers, pairwise(self._bounds.tolist()), more, strict=True)
        }
        self._record(rows, {number: count for number, count in counts.items() if count})

    def counted(self, planned: int) -> int:
        """Return how many samples of a batch of so many the metrics count as delivered."""
        return planned - len(self.found) if self._policy.policy == "skip" else planned

    def emptied(self) -> list[int]:
        """Return the batches of which no sample is left, by their place among those that are delivered as one."""
        if not self.found:
            return []
        left = np.diff(np.searchsorted(self.good(), self._bounds))
        return [at for at, count in enumerate(self._counts) if count and not left[at]]

    def remaining(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the batch's fields without its refused samples, or with other samples in their place.

        Of packed rows they were left out before the fields were filled.
        """
        if not self.found or self._policy.packed:
            return fields
        rows, good = np.array(sorted(self.found)), self.good()
        if self._policy.policy == "skip":
            return {name: _compacted(value, good) for name, value in fields.items()}
        stand_ins = self._next_good(rows, good)
        return {name: _overwritten(value, rows, stand_ins) for name, value in fields.items()}

    def delivered_rows(self) -> Int64 | None:
        """Return the filled row that each delivered row holds; None where all are delivered as they were filled."""
        if not self.found or self._policy.packed:
            return None
        good = self.good()
        if self._policy.policy == "skip":
            return good
        rows, out = np.array(sorted(self.found)), np.arange(int(self._bounds[-1]))
        out[rows] = self._next_good(rows, good)
        return out

    def _next_good(self, rows: Int64, good: Int64) -> Int64:
        """Return for each refused row the next good row of its batch, cyclically."""
        batch = np.searchsorted(self._bounds, rows, side="right") - 1
        first, last = np.searchsorted(good, self._bounds[batch]), np.searchsorted(good, self._bounds[batch + 1])
        after = np.searchsorted(good, rows)
        return good[np.where(after < last, after, first)]

    def _record(self, rows: Int64, counts: Mapping[int, int]) -> None:
        """Count the refused rows of a delivery, and write them to the quarantine.

        Raises:
            DataError: the epoch has more of them than the error budget allows.
        """
        policy = self._policy
        done = "skipped" if policy.policy == "skip" else "substituted"
        fewer = len(rows) if policy.policy == "skip" else 0
        others = sum(counts.values()) - len(rows)
        policy.metrics.add(refused=len(rows) + others, **{done: len(rows)}, samples=-fewer)
        if others:  # no sample of a batch was made of them, so none stands in for them
            policy.metrics.add(skipped=others)
        new, total = policy.tally.add(self._epoch, counts)
        refused = self._samples.take(rows)
        read_identity(self._stages, refused)
        if new:
            policy.quarantine.append(self._table(refused, rows))
            for table in self._lost_tables():
                policy.quarantine.append(table)
        if total > policy.allowed:
            self._refuse_epoch(refused, rows, total)

    def _table(self, refused: Samples, rows: Int64) -> pa.Table:
        found = [self.found[row] for row in rows.tolist()]
        batch = np.searchsorted(self._bounds, rows, side="right") - 1
        numbers, batch_rows = np.asarray(self._numbers)[batch], rows - self._bounds[batch]
        fields, reasons = [each.field for each in found], [each.reason for each in found]
        made = any(isinstance(step, SampleAssembly) for step in self._stages.maps)  # of several, which lie nowhere
        return self._rows_of(
            refused, numbers, batch_rows, fields, reasons, None if made else self._origins(refused, fields)
        )

    def _lost_tables(self) -> Iterator[pa.Table]:
        """The samples that became no sample of a batch; their rows are numbered from -1 down."""
        for number, some in zip(self._numbers, self._lost, strict=False):
            first = 0
            for each in some:
                count = len(each.samples)
                numbers = -1 - first - np.arange(count)
                first += count
                fields = [each.field] * count
                origins = self._origins(each.samples, fields)
                yield self._rows_of(each.samples, np.full(count, number), numbers, fields, each.reasons, origins)

    def _rows_of(
        self,
        refused: Samples,
        numbers: Int64,
        rows: Int64,
        fields: Sequence[str],
        reasons: Sequence[str],
        origins: tuple[list[str], list[str], list[str | None]] | None,
    ) -> pa.Table:
        """Rows of the quarantine."""
        stages = self._stages
        nowhere = pa.nulls(len(rows), pa.utf8())
        relations, shards, references = origins or (nowhere, nowhere, nowhere)
        streams = pa.array([stream.name or None for stream in stages.streams], pa.utf8())
        identity = identity_table(stages, refused)
        ours = {
            PART: refused.parts,
            "stream": streams.take(pa.array(refused.stream_rows.streams)),
            "epoch": np.full(len(rows), self._epoch),
            "batch": numbers,
            "row": rows.astype(np.int32),
            "field": list(fields),
            "reason": list(reasons),
            "relation": relations,
            "shard": shards,
            "reference": references,
        }
        named = {renamed(stages, name): value for name, value in ours.items()}
        names = self._policy.quarantine.schema.names
        return pa.table({name: identity[name] if name in stages.identity else named[name] for name in names})

    def _origins(self, refused: Samples, fields: Sequence[str]) -> tuple[list[str], list[str], list[str | None]]:
        """Return for each sample the relation, the storage shard, and the reference (if there is one) that failed."""
        stages = self._stages
        payloads = {stage.name: stage.payloads for stage in stages.readers if stage.payloads}
        relations, shards = list[str](), list[str]()
        references: list[str | None] = []
        for at, field in enumerate(fields):  # of refused samples only
            k, row = int(refused.stream_rows.streams[at]), refused.stream_rows.rows[at : at + 1]
            stream, found = stages.streams[k], payloads.get(field)
            payload = found[k] if found else base_payload(stream.selected, stream.base, "")
            relation, ordinals = payload.relation, payload.ordinals(row)
            relations.append(relation.entry.name)
            shards.append(relation.manifest.shard_names[int(relation.manifest.shard_of(ordinals)[0])].as_py())
            named = bool(payload.column) and _names_a_file(relation.schema.field(payload.column))
            references.append(_reference(relation.fetch(ordinals, [payload.column])) if named else None)
        return relations, shards, references

    # ---- errors

    def refuse_batch(self, at: int) -> NoReturn:
        """Refuse a batch of which nothing is left, where no other one can take its place.

        Raises:
            DataError: says the ways out.
        """
        number, count, found = self._numbers[at], self._counts[at], self.found[int(self._bounds[at])]
        none = "its only sample cannot" if count == 1 else f"none of its {count:,} samples can"
        msg = (
            f'collate: batch {number:,} of epoch {self._epoch}: {none} be read, so on_error="{self._policy.policy}" leaves '
            f"nothing, nor has one of the {STAND_INS} batches beside it a sample that can; the first: "
            f"{found.field}: {found.reason}. stream.quarantine() lists them: mend them, or leave them "
            "out with .filter(...) before sample"
        )
        raise DataError(msg)

    def _refuse_epoch(self, refused: Samples, rows: Int64, total: int) -> NoReturn:
        found = [self.found[row] for row in rows.tolist()][-_SHOWN:]
        last = identities(self._stages, refused.take(np.arange(len(refused))[-_SHOWN:]))
        named = "; ".join(f"{shown(who)} ({each.field}: {each.reason})" for who, each in zip(last, found, strict=True))
        named = named or next(f"{each.field}: {each.reasons[-1]}" for some in self._lost for each in some)
        policy, name = self._policy, self._stages.identity[0]
        msg = (
            f"collate: {total:,} samples of epoch {self._epoch} could not be read, more than the {policy.allowed:,} that "
            f"{policy.budget} allows of {self._stages.epochs.total:,}; the last: {named}. All are in "
            f"{policy.quarantine.folder}, see stream.quarantine(): mend them, leave them out before sample with "
            f'.filter(~col("{name}").is_in([...])), or raise error_budget in collate and load the last state: it fits'
        )
        raise DataError(msg)


def _named_map(step: Sampled) -> str:
    """What the quarantine calls a map: the column that it makes, or its function."""
    function = function_of(step)
    if isinstance(step, SampleFilter | SampleAssembly | SampleRecords):
        assert function is not None
        return function.name
    return str(getattr(step, "name"))  # noqa: B009  of all others


def _compacted(value: Any, good: Int64) -> Any:
    """Move the good rows of a field to its beginning, and return them; the slot stays where it is."""
    if isinstance(value, list):
        return [value[row] for row in good.tolist()]
    for first, begin, end in _moves(good):
        value[first : first + end - begin] = value[begin:end]
    return value[: len(good)]


def _moves(good: Int64) -> Iterable[tuple[int, int, int]]:
    """Return the runs of good rows: the place each moves to, its first row, and one past its last."""
    borders = [0, *(np.flatnonzero(np.diff(good) > 1) + 1).tolist(), len(good)]
    return [(a, int(good[a]), int(good[b - 1]) + 1) for a, b in pairwise(borders)]


def _overwritten(value: Any, rows: Int64, stand_ins: Int64) -> Any:
    """Return the field with copies of the stand-ins at the refused rows."""
    if isinstance(value, list):
        instead = dict(zip(rows.tolist(), stand_ins.tolist(), strict=True))
        return [value[instead.get(row, row)] for row in range(len(value))]
    value[rows] = value[stand_ins]
    return value


def _names_a_file(column: pa.Field) -> bool:
    """Whether the column's values say where payload lies, rather than being payload."""
    kind = column.type.value_type if is_list(column.type) else column.type
    return semantic_of(column) is not None and not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _reference(fetched: pa.Table) -> str | None:
    """Return a reference as text: ``uri``, or ``uri[offset+length]`` for a byte range."""
    value = fetched.column(0)[0].as_py()
    if is_list(fetched.schema.field(0).type) and value and isinstance(value[0], Mapping) and PATH in value[0]:
        value = [None if each is None else each[PATH] for each in value]
    if isinstance(value, Mapping):
        if PATH in value:
            return None if value[PATH] is None else str(value[PATH])
        return f"{value.get('uri')}[{value.get('offset')}+{value.get('length')}]"
    return None if value is None else str(value)

"""Where two runs part: how many batches are the same, and what one saw from there that the other never did.

Both runs are drawn from their legs. Delivered batches are compared epoch by epoch, sample by sample and in order, up to the first
batch that differs; ranks and steps do not matter. The rows that only one of them saw are the difference of two sets of
identities, counted by relation. Plans are compared field by field.

Cost: the batches that are the same are drawn once on each side; the sets need all batches of both.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.display.progress import working
from spiral_stream.explain.figure import Figure
from spiral_stream.explain.text import Explained, Explanation
from spiral_stream.plan.saving.differences import PlanDifference, differences
from spiral_stream.relational.engine import apart
from spiral_stream.runs.identities import sample_texts, texts
from spiral_stream.runs.leg import Leg, known_legs
from spiral_stream.runs.opened_leg import OpenedLeg, OpenedLegs
from spiral_stream.runs.rows_seen import RELATION, TIMES, assembled_table, counted_rows, row_tables

EXAMPLES: Final = 5
_SHOWN: Final = 3
_AT_A_TIME: Final = 1 << 10  # batches that are compared at a time
_SIDES: Final = pa.schema(
    [("side", pa.int8()), ("source", pa.large_string()), ("value", pa.large_string()), ("at", pa.int64())]
)


@final
@dataclass(frozen=True, slots=True)
class SourceDifference:
    """What only one of two runs saw of a relation.

    Attributes:
        relation: its name.
        only: rows that the first run alone saw, and those that the second alone did.
        examples: a few identities of each, as texts.

    Examples:
        >>> catalog.save_stream("kept", plan.to_numpy())
        >>> stream.seek(batch=2)
        >>> two = stream.state_dict()
        >>> stream.seek(batch=3)
        >>> [each.only for each in catalog.diff(two, stream.state_dict()).sources]
        [(0, 8)]
    """

    relation: str
    only: tuple[int, int]
    examples: tuple[tuple[str, ...], tuple[str, ...]]


@final
@dataclass(frozen=True, slots=True)
class PartingBatch:
    """The first batch in which two runs differ, on one side.

    Attributes:
        epoch: its epoch.
        batch: its number, as `ledger` takes it.
        step: the step that delivered it; of a state, counted in its epoch.
        samples: how many it has.

    Examples:
        >>> catalog.save_stream("kept", plan.to_numpy())
        >>> catalog.diff("kept", "kept").parting
        (None, None)
    """

    epoch: int
    batch: int
    step: int
    samples: int


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunDifference(Explained):
    """Where two runs part, and what each saw; printing it shows both. Made by `Catalog.diff`.

    Attributes:
        names: what the two are called.
        same: how many batches both delivered alike, from the first on that both have on record; None if no epoch is
            recorded of both.
        parting: the first batch that differs, on each side; None where a side has no further one.
        batches: how many each delivered.
        sources: what only one of them saw, by relation; empty if both saw the same rows.
        plan: where their plans differ.
        data: relations whose data differs: the versions on each side.
        not_recorded: what nothing is known of.

    Examples:
        >>> catalog.save_stream("kept", plan.to_numpy())
        >>> stream.seek(batch=2)
        >>> two = stream.state_dict()
        >>> stream.seek(batch=3)
        >>> catalog.diff(two, stream.state_dict()).same
        2
    """

    names: tuple[str, str]
    same: int | None
    parting: tuple[PartingBatch | None, PartingBatch | None]
    batches: tuple[int, int]
    sources: tuple[SourceDifference, ...]
    plan: tuple[PlanDifference, ...]
    data: Mapping[str, tuple[str, str]]
    not_recorded: tuple[str, ...] = ()

    @property
    def alike(self) -> bool:
        """Whether both delivered the same batches, as far as is recorded."""
        return self.parting == (None, None) and self.same is not None and not self.not_recorded

    def explanation(self) -> Explanation:
        """Return the facts as EXPLAIN shows facts: sections of words and tables."""
        first, second = self.names
        facts: dict[str, Any] = {"A": first, "B": second, "the same": self._same()}
        for side, at in zip("AB", self.parting, strict=True):
            if at is not None:
                facts[f"then {side}"] = (
                    f"epoch {at.epoch:,} batch {at.batch:,}, in step {at.step:,}, has {at.samples:,} samples"
                )
        if self.data:
            facts["data"] = [{"relation": n, "version in A": a[:8], "in B": b[:8]} for n, (a, b) in self.data.items()]
        rows = [
            {
                "relation": each.relation,
                "only A saw": Figure(each.only[0], "rows"),
                "only B saw": Figure(each.only[1], "rows"),
                "such as, of A": ", ".join(each.examples[0][:_SHOWN]),
                "of B": ", ".join(each.examples[1][:_SHOWN]),
            }
            for each in self.sources
        ]
        return Explanation(
            {
                "difference": facts,
                "rows": rows or "none that only one of them saw",
                "plans": [str(each) for each in self.plan] or "the same",
                "not recorded": list(self.not_recorded) or "none: all is recorded",
            }
        )

    def _same(self) -> str:
        if self.same is None:
            return "not known: no epoch is recorded of both"
        if self.parting == (None, None):
            return f"all {self.same:,} batches"
        ended = [side for side, at in zip("AB", self.parting, strict=True) if at is None]
        if ended:
            return f"until batch {self.same:,}, where {ended[0]} ends; {'AB'.replace(ended[0], '')} goes on"
        return f"until batch {self.same:,}"


@final
@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of two runs: its name, its legs, and what opens them."""

    name: str
    legs: tuple[Leg, ...]
    opening: Callable[[], OpenedLegs]


def difference(first: ComparedRun, second: ComparedRun) -> RunDifference:
    """Compare two runs.

    Raises:
        ResumeError: a state is damaged, or not of its plan.
        CatalogError: the catalog does not know a plan, or the data that a state is of.
    """
    sides = first, second
    with first.opening() as one, second.opening() as two:
        opened = one, two
        spans = [_spans(side.legs, each) for side, each in zip(sides, opened, strict=True)]
        same, parting = _parting(*spans)
        counts = tuple(sum(found.end - found.leg.first for found, _ in of) for of in spans)
        alike = parting == (None, None) and same is not None
        sources = () if alike else _only(sides, opened)
        last = [of[-1][0].stages for of in spans if of]
        plan = differences(last[0].canonical, last[1].canonical) if len(last) > 1 else []
        data: dict[str, tuple[str, str]] = {}
        if len(last) > 1:
            before, after = last[0].data_versions, last[1].data_versions
            shared = sorted(before.keys() & after.keys())
            data = {name: (before[name], after[name]) for name in shared if before[name] != after[name]}
    gaps = tuple(
        f"{side} {leg.attempt or 'before its epoch'}: up to the end of epoch {leg.epoch:,}"
        for side, of in zip("AB", sides, strict=True)
        for leg in of.legs
        if not leg.known
    )
    names = first.name, second.name
    return RunDifference(names, same, parting, (counts[0], counts[1]), sources, tuple(plan), data, gaps)


Spans = list[tuple[OpenedLeg, int]]  # legs that are recorded, and how many batches of their epoch come before each


def _spans(legs: Sequence[Leg], opened: OpenedLegs) -> Spans:
    out: Spans = []
    before: dict[int, int] = {}
    for leg in known_legs(legs):
        found = opened.of(leg)
        at = before.get(leg.epoch, leg.first)
        out.append((found, at))
        before[leg.epoch] = at + max(0, found.end - leg.first)
    return out


# ---- the first batch that differs


def _parting(first: Spans, second: Spans) -> tuple[int | None, tuple[PartingBatch | None, PartingBatch | None]]:
    """How many batches are the same, and the first that differs on each side; None if no epoch is recorded on both."""
    epochs = [sorted({found.leg.epoch for found, _ in of}) for of in (first, second)]
    if not set(epochs[0]) & set(epochs[1]):
        return None, (None, None)
    same = 0
    for epoch in sorted({*epochs[0], *epochs[1]}):
        if epoch < max(epochs[0][0], epochs[1][0]):
            continue  # not recorded on one side
        sides = [[(found, at) for found, at in of if found.leg.epoch == epoch] for of in (first, second)]
        begin = max((of[0][1] for of in sides if of), default=0)
        ends = [_end(of) for of in sides]
        with working(f"compare epoch {epoch}", "batches", max(0, min(ends) - begin)) as tell:
            for at in range(begin, min(ends), _AT_A_TIME):
                until = min(*ends, at + _AT_A_TIME)
                differs = _first_apart(*(_batches(of, at, until) for of in sides))
                if differs is not None:
                    return same + differs - at, (_parting_batch(sides[0], differs), _parting_batch(sides[1], differs))
                same += until - at
                tell.advance(until - at)
        if ends[0] != ends[1]:
            at = max(begin, min(ends))
            return same, (_parting_batch(sides[0], at), _parting_batch(sides[1], at))
    return same, (None, None)


def _end(spans: Spans) -> int:
    return max((at + found.end - found.leg.first for found, at in spans), default=0)


Batches = tuple[pa.Array, pa.Array, np.ndarray[Any, np.dtype[np.int64]]]  # relation, identity, and batch of each sample


def _batches(spans: Spans, begin: int, end: int) -> Batches:
    """The samples of batches [begin, end) of an epoch, counted over its legs."""
    relations, values, numbers = list[pa.Array](), list[pa.Array](), [np.empty(0, dtype=np.int64)]
    for found, at in spans:
        shift = at - found.leg.first
        for part in found.delivered(begin - shift, end - shift):
            said = sample_texts(found, part.samples)
            relations.append(said[0])
            values.append(said[1])
            numbers.append(part.batches + shift)
    empty = pa.array([], pa.large_string())
    return pa.concat_arrays([empty, *relations]), pa.concat_arrays([empty, *values]), np.concatenate(numbers)


def _first_apart(first: Batches, second: Batches) -> int | None:
    """The first batch whose samples differ; None if none does."""
    shared = min(len(first[2]), len(second[2]))
    unlike = np.zeros(shared, dtype=np.bool_)
    for one, two in zip(first[:2], second[:2], strict=True):
        unlike |= pc.not_equal(one.slice(0, shared), two.slice(0, shared)).to_numpy(zero_copy_only=False)
    unlike |= first[2][:shared] != second[2][:shared]
    if unlike.any():
        at = int(np.argmax(unlike))
        return int(min(first[2][at], second[2][at]))
    longer = first[2] if len(first[2]) > shared else second[2]
    return int(longer[shared]) if len(longer) > shared else None


def _parting_batch(spans: Spans, at: int) -> PartingBatch | None:
    """The batch of an epoch by its count, if that side has it."""
    for found, begin in spans:
        number = at - begin + found.leg.first
        if found.leg.first <= number < found.end:
            samples = sum(int(part.begins.sum()) for part in found.delivered(number, number + 1))
            named = int(found.numbers(np.array([number]))[0])
            return PartingBatch(found.leg.epoch, named, found.step_of(number), samples)
    return None


# ---- the rows that only one side saw


def _only(
    sides: tuple[ComparedRun, ComparedRun], opened: tuple[OpenedLegs, OpenedLegs]
) -> tuple[SourceDifference, ...]:
    def values() -> Iterator[pa.RecordBatch]:
        at = 0
        for side, (run, each) in enumerate(zip(sides, opened, strict=True)):
            for table in _rows(run.legs, each):
                said = texts([table[name] for name in table.column_names if name not in (RELATION, TIMES)])
                count = len(said)
                source = table[RELATION].combine_chunks().cast(pa.large_string())
                numbers = pa.array(np.arange(at, at + count))
                at += count
                yield pa.record_batch([pa.array(np.full(count, side, np.int8)), source, said, numbers], schema=_SIDES)

    with working("compare what two runs saw"):
        found = apart(pa.RecordBatchReader.from_batches(_SIDES, values()), EXAMPLES).to_pylist()
    out: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for row in found:
        of = out.setdefault(row["source"], [(0, ()), (0, ())])
        of[row["side"]] = row["count"], tuple(row["examples"])
    return tuple(SourceDifference(name, (one[0], two[0]), (one[1], two[1])) for name, (one, two) in sorted(out.items()))


def _rows(legs: Sequence[Leg], opened: OpenedLegs) -> Iterable[pa.Table]:
    counted, made = counted_rows(legs, opened)
    yield from row_tables(counted)
    yield from assembled_table(made)

"""Forget rows: where a run first met them, and the state from which it goes on as if they had never been.

The law: a run that goes on from that state has the same batches as one that skipped the same rows from batch 0. So with
deterministic operations, the same ranks and threads, and a checkpoint that holds the model, the optimizer and every
generator, it ends with the same weights, byte by byte.

The state is that of the last checkpoint before the first batch that held one of the rows, with these rows skipped from there
(docs/decisions/0040). A checkpoint counts only if everything before it is recorded. Batches of which nothing is left are
skipped too, as far as the run has come; each says so.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError, StreamError
from spiral_stream.explain.figure import Figure
from spiral_stream.explain.text import Explained, Explanation
from spiral_stream.plan import nodes
from spiral_stream.plan.combining import Aggregate, Join
from spiral_stream.plan.tree import walk
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleTokens
from spiral_stream.planner.stages import Stages
from spiral_stream.runs.forgotten_rows import ForgottenRows, forgotten_rows
from spiral_stream.runs.leg import Leg
from spiral_stream.runs.opened_leg import Delivered, OpenedLeg, OpenedLegs

Int64 = NDArray[np.int64]
LegPosition = tuple[int, int]  # the number of a leg, and a batch as it counts them
_SHOWN: Final = 5


@final
@dataclass(frozen=True, slots=True)
class FirstMet:
    """The first batch that held one of the rows: its epoch, its number as `ledger` takes it, and the step that delivered it.

    Examples:
        >>> catalog.save_stream("kept", plan.to_numpy())
        >>> stream.seek(batch=3)
        >>> catalog.forget(stream.state_dict(), [stream.ledger(2)[0]]).first.batch
        2
    """

    epoch: int
    batch: int
    step: int


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a run, by what it is called, and its state.

    Examples:
        >>> spiral.results.Checkpoint("step 2", stream.state_dict()).name
        'step 2'
    """

    name: str
    state: Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Forgetting(Explained):
    """How a run forgets rows; printing it shows what to do. Made by `Catalog.forget`.

    Attributes:
        first: where the run first met one of them; None if no recorded batch held any.
        batches: how many batches held some.
        deliveries: how often one of them was delivered.
        checkpoint: from which to go on; None: from the beginning.
        state: with which to go on: that of the checkpoint, with the rows skipped.
        steps: how many the run did, and how many of them before the checkpoint.
        emptied: batches of which nothing is left, (epoch, number), which the state skips.
        unknown: identities that no row of the plan has.
        not_covered: what skipping rows does not undo, in words.
        holders: what still holds the rows.
        not_recorded: what nothing is known of.

    Examples:
        >>> catalog.save_stream("kept", plan.to_numpy())
        >>> stream.seek(batch=1)
        >>> before = stream.state_dict()
        >>> stream.seek(batch=3)
        >>> found = catalog.forget(stream.state_dict(), [stream.ledger(2)[0]], [before])
        >>> found.steps, found.state["batch"]
        ((3, 1), 1)
    """

    first: FirstMet | None
    batches: int
    deliveries: int
    checkpoint: Checkpoint | None
    state: Mapping[str, Any]
    steps: tuple[int, int]
    emptied: tuple[tuple[int, int], ...]
    unknown: tuple[Any, ...]
    not_covered: tuple[str, ...]
    holders: tuple[str, ...]
    not_recorded: tuple[str, ...]

    def explanation(self) -> Explanation:
        """Return the facts as EXPLAIN shows facts: sections of words and tables."""
        done, saved = self.steps
        first = self.first
        met = (
            "in no recorded batch"
            if first is None
            else (f"epoch {first.epoch:,} batch {first.batch:,}, in step {first.step:,}")
        )
        start = (
            "the beginning: no checkpoint lies before it"
            if self.checkpoint is None
            else (
                f"{self.checkpoint.name}, at epoch {self.checkpoint.state['epoch']:,} batch {self.checkpoint.state['batch']:,}"
            )
        )
        facts: dict[str, Any] = {
            "first met": met,
            "batches that held them": Figure(self.batches, "batches"),
            "deliveries": Figure(self.deliveries, "samples"),
            "go on from": start,
            "steps again": Figure(done - saved, "steps"),
            "steps saved": Figure(saved, "steps"),
        }
        if self.emptied:
            facts["batches skipped, for nothing is left"] = ", ".join(f"{e}/{n}" for e, n in self.emptied[:_SHOWN])
        if self.unknown:
            named = ", ".join(map(str, self.unknown[:_SHOWN]))
            facts["not in the plan"] = f"{named}{' ...' if len(self.unknown) > _SHOWN else ''}"
        return Explanation(
            {
                "forget": facts,
                "not covered": list(self.not_covered) or "nothing",
                "still held by": list(self.holders) or "nothing that this catalog knows",
                "not recorded": list(self.not_recorded) or "none: all is recorded",
            }
        )


def forget(
    legs: Sequence[Leg],
    ids: Any,
    checkpoints: Sequence[Checkpoint],
    opened: OpenedLegs,
    holders: Sequence[str] = (),
) -> Forgetting:
    """Find how a run forgets rows.

    Args:
        legs: of the run, in its order.
        ids: identities, as `ledger` lists them, without part numbers; or a table of them.
        checkpoints: that it may go on from, in any order.
        opened: opens the legs.
        holders: what still holds the rows, in words.

    Raises:
        ResumeError: a state is damaged, or no leg is recorded.
        StreamError: the list is too long, or samples of the plan are assembled.
    """
    known = [at for at, leg in enumerate(legs) if leg.known]
    if not known:
        msg = "forget: no batch of the run is recorded. Give a state or a checkpoint of it"
        raise ResumeError(msg)
    gaps = [(at - 1, legs[at - 1].end) if at else (0, 0) for at, leg in enumerate(legs) if not leg.known]
    found = [opened.of(legs[at]) for at in known]
    plans = list({id(each.stages): each.stages for each in found}.values())
    _refuse_assembled(plans)
    rows = forgotten_rows(ids)
    touched = [_touched(each, rows.keys(each.stages)) for each in found]
    first, met = _first(known, found, touched)
    safe = min([each for each in (first, *gaps) if each is not None], default=None)
    chosen, at = _nearest(checkpoints, safe, legs)
    start = replace(legs[known[0]], epoch=0, first=0, end=0) if chosen is None else _start_of(legs[at[0]], chosen)
    emptied = tuple(
        (each.leg.epoch, number)
        for each, here in zip(found, touched, strict=True)
        if _same_numbers(each.leg.state, start.state)  # where a rebase came between, the batches are others
        for number in each.numbers(here.batches[here.others == 0]).tolist()
    )
    words = tuple(
        f"epoch {0 if not at else legs[at - 1].epoch:,} from batch {0 if not at else legs[at - 1].end:,} on: not recorded"
        for at, leg in enumerate(legs)
        if not leg.known
    )
    return Forgetting(
        met,
        sum(len(here.batches) for here in touched),
        sum(here.deliveries for here in touched),
        chosen,
        _with_skips(opened.of(start), rows, emptied),
        _steps(legs, None if chosen is None else at),
        emptied,
        rows.unknown(plans),
        not_covered(found[-1].stages),
        tuple(holders),
        words,
    )


def _first(
    known: Sequence[int], found: Sequence[OpenedLeg], touched: Sequence["_Touched"]
) -> tuple[LegPosition | None, FirstMet | None]:
    """The first batch that held one of the rows: where it is, and as users know it."""
    for at, each, here in zip(known, found, touched, strict=True):
        if len(here.batches):
            first = int(here.batches[0])
            number = int(each.numbers(here.batches[:1])[0])
            return (at, first), FirstMet(each.leg.epoch, number, each.step_of(first))
    return None, None


def _refuse_assembled(plans: Sequence[Stages]) -> None:
    if any(isinstance(step, SampleAssembly) for each in plans for step in each.maps):
        msg = (
            "forget: the plan assembles samples of several rows, so no sample is of one row. Leave the rows out with "
            ".filter(...) before sample, and begin anew"
        )
        raise StreamError(msg)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Touched:
    """The batches of a leg that hold some of the rows."""

    batches: Int64  # [N], counted by delivery, ascending
    others: Int64  # [N], how many other samples each has
    deliveries: int


def _touched(found: OpenedLeg, keys: NDArray[np.uint64]) -> _Touched:
    batches, others, deliveries = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], 0
    for part in _parts(found, keys):
        rows = part.samples.stream_rows
        held = np.isin(rows.rows * np.uint64(len(found.stages.streams)) + rows.streams.astype(np.uint64), keys)
        there, left = np.unique(part.batches[held]), part.batches[~held]
        batches.append(there)
        others.append(np.searchsorted(left, there, "right") - np.searchsorted(left, there, "left"))
        deliveries += int(np.count_nonzero(held & part.begins))
    return _Touched(np.concatenate(batches), np.concatenate(others), deliveries)


def _parts(found: OpenedLeg, keys: NDArray[np.uint64]) -> Iterator[Delivered]:
    """The samples of the batches that may hold some rows: of few rows in fixed batches those that arithmetic names."""
    leg, numbering, streams = found.leg, found.opened.numbering, len(found.stages.streams)
    if found.stages.formation is not None or len(keys) > found.end - leg.first:
        yield from found.delivered()
        return
    batches = (each for key in keys.tolist() for each in numbering.find(found.epoch, key % streams, key // streams))
    at = {numbering.index_of(found.epoch, each) for each in batches}
    at |= set(range(max(leg.first, numbering.total(found.epoch) - 1), found.end))  # which may repeat others to fill up
    for number in sorted(at):
        if leg.first <= number < found.end:
            yield from found.delivered(number, number + 1)


def _same_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two states number their batches alike: of one plan, after the same rebase."""
    return (one.get("plan"), one.get("rebase")) == (other.get("plan"), other.get("rebase"))


def _nearest(
    checkpoints: Sequence[Checkpoint], safe: LegPosition | None, legs: Sequence[Leg]
) -> tuple[Checkpoint | None, LegPosition]:
    """The last checkpoint before the rows were met, and before anything that is not recorded; and where it is.

    Raises:
        ResumeError: a checkpoint is of another run.
    """
    of = {(leg.state.get("plan"), leg.state.get("run_seed")) for leg in legs if leg.known}
    before = list[tuple[LegPosition, Checkpoint]]()
    for each in checkpoints:
        if (each.state.get("plan"), each.state.get("run_seed")) not in of:
            msg = f"forget: {each.name} is of another plan or run seed. Give checkpoints of the run alone"
            raise ResumeError(msg)
        at = _position_of(each.state, legs)
        if safe is None or at <= safe:
            before.append((at, each))
    if not before:
        return None, (0, 0)
    at, chosen = max(before, key=lambda found: found[0])
    return chosen, at


def _position_of(state: Mapping[str, Any], legs: Sequence[Leg]) -> LegPosition:
    """Where a state stands: the number of its leg, and how many batches of the epoch it counts before.

    Legs of one epoch may both count from 0, after a rebase; so a place says nothing without its leg. A state between two legs
    is at the end of the first.
    """
    cursor = Cursor.from_json(state)
    here = (cursor.epoch, cursor.batch)
    alike = [at for at, leg in enumerate(legs) if leg.known and _same_numbers(leg.state, state)]
    inside = [at for at in alike if (legs[at].epoch, legs[at].first) <= here <= (legs[at].epoch, legs[at].end)]
    begun = [at for at in alike if (legs[at].epoch, legs[at].first) <= here]
    at = inside[0] if inside else begun[-1] if begun else alike[0] if alike else 0
    if not inside and begun and legs[at].epoch < cursor.epoch:  # in an epoch of which nothing is recorded yet
        return at, max(legs[at].end, cursor.batch)
    return at, cursor.batch


def _start_of(leg: Leg, chosen: Checkpoint) -> Leg:
    """A leg of no batches at the checkpoint."""
    cursor = Cursor.from_json(chosen.state)
    return replace(leg, state=chosen.state, epoch=cursor.epoch, first=cursor.batch, end=cursor.batch)


def _with_skips(start: OpenedLeg, rows: ForgottenRows, emptied: Sequence[tuple[int, int]]) -> Mapping[str, Any]:
    """The state at the start of a leg, with rows skipped from there."""
    saved, leg = start.saved, start.leg
    at_start = Cursor(leg.epoch) if not leg.first else saved.cursor
    entered = at_start if at_start.segments else at_start.enter(max(1, leg.world_size), max(1, leg.merge))
    skips = rows.skipped(saved.skips, start, entered)
    for epoch in sorted({epoch for epoch, _ in emptied}):
        skips = skips.with_batches(epoch, np.array([number for at, number in emptied if at == epoch], dtype=np.int64))
    opening = start.opening.edited(saved.rebase, skips, saved.decided)
    try:
        made = opening.saved(at_start, saved.run_seed, start.epoch)
        return replace(made, chapters=saved.chapters if leg.first else made.chapters).to_json()
    finally:
        opening.close()


def _steps(legs: Sequence[Leg], at: LegPosition | None) -> tuple[int, int]:
    """Steps that the run did, as far as is recorded, and those before a place."""
    done = saved = 0
    for number, leg in enumerate(legs):
        if not leg.known or not leg.batches:
            continue
        steps = leg.step_of(leg.end - 1) - leg.step_of(leg.first) + 1
        done += steps
        if at is not None and (number, leg.end) <= at:
            saved += steps
        elif at is not None and number == at[0] and leg.first < at[1]:
            saved += leg.step_of(at[1] - 1) - leg.step_of(leg.first) + 1
    return done, saved


def not_covered(stages: Stages) -> tuple[str, ...]:
    """Return what skipping rows does not undo, for a plan."""
    found = [
        "the order and the batches of all other samples: they are those of data that had the rows, as the law says",
        "statistics that were measured with the rows, and numbers in the plan that somebody took from them",
    ]
    for step in stages.maps:
        if isinstance(step, SampleTokens):
            found.append(f"the tokenizer of {step.name!r}, if it was trained on the rows")
        if isinstance(step, SampleAssembly):
            found.append("assembled samples, which are of several rows")
    for node in walk(stages.plan):
        if isinstance(node, nodes.Distinct):
            found.append(
                "deduplication: a row that gave way to one of these does not come back, and a copy of one may be there"
            )
        if isinstance(node, Join):
            found.append("rows of joined relations: only what the joined row gives its sample is left out with it")
        if isinstance(node, Aggregate):
            found.append("aggregates in the plan that were computed with the rows")
    return tuple(dict.fromkeys(found))


def ids_of(text: str) -> list[Any]:
    """Return identities as somebody writes them: JSON values, one per line or separated by commas; other words are texts."""
    out = list[Any]()
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        try:
            value = json.loads(stripped)
        except ValueError:
            out += [_word(word.strip()) for word in stripped.split(",") if word.strip()]
            continue
        out += (
            [tuple(each) if isinstance(each, list) else each for each in value] if isinstance(value, list) else [value]
        )
    return out


def _word(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word

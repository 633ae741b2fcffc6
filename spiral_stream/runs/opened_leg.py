"""The batches of legs: plans opened at the states where legs begin, and drawn without payload, many batches a call.

A leg names the plan, the data, the seed and the edits of its run, and these decide every batch. So what it delivered is drawn
again, not looked up. Legs with the same plan, data, seed and edits share what is open. Batches are counted as the state counts
them, by delivery; `numbers` turns that into the numbers that `ledger` takes.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.tail import PadPartial
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError, SourceError
from spiral_stream.plan.nodes import Deliver, Sample
from spiral_stream.plan.saving.drawn_seeds import drawn_seed, with_recorded
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFlatMap
from spiral_stream.planner.binding.bindings import Bindings, settle
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.compatibility import check_plan
from spiral_stream.planner.state.saved_state import SavedState
from spiral_stream.runs.leg import Leg
from spiral_stream.runtime.columns.error_sample import identity_table
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.quarantine import renamed
from spiral_stream.runtime.run.opened_plan import Opened, Opening
from spiral_stream.threads import ThreadShare

Int64 = NDArray[np.int64]
NotApplied = Collection[tuple[str, int, int]]  # attempt, epoch, and the batch's number as `ledger` takes it
PlanOf = Callable[[Leg], Deliver]
PART: Final = "part"
SAMPLES: Final = 1 << 16  # of batches that are drawn in one call, about

# S samples of some batches, N batches


@final
@dataclass(frozen=True, slots=True, eq=False)
class Delivered:
    """Samples that some neighbouring batches of a leg delivered, in order; without rows that only fill a batch.

    A sample that is cut into pieces occurs once per piece; ``begins`` says which of them are its first.
    """

    leg: Leg
    samples: Samples  # [S], without those that could not be read, as far as the quarantine says
    batches: Int64  # [S], counted as the leg counts them
    begins: NDArray[np.bool_]  # [S]
    lengths: Int64 | None  # [S], tokens of each as delivered, if the formation knew them
    refused: Int64  # [K], per stream: samples that could not be read
    first: int
    end: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenedLeg:
    """One leg and what it is drawn from.

    Attributes:
        leg: it.
        saved: the state where it begins.
        opening: of its plan.
        opened: what is open of it; its batches are counted as the ranks got them.
        epoch: whose order is drawn in it.
        end: past its last batch, as far as the epoch has batches.
        refusals: rows of batches that could not be read, by the number of the batch.
    """

    leg: Leg
    saved: SavedState
    opening: Opening
    opened: Opened
    epoch: int
    end: int
    refusals: Mapping[int, Int64] = field(default_factory=dict)

    @property
    def stages(self) -> Stages:
        """The lowered plan."""
        return self.opened.lowered.stages

    def numbers(self, batches: Int64) -> Int64:
        """Return the numbers of batches, as `ledger` takes them, of batches counted by delivery; shape [N] -> [N]."""
        return self.opened.numbering.numbers(self.epoch, batches)

    @property
    def at_a_time(self) -> int:
        """How many batches are drawn in one call."""
        return max(1, SAMPLES // (self.stages.batches.batch_size if self.stages.formation is None else 64))

    def delivered(self, first: int | None = None, end: int | None = None) -> Iterator[Delivered]:
        """Yield the samples of its batches, many batches at a time.

        Args:
            first: the first batch; None takes the leg's.
            end: past the last one; None takes the leg's.
        """
        at = self.leg.first if first is None else max(first, self.leg.first)
        end = self.end if end is None else min(end, self.end)
        while at < end:
            until = min(end, at + self.at_a_time)
            yield self._joined(at, until)
            at = until

    def _joined(self, first: int, end: int) -> Delivered:
        """The samples of batches [first, end), with identities."""
        numbering = self.opened.numbering
        counts = np.arange(first, end, dtype=np.int64)
        drawn = numbering.draw(self.epoch, counts.tolist())
        numbers = self.numbers(counts).tolist() if self.refusals else ()
        left, refused = list[Int64](), np.zeros(len(self.stages.streams), dtype=np.int64)
        for k, each in enumerate(drawn):
            gone = [] if each.membership.filler is None else [each.membership.filler]
            if self.refusals and (bad := self.refusals.get(numbers[k])) is not None:
                bad = bad[bad < len(each.samples)]
                begun = _begins(each)[bad]
                refused += np.bincount(each.samples.stream_rows.streams[bad[begun]], minlength=len(refused))
                gone.append(bad)
            all_of = np.arange(len(each.samples))
            left.append(np.delete(all_of, np.unique(np.concatenate(gone))) if gone else all_of)
        sizes = np.cumsum([0, *(len(each.samples) for each in drawn)])
        at = np.concatenate([rows + begin for rows, begin in zip(left, sizes, strict=False)])
        joined = Samples.concat([each.samples for each in drawn]).take(at)
        lengths = [_lengths(each) for each in drawn]
        known = [each for each in lengths if each is not None]
        return Delivered(
            self.leg,
            joined,
            np.repeat(counts, [len(rows) for rows in left]),
            np.concatenate([_begins(each) for each in drawn])[at],
            np.concatenate(known)[at] if len(known) == len(lengths) else None,
            refused,
            first,
            end,
        )

    def identity(self, samples: Samples) -> pa.Table:
        """Return the columns that identify samples, as `ledger` lists them: stream of a mixture, identity, part number."""
        self.opened.reader.need_identity(self.epoch, samples)
        table = identity_table(self.stages, samples)
        if parts_named(self.stages):
            table = table.append_column(PART, pa.array(samples.parts))
        return table

    def step_of(self, batch: int) -> int:
        """Return the step of the run (of a bare state: of the epoch) that delivered a batch."""
        return self.leg.step_of(batch)


@final
class OpenedLegs:
    """Opens legs, each at the first use. Close it.

    Args:
        catalog: where the plans' relations are registered.
        plan_of: gives the plan of a leg.
        here: an opening that somebody else closes, and the run seed that it reads with; legs like it are drawn from it.
    """

    def __init__(self, catalog: Registry, plan_of: PlanOf, here: tuple[Opening, int] | None = None) -> None:
        self._catalog, self._plan_of, self._here = catalog, plan_of, here
        self._records = StateRecords(catalog.root)
        self._plans: dict[str, Deliver] = {}
        self._open: dict[str, Opening] = {}

    def of(self, leg: Leg) -> OpenedLeg:
        """Open a leg.

        Raises:
            ResumeError: its state is damaged, or not of its plan.
            CatalogError: the catalog does not know its plan, or the data that it is of.
        """
        saved = SavedState.from_json(leg.state, self._records)
        if saved.plan not in self._plans:
            self._plans[saved.plan] = self._plan_of(leg)
        plan = self._plans[saved.plan]
        opening = self._opening(plan, saved)
        pinned = need(plan, Sample).epoch
        epoch = pinned if isinstance(pinned, int) else leg.epoch
        opened = opening.read(saved.run_seed)
        if saved.cursor.epoch == leg.epoch and (self._here is None or opening is not self._here[0]):
            _, anchors = opening.admit(saved, epoch)
            opened.numbering.store.anchor(epoch, anchors)
        if saved.cursor.epoch == leg.epoch:
            opened = opened._replace(numbering=opened.numbering.dealt(saved.cursor.segments))
        found = OpenedLeg(leg, saved, opening, opened, epoch, _end_of(leg, opened, epoch))
        return replace(found, refusals=_refusals(found))

    def _opening(self, plan: Deliver, saved: SavedState) -> Opening:
        if self._here is not None and self._is_here(saved):
            return self._here[0]
        lists = saved.lists()
        named = dict(saved.list_digests).get("data")
        name = digest(
            [
                saved.plan,
                named or lists["data"],
                saved.run_seed,
                saved.drawn_seed,
                lists.get("rebase"),
                lists.get("skips"),
                *([lists["decided"]] if "decided" in lists else []),
            ]
        )
        if name not in self._open:
            if saved.drawn_seed is not None and drawn_seed(need(plan, Sample).order) is not None:
                plan = with_recorded(plan, saved.drawn_seed)
            self._open[name] = self._opened(plan, saved)
        return self._open[name]

    def _opened(self, plan: Deliver, saved: SavedState) -> Opening:
        """Open a plan over the data that a state is of; of data that changed since, only what is stored of it can be read."""
        made = Opening(
            plan, self._catalog, Metrics(), saved.rebase, saved.skips, ThreadShare(), decisions=saved.decided
        )
        try:
            check_plan(saved, made.stages, self._catalog)
            if _same_data(saved, made.stages):
                return made
        except SourceError:  # a source has changed, or is gone, and nobody has refreshed the relation
            made.close()
        except BaseException:
            made.close()
            raise
        else:
            made.close()
        versions = saved.versions(self._records)
        edits = saved.rebase, saved.skips, ThreadShare(), versions, saved.decided
        return Opening(plan, self._catalog, Metrics(), *edits)

    def _is_here(self, saved: SavedState) -> bool:
        assert self._here is not None
        opening, seed = self._here
        edits = opening.rebase, opening.skips, opening.decisions
        same = opening.stages.fingerprint == saved.plan and _same_data(saved, opening.stages)
        return same and seed == saved.run_seed and edits == (saved.rebase, saved.skips, saved.decided)

    def close(self) -> None:
        """Close what this opened."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def first_epoch(plan: Deliver, form: Mapping[str, Any], catalog: Registry, name: str) -> Leg:
    """Return the first epoch of a plan on one rank, as a leg; counts its batches if a formation decides on them.

    Args:
        plan: the plan.
        form: it as JSON values, as a saved stream has it.
        catalog: where its relations are registered.
        name: what the leg's attempt is called.
    """
    opening = Opening(plan, catalog, Metrics(), threads=ThreadShare())
    try:
        sample = need(plan, Sample)
        epoch = sample.epoch if isinstance(sample.epoch, int) else 0
        seed = settle(Bindings(data_parallel_rank=0, data_parallel_world_size=1), sample).run_seed
        total = opening.read(seed).numbering.total(epoch)
        state = opening.saved(Cursor(), seed, epoch).to_json()
    finally:
        opening.close()
    return Leg(name, 0, "plan", form, state, 0, 0, total, 0, 1, 1)


def _same_data(saved: SavedState, stages: Stages) -> bool:
    """Whether the data is what a state is of."""
    present, name = dict(stages.data_versions), dict(saved.list_digests).get("data")
    return dict(saved.data) == present if name is None else digest(present) == name


def lacking_of(found: OpenedLeg, not_applied: NotApplied) -> Int64:
    """Return the numbers of a leg's batches that were not trained on, ascending."""
    leg = found.leg
    here = {number for attempt, epoch, number in not_applied if (attempt, epoch) == (leg.attempt, leg.epoch)}
    return np.array(sorted(here), dtype=np.int64)


def parts_named(stages: Stages) -> bool:
    """Whether identities end in the number of a part, as `ledger` lists them."""
    made = [step for step in stages.maps if isinstance(step, SampleFlatMap | SampleAssembly)]
    return bool(made) and isinstance(made[-1], SampleFlatMap)


def _begins(drawn: Drawn) -> NDArray[np.bool_]:
    """Which samples of a batch are the first piece of theirs: shape [S]."""
    packing = drawn.membership.packing
    return np.ones(len(drawn.samples), dtype=np.bool_) if packing is None else packing.offsets == 0


def _lengths(drawn: Drawn) -> Int64 | None:
    """Tokens of each sample as delivered, over all columns that share a row: shape [S]; None if no formation counts them."""
    packing = drawn.membership.packing
    found = drawn.membership.lengths if packing is None else packing.lengths
    return None if found is None else np.atleast_2d(found).sum(axis=0)


def _end_of(leg: Leg, opened: Opened, epoch: int) -> int:
    """Past the last batch of a leg that the epoch has: its last step may count batches that no rank had."""
    numbering = opened.numbering
    if leg.end <= leg.first or isinstance(numbering.last, PadPartial) or numbering.exists(epoch, leg.end - 1):
        return leg.end
    if leg.end - leg.first > max(1, leg.world_size * leg.merge) and not numbering.exists(epoch, leg.first):
        msg = (
            f"resume: epoch {leg.epoch:,} has no batch {leg.first:,}, where a leg of the run begins. Pass what state_dict() "
            "returned, unchanged"
        )
        raise ResumeError(msg)
    return bisect_left(range(leg.end), x=True, lo=leg.first, key=lambda n: not numbering.exists(epoch, n))


def _refusals(opened: OpenedLeg) -> dict[int, Int64]:
    """The rows of each batch of a leg's epoch that could not be read, as the quarantine says."""
    stages, opening = opened.stages, opened.opening
    if opening.refusals.policy == "raise":
        return {}
    table = opening.refusals.quarantine.read()
    epochs, batches, rows = (table[renamed(stages, name)].to_numpy() for name in ("epoch", "batch", "row"))
    here = (epochs == opened.epoch) & (rows >= 0)
    batches, rows = batches[here].astype(np.int64), rows[here].astype(np.int64)
    found, first = np.unique(batches, return_index=True)
    parts: Sequence[Any] = np.split(rows, first[1:]) if len(found) else ()
    return dict(zip(found.tolist(), parts, strict=True))

"""The open plan of a stream: its stages, the reader of its samples, and the numbering of its batches."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final

import numpy as np

from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.cursor import Cursor
from spiral_stream.derived.work.executors import Executor, building_with
from spiral_stream.display.progress import Progress, Report, working
from spiral_stream.errors import ResumeError, shown
from spiral_stream.fields.field import FieldSpec
from spiral_stream.keeping.in_use import Reading, reading
from spiral_stream.plan.fields.dtypes import field_specs
from spiral_stream.plan.nodes import Collate, Deliver, Sample
from spiral_stream.plan.saving.drawn_seeds import drawn_seed
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFilter, SampleFlatMap, SampleMap, SampleRecords
from spiral_stream.planner.binding.bindings import Bindings, Bound, resumed
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.decided_shares import with_decisions
from spiral_stream.planner.field_stages import StepTotalStage
from spiral_stream.planner.lower import lower
from spiral_stream.planner.prepared_data.build import caches, materialize
from spiral_stream.planner.prepared_data.folder import cache_root
from spiral_stream.planner.prepared_data.verify import Verification, verify_stream
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.compatibility import check_data, check_plan
from spiral_stream.planner.state.decisions import PLANNED, Decisions
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.planner.state.saved_state import Anchor, SavedState
from spiral_stream.planner.state.skips import NOTHING, Skips
from spiral_stream.runtime.bad_samples import Refusals, RefusalTally
from spiral_stream.runtime.batch.opened_fields import OpenedFields
from spiral_stream.runtime.columns.recomputed import check_cached
from spiral_stream.runtime.columns.samples import SampleReader, Samples
from spiral_stream.runtime.columns.values import keep_values
from spiral_stream.runtime.fields.kinds import kinds_of
from spiral_stream.runtime.forming.batches import FormedBatches
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.batch_costs import BatchCosts
from spiral_stream.runtime.numbering.exchanged import ExchangedBatches
from spiral_stream.runtime.numbering.formation_index import RESTS, name_plan, verify_index, verify_rests
from spiral_stream.runtime.numbering.known_chapters import Known
from spiral_stream.runtime.numbering.numbering import BatchStore, CountedBatches
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.skipped import carried
from spiral_stream.runtime.numbering.skipped_tables import unpacked
from spiral_stream.runtime.numbering.steps import need_inside
from spiral_stream.runtime.quarantine import Quarantine, verify_quarantine
from spiral_stream.runtime.run.rebase import Before, taken_over
from spiral_stream.threads import CLOSE_TIMEOUT_S, ThreadShare, sharing, warn_left_alone

_CALLS: Final = (SampleFlatMap, SampleFilter, SampleMap, SampleRecords, SampleAssembly)  # call functions of the user's


@final
@dataclass(frozen=True, slots=True)
class Admitted:
    """What a stream goes on with after a state that was not refused."""

    opening: "Opening"
    bindings: Bindings
    cursor: Cursor
    anchors: list[Anchor]


@final
class Lowered:
    """A plan as one process has opened it, and what is made of it once, at its first use, for every pass.

    Args:
        stages: the lowered plan.
        refusals: makes what happens to samples that cannot be read. It does not know the opening, which would be a cycle.

    Attributes:
        held: shares in what the runtime keeps of the plan, so that nobody removes it.
    """

    def __init__(self, stages: Stages, refusals: Callable[[Stages], Refusals]) -> None:
        self.pid, self.stages, self._refusals = os.getpid(), stages, refusals
        self.held: list[Reading] = []
        self._compared = False

    def check_cached(self, run_seed: int) -> None:
        """Compare a few kept values with what their functions give now, once.

        Raises:
            CacheError: they differ.
        """
        if not self._compared:
            check_cached(self.stages, run_seed)
            self._compared = True

    @cached_property
    def refusals(self) -> Refusals:
        """What happens to samples that cannot be read: it writes to a quarantine file of this process."""
        return self._refusals(self.stages)

    @cached_property
    def fields(self) -> OpenedFields:
        """What batches are made of."""
        return OpenedFields(self.stages, Lineage.of(self.stages))


class Opened(NamedTuple):
    """What is open of a plan, for one run seed."""

    lowered: Lowered
    reader: SampleReader
    numbering: RunBatches


@final
class Opening:
    """Lowers and opens a plan at its first use, and again in a forked process. Close it.

    Args:
        plan: the stream's plan.
        catalog: where its relations are registered.
        metrics: where reads are counted.
        rebase: the edit that the plan began with, if it goes on from an earlier one.
        skips: what the run skips.
        threads: how many threads reading and encoding may have.
        former: the data versions that its relations had; None reads them as they are.
        decisions: the shares that the run decided on.
    """

    def __init__(
        self,
        plan: Deliver,
        catalog: Registry,
        metrics: Metrics,
        rebase: Rebase | None = None,
        skips: Skips = NOTHING,
        threads: ThreadShare | None = None,
        former: Mapping[str, str] | None = None,
        decisions: Decisions = PLANNED,
    ) -> None:
        self.rebase, self.skips, self.decisions, self._former = rebase, skips, decisions, former
        self._plan, self._catalog, self._metrics = plan, catalog, metrics
        self._threads = threads or ThreadShare()
        self._lowered: Lowered | None = None
        self._read: Opened | None = None
        self._formed: FormedBatches | None = None
        self._known: tuple[Path, Known] | None = None  # what a numbering that was let go knew, by its folder
        self._refusals = partial(_refusals, catalog, rebase, metrics, RefusalTally())
        self.records = StateRecords(catalog.root)
        self._named: tuple[tuple[str, str], ...] | None = None

    @cached_property
    def specs(self) -> Mapping[str, FieldSpec]:
        """What each field of a batch is on the host, by name; the plan alone says it, and nothing is opened."""
        collate = need(self._plan, Collate)
        return MappingProxyType(field_specs(collate.fields, collate.schema()))

    @property
    def stages(self) -> Stages:
        """The lowered plan."""
        return self.lowered().stages

    def lowered(self) -> Lowered:
        """Return what is open in this process; opens the plan at the first use."""
        if self._lowered is None or self._lowered.pid != os.getpid():
            with working("opening the plan"), sharing(self._threads):
                stages = lower(self._plan, self._catalog, kinds_of(self._plan), self.rebase, self._former)
                stages = with_decisions(stages, self.decisions)
            self._lowered, self._read = Lowered(stages, self._refusals), None
            self._lowered.held += self._shared(stages)
        return self._lowered

    def _shared(self, stages: Stages) -> list[Reading]:
        """Shares in what is kept of the plan: its quarantine and its caches, open or not."""
        names = {stages.fingerprint, *(work.kind.fingerprint for work in caches(stages))}
        names |= {each.fingerprint for kept in stages.values for each in kept.values}
        root = cache_root(self._catalog)
        return [reading(root, name) for name in names]

    def read(self, run_seed: int) -> Opened:
        """Return what is open, what reads the columns of samples, and what numbers the batches.

        Args:
            run_seed: the seed of everything random.
        """
        lowered = self.lowered()
        if self._read is None or self._read.reader.run_seed != run_seed:
            if self._read is not None:
                self._read.reader.close()
            stages = lowered.stages
            alone = not self._threads.in_worker
            with working("opening the plan"):
                reader = SampleReader(stages, run_seed, self._metrics, self._threads.working(), processes=alone)
                numbering = self._numbering(stages, reader)
            self._read = Opened(lowered, reader, numbering)
        return self._read

    def _numbering(self, stages: Stages, reader: SampleReader) -> RunBatches:
        collate = need(self._plan, Collate)
        costs = None if collate.cost is None else BatchCosts(stages, reader, collate.cost)
        texts = [each.field.value for each in stages.of(StepTotalStage)]
        totals = {text: BatchCosts(stages, reader, text, "StepTotal") for text in texts}
        store = self._batches(stages, reader)
        if collate.balance is not None and costs is not None:
            store = ExchangedBatches(store, collate.balance.step_batches, costs)
        tables = [unpacked(self.records.need(each.digest, "the skipped samples")) for each in self.skips.tables]
        return RunBatches(store, self.skips, stages, costs, totals, tables)

    def formed(self, run_seed: int) -> FormedBatches | None:
        """Return all batches of a plan with a formation; None where they are counted. Arguments as for `read`."""
        self.read(run_seed)
        return self._formed

    @property
    def edits(self) -> str:
        """A digest of the run's rebase, of what it skips, and of what it decided; empty without any."""
        rebase = None if self.rebase is None else self.rebase.to_json()
        decided = [self.decisions.to_json()] if self.decisions else []
        return digest([rebase, self.skips.to_json(), *decided]) if rebase or self.skips or decided else ""

    @property
    def refusals(self) -> Refusals:
        """What happens to samples that cannot be read. Their counts live as long as this object."""
        return self.lowered().refusals

    def _batches(self, stages: Stages, reader: SampleReader) -> BatchStore:
        self._formed = None
        if stages.formation is None:
            return CountedBatches(stages)
        folder = self._formations(stages, reader.run_seed)
        self.lowered().held.append(reading(folder.parent.parent, folder.name))
        name_plan(folder, stages.fingerprint)
        known = self._known[1] if self._known is not None and self._known[0] == folder else None
        self._formed = FormedBatches(Forming(stages, reader, stages.formation), folder, known)
        return self._formed

    def _formations(self, stages: Stages, run_seed: int) -> Path:
        """Return the folder of the plan's formation index."""
        edits: list[Any] = [] if self.rebase is None else [self.rebase.to_json()]
        if any(isinstance(each, _CALLS) for each in stages.maps):
            edits.append(run_seed)  # what they draw may decide who shares a batch
        name = digest([stages.fingerprint, dict(stages.data_versions), edits])
        return cache_root(self._catalog) / "formations" / name

    def saved(self, cursor: Cursor, run_seed: int, epoch: int) -> SavedState:
        """Return the state at a place.

        Args:
            cursor: the place.
            run_seed: the run's seed.
            epoch: the epoch whose order is drawn there.
        """
        saved = self._unnamed(cursor, run_seed, epoch)
        if self._named is None:  # the lists of one opening never change
            self._named = saved.shortened(self.records.keep).list_digests
        return replace(saved, list_digests=self._named)

    def state_bytes(self, cursor: Cursor, run_seed: int, epoch: int) -> int:
        """Return the bytes of `saved` as JSON; writes nothing."""
        return len(json.dumps(self._unnamed(cursor, run_seed, epoch).shortened(digest).to_json()))

    def _unnamed(self, cursor: Cursor, run_seed: int, epoch: int) -> SavedState:
        """The state at a place, with its lists."""
        stages, numbering = self.stages, self.read(run_seed).numbering
        anchors = numbering.store.anchors(epoch, numbering.skips.number(epoch, cursor.batch))
        data = tuple(sorted(stages.data_versions.items()))
        chapters = None if anchors is None else tuple(anchors)
        saved = SavedState(stages.fingerprint, data, run_seed, cursor, chapters, self.rebase, self.skips)
        return replace(saved, drawn_seed=drawn_seed(stages.order), decided=self.decisions)

    def samples(self, bound: Bound, epoch: int, number: int) -> tuple[Stages, Samples] | None:
        """Return the samples of a global batch, with identities, and the lowered plan; None if the run skips the batch.

        Raises:
            IndexError: the epoch has no such batch.
            StreamError: the chapters before it are not counted, and counting them takes long.
        """
        lowered, reader, numbering = self.read(bound.run_seed)
        numbering = numbering if bound.steps is None else numbering.over(numbering.store.by_lane())
        delivered = numbering.skips.delivered(epoch, number)
        if delivered is None:
            return None
        numbering.store.limits.need_near(epoch, number, "ledger")
        (drawn,) = numbering.draw(epoch, [delivered])
        samples, filler = drawn.samples, drawn.membership.filler
        if filler is not None:  # rows that hold a value, and no samples
            samples = samples.take(np.delete(np.arange(len(samples)), filler))
        reader.need_identity(epoch, samples)
        return lowered.stages, samples

    def given(self, run_seed: int) -> tuple[Deliver, Registry, Rebase | None, Decisions, int]:
        """Return what another process needs to open the same: plan, catalog, edits of the order, run seed. It pickles."""
        return self._plan, self._catalog, self.rebase, self.decisions, run_seed

    def edited(self, rebase: Rebase | None, skips: Skips, decisions: Decisions) -> "Opening":
        """Return an opening of the same plan with other edits; nothing of it is open yet."""
        return Opening(self._plan, self._catalog, self._metrics, rebase, skips, self._threads, decisions=decisions)

    def decided(self, decisions: Decisions, epoch: int, number: int) -> "Opening":
        """Return an opening of the same plan with one decision more, which takes over what is open here; nobody reads it now.

        Args:
            decisions: what holds from here on.
            epoch: the epoch in which the run stands.
            number: the number of its next batch.
        """
        out = self.edited(self.rebase, self.skips, decisions)
        out._refusals = self._refusals  # noqa: SLF001  an opening of our own: what was refused so far counts
        lowered, read, formed = self._lowered, self._read, self._formed
        if lowered is None or read is None or lowered.pid != os.getpid():
            return out
        anchors = read.numbering.store.anchors(epoch, number)
        read.reader.close()
        self._lowered = self._read = self._formed = None
        out._lowered = Lowered(with_decisions(lowered.stages, decisions), self._refusals)  # noqa: SLF001  as above
        out._lowered.held = lowered.held  # noqa: SLF001  as above
        out.read(read.reader.run_seed).numbering.store.anchor(epoch, anchors or ())
        if formed is not None and out._formed is not None:  # noqa: SLF001  as above
            last = decisions.made[-1]
            out._formed.follow(formed, last.epoch, last.position)  # noqa: SLF001  as above
        return out

    def taken_over(
        self, saved: SavedState, epoch: int, before: "Opening | None"
    ) -> tuple[int, Rebase | None, Skips, Decisions]:
        """Return where this plan goes on with the run that saved a state, as `rebasing.taken_over` does, and other edits.

        The shares that the run decided on last go on where the plan is the same. Another plan has shares of its own.

        Args:
            saved: the state.
            epoch: the epoch whose order is drawn at its place.
            before: what the run had open; None if the state is of this plan, maybe over other data.

        Raises:
            ResumeError: the state is of another plan, or has no place that the plan can go on from.
            CatalogError: the catalog does not know the data that the state is of.
            SourceError: rows that changed since would have to be read.
        """
        if before is not None:
            return *self._after(before, saved, epoch, saved.cursor), PLANNED
        check_plan(saved, self.stages, self._catalog)
        batches = Skips(saved.skips.batches)  # rows of skipped samples cannot be found any more, and are not needed
        former = saved.versions(self.records)
        edits = saved.rebase, batches, self._threads, former, saved.decided
        then = Opening(self._plan, self._catalog, Metrics(), *edits)
        try:
            cursor, anchors = then.admit(saved, epoch)
            then.read(saved.run_seed).numbering.store.anchor(epoch, anchors)
            begins, rebase, skips = self._after(then, saved, epoch + cursor.epoch - saved.cursor.epoch, cursor)
            return begins, rebase, skips, saved.decided.carried(begins)
        finally:
            then.close()

    def _after(
        self, before: "Opening", saved: SavedState, epoch: int, cursor: Cursor
    ) -> tuple[int, Rebase | None, Skips]:
        """Return where this plan goes on from a place of what another one has open."""
        numbering = before.read(saved.run_seed).numbering
        number = numbering.skips.number(epoch, cursor.batch)
        at = Before(before.stages, numbering.store, epoch, number, saved.rebase)
        begins, rebase = taken_over(at, self.stages, cache_root(self._catalog))
        return begins, rebase, carried(saved.skips, self.stages, epoch, number, begins)

    def admitted(self, saved: SavedState, epoch: int, bindings: Bindings, resumed_seed: int | None) -> Admitted:
        """Return what a stream goes on with after a state, once nothing of the state is refused. Changes nothing.

        Args:
            saved: the state.
            epoch: the epoch whose order is drawn at its place.
            bindings: the present bindings.
            resumed_seed: the run seed of the state that was loaded before, if any.

        Raises:
            ResumeError: the state is of another plan, data version or run seed, or its place cannot be.
        """
        stages = self.stages
        check_plan(saved, stages, self._catalog)
        check_data(saved, stages, self._catalog)
        bindings = resumed(bindings, saved.run_seed, resumed_seed)
        if (saved.rebase, saved.skips, saved.decided) == (self.rebase, self.skips, self.decisions):
            return Admitted(self, bindings, *self.admit(saved, epoch))
        opening = self.edited(saved.rebase, saved.skips, saved.decided)
        try:
            return Admitted(opening, bindings, *opening.admit(saved, epoch))
        except BaseException:
            opening.close()
            raise

    def admit(self, saved: SavedState, epoch: int) -> tuple[Cursor, list[Anchor]]:
        """Check a state against what is known of its epoch. Forms nothing and changes nothing.

        Returns:
            The state's place, and where its chapters begin. Of a state without a checksum, only those beginnings count
            that are known here too.

        Raises:
            ResumeError: the place is not in the epoch, or chapters cannot begin where it says.
        """
        stages, numbering, cursor = self.stages, self.read(saved.run_seed).numbering, saved.cursor
        mixture = stages.epochs.mixture
        if mixture is None and saved.rebase is not None and not saved.rebase.is_of(stages.epochs.total):
            msg = "resume: what the state's rebase has left is not of this plan. Pass what state_dict() returned, unchanged"
            raise ResumeError(msg)
        try:
            if mixture is not None:
                mixture.quotas(epoch)
        except IndexError as error:
            msg = f"resume: the state's epoch {cursor.epoch} cannot be ({error}). Pass what state_dict() returned, unchanged"
            raise ResumeError(msg) from error
        number = numbering.skips.number(epoch, cursor.batch)
        certain = numbering.store.possible(epoch, number, saved.chapters or ())
        anchors = list(saved.chapters or ()) if saved.sealed else certain
        if cursor.batch and not numbering.unknown(epoch):
            numbering.store.anchor(epoch, ())  # all is counted: what an earlier state claimed tells nothing more
            need_inside(numbering, epoch, cursor)
            if not numbering.exists(epoch, cursor.batch):  # an old state: today it would be the start of the next epoch
                return cursor.next_epoch(), []
        return cursor, anchors

    def materialize(
        self, executor: Executor, report: Callable[[Progress], None] | None, *, keep: bool, lengths: bool = False
    ) -> Progress:
        """Build the caches, and before them what opening the plan needs.

        Args:
            executor: which builders do it.
            report: called with the progress; None shows a bar on a terminal.
            lengths: whether the caller counts the epoch after it.
            keep: keep open what is open. It does not see what was built; otherwise the next use opens it again.

        Raises:
            ValueError: ``report`` cannot be called.
        """
        _need_callable("materialize", report)
        with building_with(executor), sharing(self._threads):
            threads = executor.workers or self._threads.working()
            then = (lambda report: self._keep_values(executor, report)) if self.stages.values else None
            done = materialize(self.stages, threads, executor, report, more=lengths, then=then)
        if not keep:
            self.close()
        return done

    def _keep_values(self, executor: Executor, report: Report | None) -> Progress:
        """Make the values that the plan keeps, with a reader of its own."""
        processes = executor.name == "threads" and not self._threads.in_worker
        opened = OpenedPlan(self._plan, self._catalog, processes=processes)
        try:
            return keep_values(opened, self.stages, report)
        finally:
            opened.close()

    def verify(self, run_seed: int, report: Report | None) -> Verification:
        """Read all derived files of the plan, and compare them with what was written.

        Args:
            run_seed: the seed of everything random.
            report: called with the bytes done and the bytes in total.

        Raises:
            ValueError: ``report`` cannot be called.
        """
        _need_callable("verify", report)

        def others() -> Iterator[tuple[Path, str, Callable[[], object]]]:
            for path in sorted(self._formations(self.stages, run_seed).glob("*.index")):
                yield path, "formation index", partial(verify_index, path)
            for path in sorted(self._formations(self.stages, run_seed).glob(f"*{RESTS}")):
                yield path, "formation index", partial(verify_rests, path)
            folder = self.refusals.quarantine.folder
            for path in sorted(folder.glob("*")):
                yield path, "quarantine", partial(verify_quarantine, path)

        return verify_stream(self._plan, self._catalog, lambda: self.stages, others, report)

    def let_go(self) -> None:
        """Replace reader and numbering, because a thread that does not return may hold their locks.

        What they know of chapters passes on to the new ones.
        """
        if self._read is not None:
            opened, self._read = self._read, None
            self._known = opened.numbering.store.handed_on
            opened.reader.close(0.0)

    def close(self, timeout_s: float | None = None) -> None:
        """Release what is open; the next use opens it again. Warns of threads that do not end within the deadline."""
        timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
        left = []
        if self._lowered is not None and self._lowered.pid == os.getpid():
            left = [] if self._read is None else self._read.reader.close(timeout_s)
            self._lowered.stages.close()
        self._lowered = self._read = self._known = None
        warn_left_alone("close", left, timeout_s)


@final
class OpenedPlan:
    """A plan that is opened once per process, to run its functions on rows of its relations. It pickles.

    Args:
        plan: the plan.
        catalog: where its relations are registered.
        processes: whether functions with ``workers`` may start processes.
    """

    def __init__(self, plan: Deliver, catalog: Registry, *, processes: bool) -> None:
        self._plan, self._catalog, self._processes = plan, catalog, processes
        self._open: tuple[Opening, Stages, SampleReader] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> tuple[Stages, SampleReader]:
        with self._lock:
            if self._open is None:
                share = ThreadShare()
                share.in_worker = not self._processes
                opening = Opening(self._plan, self._catalog, Metrics(), threads=share)
                self._open = (opening, opening.stages, opening.read(need(self._plan, Sample).order.run_seed).reader)
            return self._open[1:]

    def close(self) -> None:
        """Close what is open in this process."""
        with self._lock:
            found, self._open = self._open, None
        if found is not None:
            found[0].close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(OpenedPlan, processes=False), (self._plan, self._catalog)


def _refusals(
    catalog: Registry, rebase: Rebase | None, metrics: Metrics, tally: RefusalTally, stages: Stages
) -> Refusals:
    return Refusals(stages, metrics, Quarantine(cache_root(catalog), stages, rebase), tally)


def _need_callable(verb: str, report: object) -> None:
    if report is not None and not callable(report):
        msg = f"{verb}: report={shown(report)} cannot be called. Give a function that takes the progress, or None"
        raise ValueError(msg)

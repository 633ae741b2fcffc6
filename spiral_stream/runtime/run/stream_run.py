"""One run of a plan: what it has bound, where it stands, what it has open, and the passes over it.

A stream holds a run. What looks at the stream and what moves it both work on the run, and neither has parts of its own.
A run pickles, and is opened anew in the other process, and in a forked one.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from spiral_stream.catalog.registry import Registry
from spiral_stream.cursor import Cursor
from spiral_stream.errors import StreamError
from spiral_stream.plan.nodes import Collate, Deliver, Sample
from spiral_stream.plan.saving.drawn_seeds import drawn_seed, with_recorded
from spiral_stream.plan.saving.fingerprint import fingerprint
from spiral_stream.plan.tree import need
from spiral_stream.planner.binding.bindings import Bindings, Bound, need_known_seed, settle
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.decisions import PLANNED, Decisions
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.planner.state.saved_state import SavedState
from spiral_stream.planner.state.skips import NOTHING, Skips
from spiral_stream.runtime.delivery import Delivery, Devices
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.steps import warn_of_inside
from spiral_stream.runtime.run.forked_worker import SubprocessReader
from spiral_stream.runtime.run.loop import Passes
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.runtime.run.position import RunPosition, WorkerPosition
from spiral_stream.runtime.run.recorder import Recorder
from spiral_stream.threads import ThreadShare


@final
class StreamRun:
    """The parts of one stream.

    Args:
        plan: the stream's plan.
        catalog: where its relations are registered.
        delivery: what batches become.
        threads: how many threads it may have.
        budget_bytes: the most bytes that batches built ahead of the loop may take.

    Attributes:
        bindings: what is bound.
        resumed_seed: the run seed that a state has bound; None if none has.
        position: where the loop stands.
        worker: where the passes of a DataLoader's worker stand, if this process is one.
        opening: what is open, or opens at its first use; `open` returns it for use.
        passes: over the opening.
        metrics: what the passes count.
        closed: whether it is closed for good.
        was_opened: whether anybody asked for what is open.
        recorder: is told what becomes of the stream; None where no run records it.
        keyed: whether batches say which samples they hold.
        resumed_run: what the state that was loaded last says of the run that saved it, with the place of the state.
    """

    def __init__(
        self, plan: Deliver, catalog: Registry, delivery: Delivery, threads: ThreadShare, budget_bytes: int
    ) -> None:
        self.plan, self.catalog, self.delivery = plan, catalog, delivery
        self.threads, self.budget_bytes = threads, budget_bytes
        self.collate, self.sample = need(plan, Collate), need(plan, Sample)
        self.bindings = Bindings()
        self.resumed_seed: int | None = None
        self.position = RunPosition(self.sample.epoch if isinstance(self.sample.epoch, int) else None)
        self.worker = WorkerPosition()
        self.closed = self.was_opened = self.keyed = False
        self.recorder: Recorder | None = None
        self.resumed_run: Mapping[str, Any] | None = None
        self._open_anew(None, NOTHING, PLANNED)

    def _open_anew(self, rebase: Rebase | None, skips: Skips, decisions: Decisions) -> None:
        """Make the parts that no other process can share."""
        self._pid = os.getpid()
        self.metrics = Metrics()
        self.opening = Opening(self.plan, self.catalog, self.metrics, rebase, skips, self.threads, decisions=decisions)
        self.passes = Passes(self.position, self.metrics, self.threads, self.budget_bytes)
        self.passes.keyed = self.keyed
        self.subprocess = SubprocessReader()

    def record(self, recorder: Recorder) -> None:
        """Tell somebody what becomes of the stream, and let its batches say which samples they hold."""
        if self.recorder is not None:
            self.recorder.close()
        self.delivery.with_keys()
        self.recorder, self.keyed = recorder, True
        self.passes.recorder, self.passes.keyed = recorder, True

    def changed(self, why: str) -> None:
        """Tell whoever records the stream that it was moved, edited or bound anew."""
        if self.recorder is not None:
            self.recorder.changed(why)

    def goes_on_from(self, saved: SavedState, cursor: Cursor, why: str = "resume") -> None:
        """Remember which run saved a state that the stream goes on from, and tell whoever records the stream."""
        self.resumed_run = None if saved.run is None else {**saved.run, "epoch": cursor.epoch, "batch": cursor.batch}
        if self.recorder is not None:
            self.recorder.resumed(self.resumed_run, why)

    def said(self, saved: SavedState, steps_ahead: int = 0) -> dict[str, Any]:
        """Return a state as JSON values, once what the run recorded up to it is durable."""
        if self.recorder is None:
            return saved.to_json()
        self.passes.idle()  # an epoch that the loop has had all of is over for the recorder, too
        return replace(saved, run=self.recorder.sealed(saved.cursor, steps_ahead)).to_json()

    def state_at(self, at: Cursor) -> dict[str, Any]:
        """Return the state of a place as JSON values; inside an optimizer step it is of the step's beginning, with a warning."""
        cursor = at.bordered()
        with self.numbering().store.held("state_dict"):
            saved = self.open().saved(cursor, self.bound().run_seed, self.position.drawn(cursor.epoch))
        warn_of_inside(at, cursor)
        return self.said(saved, at.step - cursor.step)

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made the run."""
        return os.getpid() != self._pid

    def open(self) -> Opening:
        """Return what the run has open, or opens at its first use.

        Raises:
            StreamError: the run is closed.
        """
        if self.closed:
            msg = "the stream is closed. Make a new one from its plan, for example catalog.open_stream(name)"
            raise StreamError(msg)
        self.was_opened = True
        return self.opening

    def stages(self) -> Stages:
        """Return the lowered plan."""
        return self.open().stages

    def bound(self) -> Bound:
        """Return what is bound, with the defaults filled in.

        Raises:
            BindError: rank and world size contradict each other, or contradict the plan.
        """
        return settle(self.bindings, self.sample, self.collate.cost, self.collate.balance, self.collate.formation)

    def numbering(self) -> RunBatches:
        """Return which samples form which batch."""
        bound = self.bound()
        return self.open().read(bound.run_seed).numbering.promised(bound)

    def devices(self) -> dict[str, str | None]:
        """Return the device of each array field; None where nobody names one."""
        return self.delivery.devices(self.opening.specs, self.plan.device, self.bindings.device)

    def devices_here(self) -> Devices:
        """Return the devices that this process delivers to; a worker's batches stay on the host."""
        return {} if self.position.in_worker else self.devices()

    def now(self) -> tuple[Opening, Bound, Devices]:
        """Return what a pass reads, from the moment that it begins.

        Raises:
            BindError: several ranks have each drawn a seed of their own.
            StreamError: the run is closed.
        """
        bound = self.bound()
        need_known_seed(self.sample.order, bound)
        return self.open(), bound, self.devices_here()

    def other_passes(self) -> Passes:
        """Return passes beside those of the loop, which the run's metrics do not count. Close them."""
        return Passes(self.position, Metrics(), self.threads, self.budget_bytes)

    @contextmanager
    def seed_of(self, saved: SavedState) -> Iterator[None]:
        """Go on with the order's seed of a state, where this process and the one that saved it drew one each.

        If the state is refused inside, all is as it was.
        """
        plan, sample, opening = self.plan, self.sample, self.opening
        if saved.drawn_seed is not None and drawn_seed(sample.order) is not None:
            recorded = with_recorded(plan, saved.drawn_seed)
            if fingerprint(recorded) == saved.plan:
                self.plan, self.sample = recorded, need(recorded, Sample)
                self.opening = Opening(recorded, self.catalog, self.metrics, None, NOTHING, self.threads)
        taken = self.opening
        try:
            yield
        except BaseException:
            self.plan, self.sample, self.opening, opening = plan, sample, opening, taken
            raise
        finally:
            if opening is not self.opening:
                opening.close()

    def go_on_with(self, opening: Opening) -> bool:
        """Go on with what is open, and close what was before. Returns whether it is another one."""
        before, self.opening = self.opening, opening
        if opening is not before:
            before.close()
        return opening is not before

    def on_host(self, delivery: Delivery) -> "StreamRun":
        """Return a copy of the run, opened anew, whose batches become something else."""
        out = StreamRun.__new__(StreamRun)
        out.__setstate__({**self.__getstate__(), "delivery": delivery})
        return out

    def close(self, timeout_s: float | None) -> None:
        """Stop the threads and release all handles."""
        try:
            if self.recorder is not None and not self.forked:
                self.recorder.close()
        finally:
            left = self.passes.close(timeout_s)
            self.opening.close(0.0 if left else timeout_s)
            self.closed = True

    def __getstate__(self) -> dict[str, Any]:
        ours = ("opening", "passes", "metrics", "subprocess", "recorder")
        state = {name: each for name, each in self.__dict__.items() if name not in ours}
        return {**state, "edits": (self.opening.rebase, self.opening.skips, self.opening.decisions)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        edits = state.pop("edits")
        self.__dict__.update(state)
        self.recorder = None
        self._open_anew(*edits)

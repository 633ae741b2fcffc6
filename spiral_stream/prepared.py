"""`PreparedStream`: a frozen plan, the bindings of a run, and a cursor that moves.

Iterating starts at the cursor, leaving a loop keeps it; the place after an epoch's last
batch is the start of the next epoch (docs/decisions/0018). Every batch is a function of plan, data version, epoch
and batch number; threads, prefetch and caches only decide how fast it comes.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final, Self

import pyarrow as pa

from spiral_stream.batching.formation import KeepPartial
from spiral_stream.cache.materialize import Progress
from spiral_stream.catalog.registry import Registry
from spiral_stream.cursor import Cursor
from spiral_stream.errors import BindError, SpiralError, StreamError
from spiral_stream.explain import Explanation, explain_stream
from spiral_stream.fields.field import FieldSpec
from spiral_stream.plan.fields import field_spec
from spiral_stream.plan.nodes import Collate, Deliver, Sample
from spiral_stream.plan.tree import need
from spiral_stream.planner.bind import Bindings, Bound, epoch_number, resumed, settle
from spiral_stream.planner.build import CacheStatus, caches, status
from spiral_stream.planner.evaluation import evaluation
from spiral_stream.planner.physical import Stages
from spiral_stream.planner.rebase import Rebase
from spiral_stream.planner.resume import SavedState, check_data, check_plan
from spiral_stream.planner.verify import Report, Verification
from spiral_stream.runtime.batches import Batch, BatchBuilder
from spiral_stream.runtime.blame import identities
from spiral_stream.runtime.buffers import Slots
from spiral_stream.runtime.formed_batches import FormedBatches
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering import Numbering
from spiral_stream.runtime.opening import Opening, found_row, left_over, need_stream
from spiral_stream.runtime.pipeline import Pipeline
from spiral_stream.runtime.place import Place
from spiral_stream.runtime.samples import SampleReader
from spiral_stream.runtime.steps import delivered_at
from spiral_stream.threads import Workers, available_cores

DEFAULT_BUDGET_BYTES: Final = 4 << 30


class PreparedStream:
    """Batches of a plan as dicts of NumPy arrays and lists; adapters turn them into a framework's.

    Args:
        plan: from ``relation.sample(...).collate(...)`` and a ``to_...`` verb.
        catalog: where its relations are registered.
        threads: decoding threads; None takes the cores this process may use.
        budget_bytes: bound on the bytes of batches built ahead.
    """

    def __init__(
        self, plan: Deliver, catalog: Registry, threads: int | None = None, budget_bytes: int = DEFAULT_BUDGET_BYTES
    ) -> None:
        self.plan = plan
        self.catalog = catalog
        self._collate = need(plan, Collate)
        self._sample = need(plan, Sample)
        self._threads = threads
        self._budget_bytes = budget_bytes
        self._bindings = Bindings()
        self._place = Place(self._sample.epoch if isinstance(self._sample.epoch, int) else None)
        self._metrics = Metrics()
        self._memory: Slots | None = None
        self._opening = Opening(plan, catalog, self._metrics)
        self._pipeline: Pipeline | None = None
        self._resumed_seed: int | None = None
        self._pid = os.getpid()
        self._closed = False

    # ---- bindings and place

    def bind(self, **bindings: Any) -> Self:
        """Set what is known only at run start; returns the stream.

        Args:
            **bindings: ``epoch``, ``data_parallel_rank`` (or ``rank``), ``data_parallel_world_size`` (or
                ``world_size``), ``run_seed``, ``device`` (overrides every field's), ``merge`` (batches concatenated
                into one), ``mesh`` (a ``DeviceMesh``, for rank and world size), ``dp_dims`` (the mesh's data-parallel
                dimensions, where their names do not say it).

        Raises:
            BindError: unknown name, value out of range, a device that is not there, or the stream is being read.
            MissingExtraError: the framework that batches go to is not installed.
        """
        if not self._idle():
            msg = "bind: the stream is being read; leave the loop (or close its iterator), then bind"
            raise BindError(msg)
        before, updated = self._bindings, self._bindings.updated(**bindings)
        settle(updated, self._sample)
        try:
            self._bindings = updated
            self._need_bound_devices()
        except SpiralError:
            self._bindings = before
            raise
        if updated.epoch is not None and bindings.get("epoch") is not None:
            self._place.move(Cursor(updated.epoch))
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; nothing happens if the cursor is in it already."""
        epoch = epoch_number(epoch)
        if epoch != self.epoch:
            if not self._idle():
                msg = "set_epoch: the stream is being read; leave the loop first"
                raise StreamError(msg)
            self._place.move(Cursor(epoch))

    def _bound(self) -> Bound:
        return settle(self._bindings, self._sample)

    @property
    def epoch(self) -> int:
        """The epoch that the cursor is in: inside a loop that of its batches, behind an epoch's last batch the next."""
        return self._place.epoch

    # ---- what is known before the first read

    @property
    def fingerprint(self) -> str:
        """The plan's fingerprint."""
        return self.stages.fingerprint

    @property
    def rows(self) -> int:
        """Rows that pass the plan's filters and joins; in a mixture, the sum over its streams."""
        return sum(stream.selected.total for stream in self.stages.streams)

    @property
    def data_versions(self) -> dict[str, str]:
        """The data version of every relation that the plan reads, by the relation's name."""
        return dict(self.stages.data_versions)

    def spec(self) -> dict[str, FieldSpec]:
        """Names, dtypes and shapes of a batch, before anything is read."""
        have = self._collate.schema()
        return {name: field_spec(name, field, have.field(field.column)) for name, field in self._collate.fields}

    @property
    def stages(self) -> Stages:
        """The lowered plan; made at the first use, again in a forked process."""
        return self._open().stages

    def _open(self) -> Opening:
        """What the stream has open, or opens at its first use.

        Raises:
            StreamError: the stream is closed.
        """
        if self._closed:
            msg = "the stream is closed; make a new one from its plan, for example catalog.open_stream(name)"
            raise StreamError(msg)
        return self._opening

    @property
    def numbering(self) -> Numbering:
        """Which samples form which batch."""
        return self._open().read(self._bound().run_seed)[1]

    @property
    def _reader(self) -> SampleReader:
        return self._opening.read(self._bound().run_seed)[0]

    def __len__(self) -> int:
        """Steps of the whole current epoch for this rank.

        Raises:
            TypeError: formation would have to form many batches to know; says what would count them.
        """
        bound, numbering = self._bound(), self.numbering
        numbering.need_countable(self._place.drawn())
        return numbering.steps(self._place.drawn(), bound.world_size, bound.merge, bound.rank)

    def count(self, epoch: int | None = None) -> int:
        """Batches of a whole epoch before the tail rule; the formation index keeps what was formed to know."""
        return self.numbering.total(self._place.drawn(epoch))

    def metrics(self) -> dict[str, Any]:
        """Totals since the stream was made: rows, bytes, seconds by stage, queue depth, what bounds it."""
        if self._pipeline is not None:
            self._pipeline.record()
        return {**self._metrics.as_dict(), "slots": 0 if self._memory is None else self._memory.allocated}

    def explain(self, *, analyze: bool = False) -> Explanation:
        """EXPLAIN DATA: what this stream does to its data, from facts; reads no payload.

        Args:
            analyze: add what the stream measured so far.
        """
        metrics, bound = self.metrics() if analyze else None, replace(self._bound(), epoch=self._place.drawn())
        return explain_stream(
            self.stages, bound, self.devices(), self._thread_count(1), metrics, self.numbering, self.catalog
        )

    def _thread_count(self, workers: int) -> int:
        return self._threads or max(1, available_cores() // workers)

    # ---- iterating

    def __iter__(self) -> Iterator[Any]:
        """Batches of this rank from the cursor to the end of the epoch."""
        self._need_devices()
        return self._run(0, 1)

    def _run(self, worker: int, workers: int) -> Iterator[Any]:
        """Every ``workers``-th batch from the ``worker``-th on; alone, all of them."""
        with self._place.beginning() as alone:
            if not (alone and self._idle()):
                msg = "iter: the stream is being read already; one loop at a time moves the cursor. Leave it, or call close()"
                raise StreamError(msg)
            self._place.adopt()
            bound, numbering = self._bound(), self.numbering
            numbering.need_known(bound.world_size, workers)
            steps = self._place.begin(numbering, bound)
            start = steps.start
            builder, due, threads = self._builder(bound.merge), steps.due(worker, workers), self._thread_count(workers)
            pipeline = self._pipeline = Pipeline(
                builder, steps.epoch, due, self.plan.prefetch, self._budget_bytes, threads, self._metrics
            )
        try:
            for had, batch in zip(count(worker, workers), self._delivered(pipeline.get), strict=False):
                self._place.cursor = start.advanced(had + 1)
                yield batch
                if self._pipeline is not pipeline and not self._closed:  # all was had, and the stream has gone on since
                    return
            if self._place.cursor == start and start.batch == worker == 0:
                numbering.warn_of_nothing(steps.epoch, bound)
            self._place.cursor = start.next_epoch()
        finally:
            self._leave(pipeline)

    def _leave(self, pipeline: Pipeline) -> None:
        """End a pass, unless that was done."""
        if self._pipeline is pipeline and not pipeline.over:  # at the interpreter's exit it is, and the rest half gone
            self._pipeline = None
            self._place.leave(lambda: self._opening.let_go() if pipeline.close() else None)

    def _idle(self) -> bool:
        """Whether no loop reads the stream; one that has had its last batch reads it no more."""
        if self._pipeline is not None:
            with self.numbering.held("asking for the place"):
                over = self._place.over()
            if over:
                self._leave(self._pipeline)
        return self._pipeline is None

    def _builder(self, merge: int = 1) -> BatchBuilder:
        refusals, slots = self._opening.refusals, self._slots()
        split, read = self._split(), (self.numbering, self._reader)
        return BatchBuilder(self.stages, *read, self._metrics, slots, refusals, merge, split)

    def _slots(self) -> Slots:
        """The stream's batch memory, kept over epochs."""
        self._memory = self._memory or self._new_slots()
        return self._memory

    def _new_slots(self) -> Slots:
        return Slots()

    def _split(self) -> frozenset[str]:
        """Image fields whose normalization is left to the device."""
        return frozenset()

    def _delivered(self, get: Callable[[], Batch | None]) -> Iterator[Any]:
        """Turn host batches into what the loop gets."""
        while (batch := get()) is not None:
            yield batch.fields

    def _need_bound_devices(self) -> None:
        """Refuse devices that this machine does not have, when the stream is bound."""

    def _need_devices(self) -> None:
        """Refuse devices that batches cannot be delivered to.

        Raises:
            BindError: names a field, the device, and the way out.
        """
        wanted = {name: device for name, device in self.devices().items() if device not in (None, "cpu")}
        if wanted:
            name, device = next(iter(wanted.items()))
            msg = (
                f"field {name!r} asks for device {device!r}; NumPy arrays live on the host. "
                "Use to_torch(), or bind(device='cpu')"
            )
            raise BindError(msg)

    def devices(self) -> dict[str, str | None]:
        """Where each array field is delivered: ``bind``, else the field's own, else the ``to_...`` verb's; "auto" is settled."""
        out: dict[str, str | None] = {}
        for name, spec in self.spec().items():
            if spec.dtype is not None:
                device = self._bindings.device or spec.device or self.plan.device
                out[name] = self._auto() if device == "auto" else None if device is None else str(device)
        return out

    def _auto(self) -> str:
        """What ``device="auto"`` comes to."""
        return "cpu"

    # ---- random access

    def batch(self, number: int, epoch: int | None = None) -> Any:
        """Build one global batch on its own, whichever rank gets it.

        Args:
            number: global batch number, from 0; with one rank and no merge, the step.
            epoch: None takes the cursor's.

        Raises:
            IndexError: the epoch has no such batch.
        """
        builder, at = self._builder(), self._place.drawn(epoch)
        number = self.numbering.whole(number)
        with Workers(self._thread_count(1), "spiral-batch") as pool:
            done = builder.begin(at, range(number, number + 1), pool).result()
        return next(self._delivered(iter([done, None]).__next__))

    def ledger(self, number: int, epoch: int | None = None) -> list[Any]:
        """Which samples a global batch holds as planned, in order; no payload is read that does not decide membership.

        Returns:
            identities, also of samples that cannot be read (`quarantine` lists them); tuples where the identity has several
            columns, the stream's name first where several are mixed, and last which of its parent's parts one of flat_map is.
        """
        at, stages = self._place.drawn(epoch), self.stages
        samples = self.numbering.draw(at, number).samples
        self._reader.need_identity(at, samples)
        return identities(stages, samples)

    def quarantine(self) -> pa.Table:
        """Samples of this plan and data that could not be read: of every rank and process, one row a place in a batch."""
        return self._open().refusals.quarantine.read()

    def locate(self, identity: Any, epoch: int | None = None) -> dict[str, int] | None:
        """Where a sample is first delivered: epoch, batch, and the step and rank under the present bindings.

        Args:
            identity: the value that tells it apart; a tuple of several, the stream's name first where several are mixed.
            epoch: None takes the cursor's.

        Returns:
            None where this epoch does not use it, or the tail rule drops it.

        Raises:
            KeyError: no surviving row has this identity.
        """
        stages, bound, numbering = self.stages, self._bound(), self.numbering
        at = self.epoch if epoch is None else epoch_number(epoch, "locate")
        stream, row = found_row(stages, identity)
        place = self._place.cursor if at == self._place.cursor.epoch else Cursor(at)
        place = place.enter(bound.world_size, bound.merge)
        for number in numbering.find(self._place.drawn(at), stream, row):
            step, rank = place.batch_to_step(number)
            due = delivered_at(numbering, self._place.drawn(at), place.segment_of(number), step, rank)
            if due is not None and number in due:
                return {"epoch": at, "batch": number, "step": step, "rank": rank}
        return None

    # ---- state

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Where the run stands, as JSON values.

        Args:
            delivered: batches that the loop has had since the pass began; needed where a DataLoader has workers.

        Raises:
            StreamError: iterated in worker processes and ``delivered`` is not given, or a thread does not answer.
        """
        if delivered is None and self._place.by_workers:
            msg = (
                "state_dict: the stream was iterated in DataLoader workers, so only the loop knows what was delivered. "
                "Give state_dict(delivered=<batches had since the loader's iteration began>)"
            )
            raise StreamError(msg)
        bound = self._bound()
        with self.numbering.held("state_dict"):
            cursor = self._place.here() if delivered is None else self._place.after(delivered, self.numbering, bound)
            return self._saved(cursor, bound)

    def _saved(self, cursor: Cursor, bound: Bound) -> dict[str, Any]:
        return self._open().saved(cursor, bound.run_seed, self._place.drawn(cursor.epoch)).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place; the cost does not depend on where it is.

        Raises:
            ResumeError: the state is of another plan, data version or run seed; the message says where they differ.
        """
        if not self._idle():
            msg = "load_state_dict: the stream is being read; leave the loop first"
            raise StreamError(msg)
        saved, present = SavedState.from_json(state), self._open()
        check_plan(saved, present.stages, self.catalog)
        check_data(saved, present.stages)
        bindings = resumed(self._bindings, saved.run_seed, self._resumed_seed)
        opening = present if saved.rebase == present.rebase else self._opened(saved.rebase)
        try:
            epoch = self._place.drawn(saved.cursor.epoch)
            cursor, anchors = opening.admit(saved, epoch)
        except BaseException:
            if opening is not present:
                opening.close()
            raise
        # from here on nothing is refused
        if bindings is not self._bindings:
            self._bindings, self._resumed_seed = bindings, saved.run_seed
        self._go_on_with(opening)
        if isinstance(self.numbering, FormedBatches):
            self.numbering.anchor(epoch, anchors)
        self._place.move(cursor)

    def rebase(self, earlier: "PreparedStream") -> None:
        """Go on where a stream of another plan stands: each stream of the mixture keeps its own place (docs/decisions/0013).

        If ``earlier`` is in mid-epoch, that ends there; this stream begins the next one with the samples that were
        not delivered yet, so none is repeated or skipped. The state records it.

        Args:
            earlier: a stream of the run's plan so far, where it stands or after ``load_state_dict``.

        Raises:
            ResumeError: a plan mixes nothing, the earlier one has several lanes, or a stream is not the same in both.
        """
        if not self._idle():
            msg = "rebase: the stream is being read; leave the loop first"
            raise StreamError(msg)
        need_stream(earlier, PreparedStream)
        at = SavedState.from_json(earlier.state_dict())
        epoch = earlier._place.drawn(at.cursor.epoch)  # noqa: SLF001  another stream
        rebase = left_over(earlier.stages, earlier.numbering, epoch, at.cursor.batch, at.rebase, self.stages)
        self._go_on_with(self._opened(rebase))
        self._place.move(Cursor(rebase.epoch))

    def _opened(self, rebase: Rebase | None) -> Opening:
        return Opening(self.plan, self.catalog, self._metrics, rebase)

    def _go_on_with(self, opening: Opening) -> None:
        before, self._opening = self._opening, opening
        if opening is not before:
            before.close()

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made the stream."""
        return os.getpid() != self._pid

    # ---- caches, other streams, the end

    def materialize(self, report: Callable[[Progress], None] | None = None) -> Progress:
        """Build the caches of this plan, for the rows it needs; goes on where an earlier build stopped.

        Args:
            report: called with what is done so far; None shows a progress bar on a terminal.

        Raises:
            CacheError: the cache folder cannot be written.
        """
        return self._opening.materialize(self.stages, self._thread_count(1), report, keep=self._pipeline is not None)

    def caches(self) -> list[CacheStatus]:
        """Return how far each cache of this plan is built. Reads no payload; empty if the plan has nothing to cache.

        Raises:
            DamageError: the ledger of a cache is not what was written; says who mends it.
        """
        return [status(work) for work in caches(self.stages)]

    def verify(self, report: Report | None = None) -> Verification:
        """Read all derived files of this plan, payload of caches too, and compare them with what was written."""
        return self._open().verify(self._bound().run_seed, report)

    def eval(self) -> Self:
        """A stream for evaluation: epoch pinned, nothing dropped, deterministic transforms, its own cursor."""
        plan = evaluation(self.plan, self._place.drawn(), KeepPartial())
        out = type(self)(plan, self.catalog, self._threads, self._budget_bytes)
        out._bindings = self._bindings  # noqa: SLF001
        return out

    def close(self, timeout_s: float | None = None) -> None:
        """Stop threads and release handles. The cursor stays readable in saved states only.

        Args:
            timeout_s: seconds to wait for calls that do not return, such as a read or a function of yours; None waits 5.
                Then a `SpiralWarning` says which thread is in which call.
        """
        pipeline, self._pipeline = self._pipeline, None
        left = pipeline is not None and pipeline.close(timeout_s)
        self._opening.close(0.0 if left else timeout_s)
        self._memory = None
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.update(_opening=self._opening.rebase, _pipeline=None, _metrics=None, _memory=None, _subprocess=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._metrics = Metrics()
        self._opening = Opening(self.plan, self.catalog, self._metrics, state["_opening"])
        self._pid = os.getpid()

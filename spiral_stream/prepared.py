"""`PreparedStream`: a plan that can be read, explained, stopped and resumed.

This room is the face of a stream: one method for each verb that moves it, and half of the lines document the verbs.
A stream holds two objects. A `StreamRun` has the parts that do the work: bindings, a `RunPosition`, what is open (`Opening`), the
`Passes` over it, and a `Delivery` for its framework. An `Inspection` of that run answers what moves nothing. Streams of other
frameworks hold another delivery and override nothing.

Iterating starts at the stream's place, and leaving a loop keeps the place. After an epoch's last batch comes the start of
the next epoch (docs/decisions/0018). Every batch is a function of plan, data version, epoch and batch number. Threads,
prefetch and caches only decide how fast it comes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import pyarrow as pa

from spiral_stream.arguments import door, forwarded, integer
from spiral_stream.batching.tail import KeepPartial
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.cursor import Cursor
from spiral_stream.derived.work.executors import Executor
from spiral_stream.display.progress import Progress, Report, in_rows, with_bar
from spiral_stream.errors import BindError, PlanError, SpiralError, StreamError, shown
from spiral_stream.habits import OF_STREAMS, answer
from spiral_stream.looking.inspect import Inspection
from spiral_stream.looking.tables import batch_schema, record_batches
from spiral_stream.plan.functions.evaluation import evaluation
from spiral_stream.plan.nodes import Deliver
from spiral_stream.planner.binding.bindings import epoch_number, resumed, settle
from spiral_stream.planner.prepared_data.verify import Verification
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.saved_state import SavedState
from spiral_stream.runtime.batch.keys import KeyedBatch
from spiral_stream.runtime.delivery import BITS, HOST, Delivery, tell_of_host
from spiral_stream.runtime.numbering.skipped import SkipRequest, need_epochs
from spiral_stream.runtime.numbering.steps import length_of, need_border, steps_of
from spiral_stream.runtime.read_ahead import BUDGET_BYTES
from spiral_stream.runtime.run.count import count_epoch
from spiral_stream.runtime.run.decide import SharesOfRun
from spiral_stream.runtime.run.position import Reached
from spiral_stream.runtime.run.rebase import need_stream
from spiral_stream.runtime.run.seek import SeekOfRun
from spiral_stream.runtime.run.stream_run import StreamRun
from spiral_stream.threads import ThreadShare

_SIZE: Final = integer(1, None, "a whole number from 1 up, or None", none=True)


class PreparedStream:
    """A stream of batches: dicts of NumPy arrays and lists, or of another framework's arrays.

    Made by ``to_numpy()``, ``to_torch()`` and ``to_jax()`` of a collated relation, and by ``open_stream``. A stream is a
    context manager; close it to end its threads. One loop at a time reads it.

    Args:
        plan: from ``relation.sample(...).collate(...)`` and a ``to_...`` verb.
        catalog: where its relations are registered.
        threads: the size of each pool of threads that decode or encode; None divides the cores that this process may
            use among the processes that read the stream.
        budget_bytes: the most bytes that batches built ahead of the loop may take.
        delivery: what batches become; None leaves them on the host as NumPy arrays.
        read_batch_size: how many rows of payload a task reads and decodes at a time; None takes 64.

    Examples:
        >>> with plan.to_numpy() as stream:
        ...     for batch in stream:
        ...         loss = batch["width"].mean()
        ...     state = stream.state_dict()
    """

    @door(BindError)
    def __init__(
        self,
        plan: Deliver,
        catalog: AnyCatalog,
        threads: int | None = None,
        budget_bytes: int = BUDGET_BYTES,
        delivery: Delivery | None = None,
        read_batch_size: int | None = None,
    ) -> None:
        for name, given in (("threads", threads), ("read_batch_size", read_batch_size)):
            _SIZE.need(f"stream: {name}=", given)
        share = ThreadShare(threads, read_batch_size=read_batch_size)
        chosen = HOST if delivery is None else delivery
        self._hold(StreamRun(plan, catalog.registry, chosen, share, budget_bytes), catalog)

    def _hold(self, run: StreamRun, catalog: AnyCatalog) -> None:
        self._run, self._catalog = run, catalog
        self._inspection = Inspection(run, type(self).__name__)
        self._shares, self._seeking = SharesOfRun(run), SeekOfRun(run)

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name, "stream", OF_STREAMS)

    # ---- what it is

    @property
    def plan(self) -> Deliver:
        """The plan whose batches these are.

        Examples:
            >>> stream.plan.framework
            'numpy'
        """
        return self._run.plan

    @property
    def catalog(self) -> AnyCatalog:
        """The catalog that names the plan's relations.

        Examples:
            >>> "photos" in stream.catalog.tables()
            True
        """
        return self._catalog

    @property
    def fingerprint(self) -> str:
        """The plan's fingerprint: 32 hex digits.

        Examples:
            >>> stream.fingerprint == plan.to_numpy().fingerprint
            True
        """
        return self._run.stages().fingerprint

    @property
    def rows(self) -> int:
        """Rows that pass the plan's filters and joins; in a mixture, the sum over its streams.

        Examples:
            >>> stream.rows
            48
        """
        return sum(stream.selected.total for stream in self._run.stages().streams)

    @property
    def data_versions(self) -> dict[str, str]:
        """The data version of every relation that the plan reads, by the relation's name.

        Examples:
            >>> sorted(stream.data_versions)
            ['photos']
        """
        return dict(self._run.stages().data_versions)

    @property
    def epoch(self) -> int:
        """The epoch of the loop's batches; after an epoch's last batch, the next epoch.

        Examples:
            >>> stream.epoch
            0
        """
        return self._run.position.epoch

    def __len__(self) -> int:
        """Return the steps of the whole present epoch for this rank.

        Raises:
            TypeError: many batches would have to be formed first; says how long that takes, and which call does it.
        """
        run = self._run
        return length_of(run.numbering(), run.position.drawn(), run.bound())

    @property
    def steps_per_epoch(self) -> int:
        """What `len` returns; a `StreamError` says how long counting takes where that is not quick.

        Examples:
            >>> stream.steps_per_epoch
            6
        """
        run = self._run
        return steps_of(run.numbering(), run.position.drawn(), run.bound())

    # ---- bindings and place

    @door(BindError)
    def bind(self, **bindings: Any) -> Self:
        """Set what is known only when a run starts.

        Args:
            **bindings: ``epoch``, ``epochs`` (how many the whole run takes, counted from epoch 0: no batch changes, and
                after the last one nothing is fetched for another), ``data_parallel_rank`` (or ``rank``),
                ``data_parallel_world_size`` (or ``world_size``), ``run_seed``, ``device`` (for all fields), ``merge``
                (how many batches to concatenate into one), ``steps_per_epoch`` (how many every epoch takes, where
                counting them is costly), ``mesh`` (a ``DeviceMesh``, for rank and world size), ``dp_dims`` (the mesh's
                data-parallel dimensions, if their names do not say so), ``replication`` (how many neighbouring ranks get
                the same batches; rank and world size then count all processes), ``ranks_per_node`` (gives nodes lanes of
                their own; "auto" asks torchrun's variables), ``step_batches`` (how many batches an optimizer step has, over
                all ranks and microsteps: ranks share them evenly, and states stand at its borders), ``deal`` (how they are
                dealt: ``"cost"``, the plan's, so that ranks wait little for each other, or ``"order"``, as they are numbered).

        Returns:
            The stream itself.

        Raises:
            BindError: a name is unknown, a value is out of range, this machine does not have the device, or a loop reads
                the stream.
            MissingExtraError: the framework that batches go to is not installed.

        Examples:
            >>> bound = stream.bind(data_parallel_rank=1, data_parallel_world_size=2)
            >>> next(iter(stream))["id"] == stream.ledger(1)
            True
        """
        run = self._run
        if not run.passes.idle():
            msg = "bind: the stream is being read. Leave the loop (or close its iterator), then bind"
            raise BindError(msg)
        before, updated = run.bindings, run.bindings.updated(**bindings)
        settle(updated, run.sample, run.collate.cost, run.collate.balance, run.collate.formation)
        try:
            run.bindings = updated
            run.delivery.need_bound(run.devices_here())
        except SpiralError:
            run.bindings = before
            raise
        if updated.epoch is not None and bindings.get("epoch") is not None:
            run.position.move(Cursor(updated.epoch))
        run.changed("bind")
        return self

    @door(BindError)
    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless the stream stands in it already.

        Raises:
            BindError: ``epoch`` is not a whole number from 0 up.
            StreamError: a loop reads the stream.

        Examples:
            >>> stream.set_epoch(3)
            >>> stream.epoch
            3
        """
        run = self._run
        epoch = epoch_number(epoch)
        if epoch != self.epoch:
            run.passes.need_idle("set_epoch")
            run.position.move(Cursor(epoch))
            run.changed("set_epoch")
        run.position.asked()

    @door(BindError)
    def count(self, epoch: int | None = None) -> int:
        """Return the batches of a whole epoch over all ranks, before the tail rule and with those that are skipped.

        Where a formation decides, the epoch is counted once, by all processes that ask; the formation index keeps the result.

        Args:
            epoch: None takes the present epoch.

        Examples:
            >>> stream.count()
            6
        """
        run = self._run
        return count_epoch(run.open(), run.bound().run_seed, run.position.drawn(epoch))

    # ---- iterating

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, from the stream's place to the end of the epoch.

        In one of a DataLoader's n workers: every n-th of them.

        Raises:
            BindError: a field asks for a device that batches cannot be delivered to.
            StreamError: another loop reads the stream.
        """
        run = self._run
        worker = run.delivery.worker()
        if worker is not None:
            return self._as_worker(*run.worker.begin(run.position, worker, run.delivery.worker_seed()), worker[1])
        run.delivery.need(self.devices())
        return self._inspection.known_to_notebooks(run.passes.run(run.now, run.delivery, 0, 1))

    def _as_worker(self, began: Cursor, first: int, workers: int) -> Iterator[Any]:
        """Yield the batches of a DataLoader's worker, or the rest of them."""
        run = self._run
        run.worker.need_wanted(run.position)
        if not run.threads.in_worker and first % workers == 0:
            tell_of_host(self.devices())
        run.threads.in_worker = True
        run.position.cursor = began  # a pass left early may have ended since, and put its own beginning there
        here = partial(run.passes.run, run.now, run.delivery)
        for batch in (self._elsewhere if run.forked else here)(first, workers):
            run.worker.had += 1
            yield batch

    def _elsewhere(self, worker: int, workers: int) -> Iterator[Any]:
        """In a forked worker, where Lance cannot be called: let another interpreter read."""
        run = self._run
        bound = run.bound()
        run.bindings = run.bindings.updated(rank=bound.rank, world_size=bound.world_size)
        for fields, reached in run.subprocess.batches(self._on_host(), worker, workers):
            run.worker.reached = reached
            batch = run.delivery.widened(run.delivery.on_host(fields), run.opening.specs)
            if isinstance(fields, KeyedBatch) and fields.key is not None:
                fields.key.leg = run.position.seen
                batch = KeyedBatch(batch, key=fields.key)
            yield batch

    def _on_host(self) -> "PreparedStream":
        """Return the same stream without its framework: another interpreter would spend half its start on importing torch."""
        out = PreparedStream.__new__(PreparedStream)
        out._hold(self._run.on_host(HOST), self._catalog)  # noqa: SLF001  a stream of our own
        return out

    def _worker_batches(self, worker: int, workers: int) -> Iterator[tuple[dict[str, Any], Reached]]:
        """Yield every ``workers``-th batch from the ``worker``-th on, on the host, for another process.

        Returns:
            The fields as NumPy arrays and lists, and where the batch stands in its epoch.
        """
        run = self._run
        run.position.in_worker = run.threads.in_worker = True
        for fields in run.passes.run(run.now, BITS, worker, workers):
            yield fields, run.position.reached()

    # ---- other ways to iterate

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield what a loop would get as Arrow record batches, whose columns are views of the batches' memory.

        Raises:
            StreamError: a field has no value per row (`CuSeqlens`), or another loop reads the stream.

        Examples:
            >>> next(stream.to_batches()).num_rows
            8
        """
        yield from self.to_reader()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return `to_batches` as an Arrow reader, which DuckDB, Polars and pandas read; errors as there.

        `to_arrow` is another name for it. Memory holds one batch at a time; ``read_all()`` makes a table of the epoch's rest.
        The reader reads the stream until its last batch, or until nothing refers to it: Arrow does not pass on its ``close()``.

        Examples:
            >>> stream.to_arrow().schema.names
            ['width', 'id']
        """
        run = self._run
        schema = batch_schema(run.collate, run.opening.specs)
        batches = run.passes.run(run.now, HOST, 0, 1)
        return pa.RecordBatchReader.from_batches(schema, record_batches(batches, schema))

    to_arrow = to_reader

    @door(PlanError, excepted=("title",))
    def progress(self, title: str | None = None, *, console: Any = None) -> Iterator[Any]:
        """Iterate with a progress bar on standard error: on rank 0 alone, and from the stream's place on.

        Args:
            title: before the bar; None takes the epoch's number.
            console: a `rich.console.Console` to draw on.

        Examples:
            >>> for batch in stream.progress("training"):
            ...     pass
        """
        if self._run.bound().rank:
            yield from self
            return
        try:
            total: int | None = len(self)
        except (TypeError, StreamError):  # not counted
            total = None
        begun = self._run.position.known()
        at, step = self.epoch, begun.step if begun.epoch == self.epoch else 0
        yield from with_bar(iter(self), title or f"epoch {at:,}", total, lambda: step, console)

    # ---- single batches and samples, and what the stream shows of itself

    batch = forwarded("_inspection", Inspection.batch)
    sample = forwarded("_inspection", Inspection.sample)
    ledger = forwarded("_inspection", Inspection.ledger)
    locate = forwarded("_inspection", Inspection.locate)
    order = forwarded("_inspection", Inspection.order)
    take = forwarded("_inspection", Inspection.take)
    show = forwarded("_inspection", Inspection.show)
    spec = forwarded("_inspection", Inspection.spec)
    devices = forwarded("_inspection", Inspection.devices)
    column_sources = forwarded("_inspection", Inspection.column_sources)
    metrics = forwarded("_inspection", Inspection.metrics)
    explain = forwarded("_inspection", Inspection.explain)
    quarantine = forwarded("_inspection", Inspection.quarantine)
    skipped = forwarded("_inspection", Inspection.skipped)
    seen = forwarded("_inspection", Inspection.seen)
    decided = forwarded("_inspection", Inspection.decided)
    caches = forwarded("_inspection", Inspection.caches)

    def __repr__(self) -> str:
        """What the stream is, and where it stands. Opens and reads nothing."""
        return self._inspection.text()

    def _repr_html_(self) -> str:
        """The stream in a notebook: its plan, fields and place, and the next samples if showing them is cheap."""
        return self._inspection.view().html()

    def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
        del console, options
        yield self._inspection.view()

    def __getitem__(self, number: int) -> Any:
        """Return `batch` of this number, of the present epoch.

        Raises:
            IndexError: the epoch has no such batch, or the run skips it. Numbers count from 0; none is counted from the end.
            TypeError: ``number`` is a slice, or no whole number.
        """
        if isinstance(number, slice):
            msg = (
                f"stream[{shown(number)}]: a slice is no number. Give one, as in stream[0]; stream.take(3) returns the next "
                "batches"
            )
            raise TypeError(msg)
        return self.batch(number)

    # ---- state

    @door(BindError)
    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Return where the run stands, as JSON values. All ranks have the same state.

        Inside an optimizer step (``step_batches``) it is where the step begins, with a warning: what the loop had of the step
        is not in the weights yet, and comes again.

        Args:
            delivered: how many batches the loop has had since the pass began. Needed only if workers of a DataLoader
                read the stream.

        Raises:
            StreamError: workers read, and ``delivered`` is missing; or a thread that forms batches does not answer.
            ResumeError: ``delivered`` is not a whole number from 0 up, or more than the epoch has.

        Examples:
            >>> batches = iter(stream)
            >>> first, second = next(batches), next(batches)
            >>> state = stream.state_dict()
            >>> batches.close()
        """
        run = self._run
        worker = run.delivery.worker()
        if worker is not None:  # torchdata's StatefulDataLoader asks each worker
            return run.worker.state(run.position, worker, None if run.forked else self.fingerprint, run.opening.edits)
        bound = run.bound()
        with run.numbering().store.held("state_dict"):
            at = run.position.here() if delivered is None else run.position.after(delivered, run.numbering(), bound)
        return run.state_at(at)

    @door(BindError)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place. The cost does not depend on where it is; a refused state changes nothing.

        Args:
            state: what `state_dict` returned, also after a way through JSON.

        Raises:
            ResumeError: the state is damaged, or of another plan, data version or run seed; says where they differ.
            StreamError: a loop reads the stream.

        Examples:
            >>> state = stream.state_dict()
            >>> resumed = plan.to_numpy()
            >>> resumed.load_state_dict(state)
            >>> next(iter(resumed))["id"] == stream.ledger(0)
            True
        """
        run = self._run
        worker = run.delivery.worker()
        if worker is not None or (isinstance(state, Mapping) and "worker" in state):
            plan = None if run.forked else self.fingerprint
            run.worker.load(state, run.position, worker, plan, run.opening.edits)
            return
        run.passes.need_idle("load_state_dict")
        saved = SavedState.from_json(state, run.opening.records)
        epoch = run.position.drawn(saved.cursor.epoch)
        with run.seed_of(saved):
            admitted = run.open().admitted(saved, epoch, run.bindings, run.resumed_seed)
        # from here on nothing is refused
        if admitted.bindings is not run.bindings:
            run.bindings, run.resumed_seed = admitted.bindings, saved.run_seed
        edited = run.go_on_with(admitted.opening)
        run.numbering().store.anchor(epoch, admitted.anchors)
        run.position.move(admitted.cursor, edited=edited)
        run.goes_on_from(saved, admitted.cursor)

    seek = forwarded("_seeking", SeekOfRun.seek)

    @door(BindError)
    def rebase(self, earlier: "PreparedStream | Mapping[str, Any]") -> None:
        """Go on where a run with another plan or other data stands (docs/decisions/0013, 0039); the state records it.

        A mixture begins the next epoch. One relation delivers the rest of the running epoch, in batches numbered from 0.

        Args:
            earlier: a stream of the old plan, or a state of this plan, maybe over data that changed since.

        Raises:
            ResumeError: the plans have no place in common; a `CatalogError`, if the state's data is not known.
            SourceError: rows that changed since would have to be read.
            StreamError: a loop reads the stream.

        Examples:
            >>> earlier = plan.to_numpy()
            >>> state = earlier.state_dict()
            >>> stream.rebase(earlier)
            >>> stream.load_state_dict(state)
        """
        run = self._run
        run.passes.need_idle("rebase")
        if isinstance(earlier, Mapping):
            saved, position, before = SavedState.from_json(earlier, run.opening.records), run.position, None
            bindings, seed = resumed(run.bindings, saved.run_seed, run.resumed_seed), saved.run_seed
        else:
            need_stream(earlier, PreparedStream)
            before, position = earlier._run.open(), earlier._run.position  # noqa: SLF001
            saved = SavedState.from_json(earlier.state_dict(), before.records)
            bindings, seed = run.bindings, run.resumed_seed  # type: ignore[assignment]  # None too
        drawn = position.drawn(saved.cursor.epoch)
        with run.seed_of(saved) if before is None else nullcontext():
            epoch, rebase, skips, decisions = run.open().taken_over(saved, drawn, before)
        run.bindings, run.resumed_seed = bindings, seed
        run.go_on_with(run.open().edited(rebase, skips, decisions))
        run.position.move(Cursor(epoch), edited=True)
        if saved.run is None:
            run.changed("rebase")
        else:
            run.goes_on_from(saved, saved.cursor, "rebase")

    @door(StreamError)
    def skip(
        self,
        *,
        steps: Iterable[int] = (),
        batches: Iterable[int] = (),
        identities: Any = (),
        epoch: int | None = None,
    ) -> None:
        """Deliver these batches and samples no more, from the stream's place on (docs/decisions/0040).

        The state records it, and `ledger` leaves them out. All other batches stay as they are: a skipped batch keeps its
        number, and a batch is smaller by its skipped samples. In packed rows their places become padding. `PadPartial` may
        still pad with samples of a skipped batch. Skip the same on every rank.

        Args:
            steps: steps of the run, as they are counted now. What follows moves up.
            batches: global batch numbers, as in `ledger`.
            identities: of samples, as in `ledger` but without a part number; for all epochs from here on. Beyond 10,000, and up
                to a million, a relation or an Arrow table with the columns of the identity (and ``stream_id``).
            epoch: the epoch of ``steps`` and ``batches``; None takes the present one.

        Raises:
            KeyError: the plan keeps no row with such an identity.
            StreamError: a loop reads the stream; or it has delivered them already, or never will.

        Examples:
            >>> stream.skip(batches=[2])
            >>> stream.ledger(2)
            []
        """
        run = self._run
        run.passes.need_idle("skip")
        need_epochs(run.plan)
        bound, at = run.bound(), run.position.here("skip")
        need_border("skip", at)
        at = at.enter(*bound.shape)
        asked = SkipRequest(steps, batches, identities)
        opening, of = run.open(), at.epoch if epoch is None else epoch_number(epoch, "skip")
        skips = asked.added(opening.skips, opening.stages, run.numbering(), at, of, opening.records.keep)
        if skips != opening.skips:
            run.go_on_with(opening.edited(opening.rebase, skips, opening.decisions))
            run.position.stay()
            run.changed("skip")

    decide = forwarded("_shares", SharesOfRun.decide)

    # ---- caches, other streams, the end

    @door(StreamError)
    def materialize(
        self,
        report: Callable[[Progress], None] | None = None,
        *,
        workers: int | None = None,
        executor: str = "threads",
        lengths: bool = False,
        gpus: float | None = None,
    ) -> Progress:
        """Build the caches of this plan, for the rows that it needs, together with whoever else builds them now.

        Args:
            report: called with the progress of all workers; None shows a progress bar on a terminal.
            workers: how many work at a time; by default the stream's threads, or the processors of a Ray cluster.
            executor: ``"threads"``, ``"processes"`` of this machine, or ``"ray"`` tasks, whose nodes see the same folders.
            lengths: also `count` the present epoch; then `len`, `batch`, `ledger` and `locate` cost one chapter at most.
            gpus: of each task of Ray, for functions that run a model; a fraction lets tasks share one. If the cluster has
                none, its processors do the work, with a warning.

        Raises:
            CacheError: the cache folder cannot be written.

        Examples:
            >>> quick = photos.cache(image=spiral.Raw(shorter_side=24)).sample(order=shuffle)
            >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.RandomResizedCrop(16)])
            >>> with quick.collate(batch_size=8, fields={"image": image}).to_numpy() as stream:
            ...     done = stream.materialize(lambda progress: None)  # None shows a bar
            >>> done.rows, done.rows_total
            (48, 48)
        """
        run = self._run
        chosen = Executor(executor, workers, gpus)
        done = run.open().materialize(chosen, report, keep=run.passes.running, lengths=lengths)
        if lengths:
            builders = None if executor == "threads" else chosen.start
            count_epoch(run.open(), run.bound().run_seed, run.position.drawn(), builders, in_rows(report))
        return done

    def verify(self, report: Report | None = None) -> Verification:
        """Read all derived files of this plan, cached payload too, and compare them with what was written.

        Args:
            report: called with the bytes done and the bytes in total.

        Examples:
            >>> checked = stream.verify()
        """
        return self._run.open().verify(self._run.bound().run_seed, report)

    def eval(self) -> Self:
        """Return a stream for evaluation: pinned epoch, deterministic transforms, nothing dropped, its own place.

        Examples:
            >>> evaluation = stream.eval()
            >>> len(evaluation)
            6
        """
        run = self._run
        plan = evaluation(run.plan, run.position.drawn(), KeepPartial())
        out = type(self).__new__(type(self))
        sizes = run.threads.stated, run.budget_bytes, run.delivery, run.threads.read_batch_size
        PreparedStream.__init__(out, plan, self._catalog, *sizes)
        out._run.bindings = replace(run.bindings, steps_per_epoch=None)  # noqa: SLF001  a stream of our own
        return out

    @door(BindError)
    def close(self, timeout_s: float | None = None) -> None:
        """Stop the threads and release all handles. Afterwards only a state saved before tells the place.

        Args:
            timeout_s: seconds to wait for calls that do not return; None waits 5. Then a `SpiralWarning` names each.

        Examples:
            >>> stream.close()
        """
        self._run.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stages_of(stream: PreparedStream) -> Stages:
    """Return the lowered plan of a stream, for rooms of this library that look into it."""
    return stream._run.stages()  # noqa: SLF001  a stream of our own

"""`PreparedStream`: a plan that can be read, explained, stopped and resumed.

This room is the face of a stream. It has more than 12 methods, since each verb is one, and more than 400 lines, half
of which document the verbs. A stream holds the parts that do the work: the run's bindings, a `Place`, what is open
(`Opening`), the `Passes` over it, and a `Delivery` for its framework. Streams of other frameworks hold another
delivery and override nothing.

Iterating starts at the stream's place, and leaving a loop keeps the place. After an epoch's last batch comes the start of
the next epoch (docs/decisions/0018). Every batch is a function of plan, data version, epoch and batch number. Threads,
prefetch and caches only decide how fast it comes.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Self

from spiral_stream.arguments import door
from spiral_stream.batching.tail import KeepPartial
from spiral_stream.cache.materialize import Progress
from spiral_stream.catalog.registry import Registry
from spiral_stream.cursor import Cursor
from spiral_stream.derived.work.executors import Executor
from spiral_stream.errors import BindError, SpiralError, StreamError, shown
from spiral_stream.looking.inspect import Looking
from spiral_stream.looking.notebook import batch_formatter
from spiral_stream.looking.sizes import need_sizes
from spiral_stream.plan.functions.evaluation import evaluation
from spiral_stream.plan.nodes import Collate, Deliver, Sample
from spiral_stream.plan.saving.drawn_seeds import drawn_seed, with_recorded
from spiral_stream.plan.saving.fingerprint import fingerprint
from spiral_stream.plan.tree import need
from spiral_stream.planner.binding.bindings import Bindings, epoch_number, resumed, settle
from spiral_stream.planner.prepared_data.verify import Report, Verification
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.planner.state.saved_state import SavedState
from spiral_stream.planner.state.skips import NOTHING, Skips
from spiral_stream.runtime.columns.error_sample import identities
from spiral_stream.runtime.delivery import BITS, HOST, Delivery, tell_of_host
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.numbering import batch_number, need_not_skipped
from spiral_stream.runtime.numbering.random_access import OneSample, alone, found_rows, position_in
from spiral_stream.runtime.numbering.skipped import SkipRequest, need_epochs
from spiral_stream.runtime.numbering.steps import first_delivery
from spiral_stream.runtime.run.count import as_rows, count_epoch
from spiral_stream.runtime.run.forked_worker import SubprocessReader
from spiral_stream.runtime.run.loop import Passes
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.runtime.run.position import Place, Reached, WorkerPlace
from spiral_stream.runtime.run.queue import DEFAULT_BUDGET_BYTES
from spiral_stream.runtime.run.rebase import need_stream
from spiral_stream.runtime.run.seek import sought
from spiral_stream.threads import ThreadShare


class PreparedStream(Looking):
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
        catalog: Registry,
        threads: int | None = None,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        delivery: Delivery | None = None,
        read_batch_size: int | None = None,
    ) -> None:
        need_sizes(threads, read_batch_size)
        self.plan, self.catalog = plan, catalog
        self._collate, self._sample = need(plan, Collate), need(plan, Sample)
        self._threads, self._budget_bytes = ThreadShare(threads, read_batch_size=read_batch_size), budget_bytes
        self._delivery = HOST if delivery is None else delivery
        self._bindings = Bindings()
        self._resumed_seed: int | None = None
        self._place = Place(self._sample.epoch if isinstance(self._sample.epoch, int) else None)
        self._worker = WorkerPlace()
        self._closed = False
        self._open_anew(None, NOTHING)

    def _open_anew(self, rebase: Rebase | None, skips: Skips) -> None:
        """Make the parts that no other process can share."""
        self._pid = os.getpid()
        self._metrics = Metrics()
        self._opening = Opening(self.plan, self.catalog, self._metrics, rebase, skips, self._threads)
        self._passes = Passes(self._place, self._metrics, self._threads, self._budget_bytes)
        self._subprocess = SubprocessReader()

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
                their own; "auto" asks torchrun's variables).

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
        if not self._passes.idle():
            msg = "bind: the stream is being read. Leave the loop (or close its iterator), then bind"
            raise BindError(msg)
        before, updated = self._bindings, self._bindings.updated(**bindings)
        settle(updated, self._sample)
        try:
            self._bindings = updated
            self._delivery.need_bound(self._devices_here())
        except SpiralError:
            self._bindings = before
            raise
        if updated.epoch is not None and bindings.get("epoch") is not None:
            self._place.move(Cursor(updated.epoch))
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
        epoch = epoch_number(epoch)
        if epoch != self.epoch:
            self._passes.need_idle("set_epoch")
            self._place.move(Cursor(epoch))
        self._place.asked()

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
        return count_epoch(self._open(), self._bound().run_seed, self._place.drawn(epoch))

    # ---- iterating

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank, from the stream's place to the end of the epoch.

        In one of a DataLoader's n workers: every n-th of them.

        Raises:
            BindError: a field asks for a device that batches cannot be delivered to.
            StreamError: another loop reads the stream.
        """
        worker = self._delivery.worker()
        if worker is not None:
            return self._as_worker(*self._worker.begin(self._place, worker, self._delivery.worker_seed()), worker[1])
        self._delivery.need(self.devices())
        return self._known_to_notebooks(self._passes.run(self._now, self._delivery, 0, 1))

    def _as_worker(self, began: Cursor, first: int, workers: int) -> Iterator[Any]:
        """Yield the batches of a DataLoader's worker, or the rest of them."""
        self._worker.need_wanted(self._place)
        if not self._threads.in_worker and first % workers == 0:
            tell_of_host(self.devices())
        self._threads.in_worker = True
        self._place.cursor = began  # a pass left early may have ended since, and put its own beginning there
        here = partial(self._passes.run, self._now, self._delivery)
        for batch in (self._elsewhere if self._forked else here)(first, workers):
            self._worker.had += 1
            yield batch

    def _elsewhere(self, worker: int, workers: int) -> Iterator[Any]:
        """In a forked worker, where Lance cannot be called: let another interpreter read."""
        bound = self._bound()
        self._bindings = self._bindings.updated(rank=bound.rank, world_size=bound.world_size)
        for fields, reached in self._subprocess.batches(self._on_host(), worker, workers):
            self._worker.reached = reached
            yield self._delivery.on_host(fields)

    def _on_host(self) -> "PreparedStream":
        """Return the same stream without its framework: another interpreter would spend half its start on importing torch."""
        out = PreparedStream.__new__(PreparedStream)
        out.__setstate__({**self.__getstate__(), "_delivery": HOST})
        return out

    def _worker_batches(self, worker: int, workers: int) -> Iterator[tuple[dict[str, Any], Reached]]:
        """Yield every ``workers``-th batch from the ``worker``-th on, on the host, for another process.

        Returns:
            The fields as NumPy arrays and lists, and where the batch stands in its epoch.
        """
        self._place.in_worker = self._threads.in_worker = True
        for fields in self._passes.run(self._now, BITS, worker, workers):
            yield fields, self._place.reached()

    # ---- random access

    def batch(self, number: int, epoch: int | None = None) -> Any:
        """Build one global batch by itself, whichever rank it belongs to.

        Args:
            number: global batch number, from 0. With one rank and no merge it equals the step, unless batches are skipped.
            epoch: None takes the present epoch.

        Raises:
            IndexError: the epoch has no such batch, or the run skips it.
            StreamError: the batches before it are not counted, and that takes long; says how long, and what counts them.

        Examples:
            >>> stream.batch(2)["id"][:2]
            ['p38', 'p16']
        """
        drawn, delivered = self._place_of(number, epoch, "batch")
        built = self._passes.build(self._now, self._delivery, drawn, need_not_skipped(delivered, drawn, number))
        if (formatter := batch_formatter()) is not None:
            formatter.remember(built, self._batch_html())
        return built

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

    def sample(self, position: int, epoch: int | None = None) -> dict[str, Any]:
        """Build one sample by itself: its fields, as in a batch, without the dimension of the batch.

        Args:
            position: its place in the epoch's order, from 0; -1 is the last. `order` says which sample stands where.
            epoch: None takes the present epoch.

        Raises:
            IndexError: the epoch has no such position.
            StreamError: samples are packed, or a filter, flat_map or assemble decides which there are; or it is unreadable.

        Examples:
            >>> stream.sample(0)["id"]
            'p19'
        """
        drawn = self._place.drawn(epoch)
        one = OneSample(self.stages, position_in(self.stages, drawn, position))
        return alone(self._passes.build(self._now, self._delivery, drawn, 0, one))

    def ledger(self, number: int, epoch: int | None = None) -> list[Any]:
        """Return which samples a global batch holds; reads payload only where the answer depends on it.

        Args:
            number: global batch number, from 0.
            epoch: None takes the present epoch.

        Returns:
            One identity per sample, in batch order, including unreadable samples (see `quarantine`); none of a skipped
            batch. An identity is a value, or a tuple: stream name (mixtures only), identity columns, part number (after
            ``flat_map``).

        Raises:
            IndexError: the epoch has no such batch.
            StreamError: as for `batch`.

        Examples:
            >>> stream.ledger(2)[:2]
            ['p38', 'p16']
        """
        drawn, _ = self._place_of(number, epoch, "ledger")
        found = self._open().samples(self._bound().run_seed, drawn, batch_number(number))
        return [] if found is None else identities(*found)

    def locate(self, identity: Any, epoch: int | None = None) -> dict[str, int] | None:
        """Return where a sample is delivered first, under the present bindings.

        Args:
            identity: as in `ledger`; the stream's name may be left out if one stream has it.
            epoch: None takes the present epoch.

        Returns:
            ``epoch``, ``batch``, ``step`` and ``rank``; None if the epoch does not use the sample, or its end drops it.

        Raises:
            KeyError: the plan keeps no row with this identity.
            StreamError: as for `batch`.

        Examples:
            >>> stream.locate(stream.ledger(2)[0])
            {'epoch': 0, 'batch': 2, 'step': 2, 'rank': 0}
        """
        bound, numbering = self._bound(), self.numbering
        at = self.epoch if epoch is None else epoch_number(epoch, "locate")
        drawn, (stream, rows) = self._place.drawn(at), found_rows(self.stages, identity, "locate")
        numbers = numbering.find(drawn, stream, int(rows[0]))
        found = first_delivery(numbering, at, drawn, numbers, self._place.cursor, bound)
        return found and {**found, "batch": numbering.skips.number(drawn, found["batch"])}

    # ---- state

    @door(BindError)
    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Return where the run stands, as JSON values. All ranks have the same state.

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
        worker = self._delivery.worker()
        if worker is not None:  # torchdata's StatefulDataLoader asks each worker
            return self._worker.state(
                self._place, worker, None if self._forked else self.fingerprint, self._opening.edits
            )
        bound = self._bound()
        with self.numbering.held("state_dict"):
            cursor = self._place.here() if delivered is None else self._place.after(delivered, self.numbering, bound)
            return self._open().saved(cursor, bound.run_seed, self._place.drawn(cursor.epoch)).to_json()

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
        worker = self._delivery.worker()
        if worker is not None or (isinstance(state, Mapping) and "worker" in state):
            plan = None if self._forked else self.fingerprint
            self._worker.load(state, self._place, worker, plan, self._opening.edits)
            return
        self._passes.need_idle("load_state_dict")
        saved = SavedState.from_json(state, self._opening.records)
        self._take_seed(saved)
        epoch = self._place.drawn(saved.cursor.epoch)
        admitted = self._open().admitted(saved, epoch, self._bindings, self._resumed_seed)
        # from here on nothing is refused
        if admitted.bindings is not self._bindings:
            self._bindings, self._resumed_seed = admitted.bindings, saved.run_seed
        edited = self._go_on_with(admitted.opening)
        self.numbering.anchor(epoch, admitted.anchors)
        self._place.move(admitted.cursor, edited=edited)

    @door(BindError)
    def seek(self, *, epoch: int | None = None, batch: int | None = None, step: int | None = None) -> None:
        """Go to a place of which only the number is known; `load_state_dict` checks plan and data too.

        What comes next is what a run of this plan, with the present ranks and merge, delivers there: ``seek(step=1000)``
        goes on after 1,000 steps, counted over epochs from epoch 0. Where batches are counted this is arithmetic. Where a
        formation decides, the chapters before the place are counted: with ``step`` alone, whole epochs.

        Args:
            epoch: the epoch; alone, its start.
            batch: the global batch that comes next, as `batch` and `ledger` number it; of the present epoch without
                ``epoch``. It means the same for every number of ranks.
            step: how many steps of this rank were done before; of ``epoch``, if that is given, else of the run.

        Raises:
            BindError: a number is wrong, or ``batch`` and ``step`` are both given, or nothing is.
            ResumeError: the epoch has no such place, or the run skips the batch.
            StreamError: a loop, or a worker of a DataLoader, reads the stream; or chapters before the place are not counted, and
                that takes long. Says how long, and what counts them.

        Examples:
            >>> stream.seek(step=4)
            >>> next(iter(stream))["id"] == stream.ledger(4)
            True
        """
        if self._delivery.worker() is not None:
            msg = "seek: this is a worker of a DataLoader. Call it in the main process, which workers follow"
            raise StreamError(msg)
        self._passes.need_idle("seek")
        self._place.move(sought(self._place, self.numbering, self._bound(), self._opening.rebase, epoch, batch, step))

    def _take_seed(self, saved: SavedState) -> None:
        """Go on with the order's seed of a state, where this process and the one that saved it drew one each."""
        if saved.drawn_seed is None or drawn_seed(self._sample.order) is None:
            return
        plan = with_recorded(self.plan, saved.drawn_seed)
        if fingerprint(plan) == saved.plan:
            self.plan, self._sample = plan, need(plan, Sample)
            self._opening.close()
            self._opening = Opening(plan, self.catalog, self._metrics, None, NOTHING, self._threads)

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
        self._passes.need_idle("rebase")
        if isinstance(earlier, Mapping):
            saved, place, before = SavedState.from_json(earlier, self._opening.records), self._place, None
            bindings, seed = resumed(self._bindings, saved.run_seed, self._resumed_seed), saved.run_seed
        else:
            need_stream(earlier, PreparedStream)
            before, place = earlier._open(), earlier._place  # noqa: SLF001
            saved = SavedState.from_json(earlier.state_dict(), before.records)
            bindings, seed = self._bindings, self._resumed_seed  # type: ignore[assignment]  # None too
        epoch, rebase, skips = self._open().taken_over(saved, place.drawn(saved.cursor.epoch), before)
        self._bindings, self._resumed_seed = bindings, seed
        self._go_on_with(self._open().edited(rebase, skips))
        self._place.move(Cursor(epoch), edited=True)

    @door(StreamError)
    def skip(
        self,
        *,
        steps: Iterable[int] = (),
        batches: Iterable[int] = (),
        identities: Iterable[Any] = (),
        epoch: int | None = None,
    ) -> None:
        """Deliver these batches and samples no more, from the stream's place on (docs/decisions/0040).

        The state records it, and `ledger` leaves them out. All other batches stay as they are: a skipped batch keeps its
        number, and a batch is smaller by its skipped samples. In packed rows their places become padding. `PadPartial` may
        still pad with samples of a skipped batch. Skip the same on every rank.

        Args:
            steps: steps of the run, as they are counted now. What follows moves up.
            batches: global batch numbers, as in `ledger`.
            identities: of samples, as in `ledger` but without a part number; for all epochs from here on.
            epoch: the epoch of ``steps`` and ``batches``; None takes the present one.

        Raises:
            KeyError: the plan keeps no row with such an identity.
            StreamError: a loop reads the stream; or it has delivered them already, or never will.

        Examples:
            >>> stream.skip(batches=[2])
            >>> stream.ledger(2)
            []
        """
        self._passes.need_idle("skip")
        need_epochs(self.plan)
        bound, at = self._bound(), self._place.here("skip")
        at = at.enter(bound.world_size, bound.merge)
        asked = SkipRequest(steps, batches, identities)
        opening, of = self._open(), at.epoch if epoch is None else epoch_number(epoch, "skip")
        skips = asked.added(opening.skips, opening.stages, self.numbering, at, of)
        if skips != opening.skips:
            self._go_on_with(opening.edited(opening.rebase, skips))
            self._place.move(self._place.here("skip"), edited=True)

    def _go_on_with(self, opening: Opening) -> bool:
        """Return whether it is another one."""
        before, self._opening = self._opening, opening
        if opening is not before:
            before.close()
        return opening is not before

    @property
    def _forked(self) -> bool:
        """Whether this process was forked from the one that made the stream."""
        return os.getpid() != self._pid

    # ---- caches, other streams, the end

    @door(StreamError)
    def materialize(
        self,
        report: Callable[[Progress], None] | None = None,
        *,
        workers: int | None = None,
        executor: str = "threads",
        lengths: bool = False,
    ) -> Progress:
        """Build the caches of this plan, for the rows that it needs, together with whoever else builds them now.

        Args:
            report: called with the progress of all workers; None shows a progress bar on a terminal.
            workers: how many work at a time; by default the stream's threads, or the processors of a Ray cluster.
            executor: ``"threads"``, ``"processes"`` of this machine, or ``"ray"`` tasks, whose nodes see the same folders.
            lengths: also `count` the present epoch; then `len`, `batch`, `ledger` and `locate` cost one chapter at most.

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
        chosen = Executor(executor, workers)
        done = self._open().materialize(chosen, report, keep=self._passes.running, lengths=lengths)
        if lengths:
            builders = None if executor == "threads" else chosen.start
            count_epoch(self._open(), self._bound().run_seed, self._place.drawn(), builders, as_rows(report))
        return done

    def verify(self, report: Report | None = None) -> Verification:
        """Read all derived files of this plan, cached payload too, and compare them with what was written.

        Args:
            report: called with the bytes done and the bytes in total.

        Examples:
            >>> checked = stream.verify()
        """
        return self._open().verify(self._bound().run_seed, report)

    def eval(self) -> Self:
        """Return a stream for evaluation: pinned epoch, deterministic transforms, nothing dropped, its own place.

        Examples:
            >>> evaluation = stream.eval()
            >>> len(evaluation)
            6
        """
        plan = evaluation(self.plan, self._place.drawn(), KeepPartial())
        out = type(self).__new__(type(self))
        sizes = self._threads.stated, self._budget_bytes, self._delivery, self._threads.read_batch_size
        PreparedStream.__init__(out, plan, self.catalog, *sizes)
        out._bindings = self._bindings  # noqa: SLF001  a stream of our own
        return out

    @door(BindError)
    def close(self, timeout_s: float | None = None) -> None:
        """Stop the threads and release all handles. Afterwards only a state saved before tells the place.

        Args:
            timeout_s: seconds to wait for calls that do not return; None waits 5. Then a `SpiralWarning` names each.

        Examples:
            >>> stream.close()
        """
        left = self._passes.close(timeout_s)
        self._opening.close(0.0 if left else timeout_s)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_opening", "_passes", "_metrics", "_subprocess")
        state = {name: each for name, each in self.__dict__.items() if name not in ours}
        return {**state, "edits": (self._opening.rebase, self._opening.skips)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        edits = state.pop("edits")
        self.__dict__.update(state)
        self._open_anew(*edits)

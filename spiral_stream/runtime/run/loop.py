"""Iterate a stream, pass by pass: the running pipeline, the memory of batches, and how a loop ends.

One loop at a time moves the place. A loop that ends, is left or fails stops its pipeline; batches that were built ahead
are dropped, and the place stays after the last batch that the loop had.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, final

from spiral_stream.batching import tail
from spiral_stream.cursor import Cursor, Segment
from spiral_stream.errors import StreamError, shown, without_values
from spiral_stream.habits import OF_STREAMS, answer
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.batch.builder import BatchBuilder
from spiral_stream.runtime.batch.keys import BatchKey, KeysOnTheWay
from spiral_stream.runtime.columns.samples import SampleReader
from spiral_stream.runtime.delivery import Delivery, Devices, OneBatch
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.steps import Steps, warn_of_nothing
from spiral_stream.runtime.run.fetch_ahead import FetchAhead
from spiral_stream.runtime.run.opened_plan import Lowered, Opening
from spiral_stream.runtime.run.pipeline import Pipeline
from spiral_stream.runtime.run.position import RunPosition
from spiral_stream.runtime.run.queue import CLOSED
from spiral_stream.runtime.run.recorder import Recorder
from spiral_stream.runtime.slots import Slots
from spiral_stream.threads import CLOSE_TIMEOUT_S, ThreadShare, Workers, end_daemon_at_exit

Now = Callable[[], tuple[Opening, Bound, Devices]]  # what a pass reads, from the moment that it begins


_TWO_THREADS: Final = (
    "iter: another thread is inside this iterator; an iterator belongs to one thread. Call next() under a lock, or give each "
    "thread a stream of its own"
)


@final
class Pass(Iterator[Any]):
    """The batches of one pass, for one thread. Leaving the loop, or `close`, ends the pass.

    Args:
        batches: runs the pass.
    """

    __slots__ = ("__weakref__", "_batches")

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches = batches

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name, "iter(stream)", OF_STREAMS)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            if isinstance(error, ValueError):
                self._need_one_thread(error)
            without_values(error)
            raise

    def close(self) -> None:
        """End the pass; the stream stays where it is.

        Raises:
            StreamError: another thread is inside this iterator.
        """
        try:
            self._batches.close()
        except ValueError as error:
            self._need_one_thread(error)
            raise

    @staticmethod
    def _need_one_thread(error: ValueError) -> None:
        """Refuse a second thread. Python does it before a frame of the pass runs, so the traceback ends at the caller."""
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise StreamError(_TWO_THREADS) from None


@final
class Passes:
    """The passes of one stream, one after the other.

    Args:
        position: where the stream stands; each batch that the loop gets moves it.
        metrics: where batches are counted.
        threads: how many threads a pass may have.
        budget_bytes: most bytes of batches that are built ahead.

    Attributes:
        elsewhere: whether a loop over what other processes read for this stream is over; None where there is none.
        keyed: whether batches say which samples they hold.
        recorder: is told of each batch that the loop of this process gets; None where no run records them.
    """

    def __init__(self, position: RunPosition, metrics: Metrics, threads: ThreadShare, budget_bytes: int) -> None:
        self._position, self._metrics, self._threads, self._budget_bytes = position, metrics, threads, budget_bytes
        self._pipeline: Pipeline | None = None
        self._opening: Opening | None = None  # what the pipeline reads
        self._numbering: RunBatches | None = None  # whose batches it builds
        self._bound: Bound | None = None  # of the pass
        self._begin: Cursor | None = None  # where the pass began, in the epoch whose order is drawn
        self._memory: Slots | None = None  # kept over epochs
        self._ahead = FetchAhead(metrics)
        self.elsewhere: Callable[[], bool] | None = None
        self.keyed = False
        self._had = 0  # steps of the epoch that the loop has had, as the recorder knows it
        self.recorder: Recorder | None = None
        self._closed = False
        self._with_loop = False  # whether the loop has a batch, and no thread is inside its iterator
        self._broken: Pipeline | None = None  # ended by an edit, and its loop has not asked for its next batch yet

    def run(self, now: Now, delivery: Delivery, worker: int, workers: int) -> Pass:
        """Return every ``workers``-th batch of this rank from the ``worker``-th on, to the end of the epoch.

        The first batch raises a `StreamError` if another loop reads the stream.
        """
        return Pass(self._run(now, delivery, worker, workers))

    def _run(self, now: Now, delivery: Delivery, worker: int, workers: int) -> Generator[Any, None, None]:
        end_daemon_at_exit()
        goes_on = False
        while goes_on := (yield from self._batches(now, delivery, worker, workers, goes_on=goes_on)):
            pass

    def _batches(
        self, now: Now, delivery: Delivery, worker: int, workers: int, *, goes_on: bool
    ) -> Generator[Any, None, bool]:
        """Yield batches to the end of the epoch, or until the pass is broken off. Returns whether its loop goes on.

        Args:
            now: what is read.
            delivery: what batches become.
            worker: which worker this is.
            workers: how many there are.
            goes_on: whether the loop began before, in the same epoch.
        """
        pipeline: Pipeline | None = None
        epoch = self._position.epoch
        try:
            with self._position.beginning() as alone:
                if not (alone and self.idle()):
                    raise _busy("iter", "One loop at a time moves the cursor. Leave it, or call close()")
                self._position.adopt()
                self._threads.processes = workers
                opening, bound, devices = now()
                lowered, reader, numbering = opening.read(bound.run_seed)
                if bound.rank == worker == 0:  # one process looks for all
                    lowered.check_cached(bound.run_seed)
                numbering = numbering.promised(bound)
                numbering.need_known(bound, workers, self._position.drawn())
                steps = self._position.begin(numbering, bound, goes_on=goes_on)
                numbering = steps.batches or numbering
                start, stages = steps.start, lowered.stages
                if goes_on and start.epoch != epoch:  # other shares left no further step in this one
                    self._position.steps = None
                    return False
                builder = self._builder(lowered, reader, numbering, bound.merge, delivery, devices)
                which = worker, workers
                then = partial(self._ahead.next_epoch, steps, self._position, opening, bound, which)
                limits = stages.plan.prefetch, self._budget_bytes, reader.threads
                turns = start.segments[-1].first_batch
                wanted = lowered.fields.neighbours and bound.deal is None  # a dealt batch may be any of its step's
                near = self._ahead.this_epoch(stages, bound, steps.epoch, start.batch, turns) if wanted else None
                pipeline = Pipeline(builder, steps.epoch, steps.due(*which), then, *limits, self._metrics, near)
                self._pipeline, self._numbering, self._opening = pipeline, numbering, opening
                self._bound, self._begin = bound, replace(start, epoch=steps.epoch)
                if self._closed:  # by another thread, while the pipeline began
                    pipeline.close()
                    raise StreamError(CLOSED)
            pipeline.start()
            feed = KeysOnTheWay(pipeline) if self.keyed else pipeline
            with closing(delivery.delivered(feed, devices, stages)) as batches:
                given = batches if isinstance(feed, Pipeline) else feed.keyed(batches)
                yield from self._handed_over(pipeline, steps, zip(count(worker, workers), given, strict=False))
            if self._pipeline is not pipeline:
                if self._is_broken(pipeline):
                    return True
                self._position.looped(start.epoch)
                return False
            if self._position.cursor == start and start.batch == worker == 0:
                warn_of_nothing(numbering, steps.epoch, bound)
            self._position.cursor = start.next_epoch()
            return False
        finally:
            if pipeline is not None:
                self._is_broken(pipeline)
                self._leave(pipeline)

    def _handed_over(
        self, pipeline: Pipeline, steps: Steps, batches: Iterator[tuple[int, Any]]
    ) -> Generator[Any, None, None]:
        """Yield batches, each with how many the pass had before, as long as the pass is the one under way."""
        start = steps.start
        for had, batch in batches:
            self._position.cursor = start.advanced(had + 1)
            pipeline.handed_over()
            if (costs := steps.costs(start.step + had)) is not None:
                self._metrics.add(cost=float(costs.mean()), slowest_cost=float(costs.max()))
            if self.keyed:
                self._tell(batch.key, start, had)
            self._with_loop = True
            try:
                yield batch
            finally:
                self._with_loop = False
            if self._closed:  # by another thread; batches that lie on a device already are not delivered either
                raise StreamError(CLOSED)
            if self._pipeline is not pipeline:  # the loop had all, and the stream has gone on; or it was edited
                return

    def _is_broken(self, pipeline: Pipeline) -> bool:
        """Return whether a pass was broken off, so that its loop goes on; once."""
        if self._broken is not pipeline:
            return False
        self._broken = None
        return True

    def _tell(self, key: BatchKey, start: Cursor, had: int) -> None:
        """Say where a batch stands, and tell whoever records the run of it."""
        key.leg, key.epoch, key.epoch_step = self._position.seen, start.epoch, start.step + had
        key.after, self._had = start.advanced(had + 1).batch, key.epoch_step + 1
        if self.recorder is not None:
            self.recorder.delivered(key)

    def build(
        self, now: Now, delivery: Delivery, epoch: int, numbers: int | range, numbering: RunBatches | None = None
    ) -> Any:
        """Build one global batch by itself, or several merged into one, with threads of its own.

        Args:
            now: what is read.
            delivery: what the batch becomes.
            epoch: the epoch.
            numbers: the batch's number, or those of a rank's step.
            numbering: which samples it holds; None takes the stream's own.

        Raises:
            IndexError: the epoch has no such batch.
        """
        try:
            several = range(numbers, numbers + 1) if isinstance(numbers, int) else numbers
            return self._build(now, delivery, epoch, several, numbering)
        except BaseException as error:
            without_values(error)
            raise

    def _build(self, now: Now, delivery: Delivery, epoch: int, numbers: range, numbering: RunBatches | None) -> Any:
        opening, bound, devices = now()
        lowered, reader, own = opening.read(bound.run_seed)
        lowered.check_cached(bound.run_seed)
        wanted = numbering or own.promised(bound).dealt(self._segments(epoch, bound)).undealt()
        builder = self._builder(lowered, reader, wanted, len(numbers), delivery, devices)
        with Workers(reader.threads, "spiral-batch") as pool:
            done = builder.begin(epoch, numbers, pool).result()
        (batch,) = delivery.delivered(OneBatch(done), devices, lowered.stages)
        self._metrics.add(batches=1, samples=done.samples)
        return batch

    def _segments(self, epoch: int, bound: Bound) -> Sequence[Segment]:
        """The segments of an epoch: those of the run, if it stands there, else those that it would make."""
        known = self._position.known()
        return (known if self._position.drawn(known.epoch) == epoch else Cursor()).enter(*bound.shape).segments

    def _builder(
        self,
        lowered: Lowered,
        reader: SampleReader,
        numbering: RunBatches,
        merge: int,
        delivery: Delivery,
        devices: Devices,
    ) -> BatchBuilder:
        fields, allocate = lowered.fields, delivery.allocate(devices)
        if self._memory is None or self._memory.allocate is not allocate:  # bound to another device since
            self._memory = Slots(allocate)
        split = frozenset[str]() if fields.values else delivery.split(devices)  # a value is one of pixels as delivered
        return BatchBuilder(
            *(fields, numbering, reader, self._metrics, self._memory, lowered.refusals, merge, split),
            self._threads.read_batch_size,
            keyed=self.keyed,
        )

    def need_idle(self, verb: str, way_out: str = "Leave the loop first") -> None:
        """Refuse what may not happen while a loop reads the stream.

        Raises:
            StreamError: a loop reads it.
        """
        if not self.idle():
            raise _busy(verb, way_out)
        self._ahead.close()

    def need_between(self, verb: str) -> None:
        """Refuse what may happen while a loop stands at a batch, but not while a thread waits for its next one.

        Raises:
            StreamError: a thread is inside the loop's iterator, or workers of a DataLoader read the stream.
        """
        if self.idle() or self._broken is not None:
            return
        if self._pipeline is None:
            raise _busy(verb, "Workers of a DataLoader read it. Leave the loop first, or read with num_workers=0")
        if not self._with_loop:
            raise _busy(verb, "A thread waits for its next batch. Call it in the loop, between batches")

    def break_off(self, verb: str) -> None:
        """Drop what is drawn ahead. A loop that stands at a batch goes on from there with what the stream has open then.

        Raises:
            StreamError: as of `need_between`.
        """
        self.need_between(verb)
        self._ahead.close()
        pipeline, opening = self._pipeline, self._opening
        if pipeline is None:
            return
        assert opening is not None
        self._pipeline, self._opening, self._broken = None, None, pipeline
        self._position.steps = None
        if pipeline.close():
            opening.let_go()

    def idle(self) -> bool:
        """Return whether no loop reads the stream. A loop that has had its last batch reads it no more.

        Raises:
            StreamError: a thread that forms batches does not answer.
        """
        pipeline = self._pipeline
        if pipeline is not None:
            assert self._numbering is not None
            with self._numbering.store.held("asking for the place"):
                over = self._position.over()
            if over:
                self._leave(pipeline, over=True)
        alone = self._pipeline is None and self._broken is None
        return alone and (self.elsewhere is None or self.elsewhere())

    def _leave(self, pipeline: Pipeline, *, over: bool = False) -> None:
        """End a pass, unless it has ended; ``over`` says that the loop is known to have had all of its batches."""
        if self._pipeline is pipeline and not pipeline.over:  # at the interpreter's exit it is, and the rest half gone
            self._pipeline, opening, self._opening = None, self._opening, None
            assert opening is not None
            steps = self._position.steps
            self._position.leave(lambda: opening.let_go() if pipeline.close() else None, over=over)
            if self.recorder is not None and steps is not None and self._position.epoch > steps.start.epoch:
                self.recorder.epoch_over(others=not steps.over(self._had, for_all=True))

    @property
    def running(self) -> bool:
        """Whether a pass is under way."""
        return self._pipeline is not None

    def totals(self) -> dict[str, Any]:
        """Return what was counted so far, with the pass under way."""
        pipeline, opening = self._pipeline, self._opening
        if pipeline is not None:
            pipeline.record()
        counted = self._metrics.as_dict()
        if pipeline is not None and opening is not None and self._bound is not None and self._begin is not None:
            counted["rows_not_read"] = _not_read(opening.stages, self._bound, self._begin, pipeline)
        return {**counted, "slots": 0 if self._memory is None else self._memory.allocated}

    def close(self, timeout_s: float | None = None) -> bool:
        """End the pass under way and release the memory.

        Returns:
            Whether a thread still runs after the deadline.

        Raises:
            ValueError: ``timeout_s`` is not a number of seconds.
        """
        _need_seconds(timeout_s)
        self._closed = True  # first: a pass that begins looks at it once `close` can see the pass
        pipeline, self._pipeline, self._opening = self._pipeline, None, None
        left = pipeline is not None and pipeline.close(timeout_s)
        left = self._ahead.close(timeout_s) or left
        self._memory = None
        return left


def _busy(verb: str, way_out: str) -> StreamError:
    return StreamError(f"{verb}: the stream is being read already. {way_out}")


def _not_read(stages: Stages, bound: Bound, begin: Cursor, pipeline: Pipeline) -> int | None:
    """Rows of this rank's epoch that no batch was begun with; None where batches before the pass had unknown sizes."""
    total, group = stages.epochs.length(begin.epoch), bound.world_size * bound.merge
    if stages.formed:
        return None if begin.batch else max(0, total // bound.world_size - pipeline.begun_samples)
    batches = stages.batches_of(begin.epoch)
    before = begin.batch + pipeline.begun * group
    left = max(0, tail.end(batches.last, batches.formed, bound.together) - before)
    return min(left * batches.batch_size, max(0, total - before * batches.batch_size)) // bound.world_size


def _need_seconds(timeout_s: float | None) -> None:
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (number and 0 <= timeout_s <= TIMEOUT_MAX):
        msg = (
            f"close: timeout_s={shown(timeout_s)}. Give a number of seconds from 0 up, or None for {CLOSE_TIMEOUT_S:g}"
        )
        raise ValueError(msg)

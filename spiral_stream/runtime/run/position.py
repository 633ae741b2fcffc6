"""Where a stream stands: in this process, in the middle of a pass, and in the workers of a DataLoader.

After an epoch's last batch a stream stands at the start of the next epoch (docs/decisions/0018). A pass learns that it ends
from `Steps`, which the feeder walks one step ahead of the loop. Workers share an array with the main process, from which
they learn where it moved. Worker k of n reads every n-th batch, and has a state of its own for torchdata's
StatefulDataLoader.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import context
from typing import Any, Final, final

from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError, StreamError, warn
from spiral_stream.planner.binding.bindings import Bound, epoch_number
from spiral_stream.planner.state.saved_state import WorkerState
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.steps import Steps, dealt_steps, entered, need_inside
from spiral_stream.runtime.shared_array import shared_array
from spiral_stream.sampling.dealing import POLICIES, StepDeal

# indices of the shared array, and its size
_SERIAL, _EPOCH, _BATCH, _WORKERS, _EDITS, _PASS, _PASS_SERIAL, _INSIDE, _SHARED = *range(8), 12


@final
@dataclass(frozen=True, slots=True)
class Reached:
    """What a worker reports with each batch."""

    epoch: int
    over: bool  # whether this rank has no further step in the epoch
    over_for_all: bool  # whether no rank has one


@final
class RunPosition:
    """The place of one stream.

    Args:
        pinned: the epoch whose order every epoch uses, if the plan names one.
    """

    def __init__(self, pinned: int | None) -> None:
        self.cursor = Cursor()
        self.steps: Steps | None = None  # of the pass under way
        self.in_worker = False
        self._pinned = pinned
        self._pass_from: Cursor | None = None  # where the last pass in this process began
        self._left: Cursor | None = None  # where a loop left; whether this rank has more there, the next loop looks
        self._ended = False  # whether the last pass had all batches of this rank, and other ranks had one more
        self._shared: Any = shared_array(_SHARED)
        self.seen = 0  # the last move of the main process that this worker followed
        self._edits = 0  # times that the main process, as this worker knows it, changed what the run delivers
        self._free = [True]  # taken while a pass begins

    @property
    def epoch(self) -> int:
        """The epoch of the loop's batches; after an epoch's last batch, the next epoch."""
        return self.cursor.epoch + self._ended

    def drawn(self, epoch: int | None = None) -> int:
        """Return the epoch whose order and random bits are used.

        Args:
            epoch: the epoch asked for; None takes the present one. The plan's own epoch wins, if it names one.
        """
        if self._pinned is not None:
            return self._pinned
        return self.epoch if epoch is None else epoch_number(epoch, "epoch")

    def _drawn_at(self, cursor: Cursor) -> int:
        """The epoch whose order is drawn at a cursor."""
        return cursor.epoch if self._pinned is None else self._pinned

    @property
    def _by_workers(self) -> bool:
        """Whether workers of a DataLoader read the last pass, so that this process does not know how far the loop came."""
        return bool(self._shared[_WORKERS]) and not self.in_worker

    def move(self, cursor: Cursor, *, ended: bool = False, edited: bool = False) -> None:
        """Go to a place. Workers follow with their next pass.

        Args:
            cursor: the place.
            ended: whether this rank has no further step in its epoch.
            edited: whether the run goes on with other skips or another rebase. Workers that began before do not know it.
        """
        self._edits += edited
        self._shared[_EDITS] = self._edits
        self.cursor, self._pass_from, self._ended = cursor, None, ended
        self._shared[_WORKERS] = False
        self._shared[_EPOCH], self._shared[_BATCH] = self._next().epoch, self._next().batch
        for index, value in enumerate(_inside(self._next()), _INSIDE):
            self._shared[index] = value
        self._shared[_SERIAL] += 1
        self.seen = self._shared[_SERIAL]

    def stay(self) -> None:
        """Go on from here with other skips, also where this rank has had all of its epoch and others have not."""
        self.move(self.here("skip"), ended=self._ended, edited=True)

    def edited(self) -> None:
        """Go on from here with other shares; the loop under way keeps where it began."""
        begun = self._pass_from
        self.move(self.known(), ended=self._ended, edited=True)
        self._pass_from = begun

    @property
    def outdated(self) -> bool:
        """Whether the main process has edited the run since this worker began."""
        return bool(self._shared[_EDITS] != self._edits)

    def asked(self) -> None:
        """In the main process: the next pass of workers begins here because somebody said so."""
        self._shared[_PASS] = 0

    def repeats(self, number: int) -> bool:
        """In a worker that begins a pass: return whether an earlier pass began here, and nobody asked for a second one.

        Args:
            number: of the pass, which all workers that read it have in common; not 0.
        """
        if self._pinned is not None:
            return False
        before = self._shared[_PASS], self._shared[_PASS_SERIAL]
        self._shared[_PASS], self._shared[_PASS_SERIAL] = number, self._shared[_SERIAL]
        return before[0] not in {0, number} and before[1] == self._shared[_SERIAL]

    def adopt(self) -> None:
        """In a worker process: go where the main process has moved."""
        self._shared[_WORKERS] = self.in_worker
        if self.in_worker:
            self.cursor, self._ended = self._next(), False
        if self.in_worker and self._shared[_SERIAL] != self.seen:
            self.seen = self._shared[_SERIAL]
            self.cursor = _adopted(
                self._shared[_EPOCH], self._shared[_BATCH], [self._shared[at] for at in range(_INSIDE, _SHARED)]
            )

    def _next(self) -> Cursor:
        """Return where the next pass of this rank begins."""
        return self.cursor.next_epoch() if self._ended else self.cursor

    # ---- a pass

    @contextmanager
    def beginning(self) -> Iterator[bool]:
        """While a pass begins; whether no other thread begins one."""
        try:
            self._free.pop()  # of several threads one gets it
        except IndexError:
            yield False
            return
        try:
            yield True
        finally:
            self._free.append(True)

    def begin(self, numbering: RunBatches, bound: Bound, *, goes_on: bool = False) -> Steps:
        """Begin a pass from here.

        Args:
            numbering: which batches there are.
            bound: the run's rank, world size and merge.
            goes_on: whether it is the rest of one that was broken off.

        Raises:
            ResumeError: the epoch does not have this place.
        """
        self.steps = self.coming(numbering, bound)
        self.cursor = self.steps.start
        if not goes_on:
            self._pass_from = self.cursor
        self._ended = False
        return self.steps

    def coming(self, numbering: RunBatches, bound: Bound) -> Steps:
        """Return the steps of a pass that begins from here, and begin none.

        Raises:
            ResumeError: the epoch does not have this place.
        """
        cursor = self._next()
        start = entered(numbering, self._drawn_at(cursor), cursor, bound)
        steps = dealt_steps(numbering, self._drawn_at(start), start, bound.turn)
        if cursor is not self._left or start.epoch != cursor.epoch or steps.at(start.step) is not None:
            return steps
        start = start.next_epoch().enter(*bound.shape)  # only others have one more
        return dealt_steps(numbering, self._drawn_at(start), start, bound.turn)

    def over(self) -> bool:
        """Return whether the pass under way has had this rank's last batch."""
        return self.steps is not None and self.steps.over(self.cursor.step)

    def leave(self, stop: Callable[[], None], *, over: bool = False) -> None:
        """End the pass under way.

        Args:
            stop: ends the feeder, which may have found out by then that there is no further step.
            over: whether this rank is known to have no further step.
        """
        steps, self.steps = self.steps, None
        assert steps is not None
        try:
            stop()
        finally:
            if self.in_worker:  # a pass begins where the main process says, however far this worker ran ahead
                self.cursor = steps.start
            elif self.cursor.epoch == steps.start.epoch and (over or steps.ended(self.cursor.step)):
                self._ended = not steps.over(self.cursor.step, for_all=True)
                self.cursor = self.cursor if self._ended else self.cursor.next_epoch()
            elif self.cursor.step > steps.start.step:
                self._left = self.cursor

    def looped(self, epoch: int) -> None:
        """Note that the loop over an epoch asked for a batch after its last one: then all ranks have had theirs.

        Args:
            epoch: the epoch; if the stream has gone elsewhere since, nothing moves.
        """
        if self._ended and self.steps is None and self.cursor.epoch == epoch:
            self.cursor, self._ended = self.cursor.next_epoch(), False

    def here(self, verb: str = "state_dict") -> Cursor:
        """Return the place as a state says it: after the last batch of all ranks, the start of the next epoch.

        Args:
            verb: who asks, for the message.

        Raises:
            StreamError: workers of a DataLoader read the last pass.
        """
        if self._by_workers:
            msg = (
                f"{verb}: the stream was iterated in DataLoader workers, so only the loop knows what was delivered. "
                "Give state_dict(delivered=<batches had since the loader's iteration began>)"
                f"{'' if verb == 'state_dict' else ', and load that state first'}"
            )
            raise StreamError(msg)
        return self.known()

    def known(self) -> Cursor:
        """Return the place as far as this process knows it: workers of a DataLoader may have read on."""
        steps = self.steps
        if steps is None or self.cursor.step == steps.start.step or not steps.over(self.cursor.step, for_all=True):
            return self.cursor
        return self.cursor.next_epoch()

    def after(self, delivered: int, numbering: RunBatches, bound: Bound) -> Cursor:
        """Return the place after some batches of the pass.

        Where workers read formed batches, it may be an epoch's end without saying so: the next pass finds that out.

        Args:
            delivered: how many batches the loop has had.
            numbering: which batches there are.
            bound: the run's world size and merge.

        Raises:
            ResumeError: ``delivered`` is no whole number from 0 up, or more than the epoch has.
        """
        begun = self._next() if self._by_workers else self._pass_from or self._next()
        begun = entered(numbering, self._drawn_at(begun), begun, bound)
        cursor, epoch = begun.advanced(delivered), self._drawn_at(begun)
        if cursor.batch == 0 or (self._by_workers and numbering.unknown(epoch)):
            return cursor
        need_inside(numbering, epoch, cursor)
        return cursor if Steps(numbering, epoch, cursor, bound.turn).there(cursor.step) else cursor.next_epoch()

    # ---- other processes

    def reached(self) -> Reached:
        """In a worker process: return what its last batch was."""
        steps, step = self.steps, self.cursor.step
        assert steps is not None
        over = steps.over(step)
        return Reached(self.cursor.epoch, over, over and steps.over(step, for_all=True))

    def followed(self, delivered: int, reached: Reached, bound: Bound) -> Cursor:
        """In the main process: return the place after ``delivered`` batches of workers, of which this was the last."""
        begun = self._next() if self._next().epoch == reached.epoch else Cursor(reached.epoch)
        cursor = begun.enter(*bound.shape).advanced(delivered)
        return cursor.next_epoch() if reached.over_for_all else cursor

    def __getstate__(self) -> dict[str, Any]:
        spawning = context.get_spawning_popen() is not None  # shared memory travels to a child only while it is spawned
        return {**self.__dict__, "steps": None, "_free": [True], "_shared": self._shared if spawning else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._shared is None:
            self._shared, self.seen = shared_array(_SHARED), 0
            self._shared[_EDITS] = self._edits


def _inside(cursor: Cursor) -> tuple[int, ...]:
    """How many batches of an optimizer step were delivered, world size, merge, and the deal as numbers; zeros at a border."""
    had = cursor.batch - cursor.bordered().batch
    if not had:
        return (0,) * (_SHARED - _INSIDE)
    segment = cursor.segments[-1]
    assert segment.deal is not None
    deal = segment.deal
    return had, segment.world_size, segment.merge, deal.step_batches, POLICIES.index(deal.policy)


def _adopted(epoch: int, batch: int, inside: Sequence[int]) -> Cursor:
    """The place in an epoch that the main process has moved to, as its workers count steps from there."""
    had, world_size, merge, step_batches, policy = inside
    if not had:
        return Cursor(epoch, batch)
    begun = Cursor(epoch, batch - had).enter(world_size, merge, StepDeal(step_batches, POLICIES[policy]))
    return begun.advanced(had // (world_size * merge))


Worker = tuple[int, int]  # its number, and how many workers there are
_PASS_NUMBERS: Final = 2**62  # one shared word holds a pass's number


@final
class WorkerPosition:
    """The passes of one worker: where they begin, and how many batches it has given in the present one."""

    def __init__(self) -> None:
        self.began: Cursor | None = None  # where its passes begin, until the main process moves
        self.had = 0
        self.reached: Reached | None = None  # what its last batch was, where another interpreter reads
        self._loaded = 0  # batches of the next pass that it gave in an earlier run
        self._passes = 0  # that it began
        self._repeats = False  # whether the pass is one that was read before, which nobody asked for

    def begin(self, position: RunPosition, worker: Worker, seed: int) -> tuple[Cursor, int]:
        """Begin a pass. `need_wanted` says whether it may go on.

        Args:
            position: the stream's place in this process.
            worker: which worker this is.
            seed: what the DataLoader drew for its workers when it started them.

        Returns:
            Where it begins, and the first step that this worker reads, counted from there.
        """
        position.in_worker, seen = True, position.seen
        position.adopt()
        if self.began is None or position.seen != seen:  # else a pass that was left early has moved the cursor
            self.began = position.cursor
        self.had, self._loaded = self._loaded, 0
        self._passes += 1
        self._repeats = not position.outdated and position.repeats((seed + self._passes) % _PASS_NUMBERS + 1)
        return self.began, worker[0] + self.had * worker[1]

    def need_wanted(self, position: RunPosition) -> None:
        """Refuse a pass of a run that was edited since this worker began; warn of one that nobody asked to read once more.

        Called when the first batch is asked for, and not by `begin`: a DataLoader passes an error of ``next`` to the loop,
        while one of ``iter`` ends a worker of ``persistent_workers=True``, and its message is lost. A warning is an error
        where the filters say so.

        Args:
            position: the stream's place in this process.

        Raises:
            StreamError: the run was edited; says the way out.
        """
        if position.outdated:
            msg = (
                "worker: the stream was edited (skip, rebase or load_state_dict) after this worker began, so it would deliver "
                "other samples. Make a new DataLoader, or leave out persistent_workers=True"
            )
            raise StreamError(msg)
        repeats, self._repeats = self._repeats, False
        if repeats and self.began is not None:
            warn(
                f"iter: the workers of a DataLoader read epoch {self.began.epoch} from batch {self.began.batch} once more, since "
                "the main process has not moved the stream. Call stream.set_epoch(epoch) before each pass, or read with "
                "spiral_stream.adapters.torch.StreamLoader(stream, num_workers=...), which moves on by itself"
            )

    def state(self, position: RunPosition, worker: Worker, plan: str | None, edits: str) -> dict[str, Any]:
        """Return the state of this worker's pass.

        Args:
            position: the stream's place in this process.
            worker: which worker this is.
            plan: the plan's fingerprint; None where it is not known.
            edits: a digest of what the run skips and of its rebase.
        """
        return WorkerState(plan, self.began or position.cursor, worker, self.had, edits).to_json()

    def load(
        self, state: Mapping[str, Any], position: RunPosition, worker: Worker | None, plan: str | None, edits: str
    ) -> None:
        """Go to a saved place of this worker's pass.

        Args:
            state: from `state`.
            position: the stream's place in this process.
            worker: which worker this is; None in the main process.
            plan: the plan's fingerprint; None where it is not known.
            edits: a digest of what the run skips and of its rebase.

        Raises:
            ResumeError: it is the state of another worker, plan or edit, or was edited or damaged.
        """
        saved = WorkerState.from_json(state)
        if saved.worker != worker:
            here = "the main process" if worker is None else f"worker {worker[0]} of {worker[1]}"
            msg = (
                f"resume: {here} was given the state of worker {saved.worker[0]} of {saved.worker[1]}. Load a "
                "StatefulDataLoader's state into one with as many workers, or use stream.state_dict(delivered=n), which "
                "fits any number of workers"
            )
            raise ResumeError(msg)
        if None not in (saved.plan, plan) and saved.plan != plan:
            msg = (
                f"resume: the state was saved by plan {saved.plan:.32}, and this is plan {plan}. Restore the old plan, or "
                "start a new epoch"
            )
            raise ResumeError(msg)
        if saved.edits != edits:
            msg = (
                "resume: the run that saved this worker's state skips other samples, or was rebased. Give this stream the "
                "same skips before the DataLoader begins, or use stream.state_dict(delivered=n), which records them"
            )
            raise ResumeError(msg)
        position.cursor, self.began, self._loaded = saved.cursor, None, saved.had

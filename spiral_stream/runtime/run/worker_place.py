"""Where one worker of a DataLoader stands.

A worker reads every n-th batch. Its passes begin where the main process stands, which it learns from the memory that
`Place` shares. torchdata's StatefulDataLoader also asks each worker for a state of its own.
"""

from collections.abc import Mapping
from typing import Any, Final, final

from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError, StreamError, warn
from spiral_stream.planner.state.saved_state import WorkerState
from spiral_stream.runtime.run.position import Place, Reached

Worker = tuple[int, int]  # its number, and how many workers there are
_PASS_NUMBERS: Final = 2**62  # one shared word holds a pass's number


@final
class WorkerPlace:
    """The passes of one worker: where they begin, and how many batches it has given in the present one."""

    def __init__(self) -> None:
        self.began: Cursor | None = None  # where its passes begin, until the main process moves
        self.had = 0
        self.reached: Reached | None = None  # what its last batch was, where another interpreter reads
        self._loaded = 0  # batches of the next pass that it gave in an earlier run
        self._passes = 0  # that it began
        self._repeats = False  # whether the pass is one that was read before, which nobody asked for

    def begin(self, place: Place, worker: Worker, seed: int) -> tuple[Cursor, int]:
        """Begin a pass. `need_wanted` says whether it may go on.

        Args:
            place: the stream's place in this process.
            worker: which worker this is.
            seed: what the DataLoader drew for its workers when it started them.

        Returns:
            Where it begins, and the first step that this worker reads, counted from there.
        """
        place.in_worker, seen = True, place.seen
        place.adopt()
        if self.began is None or place.seen != seen:  # else a pass that was left early has moved the cursor
            self.began = place.cursor
        self.had, self._loaded = self._loaded, 0
        self._passes += 1
        self._repeats = not place.outdated and place.repeats((seed + self._passes) % _PASS_NUMBERS + 1)
        return self.began, worker[0] + self.had * worker[1]

    def need_wanted(self, place: Place) -> None:
        """Refuse a pass of a run that was edited since this worker began; warn of one that nobody asked to read once more.

        Called when the first batch is asked for, and not by `begin`: a DataLoader passes an error of ``next`` to the loop,
        while one of ``iter`` ends a worker of ``persistent_workers=True``, and its message is lost. A warning is an error
        where the filters say so.

        Args:
            place: the stream's place in this process.

        Raises:
            StreamError: the run was edited; says the way out.
        """
        if place.outdated:
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

    def state(self, place: Place, worker: Worker, plan: str | None, edits: str) -> dict[str, Any]:
        """Return the state of this worker's pass.

        Args:
            place: the stream's place in this process.
            worker: which worker this is.
            plan: the plan's fingerprint; None where it is not known.
            edits: a digest of what the run skips and of its rebase.
        """
        return WorkerState(plan, self.began or place.cursor, worker, self.had, edits).to_json()

    def load(self, state: Mapping[str, Any], place: Place, worker: Worker | None, plan: str | None, edits: str) -> None:
        """Go to a saved place of this worker's pass.

        Args:
            state: from `state`.
            place: the stream's place in this process.
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
        place.cursor, self.began, self._loaded = saved.cursor, None, saved.had

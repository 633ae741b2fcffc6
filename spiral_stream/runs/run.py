"""`RecordedRun`: a training run as data: what its loop logs, what it delivered, and what follows from both."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol, Self, final

from spiral_stream.arguments import FLAG, door, integer, one_of
from spiral_stream.catalog.records import need_name
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.errors import RunError, shown, warn
from spiral_stream.explain.text import Listing
from spiral_stream.runs.files import RunFiles, UnwrittenError
from spiral_stream.runs.forget import Forgetting
from spiral_stream.runs.history import Attempt, History, RunChange, attempt_rows, change_rows
from spiral_stream.runs.leg import Leg, leg_rows
from spiral_stream.runs.losses.baseline import WINDOW
from spiral_stream.runs.losses.figures import RunFigure, find_figures
from spiral_stream.runs.losses.outliers import Outliers, find_outliers
from spiral_stream.runs.losses.spikes import Spikes, find_spikes
from spiral_stream.runs.losses.table_query import RunRows, sources_of
from spiral_stream.runs.opened_leg import OpenedLegs, PlanOf
from spiral_stream.runs.records.recording import EVERY, Recording
from spiral_stream.runs.records.run_table import RENAMED, RUNS, RunTable, assembles, not_applied
from spiral_stream.runs.records.token_shard import need_shard
from spiral_stream.runs.records.values import RESERVED
from spiral_stream.runs.seen import SeenSamples
from spiral_stream.runtime.batch.keys import BatchKey, KeyedBatch
from spiral_stream.runtime.run.stream_run import StreamRun

_ON_ERROR: Final = one_of(("raise", "warn"), '"raise" or "warn"')
_EVERY: Final = integer(1, None, "logged batches per part, from 1 up")


class CatalogOfRuns(Protocol):
    """A `Catalog`: what a run asks of the catalog that has it."""

    @property
    def registry(self) -> Registry:
        """The names of the catalog."""
        ...

    def seen(self, run: Any) -> SeenSamples:
        """Return what a run saw."""
        ...

    def forget(self, run: Any, ids: Any, checkpoints: Sequence[Any]) -> Forgetting:
        """Return how a run forgets rows."""
        ...


class Recordable(Protocol):
    """A `PreparedStream`, which holds what a run records."""

    _run: StreamRun


@final
class RecordedRun:
    """A training run: its history, and what its loop logs. Made by ``catalog.run``.

    Args:
        catalog: that has the run.
        name: of the run.
        stream: that the run trains from; None opens a run to read it.
        plan_of: gives the plan of a leg.
        attempt: the name of this start of the training, the same on all ranks; None makes one.
        every: logged batches after which they are written, even if no state is saved.
        anew: whether it begins anew on purpose.
        on_error: what becomes of the training while the catalog cannot be written.
        shard: which of how many processes that share the rows of each batch this is; None: it has whole batches.

    Examples:
        >>> run = catalog.run("first", stream)
        >>> for batch in stream:
        ...     run.log(batch=batch, loss=batch["width"] / 1_000)
        >>> run.close()
        >>> catalog.table("runs.first").count()
        48
    """

    @door(RunError)
    def __init__(
        self,
        catalog: CatalogOfRuns,
        name: str,
        stream: StreamRun | None,
        plan_of: PlanOf,
        attempt: str | None = None,
        every: int = EVERY,
        *,
        anew: bool = False,
        on_error: Literal["raise", "warn"] = "raise",
        shard: Any = None,
    ) -> None:
        _EVERY.need("run: every=", every, RunError)
        FLAG.need("run: anew=", anew, RunError)
        _ON_ERROR.need("run: on_error=", on_error, RunError)
        sharded = need_shard(shard)
        self._verbs, self._catalog, self._plan_of = catalog, catalog.registry, plan_of
        self._files = RunFiles(self._catalog, name)
        self._recording: Recording | None = None
        self._unwritable = False
        if stream is None:
            if attempt is not None or anew:
                msg = f"run {name!r}: attempt= and anew= are of a run that records. Give the stream, or, to read a branch, "
                msg += "the attempt to what reads it: run.outliers(attempt=...), run.registered(attempt)"
                raise RunError(msg)
            self._files.need()
            return
        if RUNS + name in stream.stages().data_versions:
            msg = (
                f"run {name!r}: its stream reads {RUNS + name!r}, which grows while the run records. Record under another name, "
                "or read another run"
            )
            raise RunError(msg)
        if attempt is not None:
            need_name("attempt", attempt)
        try:
            self._recording = Recording(
                self._files, stream, attempt, every, sharded, anew=anew, lenient=on_error == "warn"
            )
        except UnwrittenError as error:
            if on_error == "raise":
                raise
            self._unwritable = True
            warn(f"run {name!r}: this process trains on, and records nothing: {error}")

    @property
    def name(self) -> str:
        """The name of the run.

        Examples:
            >>> catalog.run("second", stream).name
            'second'
        """
        return self._files.name

    @property
    def attempt(self) -> str:
        """The attempt that this process records; of a run that is read, the newest.

        Examples:
            >>> catalog.run("second", stream, attempt="tuesday").attempt
            'tuesday'
        """
        return self._history().newest if self._recording is None else self._recording.attempt

    @property
    def is_recording(self) -> bool:
        """Whether this process records: not of a run that is read, nor where the catalog could not be written.

        Examples:
            >>> catalog.run("second", stream).is_recording
            True
        """
        return self._recording is not None

    # ---- recording

    @door(RunError)
    def log(
        self,
        batch: Any = None,
        *,
        key: BatchKey | None = None,
        applied: bool = True,
        mask: Any = None,
        positions: Any = None,
        **values: Any,
    ) -> None:
        """Record what the loop measured on a batch.

        Values are numbers: one per sample [B], as losses with ``reduction="none"`` are; one per token [B, T], of which each
        sample's own are summed and counted; or one for the batch. In packed rows give [B, T], or one per piece. Padding
        rows that hold no sample are left out.

        In a run that was opened with ``shard=(i, n)``, values are of the tokens that this process has: [B, T / n], or [B]: the
        sums of each sample. The table adds sums and counts over the shards. One number for the batch is that of the first.

        Args:
            batch: as the loop got it, also through a `StreamLoader`, a DataLoader, accelerate or Lightning. None takes the one
                batch that the stream has delivered since the last one was logged; what reads ahead has to say which it is.
            key: ``run.key(batch)`` of another process, in place of the batch.
            applied: False where the step was not taken: an overflow, a loss that is no number.
            mask: which tokens count, shape [B, T], or [B, T / n] of a shard; None counts all tokens of a sample.
            positions: of each row, those that this shard has, ascending; None: the i-th of n equal parts.
            **values: by name: ``loss=``, ``accuracy=``.

        Raises:
            RunError: a value has another length than the batch, or it is not known which batch it is of.

        Examples:
            >>> run = catalog.run("third", stream)
            >>> batch = next(iter(stream))
            >>> run.log(batch=batch, loss=batch["width"] / 1_000, rate=0.1)
            >>> run.close()
        """
        if self._unwritable:
            return
        recording = self._writes("log")
        if key is None:
            key = recording.last if batch is None else self.key(batch)
        if not isinstance(key, BatchKey):
            msg = f"log: key={shown(key)} is no key. Give what run.key(batch) returned"
            raise RunError(msg)
        recording.log(key, values, mask, positions, applied=bool(applied))

    @door(RunError)
    def key(self, batch: Any) -> BatchKey:
        """Return the key of a batch: it pickles, so that a rank that has the losses can log what another rank was given.

        Raises:
            RunError: the batch has none.

        Examples:
            >>> run = catalog.run("fourth", stream)
            >>> batch = next(iter(stream))
            >>> run.log(key=run.key(batch), loss=batch["width"] / 1_000)
            >>> run.close()
        """
        if isinstance(batch, KeyedBatch) and batch.key is not None:
            return batch.key
        found = (
            "lost its key" if isinstance(batch, dict) else f"is a {type(batch).__name__}, and no batch of the stream"
        )
        msg = (
            f"log: batch= {found}. Give the batch as the loop got it: the run is opened before the loop begins, and a batch that "
            "is built anew ({**batch}) keeps its key with run.key(batch), taken before. In compute_loss of a StreamTrainer write "
            "self.record(loss=losses). Batches of an evaluation, of another stream and of stream.batch have no key, and are not "
            "logged"
        )
        raise RunError(msg)

    def flush(self) -> None:
        """Write what was logged so far, so that a kill loses none of it. Saving the stream's state does the same.

        Raises:
            RunError: the catalog cannot be written, or the run is open to be read.

        Examples:
            >>> catalog.run("fifth", stream).flush()
        """
        if not self._unwritable:
            self._writes("flush").flush()

    def close(self) -> None:
        """Write what was logged, and how far the run has come. The stream goes on unrecorded, even if this raises.

        Closing the stream does the same, and so does the end of the program.

        Raises:
            RunError: the catalog cannot be written.

        Examples:
            >>> catalog.run("sixth", stream).close()
        """
        if self._recording is not None:
            self._recording.close()

    def metrics(self) -> dict[str, int]:
        """Return what this process counted while it recorded.

        ``duplicates`` are batches that were logged again and left out; ``waited`` is how often the loop waited for a value to
        come from its device, because too many were under way.

        Examples:
            >>> catalog.run("seventh", stream).metrics()
            {'duplicates': 0, 'waited': 0}
        """
        if self._unwritable:
            return {"duplicates": 0, "waited": 0}
        recording = self._writes("metrics")
        return {"duplicates": recording.duplicates, "waited": recording.waited}

    # ---- reading

    def attempts(self) -> list[Attempt]:
        """Return the attempts of the run, the oldest first; each says its parent, and who recorded beside it.

        Examples:
            >>> run = catalog.run("eighth", stream)
            >>> [attempt.parent for attempt in run.attempts()]
            [None]
        """
        return Listing(self._history().attempts.values(), "attempts", attempt_rows)

    def history(self, attempt: str | None = None) -> list[RunChange]:
        """Return the changes of a branch, in order: open, resume, set_epoch, seek, bind, edits, an epoch's end.

        Args:
            attempt: the last one of the branch; None takes the newest.

        Examples:
            >>> [change.why for change in catalog.run("ninth", stream).history()]
            ['open']
        """
        changes = [change for each, _ in self._history().branch(attempt) for change in each.changes]
        return Listing(changes, "history", change_rows)

    def legs(self, attempt: str | None = None) -> list[Leg]:
        """Return what a branch delivered: batches in a row, each with the stream's state where it begins.

        Args:
            attempt: the last one of the branch; None takes the newest.

        Examples:
            >>> run = catalog.run("tenth", stream)
            >>> for batch in stream:
            ...     run.log(batch=batch)
            >>> run.close()
            >>> [(leg.epoch, leg.first, leg.end) for leg in run.legs()]
            [(0, 0, 6)]
        """
        return Listing(self._history().legs(attempt), "legs", leg_rows)

    def not_applied(self, attempt: str | None = None) -> set[tuple[str, int, int]]:
        """Return the batches that a branch logged with ``applied=False``: attempt, epoch and number, as `ledger` takes it.

        Args:
            attempt: the last one of the branch; None takes the newest.

        Examples:
            >>> run = catalog.run("overflown", stream)
            >>> run.log(batch=next(iter(stream)), loss=float("nan"), applied=False)
            >>> run.flush()
            >>> [(epoch, batch) for _, epoch, batch in run.not_applied()]
            [(0, 0)]
        """
        return not_applied(self._files, self._history().branch(attempt))

    def seen(self) -> SeenSamples:
        """Return what the trained branch saw: samples, tokens and passes of each stream, delivered and applied.

        Examples:
            >>> run = catalog.run("looked", stream)
            >>> batches = list(stream)
            >>> run.close()
            >>> run.seen().samples
            48
        """
        return self._verbs.seen(self)

    def forget(self, ids: Any, checkpoints: Sequence[Any] = ()) -> Forgetting:
        """Return how the run forgets rows: where it first met them, and the state from which it goes on without.

        Args:
            ids: identities of the rows, as `ledger` lists them; or a table of them, as for `Catalog.forget`.
            checkpoints: states, or paths of checkpoints, that it can go on from; the last one before the rows is taken.

        Raises:
            CatalogError: the plan keeps no row with such an identity.

        Examples:
            >>> run = catalog.run("too-much", stream)
            >>> batches = list(stream)
            >>> run.close()
            >>> run.forget(stream.ledger(2, 0)[:1]).first.batch
            2
        """
        return self._verbs.forget(self, ids, checkpoints)

    def registered(self, attempt: str | None = None) -> Entry:
        """Bring the relation of the run up to date, and return it; `Catalog.table` does this for the trained branch.

        Args:
            attempt: the last one of another branch, whose relation is ``runs.<name>.<attempt>``.

        Raises:
            RunError: nothing was recorded, or there is no such attempt.

        Examples:
            >>> run = catalog.run("eleventh", stream)
            >>> run.log(batch=next(iter(stream)), loss=0.5)
            >>> run.close()
            >>> run.registered().name
            'runs.eleventh'
        """
        if self._recording is not None:
            self._recording.flush()
        with OpenedLegs(self._catalog, self._plan_of) as legs:
            return RunTable(self._catalog, self._files, self._history(), legs).registered(attempt)

    @door(RunError)
    def outliers(
        self, value: str = "loss", *, attempt: str | None = None, limit: int = 25, least: int = 1, lowest: float = 3.0
    ) -> Outliers:
        """Return the samples whose value stands out among those of the same step and stream, over all epochs.

        The score is in robust standard deviations: the mean over a sample's occurrences, with one usual one added. In bounded
        memory, whatever the run has recorded.

        Args:
            value: which was logged.
            attempt: the last one of another branch; None takes the newest.
            limit: how many samples.
            least: occurrences that a sample needs.
            lowest: score that a sample needs.

        Raises:
            RunError: nothing was recorded, no such value was logged, or an argument is out of range.

        Examples:
            >>> run = catalog.run("judged", stream)
            >>> for batch in stream:
            ...     run.log(batch=batch, loss=batch["width"] / 1_000 + 90 * (batch["width"] == 704))
            >>> run.close()
            >>> found = run.outliers(lowest=2)
            >>> found.table.num_rows, found.skip
            (0, None)
        """
        with self._opened_rows(attempt, "outliers") as rows:
            return find_outliers(rows, value, limit=limit, least=least, lowest=lowest)

    @door(RunError)
    def spikes(
        self,
        value: str = "loss",
        *,
        attempt: str | None = None,
        limit: int = 10,
        window: int = WINDOW,
        lowest: float = 6.0,
    ) -> Spikes:
        """Return the steps whose mean stands out of the steps before them, and who carries it: by stream, shard and sample.

        Args:
            value: which was logged.
            attempt: the last one of another branch; None takes the newest.
            limit: how many spikes are looked into, the largest first.
            window: steps before a step that it is compared with.
            lowest: score of a step that stands out, in robust standard deviations.

        Raises:
            RunError: nothing was recorded, no such value was logged, or an argument is out of range.

        Examples:
            >>> run = catalog.run("spiky", stream)
            >>> for batch in stream:
            ...     run.log(batch=batch, loss=batch["width"] / 1_000)
            >>> run.close()
            >>> print(run.spikes())
            run spiky: 6 steps with a loss are too few: a step is compared with 16 before it. Train on
        """
        with self._opened_rows(attempt) as rows:
            return find_spikes(rows, value, limit=limit, window=window, lowest=lowest)

    def figures(self, attempt: str | None = None) -> tuple[RunFigure, ...]:
        """Return figures of the run, each with its query: what was recorded, by stream, by epoch, along its steps.

        Args:
            attempt: the last one of another branch; None takes the newest.

        Raises:
            RunError: nothing was recorded.

        Examples:
            >>> run = catalog.run("figured", stream)
            >>> for batch in stream:
            ...     run.log(batch=batch, loss=batch["width"] / 1_000)
            >>> run.close()
            >>> figure = run.figures()[0]
            >>> figure.table["records"][0].as_py(), figure.table.equals(catalog.sql(figure.query).to_arrow())
            (48, True)
        """
        with self._opened_rows(attempt) as rows:
            return find_figures(rows)

    @contextmanager
    def _opened_rows(self, attempt: str | None, of_rows: str = "") -> Iterator[RunRows]:
        """The rows of a branch, as queries read them. A verb that goes by rows is refused where samples have none."""
        entry = self.registered(attempt)
        with OpenedLegs(self._catalog, self._plan_of) as legs:
            plans = {str(leg.state.get("plan")): leg for leg in self._history().legs(attempt)}
            stages = [legs.of(leg).stages for leg in plans.values()]
            sources = sources_of(stages, RENAMED, RESERVED)
        if of_rows and any(map(assembles, stages)):
            identity = ", ".join(stages[0].identity)
            msg = f"{of_rows}: the plan of run {self.name!r} assembles samples of several rows, so none has a row. Group them by "
            msg += f'what the assembler calls them: catalog.table("{entry.name}").group_by("{identity}")'
            raise RunError(msg)
        with OpenRelation(entry) as opened:
            yield RunRows.of(self.name, opened, sources)

    def _history(self) -> History:
        if self._recording is not None:
            self._recording.settle()
        return History(self._files, StateRecords(self._catalog.root))

    def _writes(self, verb: str) -> Recording:
        if self._recording is None:
            msg = f"{verb}: run {self.name!r} is open to be read. catalog.run({self.name!r}, stream) records"
            raise RunError(msg)
        return self._recording

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        how = "to be read" if self._recording is None else f"attempt {self._recording.attempt}"
        return f"<RecordedRun {self.name!r}, {how}>"

"""Record a run while its stream delivers: keys to steps, values to parts, changes to the history.

One `Recording` belongs to one stream in the process of its loop. The stream tells it what it delivers and where it goes
(`runtime.run.recorder`); the loop logs values. The first rank writes the history; each rank writes parts of its own.
"""

import os
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, final

import xxhash

from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.cursor import Cursor
from spiral_stream.errors import RunError, shown, warn
from spiral_stream.plan.saving.canonical import to_json
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.planner.columns.lineage import identity_keys
from spiral_stream.runs.files import RunFiles, UnwrittenError, writer_of
from spiral_stream.runs.history import ANEW, History, Mark, RunChange
from spiral_stream.runs.records.arriving import Arriving
from spiral_stream.runs.records.coverage import warn_of_lacking
from spiral_stream.runs.records.others import OtherAttempts, this_process
from spiral_stream.runs.records.part_rows import Logged, table_of
from spiral_stream.runs.records.token_shard import TokenShard, need_positions
from spiral_stream.runs.records.unwritten import UNWRITTEN
from spiral_stream.runs.records.values import FormOf, PerToken, Value, mask_of, need_value_names, on_host, reduced
from spiral_stream.runtime.batch.keys import BatchKey
from spiral_stream.runtime.measured import FetchedValue, ValueForm
from spiral_stream.runtime.run.recorder import Recorder
from spiral_stream.runtime.run.stream_run import StreamRun

EVERY: Final = 1_000  # logged batches per part
_REMEMBERED: Final = 4_096  # batches that are known to be logged already
_LAUNCHERS: Final = (  # what all ranks of one start have in common, and no other start has
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
)
_NOWHERE: Final = (-1, -1, -1)
_NO_LAUNCH: Final = ("", "none")


@final
class Recording(Recorder):
    """What is recorded of one stream.

    Args:
        files: of the run.
        stream: the stream.
        attempt: the name of this start of the training, the same on all ranks; None makes one.
        every: logged batches after which a part is written.
        anew: the first attempt of this start begins a branch of its own, whatever state the stream goes on from.
        lenient: what cannot be written is warned of, once, and written when it can be.
        shard: which of how many processes that share the rows of each batch this is; None: it has whole batches.

    Raises:
        RunError: several ranks record, and nothing says which start they are of; or the catalog cannot be written.
    """

    def __init__(
        self,
        files: RunFiles,
        stream: StreamRun,
        attempt: str | None,
        every: int,
        shard: tuple[int, int] | None = None,
        *,
        anew: bool,
        lenient: bool,
    ) -> None:
        self._files, self._stream, self._every, self._shard = files, stream, every, shard
        bound = stream.bound()
        self._rank, self._writer, self._first = bound.rank, writer_of(bound.rank, shard), stream.position.seen
        self._tells = not bound.rank and (shard is None or not shard[0])  # one process writes the history
        processes = bound.world_size * (1 if shard is None else shard[1])
        self._start = attempt or stream.delivery.agreed(_new_attempt()) or _common_start(processes) or _new_attempt()
        files.make()  # what may fail on one machine comes after what ranks ask each other
        self._attempts = 0  # of this start; a stream that goes back to a state begins another
        self._notes = self._parts = 0  # of the present attempt
        self._unwritten = list[tuple[str, int, dict[str, Any]]]()  # notes
        self._lenient, self._failing, self._flush_at = lenient, False, every
        self._parent: tuple[str, Mark] | None = None
        self._done = 0  # steps of the run that were delivered
        self._base = 0  # the step of the run at which the present epoch began
        self._over = False  # whether an epoch is over, and the stream has not moved yet
        self._at: tuple[int, int] | None = None  # leg and epoch of the last delivery
        self._reached: Mark | None = None
        self._noted = (0, 0)  # leg and epoch of the last change
        self._said: Mark | None = None  # how far the history says that the attempt has come
        self._segment: dict[str, int] = {}
        self._plan: str | None = None
        self._last: BatchKey | None = None
        self._since_log = 0  # batches delivered since the last one was logged
        self._entries = list[Logged]()
        self._logged: OrderedDict[tuple[int, int, int], tuple[str, ...]] = OrderedDict()
        self._arriving = Arriving()
        self._identity = frozenset(key.name for key in identity_keys(stream.stages()))
        self.duplicates = 0
        self._closed: tuple[int, int, int] | None = None  # where the stream stood when the run was closed
        stream.passes.need_idle("run", "Open the run before the loop begins, or leave the loop first")
        said = stream.resumed_run
        if stream.recorder is not None:  # another run, or this one, has recorded the stream so far
            here = stream.position.known()
            said = stream.recorder.sealed(here, 0)
            said = None if said is None else {**said, "epoch": here.epoch, "batch": here.batch}
        self._anew = anew
        self._files.claim(self._start, self._writer)
        self._go_on_from(said)
        if stream.recorder is not None:
            stream.recorder.close()
        self._others = OtherAttempts(files, self._start) if self._tells else None
        stream.record(self)
        self._note("resume" if self._parent is not None else ANEW if anew else "open")
        self._warn_of_lacking()

    @property
    def attempt(self) -> str:
        """The name of the present attempt."""
        return self._start if not self._attempts else f"{self._start}.{self._attempts}"

    @property
    def _is_anew(self) -> bool:
        return self._anew and not self._attempts

    @property
    def waited(self) -> int:
        """How often the loop waited for a value to come from its device, because too many were under way."""
        return self._arriving.waited

    @property
    def last(self) -> BatchKey:
        """The key of the one batch that the loop has had since it logged.

        Raises:
            RunError: it had none, or several: then a batch says which it is.
        """
        if self._last is None or self._since_log != 1:
            found = "no batch was delivered" if not self._since_log else f"{self._since_log} batches were delivered"
            msg = f"log: {found} since the last one was logged, so nobody knows which batch the values are of. Give batch=, as "
            msg += "the loop got it; in compute_loss of a StreamTrainer write self.record(loss=losses)"
            raise RunError(msg)
        return self._last

    # ---- what the stream tells

    def delivered(self, key: BatchKey) -> None:
        if self._closed is not None:
            return
        if self._reached is None and self._parent is None and self._others is not None and not self._is_anew:
            begun = Mark(key.leg, key.epoch, key.numbers.start)
            self._others.tell_of_beginning_anew(self.attempt, begun, self._stream.resumed_run)
        if (self._leg_of(key), key.epoch - 1) >= self._noted:  # ranks left no step of the epoch that the leg began in
            self._note("epoch", Cursor(key.epoch))
        if self._at != (key.leg, key.epoch):
            self._at, self._base = (key.leg, key.epoch), self._done - key.epoch_step
        key.step = self._base + key.epoch_step
        self._done = key.step + 1
        reached = Mark(self._leg_of(key), key.epoch, key.after)
        self._reached = (
            reached if self._reached is None else max(self._reached, reached)
        )  # workers' may be logged in any order
        self._last = key
        self._since_log += 1

    def epoch_over(self, *, others: bool, moved: bool = True) -> None:
        if self._closed is not None:
            return
        self._done += others
        self._over = not moved
        if moved:
            self._note("epoch")

    def changed(self, why: str) -> None:
        over, self._over = self._over, False
        if self._closed is not None:
            return
        if why == "follow" or (why == "bind" and self._segment == self._segment_now()):
            return
        self._note("epoch" if over else why)

    def resumed(self, said: Mapping[str, Any] | None, why: str) -> None:
        if self._closed is not None:
            return
        if self._reached is not None:  # what was delivered stays an attempt of its own
            self.flush()
            self._say_reached()
            self._attempts += 1
            self._files.claim(self.attempt, self._writer)
            self._notes = self._parts = 0
            self._reached = self._said = None
        self._first = self._stream.position.seen
        self._logged.clear()
        self._go_on_from(said)
        self._note(why)
        self._warn_of_lacking()

    def sealed(self, cursor: Cursor, steps_ahead: int) -> dict[str, Any] | None:
        seen = self._stream.position.seen
        if self._closed is not None and self._closed != (seen, cursor.epoch, cursor.batch):
            return None
        self.flush()
        leg = seen - self._first
        if (
            self._reached is not None
        ):  # where the loop stands, if the stream has delivered beyond that to whatever reads ahead
            self._say_reached(min(self._reached, Mark(leg, cursor.epoch, cursor.batch)))
        return {
            "name": self._files.name,
            "attempt": self.attempt,
            "leg": leg,
            "step": max(0, self._done - steps_ahead),
            **({"unsealed": True} if self._entries or self._unwritten else {}),
        }

    # ---- what the loop logs

    def log(self, key: BatchKey, values: Mapping[str, Any], mask: Any, positions: Any = None, *, applied: bool) -> None:
        """Record the values of a batch.

        Raises:
            RunError: a value has another length than the batch, or the batch was logged already with other values.
        """
        if positions is not None and self._shard is None:
            msg = "log: positions= says which tokens a shard has, and this run has whole batches. Open it with shard=(i, n)"
            raise RunError(msg)
        shard = None if self._shard is None else TokenShard(*self._shard, need_positions(positions))
        if self._closed is not None:
            msg = (
                f"log: run {self._files.name!r} is closed: it was, its stream was, or another run records the stream. "
            )
            msg += f"catalog.run({self._files.name!r}, stream), opened before the loop, goes on with it"
            raise RunError(msg)
        if key.step is None:  # workers of a DataLoader delivered it
            self.delivered(key)
        names = tuple(sorted(values))
        at = key.leg, key.epoch, key.numbers.start
        before = self._logged.get(at)
        if before is not None:
            self._duplicate(key, before, names)
            return
        found = self._values(key, values, mask, shard)
        UNWRITTEN.add(self)
        self._entries.append(Logged(key, self._leg_of(key), applied, found))
        self._logged[at] = names
        if len(self._logged) > _REMEMBERED:
            self._logged.popitem(last=False)
        self._since_log = 0
        if len(self._entries) >= self._flush_at:
            self.flush()

    def _values(
        self, key: BatchKey, values: Mapping[str, Any], mask: Any, shard: TokenShard | None
    ) -> dict[str, Value]:
        """Reduce the values of a batch; those on a device are put in when they are here."""
        found: dict[str, Value] = {}
        late: list[tuple[str, ValueForm, FetchedValue]] = []
        need_value_names(values, self._identity)
        if mask is not None and on_host(mask):
            mask = mask_of(mask)
        for name, value in values.items():
            fits = FormOf(name, key, mask, shard)
            fetched = self._stream.delivery.fetched(value, fits, mask)
            if fetched is None:
                found[name] = reduced(name, value, fits, None if mask is None else mask_of(mask))
            else:
                assert fits.form is not None
                late.append((name, fits.form, fetched))
        per_token = any(isinstance(each, PerToken) for each in found.values()) or any(
            form.tokens for _, form, _ in late
        )
        if mask is not None and not per_token:
            msg = "log: mask= says which tokens count, and no value is one per token. Give values of shape [B, T], or no mask="
            raise RunError(msg)
        for each in late:  # once nothing is refused
            self._arriving.add(found, *each)
        return found

    def _duplicate(self, key: BatchKey, before: tuple[str, ...], names: tuple[str, ...]) -> None:
        if before != names:
            msg = (
                f"log: batch {key.ledger[0]:,} of epoch {key.epoch} was logged already, with {', '.join(before) or 'nothing'}. "
                "Give all values of a batch in one call"
            )
            raise RunError(msg)
        self.duplicates += 1

    def flush(self) -> None:
        """Write what was logged as a part.

        Raises:
            RunError: the catalog cannot be written.
        """
        self._arriving.all_here()
        with self._tolerated():
            self._write_notes()
            if self._entries:
                self._files.part(self.attempt, self._writer, self._parts, table_of(self._entries))
                self._parts += 1
                logged = max(Mark(each.leg, each.key.epoch, each.key.after) for each in self._entries)
                self._entries.clear()
                if self._others is not None:
                    self._others.look(self.attempt)
                self._say_reached(logged if self._said is None else max(logged, self._said))
        self._flush_at = len(self._entries) + self._every

    def settle(self) -> None:
        """Write what was logged, and how far the run has come."""
        self.flush()
        self._say_reached()

    def close(self) -> None:
        """Write what was logged, and how far the run has come; from here on the stream goes unrecorded.

        Raises:
            RunError: the catalog cannot be written.
        """
        if self._closed is not None:
            return
        self._stream.passes.idle()
        self._closed = _NOWHERE  # until all of it is written
        try:
            self.settle()
        finally:
            if self._others is not None:
                self._others.release()
        if self._entries:
            warn(
                f"run {self._files.name!r}: {len(self._entries):,} batches of rank {self._rank} were logged and never written"
            )
        UNWRITTEN.discard(self)
        cursor = self._stream.position.known()
        self._closed = self._stream.position.seen, cursor.epoch, cursor.batch

    # ---- the history

    def _leg_of(self, key: BatchKey) -> int:
        return key.leg - self._first

    def _go_on_from(self, said: Mapping[str, Any] | None) -> None:
        cursor = self._stream.position.known()
        self._parent, self._done = None, cursor.step
        if said is not None:
            try:
                mark, step = Mark.of(said), int(said["step"])
                name, attempt = str(said["name"]), str(said["attempt"])
            except (KeyError, TypeError, ValueError) as error:
                msg = f"resume: what the state says of its run cannot be read ({shown(error)}). Pass what state_dict() returned"
                raise RunError(msg) from error
            if said.get("unsealed"):
                warn(
                    f"run {name!r}: attempt {attempt} could not write what it had logged when this state was saved. What it did "
                    "not write later is lost"
                )
            self._done = step
            self._parent = (attempt, mark) if name == self._files.name and not self._is_anew else None
        self._at = None

    def _warn_of_lacking(self) -> None:
        """Warn if ranks have not written what they logged up to the state that this attempt goes on from."""
        if self._parent is not None and self._others is not None and self._others.is_over(self._parent[0]):
            try:
                history = History(self._files, StateRecords(self._stream.catalog.root))
                warn_of_lacking(self._files, history, *self._parent)
            except RunError as error:  # damage: whoever reads the run is told again
                warn(str(error))

    def _segment_now(self) -> dict[str, int]:
        bound = self._stream.bound()
        return {"world_size": bound.world_size, "merge": bound.merge}

    def _note(self, why: str, at: Cursor | None = None) -> None:
        """Write a change; the first rank does it for all. ``at`` is where the stream stands; None asks it."""
        stream = self._stream
        self._segment = self._segment_now()
        cursor = stream.position.known() if at is None else at
        self._noted = stream.position.seen - self._first, cursor.epoch
        if not self._tells:
            return
        bound = stream.bound()
        cursor = cursor.enter(*bound.shape)
        if self._plan is None:
            self._plan = self._plan_name()
        saved = stream.open().saved(cursor, bound.run_seed, stream.position.drawn(cursor.epoch))
        parent, cut = self._parent or (None, None)
        leg = stream.position.seen - self._first
        change = RunChange(
            self.attempt, why, datetime.now(UTC).isoformat(), leg, self._reached, parent, cut, self._done, self._plan,
            saved.to_json(), self._segment, this_process(), tuple(sorted(self._others.alongside)) if self._others else (),
        )  # fmt: skip
        self._unwritten.append((self.attempt, self._notes, change.to_json()))
        self._notes += 1
        with self._tolerated():
            self._write_notes()

    def _write_notes(self) -> None:
        while self._unwritten:
            attempt, number, value = self._unwritten[0]
            self._files.note(attempt, number, value)
            del self._unwritten[0]

    @contextmanager
    def _tolerated(self) -> Iterator[None]:
        """Warn once, in place of an error, while the catalog cannot be written; what is not written stays for the next time."""
        try:
            yield
            self._failing = False
        except UnwrittenError as error:
            if not self._lenient:
                raise
            if not self._failing:
                warn(
                    f"run {self._files.name!r}: rank {self._rank} trains on, and keeps in memory what it logs: {error}"
                )
            self._failing = True

    def _plan_name(self) -> str:
        plan = to_json(self._stream.plan)
        stored = StateRecords(self._stream.catalog.root).keep(plan)
        return digest(plan) if stored is None else stored

    def _say_reached(self, mark: Mark | None = None) -> None:
        """Say how far the attempt has come; the first rank does it for all."""
        mark = self._reached if mark is None else mark
        if mark is not None and mark != self._said and self._tells:
            alongside = {"alongside": sorted(self._others.alongside)} if self._others and self._others.alongside else {}
            with self._tolerated():
                self._files.reached(self.attempt, {**mark.to_json(), **alongside})
                self._said = mark


def _common_start(world_size: int) -> str | None:
    """A name that all ranks of this start have, and no other start has; None for a single process.

    Raises:
        RunError: there are several ranks, and nothing tells.
    """
    if world_size == 1:
        return None
    for names in _LAUNCHERS:
        found = [os.environ.get(name, "") for name in names]
        if found[0].lower() not in _NO_LAUNCH:
            return f"start-{xxhash.xxh3_64_hexdigest(chr(0).join(found).encode())}"
    msg = (
        f"run: {world_size} ranks record, and nothing says which start of the training they are of. Call "
        "torch.distributed.init_process_group first, or give each start an attempt= of its own, the same on all ranks"
    )
    raise RunError(msg)


def _new_attempt() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"

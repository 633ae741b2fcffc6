"""From a plan to what its batches are built with: stages, reader and numbering; rows by identity; what a run leaves over."""

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from spiral_stream.cache.materialize import Progress
from spiral_stream.catalog.registry import Registry
from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError, SpiralWarning, shown
from spiral_stream.integrity.blocks import sound
from spiral_stream.plan.fingerprint import digest
from spiral_stream.plan.maps import SampleAssembly, SampleFilter, SampleFlatMap, SampleMap
from spiral_stream.plan.nodes import Deliver
from spiral_stream.planner.build import materialize
from spiral_stream.planner.lower import cache_root, lower
from spiral_stream.planner.physical import Stages
from spiral_stream.planner.rebase import Rebase
from spiral_stream.planner.resume import Anchor, SavedState
from spiral_stream.planner.streams import StreamStage
from spiral_stream.planner.verify import Report, Verification, verify_stream
from spiral_stream.runtime.formation_index import verify_index
from spiral_stream.runtime.formed_batches import FormedBatches, Known
from spiral_stream.runtime.forming import Forming
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering import CountedBatches, Numbering
from spiral_stream.runtime.quarantine import Quarantine, verify_quarantine
from spiral_stream.runtime.refusals import Refusals, RefusalTally
from spiral_stream.runtime.samples import SampleReader
from spiral_stream.runtime.steps import need_inside
from spiral_stream.sampling.left_over import LeftOver, as_ranges, joined_ranges
from spiral_stream.sampling.mixture import Mixture
from spiral_stream.threads import CLOSE_TIMEOUT_S, available_cores, warn_left_alone


@final
class Opening:
    """A plan lowered and opened at its first use, again in a forked process, until `close`."""

    def __init__(self, plan: Deliver, catalog: Registry, metrics: Metrics, rebase: Rebase | None = None) -> None:
        self.rebase = rebase
        self._plan, self._catalog, self._metrics = plan, catalog, metrics
        self._lowered: tuple[int, Stages] | None = None
        self._read: tuple[SampleReader, Numbering] | None = None
        self._known: tuple[Path, Known] | None = None  # what a numbering that was let go knew, and its folder
        self._tally = RefusalTally()

    @property
    def stages(self) -> Stages:
        """The lowered plan."""
        if self._lowered is None or self._lowered[0] != os.getpid():
            self._lowered, self._read = (os.getpid(), lower(self._plan, self._catalog, self.rebase)), None
        return self._lowered[1]

    def read(self, run_seed: int) -> tuple[SampleReader, Numbering]:
        """What reads columns of samples, and which samples form which batch, with this seed for what is random."""
        stages = self.stages
        if self._read is None or self._read[0].run_seed != run_seed:
            if self._read is not None:
                self._read[0].close()
            reader = SampleReader(stages, run_seed, self._metrics, available_cores())
            self._read = (reader, self._numbering(stages, reader))
        return self._read

    @property
    def refusals(self) -> Refusals:
        """What becomes of samples that cannot be read; counts are kept as long as this."""
        stages = self.stages
        quarantine = Quarantine(cache_root(self._catalog), stages, self.rebase)
        return Refusals(stages, self._metrics, quarantine, self._tally)

    def _numbering(self, stages: Stages, reader: SampleReader) -> Numbering:
        if stages.formation is None:
            return CountedBatches(stages)
        folder = self._formations(stages, reader.run_seed)
        known = self._known[1] if self._known is not None and self._known[0] == folder else None
        return FormedBatches(Forming(stages, reader, stages.formation), folder, known)

    def _formations(self, stages: Stages, run_seed: int) -> Path:
        """Where the formation index of a plan lies."""
        edits: list[Any] = [] if self.rebase is None else [self.rebase.to_json()]
        if any(
            isinstance(each, SampleFlatMap | SampleFilter | SampleMap) for each in stages.maps
        ):  # what they draw may decide
            edits.append(run_seed)
        name = digest([stages.fingerprint, dict(stages.data_versions), edits])
        return cache_root(self._catalog) / "formations" / name

    def saved(self, cursor: Cursor, run_seed: int, epoch: int) -> SavedState:
        """The state at a place.

        Args:
            cursor: the place.
            run_seed: the run's.
            epoch: whose order is drawn in the cursor's epoch.
        """
        stages, numbering = self.stages, self.read(run_seed)[1]
        chapters = tuple(numbering.anchors(epoch, cursor.batch)) if isinstance(numbering, FormedBatches) else None
        data = tuple(sorted(stages.data_versions.items()))
        return SavedState(stages.fingerprint, data, run_seed, cursor, chapters, self.rebase)

    def admit(self, saved: SavedState, epoch: int) -> tuple[Cursor, list[Anchor]]:
        """Hold a state against what is known of its epoch, forming nothing; changes nothing.

        Returns:
            its place, and where its chapters begin, as far as it may be relied on: one without a checksum only where
            that is known here too.

        Raises:
            ResumeError: the place is not in the epoch, or chapters cannot begin where it says.
        """
        stages, numbering, cursor = self.stages, self.read(saved.run_seed)[1], saved.cursor
        mixture = stages.epochs.mixture
        if mixture is None and saved.rebase is not None:
            msg = (
                "resume: the state was rebased and this plan mixes nothing; pass what state_dict() returned, unchanged"
            )
            raise ResumeError(msg)
        try:
            if mixture is not None:
                mixture.quotas(epoch)
        except IndexError as error:
            msg = f"resume: the state's epoch {cursor.epoch} cannot be ({error}); pass what state_dict() returned, unchanged"
            raise ResumeError(msg) from error
        anchors: list[Anchor] = []
        if isinstance(numbering, FormedBatches):
            certain = numbering.possible(epoch, cursor.batch, saved.chapters or ())
            anchors = list(saved.chapters or ()) if saved.sealed else certain
        if cursor.batch and numbering.knows(epoch):
            need_inside(numbering, epoch, cursor)
            if not numbering.exists(epoch, cursor.batch):  # saved before the end of an epoch was the start of the next
                return cursor.next_epoch(), []
        return cursor, anchors

    def materialize(
        self, stages: Stages, threads: int, report: Callable[[Progress], None] | None, *, keep: bool
    ) -> Progress:
        """Build the caches; what was opened before does not see what was built since, and is opened again unless kept."""
        done = materialize(stages, threads, report)
        if not keep:
            self.close()
        return done

    def verify(self, run_seed: int, report: Report | None) -> Verification:
        """Read all derived files of the plan, and compare them with what was written."""

        def others() -> Iterator[tuple[Path, str, Callable[[], bool]]]:
            for path in sorted(self._formations(self.stages, run_seed).glob("*.index")):
                yield path, "formation index", partial(verify_index, path)
            folder = Quarantine(cache_root(self._catalog), self.stages, self.rebase).folder
            for path in sorted(folder.glob("*")):
                yield path, "quarantine", partial(verify_quarantine, path)

        return verify_stream(self._plan, self._catalog, lambda: self.stages, others, report)

    def let_go(self) -> None:
        """Read on with another reader and numbering, for a thread that does not answer may hold locks of these.

        What they know of chapters goes on to the next ones.
        """
        if self._read is not None:
            reader, numbering = self._read
            self._known = (numbering.folder, numbering.known) if isinstance(numbering, FormedBatches) else None
            self._read = None
            reader.close(0.0)

    def close(self, timeout_s: float | None = None) -> None:
        """Release what is open; the next use opens it again. Threads are waited for until the deadline, then named."""
        timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
        left = []
        if self._lowered is not None and self._lowered[0] == os.getpid():
            left = [] if self._read is None else self._read[0].close(timeout_s)
            self._lowered[1].close()
        self._lowered = self._read = self._known = None
        warn_left_alone("close", left, timeout_s)


def found_row(stages: Stages, identity: Any) -> tuple[int, int]:
    """The stream and surviving row of an identity.

    Raises:
        KeyError: no row has it, or several streams do and the identity does not name one.
    """
    if any(isinstance(each, SampleAssembly) for each in stages.maps):
        msg = "locate: assembled samples are no rows, so only the ledger of a batch tells where they are"
        raise KeyError(msg)
    values = identity if isinstance(identity, tuple) else (identity,)
    streams = list(range(len(stages.streams)))
    if len(values) == len(stages.identity) + 1:
        streams = [k for k in streams if stages.streams[k].name == values[0]]
        values = values[1:]
    if len(values) != len(stages.identity):
        msg = f"locate: {shown(identity)} has {len(values)} values; an identity here is ({', '.join(stages.identity)})"
        raise KeyError(msg)
    wanted = dict(zip(stages.identity, values, strict=True))
    with sound():
        found = [(k, int(rows[0])) for k in streams if len(rows := stages.streams[k].selected.find(wanted))]
    if not found:
        msg = f"locate: no row that the plan keeps has {', '.join(stages.identity)} = {shown(identity)}"
        raise KeyError(msg)
    if len(found) > 1:
        names = ", ".join(repr(stages.streams[k].name) for k, _ in found)
        msg = f"locate: {shown(identity)} is in streams {names}; give (stream, identity)"
        raise KeyError(msg)
    return found[0]


def need_stream(earlier: object, kind: type) -> None:
    """Refuse to re-base on what is no stream.

    Raises:
        ResumeError: says how a state becomes one.
    """
    if not isinstance(earlier, kind):
        msg = (
            f"rebase: takes the earlier stream, not a {type(earlier).__name__}; load a state into a stream of the old "
            "plan first: old.load_state_dict(state), then new.rebase(old)"
        )
        raise ResumeError(msg)


def left_over(
    earlier: Stages, numbering: Numbering, epoch: int, number: int, before: Rebase | None, now: Stages
) -> Rebase:
    """What the streams of a mixture have not delivered when ``number`` batches of an epoch are.

    Args:
        earlier: the plan so far.
        numbering: its batches.
        epoch: where it stands.
        number: see ``epoch``.
        before: where the plan before it stood, if there was one: what it knows of streams that ``earlier`` lacks stays.
        now: the plan that goes on.

    Raises:
        ResumeError: nothing is mixed, there are several lanes, or a stream of one name is not the same in both.
    """
    mixture, epochs = _carried(earlier, now), earlier.epochs
    begun, position = numbering.undelivered(epoch, number) if number else (np.empty(0, dtype=np.uint64), 0)
    border = mixture.border(epoch, position)
    positions = np.concatenate([begun, np.arange(position, border, dtype=np.uint64)])
    streams, uses = epochs.uses(epoch, positions)
    then = mixture.first_uses(epoch) + mixture.quotas(epoch)
    used = mixture.used(epoch, border)
    out = dict(before.left_overs) if before is not None else {}
    for k, stream in enumerate(earlier.streams):
        own = uses[streams == k].astype(np.int64)
        end = max(int(then[k]), epochs.left(k))  # an epoch may be too short for all that an earlier plan left
        later = [(a, b - a) for a, b in epochs.next_uses(k, int(used[k]), end)]
        after = epochs.next_uses(k, end, end + 1)[0][0]
        ranges = sorted([*as_ranges(own), *later])
        rest = joined_ranges([each for each in ranges if each[0] < after])
        out[stream.name] = LeftOver(rest, after)
    rebase = Rebase(epoch + (number > 0), tuple(out.items()))
    _warn_of_long_waits(rebase, now)
    return rebase


def _warn_of_long_waits(rebase: Rebase, now: Stages) -> None:
    """Warn of rows that others of their stream are a pass ahead of, where more than an epoch passes until they have come.

    Batches of a formation come in no order of uses inside a chapter, so where a run stops some rows of a small stream may
    have been used again and others not yet. Those that wait come first, at the pace of the new plan.
    """
    assert now.epochs.mixture is not None
    quotas = now.epochs.mixture.quotas(rebase.epoch)
    for stream, quota in zip(now.streams, quotas.tolist(), strict=True):
        waiting = rebase.left_over(stream.name)
        waits = 0 if waiting is None else waiting.overtaken(stream.selected.total)
        if waits > quota:
            msg = (
                f"rebase: {waits:,} uses of rows of stream {stream.name!r} wait from a pass that other rows have finished. They "
                f"come first, at {quota:,} samples an epoch: about {-(-waits // max(1, quota)):,} epochs. Give the stream a "
                "larger share, or re-base at the end of an epoch"
            )
            warnings.warn(msg, SpiralWarning, stacklevel=4)  # of whoever calls the stream's rebase


def _carried(earlier: Stages, now: Stages) -> Mixture:
    """The mixture whose streams go on in another plan."""
    mixture = earlier.epochs.mixture
    assembled = any(isinstance(each, SampleAssembly) for each in earlier.maps)
    if mixture is None or earlier.batches.lanes.count > 1 or assembled:
        found = "mixes nothing" if mixture is None else f"has {earlier.batches.lanes.count} lanes"
        found = "assembles samples" if assembled else found
        msg = f"rebase: the earlier plan {found}; a place is carried from a mixture of one lane. Go on at the end of its epoch"
        raise ResumeError(msg)
    if now.epochs.mixture is None:
        msg = "rebase: this plan mixes nothing, so no stream of it has a place; begin it with mix([Stream(...), ...])"
        raise ResumeError(msg)
    if earlier.order != now.order:
        msg = (
            f"rebase: the order was {earlier.order!r} and is {now.order!r}, so a place in it means other rows; keep the "
            "order, or go on at the end of the epoch without rebase"
        )
        raise ResumeError(msg)
    old = {stream.name: stream for stream in earlier.streams}
    for stream in now.streams:
        there = old.get(stream.name)
        if there is not None and (was := _rows_of(there, earlier)) != (found := _rows_of(stream, now)):
            msg = (
                f"rebase: stream {stream.name!r} had {was} and has {found}, so its place means other rows; keep what "
                "it selects, or give it another name, with which it starts at its beginning"
            )
            raise ResumeError(msg)
    return mixture


def _rows_of(stream: StreamStage, stages: Stages) -> str:
    name = stream.base.entry.name
    return f"{stream.selected.total:,} rows of {name} ({stages.data_versions[name][:8]})"

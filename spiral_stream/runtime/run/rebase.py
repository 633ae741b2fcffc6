"""What a run has left to deliver, when it goes on with another plan: the streams of a mixture, or rows of the running epoch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from spiral_stream.errors import ResumeError, warn
from spiral_stream.plan.saving.fingerprint import canonical
from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.selection.find import read_by
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.runtime.numbering.numbering import Numbering
from spiral_stream.runtime.run.rows_left import need_whole_passes, owed_again, rows_left
from spiral_stream.sampling.mixing.mixture import Mixture
from spiral_stream.sampling.mixing.remainder import LeftOver, as_ranges, joined_ranges


def need_stream(earlier: object, kind: type) -> None:
    """Refuse to rebase on something other than a stream.

    Raises:
        ResumeError: the message says how a state becomes a stream.
    """
    if not isinstance(earlier, kind):
        msg = (
            f"rebase: got a {type(earlier).__name__}. Give the earlier stream, or what its state_dict() returned. Load a "
            "state of another plan into a stream of that plan first: old.load_state_dict(state), then new.rebase(old)"
        )
        raise ResumeError(msg)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """The plan so far: its batches, the epoch in which it stands, batches of it delivered, and its own rebase."""

    stages: Stages
    numbering: Numbering
    epoch: int
    number: int
    rebase: Rebase | None


def taken_over(before: Before, now: Stages, root: Path) -> tuple[int, Rebase | None]:
    """Return where a plan goes on with the run of another one.

    Args:
        before: the plan so far.
        now: the plan that goes on.
        root: the folder of derived files.

    Returns:
        the epoch that it begins with, and what is left of the earlier plan; None if that epoch is a whole one.

    Raises:
        ResumeError: the plans have no places in common.
        SourceError: rows that changed since would have to be read.
    """
    if before.stages.mixed or now.mixed:
        rebase = left_over(before, now, root)
        return rebase.epoch, rebase
    return rows_left(before.stages, before.numbering, before.epoch, before.number, now, root)


def left_over(before: Before, now: Stages, root: Path) -> Rebase:
    """Return what each stream of a mixture has not delivered yet.

    Args:
        before: the plan so far. Of its own rebase, streams that it lacks keep their places.
        now: the plan that goes on.
        root: the folder of derived files.

    Raises:
        ResumeError: a plan mixes nothing, the earlier one has several lanes, or a stream has rows of another relation.
    """
    earlier, numbering, epoch, number = before.stages, before.numbering, before.epoch, before.number
    mixture, epochs = _carried(earlier, now), earlier.epochs
    begun, position = numbering.undelivered(epoch, number) if number else (np.empty(0, dtype=np.uint64), 0)
    border = mixture.border(epoch, position)
    positions = np.concatenate([begun, np.arange(position, border, dtype=np.uint64)])
    streams, uses = epochs.uses(epoch, positions)
    then = mixture.first_uses(epoch) + mixture.quotas(epoch)
    used = mixture.used(epoch, border)
    out = {} if before.rebase is None else dict(before.rebase.left_overs)
    there = {stream.name: stream for stream in now.streams}
    for k, stream in enumerate(earlier.streams):
        own = uses[streams == k].astype(np.int64)
        end = max(int(then[k]), epochs.left(k))  # an epoch may be too short for all that an earlier plan left
        later = [(a, b - a) for a, b in epochs.next_uses(k, int(used[k]), end)]
        after = epochs.next_uses(k, end, end + 1)[0][0]
        ranges = sorted([*as_ranges(own), *later])
        rest = joined_ranges([each for each in ranges if each[0] < after])
        out[stream.name] = LeftOver(rest, after)
        goes_on = there.get(stream.name)
        if goes_on is not None and (earlier.order != now.order or _rows_of(stream, earlier) != _rows_of(goes_on, now)):
            need_whole_passes(earlier)
            need_whole_passes(now)
            out[stream.name] = owed_again(stream, earlier.order, out[stream.name], goes_on, now.order, root)
    rebase = Rebase(epoch + (number > 0), tuple(out.items()))
    _warn_of_long_waits(rebase, now)
    return rebase


def _warn_of_long_waits(rebase: Rebase, now: Stages) -> None:
    """Warn of streams whose rows take more than an epoch to catch up with the rest of their stream.

    Inside a chapter, the batches of a formation do not come in the order of the rows' uses. Where a run stops, some rows of
    a small stream may have been used once more than others. The others come first, at the pace of the new plan.
    """
    assert now.epochs.mixture is not None
    quotas = now.epochs.mixture.quotas(rebase.epoch)
    for stream, quota in zip(now.streams, quotas.tolist(), strict=True):
        waiting = rebase.left_over(stream.name)
        waits = 0 if waiting is None else waiting.overtaken(stream.selected.total)
        if waits > quota:
            msg = (
                f"rebase: stream {stream.name!r} still owes {waits:,} uses of rows from a pass that its other rows have "
                f"finished. They come first, at {quota:,} samples per epoch: about {-(-waits // max(1, quota)):,} epochs. "
                "Give the stream a larger share, or rebase at the end of an epoch"
            )
            warn(msg)


def _carried(earlier: Stages, now: Stages) -> Mixture:
    """Return the mixture whose streams go on in another plan.

    Raises:
        ResumeError: they cannot.
    """
    mixture = earlier.epochs.mixture
    assembled = any(isinstance(each, SampleAssembly) for each in earlier.maps)
    if mixture is None or earlier.batches.lanes.count > 1 or assembled:
        found = "mixes nothing" if mixture is None else f"has {earlier.batches.lanes.count} lanes"
        found = "assembles samples" if assembled else found
        msg = f"rebase: the earlier plan {found}; only a mixture of one lane can hand its place on. Go on at the end of its epoch"
        raise ResumeError(msg)
    if now.epochs.mixture is None:
        msg = (
            "rebase: this plan mixes nothing, so it has no streams to go on with. Begin it with mix([Stream(...), ...])"
        )
        raise ResumeError(msg)
    old = {stream.name: stream.base.entry.name for stream in earlier.streams}
    for stream in now.streams:
        was, found = old.get(stream.name), stream.base.entry.name
        if was not in (None, found):
            msg = (
                f"rebase: the rows of stream {stream.name!r} were those of {was} and are those of {found}, so none is found "
                "again. Give the stream another name: then it starts at its beginning"
            )
            raise ResumeError(msg)
    return mixture


def _rows_of(stream: StreamStage, stages: Stages) -> tuple[Any, dict[str, str]]:
    """What decides which rows a stream has: its relational plan, and the data versions of what that reads."""
    return canonical(stream.node), {name: stages.data_versions[name] for name in sorted(read_by(stream.node))}

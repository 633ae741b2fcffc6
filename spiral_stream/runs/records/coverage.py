"""Which ranks' records reach the place of a state. A rank makes its own durable when it asks for the state, or flushes.

A loop that asks on its first rank alone loses what the others had not written when it is killed. Whoever goes on from such a
state is told of whom nothing is on record up to it. Ranks that log every tenth step, and one that logs for all, lack nothing.

Cost: the last part of each rank is read, and the notes of the run.
"""

from typing import NamedTuple

import numpy as np

from spiral_stream.errors import warn
from spiral_stream.runs.files import RunFiles, rank_of
from spiral_stream.runs.history import Attempt, History, Mark

_SHOWN = 5


class _Logged(NamedTuple):
    """Where the last part of a rank ends, and which batches of that leg and epoch it holds."""

    end: Mark
    numbers: frozenset[int]


def warn_of_lacking(files: RunFiles, history: History, parent: str, cut: Mark) -> None:
    """Warn if the records of ranks end before a place that others' reach.

    Args:
        files: of the run.
        history: of the run.
        parent: the attempt that saved the state.
        cut: the place of the state.

    Raises:
        RunError: a part is damaged.
    """
    attempt = history.attempts.get(parent)
    if attempt is None:
        return
    found = lacking(files, history, attempt, cut)
    if not found:
        return
    ends = [f"rank {rank} after {_end(end)}" for rank, end in list(found.items())[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} ranks more" if len(found) > _SHOWN else ""
    warn(
        f"run {files.name!r}: the state was saved at epoch {cut.epoch:,}, batch {cut.batch:,}, and attempt {parent} has no "
        f"records of {', '.join(ends)}{more}. What they logged and had not written when they ended is lost. A rank writes "
        "its own: call stream.state_dict() on every rank, and let one of them write the file"
    )


def lacking(files: RunFiles, history: History, attempt: Attempt, cut: Mark) -> dict[int, Mark | None]:
    """Return the ranks whose records end before those of others, with where theirs end; None where nothing is there."""
    ends = dict[int, _Logged]()
    for part in files.last_parts(attempt.name):
        rank, found = rank_of(part), _end_of(files, part)
        if found is not None:  # of processes that share rows, the one that ends first
            ends[rank] = min(found, ends.get(rank, found), key=lambda logged: logged.end)
    reached = [min(each.end, cut) for each in ends.values()]
    if not reached:
        return {}
    last = max(reached)
    leg = history.leg_at(attempt, history.change_at(attempt, last.leg, last.epoch), last.epoch)
    world, merge = leg.world_size, leg.merge
    group, over = world * merge, (last.leg, last.epoch) != (cut.leg, cut.epoch)
    step = max(0, last.batch - 1 - leg.first) // group
    here = [each.numbers for each in ends.values() if (each.end.leg, each.end.epoch) == (last.leg, last.epoch)]
    for_all = {(number - leg.first) // merge % world for numbers in here for number in numbers}
    out: dict[int, Mark | None] = {}
    for rank in range(world):
        first = leg.first + step * group + rank * merge
        if over and first >= last.batch:  # ranks have had no batch of the epoch's last step
            first -= group
        wanted = Mark(last.leg, last.epoch, first + 1)
        end = ends[rank].end if rank in ends else None
        if first < leg.first or (end is None and rank in for_all) or (end is not None and end >= wanted):
            continue
        out[rank] = end
    return out


def _end_of(files: RunFiles, part: str) -> _Logged | None:
    table = files.read(part, ("leg", "epoch", "number"))
    if not len(table):
        return None
    leg, epoch, number = (table[name].to_numpy() for name in ("leg", "epoch", "number"))
    last = np.lexsort((number, epoch, leg))[-1]
    here = (leg == leg[last]) & (epoch == epoch[last])
    end = Mark(int(leg[last]), int(epoch[last]), int(number[last]) + 1)
    return _Logged(end, frozenset(np.unique(number[here]).tolist()))


def _end(mark: Mark | None) -> str:
    return "its beginning" if mark is None else f"epoch {mark.epoch:,}, batch {mark.batch - 1:,}"

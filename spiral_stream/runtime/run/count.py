"""Count a whole epoch: at once where that is quick, else with an executor, in cooperation with other processes."""

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from spiral_stream.catalog.registry import Registry
from spiral_stream.derived.work.executors import Builders, Threads
from spiral_stream.display.progress import Report, working
from spiral_stream.plan.nodes import Deliver
from spiral_stream.planner.state.decisions import Decisions
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.runtime.forming.batches import FormedBatches
from spiral_stream.runtime.forming.chapter import Chapter
from spiral_stream.runtime.forming.counting import Chapters, Counted, Work, count_chapters
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.threads import ThreadShare

_THREADS: Final = 2  # forming holds the interpreter most of the time: a third thread gains nothing


def count_epoch(
    opening: Opening,
    run_seed: int,
    epoch: int,
    builders: Callable[[], Builders] | None = None,
    report: Report | None = None,
) -> int:
    """Return the batches of a whole epoch over all ranks, before the tail rule.

    Args:
        opening: what the stream has open.
        run_seed: the seed of everything random.
        epoch: the epoch whose order is drawn.
        builders: makes the executor; None takes threads of this process, and none where counting is quick.
        report: called with the progress; None shows it on a terminal.

    Raises:
        CacheError: the folder of the formation index cannot be written.
    """
    formed = opening.formed(run_seed)
    if formed is None or not formed.unknown(epoch):
        return opening.read(run_seed).numbering.store.total(epoch)
    what = f"counting epoch {epoch} (Ctrl-C keeps what is counted)"
    with working(what, "samples", report=report) as tell:
        if builders is None and formed.limits.is_quick(epoch):
            return formed.total(epoch)
        with (builders or _threads(formed.forming))() as pool:
            if isinstance(pool, Threads):
                return _together(formed, epoch, pool, count_here, formed.forming.for_counting(), tell)
            given = pickle.dumps(opening.given(run_seed))
            return _together(formed, epoch, pool, count_elsewhere, given, tell)


def _together(batches: FormedBatches, epoch: int, pool: Builders, work: Work, given: Any, report: Report) -> int:
    """Return the batches of a whole epoch, before the tail rule; shares the work with whoever counts it too.

    Args:
        batches: those of the stream.
        epoch: the epoch.
        pool: where chapters are formed.
        work: forms one; called with ``given``, the epoch, the lane and the chapter.
        given: what ``work`` forms chapters from.
        report: called with the samples that are counted, of how many.
    """
    chapters = batches.chapters
    with chapters.lock:
        known, total = chapters.known_of(epoch), chapters.lanes_of(epoch).total
        missing = [at for at in chapters.missing_of(epoch) if at[0] != known.end and at[1] < known.of_positions(at[0])]

    def tell() -> None:
        report(max(0, total - known.uncounted * batches.forming.span), total)

    count_chapters(Chapters(known, epoch, missing, chapters.lock), lambda: pool, work, given, tell)
    return batches.total(epoch)  # forms what those chapters left


def _threads(forming: Forming) -> Callable[[], Builders]:
    """Threads of this process; one alone where a function of the user's decides, which need not be thread-safe."""
    return lambda: Threads(1 if forming.calls_functions else _THREADS)


def count_here(forming: Forming, epoch: int, lane: int, chapter: int) -> Counted:
    """Return how many batches a chapter has, and what it could not fill."""
    formed = Chapter(forming, epoch, lane, chapter)
    return formed.finish(), formed.rest() if forming.leaves else None


def count_elsewhere(given: bytes, epoch: int, lane: int, chapter: int) -> Counted:
    """Return how many batches a chapter has, and what it could not fill, in another process.

    Args:
        given: what `Opening.given` returned, pickled.
        epoch: the epoch.
        lane: the lane.
        chapter: the chapter.
    """
    return count_here(_opened(given), epoch, lane, chapter)


@lru_cache(1)
def _opened(given: bytes) -> Forming:
    """Open the plan once per process: that takes longer than a chapter."""
    plan: Deliver
    catalog: Registry
    rebase: Rebase | None
    decisions: Decisions
    plan, catalog, rebase, decisions, run_seed = pickle.loads(given)  # noqa: S301  written by the process that gives the work
    opening = Opening(plan, catalog, Metrics(), rebase, threads=ThreadShare(1), decisions=decisions)
    formed = opening.formed(run_seed)
    assert formed is not None
    return formed.forming.for_counting()

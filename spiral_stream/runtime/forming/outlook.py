"""What it costs to form the chapters before a batch: a warning, and a progress bar.

Which batch a chapter begins with is known once the chapters before it are formed. That takes milliseconds or hours. The
first windows show which: their CPU time is measured, and a chapter has 64 windows. If much work is left, a warning says
how much. On a terminal, a bar shows the progress once a second has passed.

The CPU time is that of the whole process, and a single window may pay for something that happens once, such as opening a
file. Two measurements must therefore agree before anybody is warned, each over at least 4 windows and 0.25 CPU s. The
smaller of the two counts.
"""

import threading
from contextlib import ExitStack
from time import monotonic, process_time
from typing import Final, Self, cast, final

from spiral_stream.batching.formation import CHAPTER_WINDOWS
from spiral_stream.display.progress import Teller, working
from spiral_stream.errors import warn
from spiral_stream.threads import OwnThread, ToldLock

MEASURED_CPU_S: Final = 0.25  # the least CPU time that a measurement covers
MEASURED_WINDOWS: Final = 4  # the fewest windows that a measurement covers
WORTH_TELLING_CPU_S: Final = 20.0
BAR_AFTER_S: Final = 1.0


@final
class Outlook:
    """The cost of one request that has to form chapters.

    Args:
        what: the request, as the warning names it.
        span: samples per chapter.
    """

    def __init__(self, what: str, span: int) -> None:
        self._what, self._span = what, span
        self._samples = 0  # in the chapters that were finished for this request
        self._least = max(1, span * MEASURED_WINDOWS // CHAPTER_WINDOWS)
        self._wall_s = monotonic()
        self._from: tuple[float, int] | None = None  # CPU seconds and samples at the end of the first window
        self._part = (0.0, 0)  # the same, where the present measurement begins
        self._rates: list[float] = []  # CPU seconds per sample, by measurement
        self._told = False
        self._stack, self._shown = ExitStack(), cast("Teller | None", None)

    def chapter(self, samples: int) -> None:
        """Note that a chapter of this many samples is finished."""
        self._samples += samples

    def window(self, formed: int, needed: float) -> None:
        """Note that a window is formed.

        Args:
            formed: samples formed so far of the present chapter.
            needed: samples to form in all, from the beginning of the present chapter; may be an estimate that changes
                from window to window.
        """
        done = self._samples + formed
        if self._from is None:  # the first window opens files, so it says nothing about the others
            self._from = self._part = process_time(), done
            return
        now = process_time()
        left = max(0.0, needed - formed) / self._span
        self._measure(now, done)
        if not self._told and left and len(self._rates) > 1:
            each_s = min(self._rates[-2:]) * self._span
            if each_s * left >= WORTH_TELLING_CPU_S:
                self._told = True
                self._warn(left, each_s)
        if monotonic() - self._wall_s >= BAR_AFTER_S and not isinstance(threading.current_thread(), OwnThread):
            each_s = (now - self._from[0]) * self._span / max(1, done - self._from[1])
            self._show(done / self._span, left, each_s)

    def _measure(self, now: float, done: int) -> None:
        """End the present measurement, if it covers enough."""
        cpu_s, samples = now - self._part[0], done - self._part[1]
        if cpu_s >= MEASURED_CPU_S and samples >= self._least:
            self._rates.append(cpu_s / samples)
            self._part = now, done

    def _warn(self, left: float, each_s: float) -> None:
        warn(
            f"{self._what}: about {max(1, round(left)):,} chapters have to be formed for the first time, at {each_s:,.2g} "
            f"CPU s each: {duration(left * each_s)}. Ctrl-C loses nothing: finished chapters stay in the formation index, and "
            "the next call goes on after them. Starting from a state saved near this place costs one chapter"
        )

    def _show(self, formed: float, left: float, each_s: float) -> None:
        if self._shown is None:
            self._shown = self._stack.enter_context(working(self._what, "chapters", after_s=0.0))
        total = formed + left
        words = (
            f"{formed:,.0f} of about {total:,.0f} chapters, {each_s:,.2g} CPU s each, {duration(left * each_s)} left"
        )
        self._shown(round(formed), round(total))
        self._shown.words(f"{words}; Ctrl-C keeps them")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@final
class Request:
    """Holds the lock of the chapters; the outermost of nested requests reports what it costs.

    Args:
        lock: of the chapters.
        requests: the request under way, and those that it makes itself.
        what: the request, as a warning names it.
        span: samples per chapter.
    """

    __slots__ = ("_lock", "_outlook", "_requests")

    def __init__(self, lock: ToldLock, requests: list[Outlook], what: str, span: int) -> None:
        self._lock, self._requests, self._outlook = lock, requests, Outlook(what, span)

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._requests.append(self._outlook)

    def __exit__(self, *_: object) -> None:
        self._requests.pop().__exit__()
        self._lock.__exit__()


def duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"

"""What it costs to form and count chapters, as measured in this process: when to refuse, when to warn, how far it is.

Forming reads lengths and small columns: 0.4 us per sample and 0.5 ms per window, so four million samples in 64 chapters
take two to three seconds and are counted at once. Beyond that, the CPU time that windows took decides, so that a busy machine
refuses no more than an idle one. Where a user's function is called, the time that passed decides: the function may wait
for something.

Which batch a chapter begins with is known once the chapters before it are formed. That takes milliseconds or hours. The
first windows show which: their CPU time is measured, and a chapter has 64 windows. If much work is left, a warning says
how much. On a terminal, a bar shows the progress once a second has passed.

The CPU time is that of the whole process, and a single window may pay for something that happens once, such as opening a
file. Two measurements must therefore agree before a warning is given, each over at least 4 windows and 0.25 CPU s. The
smaller of the two counts.
"""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from time import monotonic, process_time
from typing import Final, NamedTuple, Self, cast, final

from spiral_stream.batching.formation import CHAPTER_WINDOWS
from spiral_stream.display.progress import Teller, working
from spiral_stream.errors import StreamError, warn
from spiral_stream.threads import StreamThread, WatchedLock

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
        self._warned = False
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
        if not self._warned and left and len(self._rates) > 1:
            chapter_s = min(self._rates[-2:]) * self._span
            if chapter_s * left >= WORTH_TELLING_CPU_S:
                self._warned = True
                self._warn(left, chapter_s)
        if monotonic() - self._wall_s >= BAR_AFTER_S and not isinstance(threading.current_thread(), StreamThread):
            chapter_s = (now - self._from[0]) * self._span / max(1, done - self._from[1])
            self._show(done / self._span, left, chapter_s)

    def _measure(self, now: float, done: int) -> None:
        """End the present measurement, if it covers enough."""
        cpu_s, samples = now - self._part[0], done - self._part[1]
        if cpu_s >= MEASURED_CPU_S and samples >= self._least:
            self._rates.append(cpu_s / samples)
            self._part = now, done

    def _warn(self, left: float, chapter_s: float) -> None:
        warn(
            f"{self._what}: about {max(1, round(left)):,} chapters have to be formed for the first time, at {chapter_s:,.2g} "
            f"CPU s each: {duration(left * chapter_s)}. Ctrl-C loses nothing: finished chapters stay in the formation index, and "
            "the next call goes on after them. Starting from a state saved near this place costs one chapter"
        )

    def _show(self, formed: float, left: float, chapter_s: float) -> None:
        if self._shown is None:
            self._shown = self._stack.enter_context(working(self._what, "chapters", after_s=0.0))
        total = formed + left
        words = f"{formed:,.0f} of about {total:,.0f} chapters, {chapter_s:,.2g} CPU s each, {duration(left * chapter_s)} left"
        self._shown(round(formed), round(total))
        self._shown.words = f"{words}; Ctrl-C keeps them"

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

    def __init__(self, lock: WatchedLock, requests: list[Outlook], what: str, span: int) -> None:
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


COUNTED_AT_ONCE: Final = 1 << 22  # samples whose lengths are stored
CHAPTERS_AT_ONCE: Final = 64
QUICK_S: Final = 2.0  # counting that takes no longer is done at once, whatever the samples cost
PROBED_S: Final = 0.1  # the least time that a measurement covers
ENOUGH_S: Final = 1.0  # of measuring
PROBED_WINDOWS: Final = 2  # the fewest windows; the first one opens files


class _Seconds(NamedTuple):
    """A span of time, in CPU seconds of this process and in seconds that passed."""

    cpu: float
    passed_s: float

    @classmethod
    def now(cls) -> "_Seconds":
        return cls(process_time(), monotonic())

    def after(self, other: "_Seconds") -> "_Seconds":
        return _Seconds(self.cpu - other.cpu, self.passed_s - other.passed_s)

    def plus(self, other: "_Seconds") -> "_Seconds":
        return _Seconds(self.cpu + other.cpu, self.passed_s + other.passed_s)

    def of(self, *, passed: bool) -> float:
        """The CPU seconds; with ``passed`` those that passed, if they are more."""
        return max(self) if passed else self.cpu


@final
class CountingCost:
    """Seconds per sample of forming, from the windows formed so far. The first window counts only while it is alone."""

    def __init__(self) -> None:
        self.passed = False  # whether seconds are those that passed; otherwise they are CPU seconds
        self._first: tuple[_Seconds, int] | None = None  # seconds and samples
        self._seconds, self._samples = _Seconds(0.0, 0.0), 0  # of the windows after the first
        self._windows = 0
        self._since = _Seconds(0.0, 0.0)

    def begin(self) -> None:
        """Note that windows are formed from now on."""
        self._since = _Seconds.now()

    def window(self, samples: int) -> None:
        """Note that a window of this many samples is formed; the next one begins now."""
        now = _Seconds.now()
        seconds, self._since = now.after(self._since), now
        self._windows += 1
        if self._first is None:
            self._first = seconds, samples
        else:
            self._seconds, self._samples = self._seconds.plus(seconds), self._samples + samples

    @property
    def measured(self) -> bool:
        """Whether enough windows were formed to say what the others cost."""
        return self._first_s > QUICK_S or (self._windows >= PROBED_WINDOWS and self._later_s >= PROBED_S)

    @property
    def spent_s(self) -> float:
        """Seconds that all windows so far have taken."""
        return self._later_s + self._first_s

    @property
    def per_sample_s(self) -> float | None:
        """Seconds per sample; None before the first window."""
        if self._samples:
            return self._later_s / self._samples
        return None if self._first is None else self._first_s / max(1, self._first[1])

    @property
    def _first_s(self) -> float:
        return self._first[0].of(passed=self.passed) if self._first else 0.0

    @property
    def _later_s(self) -> float:
        return self._seconds.of(passed=self.passed)


def not_counted(
    argument: str, chapters: int, samples: int, cost: CountingCost, computed: Sequence[str], more: Sequence[str]
) -> StreamError:
    """Return the error for a number of batches that is not known.

    Args:
        argument: who asks.
        chapters: how many are not counted.
        samples: of those chapters.
        cost: of one sample.
        computed: what decides who shares a batch and is in no cache.
        more: what would make that known.
    """
    why = f" ({', '.join(computed)} is not known)" if computed else ""
    return StreamError(
        f"{argument}: the number of batches is formed, not counted, and not known yet{why}: "
        f"{_in_words(chapters, samples, cost)}. {_ways_out(computed, more)}; or loop without it"
    )


def behind_uncounted(
    what: str, chapters: int, samples: int, cost: CountingCost, computed: Sequence[str], more: Sequence[str]
) -> StreamError:
    """Return the error for a place that lies behind chapters that nobody counted; arguments as in `not_counted`."""
    why = f" ({', '.join(computed)} is in no cache)" if computed else ""
    return StreamError(
        f"{what}: it is found once the chapters before it are counted{why}: {_in_words(chapters, samples, cost)}. "
        f"{_ways_out(computed, more)}. A stream that has loaded a state saved near this place finds it at once"
    )


def _in_words(chapters: int, samples: int, cost: CountingCost) -> str:
    each = f"about {chapters:,} chapters, about {samples:,} samples"
    if cost.per_sample_s is None:
        return f"{each}; how long that takes is not measured yet"
    chapter_s = cost.per_sample_s * samples / max(1, chapters)
    unit = "s" if cost.passed else "CPU s"
    return f"{each}, {chapter_s:,.2g} {unit} per chapter as measured here: {duration(cost.per_sample_s * samples)}"


def _ways_out(computed: Sequence[str], more: Sequence[str]) -> str:
    first = "".join(f"{each}; " for each in more) if computed else ""
    return (
        f"Count them once: {first}stream.materialize(lengths=True), which several processes share, or stream.count(). The "
        "formation index keeps them"
    )

"""What it costs to count chapters, as measured in this process, and when that is too much to start unasked.

Forming reads lengths and small columns: 0.4 us per sample and 0.5 ms per window, so four million samples in 64 chapters
take two to three seconds and are counted at once. Of more, the CPU time that windows took decides, so that a busy machine
refuses no more than an idle one. Where a function of the user's is called, the time that passed decides: it may wait
for something.
"""

from collections.abc import Sequence
from time import monotonic, process_time
from typing import Final, NamedTuple, final

from spiral_stream.errors import StreamError
from spiral_stream.runtime.forming.outlook import duration

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
    asked: str, chapters: int, samples: int, cost: CountingCost, computed: Sequence[str], more: Sequence[str]
) -> StreamError:
    """Return the error for a number of batches that is not known.

    Args:
        asked: who asks.
        chapters: how many are not counted.
        samples: of those chapters.
        cost: of one sample.
        computed: what decides who shares a batch and is in no cache.
        more: what would make that known.
    """
    why = f" ({', '.join(computed)} is not known)" if computed else ""
    return StreamError(
        f"{asked}: the number of batches is formed, not counted, and not known yet{why}: "
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
    each_s = cost.per_sample_s * samples / max(1, chapters)
    unit = "s" if cost.passed else "CPU s"
    return f"{each}, {each_s:,.2g} {unit} per chapter as measured here: {duration(cost.per_sample_s * samples)}"


def _ways_out(computed: Sequence[str], more: Sequence[str]) -> str:
    first = "".join(f"{each}; " for each in more) if computed else ""
    return (
        f"Count them once: {first}stream.materialize(lengths=True), which several processes share, or stream.count(). The "
        "formation index keeps them"
    )

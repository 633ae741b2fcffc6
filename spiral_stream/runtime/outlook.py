"""What it costs to form the chapters before a batch, said as soon as it can be told.

Nobody knows which batch a chapter begins with before those ahead of it are formed. That is milliseconds or hours, and the
first windows tell which: CPU seconds are measured from the start, and a chapter is 64 windows. A warning says what is
still to come where that is much; a bar shows it on a terminal once a second has passed.
"""

import threading
import warnings
from time import monotonic, process_time
from typing import TYPE_CHECKING, Final, Self, final

from spiral_stream.errors import SpiralWarning
from spiral_stream.threads import OwnThread

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

MEASURED_CPU_S: Final = 0.25  # after so much, what a chapter costs is known well enough
WORTH_TELLING_CPU_S: Final = 20.0
BAR_AFTER_S: Final = 1.0


@final
class Outlook:
    """One request that chapters are formed for.

    Args:
        what: asked for.
        span: samples of a chapter.
    """

    def __init__(self, what: str, span: int) -> None:
        self._what, self._span = what, span
        self._samples = 0  # of the chapters that were formed for it
        self._wall_s = monotonic()
        self._from: tuple[float, int] | None = None  # CPU seconds and samples when the first window was formed
        self._told = False
        self._bar: tuple[Progress, TaskID] | None = None

    def chapter(self, samples: int) -> None:
        """A chapter of so many samples is formed."""
        self._samples += samples

    def window(self, formed: int, needed: float) -> None:
        """A window is formed.

        Args:
            formed: samples of the chapter under way.
            needed: samples from its beginning on, of later chapters too; an estimate may change from window to window.
        """
        done = self._samples + formed
        if self._from is None:  # the first window opens files, which says nothing of the others
            self._from = process_time(), done
            return
        cpu_s, samples = process_time() - self._from[0], done - self._from[1]
        each_s, left = cpu_s * self._span / max(1, samples), max(0.0, needed - formed) / self._span
        if not self._told and cpu_s >= MEASURED_CPU_S and left and each_s * left >= WORTH_TELLING_CPU_S:
            self._told = True
            self._warn(left, each_s)
        if monotonic() - self._wall_s >= BAR_AFTER_S and not isinstance(threading.current_thread(), OwnThread):
            self._show(done / self._span, left, each_s)

    def _warn(self, left: float, each_s: float) -> None:
        warnings.warn(
            f"{self._what}: about {max(1, round(left)):,} chapters have to be formed, which nobody has done before, at "
            f"{each_s:,.2g} CPU s each: {duration(left * each_s)}. Ctrl-C ends this without loss: chapters that are formed stay "
            "in the formation index, and the next call goes on behind them. From a state saved near the place on it costs "
            "one chapter",
            SpiralWarning,
            stacklevel=2,
        )

    def _show(self, formed: float, left: float, each_s: float) -> None:
        self._bar = self._bar or _started(self._what)
        bar, task = self._bar
        total = formed + left
        words = (
            f"{formed:,.0f} of about {total:,.0f} chapters, {each_s:,.2g} CPU s each, {duration(left * each_s)} left"
        )
        bar.update(task, completed=formed, total=total, words=f"{words}; Ctrl-C keeps them")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()


def _started(what: str) -> "tuple[Progress, TaskID]":
    """A bar, which shows nothing where there is no terminal or another display has it."""
    from rich.console import Console
    from rich.errors import LiveError
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, words="")
    try:
        bar.start()
    except LiveError:  # the caller has a display of his own
        bar.disable = True
    return bar, task


def duration(seconds: float) -> str:
    """Seconds in a unit that reads."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"

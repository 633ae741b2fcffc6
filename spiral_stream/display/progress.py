"""When long work shows its progress, and in which words.

``with working("register photos: reading 2,000 footers", "files") as tell`` shows nothing for a second. Then one line appears with
the reason, how much is done if ``tell(done, total)`` said so, and the time. It is drawn on standard error if that is a terminal,
in a notebook below the cell, and nowhere else. Rich's own variables decide otherwise: ``TTY_COMPATIBLE=1`` asks for the line
in a pipe, and ``TTY_COMPATIBLE=0`` switches it off.

Work inside of work adds its reason to the same line. One process shows: rank 0's main process, and of it the thread that began.
"""

import contextvars
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, final

from spiral_stream.threads import StreamThread, joined

SHOWN_AFTER_S: Final = 1.0
EVERY_S: Final = 0.25  # between two drawings
_FORCING: Final = ("TTY_COMPATIBLE", "FORCE_COLOR")  # by which rich's users ask for a terminal where there is none
_STOPPED_AFTER_S: Final = 5.0  # the longest that the end of a work waits for a drawing

T = TypeVar("T")
Report = Callable[[int, int], object]  # is called with how much is done, and of how much


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """What a build has done so far, whoever did it.

    Examples:
        >>> seen = []
        >>> quick = photos.cache(image=spiral.Raw(shorter_side=22)).sample(order=shuffle)
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.RandomResizedCrop(16)])
        >>> with quick.collate(batch_size=8, fields={"image": image}).to_numpy() as stream:
        ...     done = stream.materialize(seen.append)
        >>> seen[-1].shards, done.rows
        (4, 48)
    """

    shards: int = 0
    shards_total: int = 0
    rows: int = 0
    rows_total: int = 0
    refused: int = 0
    payload_bytes: int = 0

    def __add__(self, other: "Progress") -> "Progress":
        """Return what two builds have done together."""
        return Progress(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


def in_rows(report: Callable[[Progress], object] | None) -> Report | None:
    """Return a report that passes what it counts on as the rows of a build's progress."""
    return None if report is None else lambda done, total: report(Progress(rows=done, rows_total=total))


@final
@dataclass(eq=False)
class Teller:
    """One work under way; whoever does it says how far it is."""

    why: str  # what is done now
    unit: str
    total: int | None
    report: Report | None = None  # is called too
    hidden: bool = False
    after_s: float = SHOWN_AFTER_S
    done: int | None = None
    words: str = ""  # in place of the counts
    began: float = field(default_factory=monotonic)

    def __call__(self, done: int, total: int | None = None) -> None:
        """Say how much is done, and of how much if that is known."""
        self.done, self.total = done, self.total if total is None else total
        if self.report is not None:
            self.report(done, self.total or 0)

    def advance(self, more: int) -> None:
        """Say that so much more is done."""
        self((self.done or 0) + more)

    def count(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, and count them."""
        for item in items:
            yield item
            self.advance(1)


class _Screen(Protocol):
    """Where the line is drawn."""

    def draw(self, works: list[Teller]) -> None: ...

    def clear(self) -> None: ...


@final
class _Shown:
    """The works under way in this process, and the thread that draws them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.works: list[Teller] = []
        self.owner: int | None = None  # the thread whose works they are
        self._ended = threading.Event()
        self._drawing: StreamThread | None = None

    def begin(self, work: Teller) -> None:
        self.works.append(work)
        if len(self.works) == 1:
            self._ended = threading.Event()
            # A notebook shows what is drawn below the cell whose context draws it.
            run = contextvars.copy_context().run
            ended = self._ended
            self._drawing = StreamThread(lambda: run(self._draw, ended, work.after_s), "spiral-progress")
            self._drawing.start()

    def end(self, work: Teller) -> None:
        if work not in self.works:  # a forked process left the block that its parent entered
            return
        self.works.remove(work)
        if not self.works and self._drawing is not None:
            self._ended.set()
            joined([self._drawing], _STOPPED_AFTER_S)
            self._drawing, self.owner = None, None

    def _draw(self, ended: threading.Event, after_s: float) -> None:
        if ended.wait(after_s):
            return
        screen = _screen()
        if screen is None:
            return
        try:
            while not ended.is_set():
                works = list(self.works)
                if works and not any(work.hidden for work in works):
                    screen.draw(works)
                ended.wait(EVERY_S)
        finally:
            screen.clear()


_SHOWN: Final = _Shown()
os.register_at_fork(after_in_child=_SHOWN.__init__)  # it has neither the thread that draws, nor whoever held the lock


@contextmanager
def working(
    why: str,
    unit: str = "",
    total: int | None = None,
    *,
    report: Report | None = None,
    hidden: bool = False,
    after_s: float | None = None,
) -> Iterator[Teller]:
    """Show that this work is under way, once it took a second.

    Args:
        why: what is done and to how much, such as ``reading 2,000 footers``.
        unit: what is counted, in the plural.
        total: how much there is; the teller may say it later.
        report: is called with what the teller is. A caller who gives one shows the work himself, unless it is the teller
            of the work outside.
        hidden: show neither this work nor what is inside of it: the caller shows it himself.
        after_s: how long nothing is shown; None: a second.

    Yields:
        what is called with how much is done, and of how much.
    """
    hidden = hidden or not (report is None or isinstance(report, Teller))
    work = Teller(why, unit, total, report, hidden, SHOWN_AFTER_S if after_s is None else after_s)
    if not _begun(work):
        yield work
        return
    try:
        yield work
    finally:
        with _SHOWN.lock:
            _SHOWN.end(work)


def _begun(work: Teller) -> bool:
    """Whether the work belongs on the line, and was put there."""
    if isinstance(threading.current_thread(), StreamThread) or not _wanted():
        return False
    with _SHOWN.lock:
        here = threading.get_ident()
        if _SHOWN.owner not in {None, here}:
            return False
        _SHOWN.owner = here
        _SHOWN.begin(work)
    return True


def _wanted() -> bool:
    """Whether somebody looks; rich decides when the line is drawn."""
    if os.environ.get("RANK", "0") != "0" or multiprocessing.parent_process() is not None:
        return False
    if any(map(os.environ.get, _FORCING)) or _notebook():
        return True
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return False


def _notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _screen() -> _Screen | None:
    """The place to draw, or None where rich finds no terminal or the caller has a display of his own."""
    if _notebook():
        return _Cell()
    from rich.console import Console

    console = Console(stderr=True)
    return _Terminal(console) if console.is_terminal else None


@final
class _Terminal:
    """A line of rich, which goes when the work is done."""

    def __init__(self, console: Any) -> None:
        from rich.errors import LiveError
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        words = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[counts]}", markup=False),
        )
        self._bar = Progress(*words, TimeElapsedColumn(), console=console, transient=True, auto_refresh=False)
        self._task = self._bar.add_task("", total=None, counts="")
        self._started, self._taken = False, LiveError

    def draw(self, works: list[Teller]) -> None:
        last = works[-1]
        self._bar.update(
            self._task, description=_why(works), completed=last.done or 0, total=last.total, counts=_counts(last)
        )
        if not self._started:
            self._started = True
            try:
                self._bar.start()
            except self._taken:  # the caller has a display of his own
                self._bar.disable = True
        self._bar.refresh()

    def clear(self) -> None:
        if self._started:
            self._bar.stop()


@final
class _Cell:
    """A line of text below the cell of a notebook. It needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, works: list[Teller]) -> None:
        words = (_why(works), _counts(works[-1]), f"{monotonic() - works[0].began:,.0f} s")
        self._put(" ".join(filter(None, words)))

    def clear(self) -> None:
        if self._handle is not None:
            self._put("")

    def _put(self, line: str) -> None:
        from IPython import display

        shown = {"text/plain": line}
        if self._handle is None:
            self._handle = display.display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]  # IPython's is not
        else:
            self._handle.update(shown, raw=True)


def _why(works: list[Teller]) -> str:
    return ": ".join(work.why for work in works)


def _counts(work: Teller) -> str:
    if work.words or work.done is None:
        return work.words
    of = "" if work.total is None else f" of {work.total:,}"
    return f"{work.done:,}{of} {work.unit}".rstrip()


def with_bar(
    batches: Iterator[Any], title: str, total: int | None, done: Callable[[], int], console: Any
) -> Iterator[Any]:
    """Yield batches, and show how many of the epoch's steps are done.

    Args:
        batches: of the pass.
        title: before the bar.
        total: steps of the epoch; None if they are not counted.
        done: the steps that are done; asked at the start, so that a resumed bar goes on where the run stands.
        console: of rich, where it is drawn; None takes standard error.
    """
    from rich.console import Console as Standard
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Standard(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done())
        for batch in batches:
            yield batch
            bar.advance(task)

"""Every exception a caller can meet: one class per reaction.

    SpiralError
    |-- PlanError        the plan is not legal: fix the plan
    |   `-- TrustError   a saved plan names code that this process does not trust: import or allow it, if it is yours
    |-- CatalogError     a name, registration or saved stream: fix the catalog
    |-- SourceError      bytes, files or tables cannot be read: fix the data or its path
    |   `-- DataError    the bytes of one sample are wrong: fix it, filter it out, or skip it (``on_error``)
    |-- CacheError       a cache cannot be built or read: see the path it names
    |   `-- DamageError  derived bytes are not what was written: build them again, as the message says
    |-- BindError        a run's bindings do not fit: epoch, rank, world size, device
    |-- ResumeError      a saved state belongs to something else: see the diff
    |-- StreamError      a running stream failed or was used after ``close``
    |-- RunError         what a run records fits no batch of it, or cannot be read or written
    `-- MissingExtraError  a package is not installed: install the extra that the message names

    SpiralWarning        legal, and probably not what was meant

A message says where, what was found, what would be right, and the way out.
Values in it are `shown`, text from elsewhere is `cut`, so that it can be read. Warnings are given by `warn` alone.

A `SourceError` carries the place of the sample it is about. The code that raises it knows only the rows of its own
call; each caller on the way up translates that place to its own rows, with `renumbered`.
"""

import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from traceback import walk_tb
from types import FrameType
from typing import Any, Final, Protocol, TypeVar, final

LIBRARY: Final = __name__.partition(".")[0]
MOST_SHOWN: Final = 200  # characters of one value
_MAY_GO_ON: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR

E = TypeVar("E", bound=BaseException)
S = TypeVar("S", bound="SpiralError")


class SpiralError(Exception):
    """Anything this library raises on purpose.

    Examples:
        >>> try:
        ...     catalog.table("fotos")
        ... except spiral.SpiralError as error:
        ...     print(type(error).__name__)
        CatalogError
    """


class PlanError(SpiralError):
    """The plan is not legal: the message names the verb and the way out.

    Examples:
        >>> photos.filter(col("wdth") > 512)
        Traceback (most recent call last):
            ...
        spiral_stream.errors.PlanError: filter: expression: 'wdth' is not a column. Did you mean 'width'?
            There are photo_id, image, label, width, score, caption, taken, meta, boxes, kinds, points,
            camera, storage_shard
    """


class TrustError(PlanError):
    """A saved plan names code that this process does not trust: the message names the module and what would allow it.

    Examples:
        >>> catalog.save_stream("trusted", plan.to_numpy())
        >>> try:
        ...     stream = catalog.open_stream("trusted")
        ... except spiral.errors.TrustError as error:
        ...     print(f"name the module in trust=: {error}")
    """


class CatalogError(SpiralError):
    """A relation or stream name is unknown, taken, or registered wrongly.

    Examples:
        >>> catalog.table("fotos")
        Traceback (most recent call last):
            ...
        spiral_stream.errors.CatalogError: relation 'fotos' is not in catalog
            .../catalog; did you mean photos? Register it first
    """


class SourceError(SpiralError):
    """A source could not be opened, listed, scanned or fetched from.

    Args:
        message: where, what was found, what would be right, and the way out.
        row: place of the sample among the rows of the call that failed, from 0; None where it is not known.
        sample: number of the sample in its chapter, where a formation raises; None elsewhere.
        samples: the sample itself (`runtime.columns.samples.Samples`), where its place will mean nothing to the caller.

    The arguments are attributes, and ``place`` is one: of a message that names the sample, its place among the samples of
    the batch, else None. All but ``samples``, which is an address in one process, are pickled.

    Examples:
        >>> entry = catalog.register("nothing", spiral.Parquet("nothing/*.parquet"), identity="id")
        Traceback (most recent call last):
            ...
        spiral_stream.errors.SourceError: register 'nothing': Parquet: there is none at
            .../nothing/*.parquet; ... Correct the path
    """

    def __init__(
        self, message: str = "", *, row: int | None = None, sample: int | None = None, samples: object = None
    ) -> None:
        super().__init__(message)
        self.row = row
        self.sample = sample
        self.samples = samples
        self.place: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, {**self.__dict__, "samples": None})


class DataError(SourceError):
    """The bytes of one sample are not what the column declares.

    It depends on the bytes alone, so it repeats on every run, and a declared policy may skip the sample. An I/O fault is
    never a DataError.

    Examples:
        >>> bad = pa.table({"id": [0], "image": [b"no JPEG"]})
        >>> entry = catalog.register("bad", spiral.Arrow(bad), identity="id", semantic={"image": "image/jpeg-ref"})
        >>> sampled = catalog.table("bad").sample(order=shuffle)
        >>> sampled.collate(batch_size=1, fields={"x": spiral.Stack("image", decode="jpeg")}).to_numpy()[0]
        Traceback (most recent call last):
            ...
        spiral_stream.errors.DataError: bad: sample id=0: jpeg: the data (7 bytes) start with something
            else, not JPEG's ff d8 ff or the signature of another image format. Check the column or the
            file. Mend it, or leave it out with .filter(col("id") != 0) before sample, or go on without such
            samples: collate(..., on_error="skip"), which takes the run's saved states
    """


class _Rows(Protocol):
    """Rows by place: a range, or an array of integers."""

    def __getitem__(self, place: int, /) -> Any: ...


@final
class _Renumbered:
    """A class, not a generator: entering and leaving one costs 0.2 us instead of 1."""

    __slots__ = ("_rows",)

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SourceError) and error.row is not None:
            error.row = int(self._rows[error.row])


def renumbered(rows: _Rows) -> _Renumbered:
    """Translate the ``row`` of a `SourceError` that passes through a ``with`` block; other errors pass unchanged.

    Args:
        rows: shape [N]: the caller's row of each of the N rows that the block works on.

    Example:
        A call for rows 40 to 49 that fails on the fourth of them raises ``row=43``:

        ```python
        with renumbered(range(40, 50)):
            feed.render(...)
        ```
    """
    return _Renumbered(rows)


def _again(kind: type[S], args: tuple[Any, ...], facts: dict[str, Any]) -> S:
    """Build an error again without its ``__init__``, whatever that asks for."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


def anew(error: S, **facts: Any) -> S:
    """Return a copy of an error: to keep as a value, or to raise what is kept as one.

    An error that was raised leads to each function that it came through. One that is kept by such a function, or by what
    the function holds, is in a circle that only the garbage collector opens; its copy was never raised.

    Args:
        error: one of ours.
        facts: attributes that the copy has in place of the error's own.
    """
    return _again(type(error), error.args, {**error.__dict__, **facts})


def is_failure(error: BaseException) -> bool:
    """Whether a library failed: an exception, or a panic of Rust, which is none. Else somebody ends the program, as Ctrl-C does.

    Dagster ends a step with an error of its own kind, and pytest a test that takes too long: they go where they are going.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def without_values(error: E) -> E:
    """Clear the local variables of this library's functions that an error came through, and return it. Its lines stay.

    Whoever keeps an error keeps what those functions worked on: mapped files, batches, and often the keeper itself, a
    circle that only the garbage collector opens. So it is called where an error is kept to be raised later, and where
    an error leaves a stream. Functions of others, a user's above all, keep their variables for a debugger.
    """
    errors: list[BaseException | None] = [error]
    seen = set[int]()
    while errors:
        each = errors.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        errors += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            errors += each.exceptions
        for frame, _ in walk_tb(each.__traceback__):
            _clear(frame, seen)
    return error


def _clear(frame: FrameType | None, seen: set[int]) -> None:
    """Clear a function that has ended and its callers, which its frame keeps."""
    while frame is not None and id(frame) not in seen:
        seen.add(id(frame))
        ours = str(frame.f_globals.get("__name__")).partition(".")[0] == LIBRARY
        if ours and not frame.f_code.co_flags & _MAY_GO_ON:
            with suppress(RuntimeError):  # it is still running
                frame.clear()
        frame = frame.f_back


class CacheError(SpiralError):
    """A cache could not be written, committed or opened.

    Examples:
        >>> try:
        ...     found = catalog.caches()
        ... except spiral.errors.CacheError as error:
        ...     print(f"the cache cannot be used: {error}")
    """


class DamageError(CacheError):
    """A derived file (a cache, a selection, an index) is not what was written, or could not be read to its end.

    Nothing is lost, since it is derived: the message says who builds it again.

    Examples:
        >>> try:
        ...     checked = stream.verify()
        ... except spiral.errors.DamageError as error:
        ...     print(f"build it again: {error}")
    """


class BindError(SpiralError):
    """A binding is missing, out of range, or asks for a device that is not there.

    Examples:
        >>> stream.bind(data_parallel_rank=2, data_parallel_world_size=2)
        Traceback (most recent call last):
            ...
        spiral_stream.errors.BindError: bind: data_parallel_rank=2 of data_parallel_world_size=2; ranks
            count from 0. Bind both, with a rank in [0, 2)
    """


class ResumeError(SpiralError):
    """A saved state does not belong to this plan, data version or run seed.

    Examples:
        >>> other = samples.collate(batch_size=16, fields={"id": spiral.List("photo_id")}).to_numpy()
        >>> other.load_state_dict(stream.state_dict())
        Traceback (most recent call last):
            ...
        spiral_stream.errors.ResumeError: resume: saved by plan fa55de0b, this is plan b6c67cb4; they differ
            at collate.batch_size (8 -> 16); collate.fields.width (Stack -> null). Restore the old plan, or
            start a new epoch
    """


class StreamError(SpiralError):
    """A stage of a running stream failed, or the stream is closed.

    Examples:
        >>> stream.take(-1)
        Traceback (most recent call last):
            ...
        spiral_stream.errors.StreamError: take: count=-1. Give how many batches, a whole number from 0 up
    """


class RunError(SpiralError):
    """What a run was given to record fits no batch of it, or its history or records cannot be read or written.

    Examples:
        >>> catalog.run("run-of-nobody")
        Traceback (most recent call last):
            ...
        spiral_stream.errors.RunError: run 'run-of-nobody' is not in catalog ...
    """


class MissingExtraError(SpiralError, ImportError):
    """What is asked for needs a package that is not installed: the message says which extra brings it.

    Examples:
        >>> try:
        ...     stream = plan.to_torch()
        ... except spiral.errors.MissingExtraError as error:
        ...     print(f"install it, or use to_numpy(): {error}")
    """


class SpiralWarning(UserWarning):
    """Something is legal, and probably not what was meant. The message says what happens, and the way out.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as warned:
        ...     warnings.simplefilter("always")
        ...     undone = photos.sort("width").sample(order=shuffle)
        >>> warned[0].category.__name__
        'SpiralWarning'
    """


def warn(message: str, kind: type[Warning] = SpiralWarning) -> None:
    """Warn of something; the warning names the line that called the library, the first frame outside it.

    Frames of the standard library are passed over: `contextlib` and `threading` call us, and are no caller. Where nobody
    called, as on a thread of our own, the warning names the line that warns.
    """
    here = sys._getframe(1)  # noqa: SLF001  the standard library looks for callers in this way, too
    frame: FrameType | None = here
    while frame is not None and (is_ours(frame) or _package(frame) in sys.stdlib_module_names):
        frame = frame.f_back
    blamed = frame or here
    seen = blamed.f_globals.setdefault("__warningregistry__", {})
    module = blamed.f_globals.get("__name__")
    warnings.warn_explicit(message, kind, blamed.f_code.co_filename, blamed.f_lineno, module, seen)


def is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of this library."""
    return _package(frame) == LIBRARY


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def listed(names: Sequence[str], most: int, between: str = ", ", more: str = " and") -> str:
    """Return the first ``most`` of some texts as one, and how many more there are."""
    left = f"{more} {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + left


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """Return ``repr(value)`` for a message, cut to ``most`` characters; a cut text says how much there is."""
    given = value
    if isinstance(value, str | bytes | list | tuple):
        value = value[: most + 1]  # writing out gigabytes would take as long as reading them
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a class of the user's may fail to describe itself
        text = f"<a {type(value).__name__}>"
    if len(text) <= most:
        return text
    size = len(given) if isinstance(given, str | bytes | list | tuple) else len(text)
    what = "bytes" if isinstance(given, bytes) else "items" if isinstance(given, list | tuple) else "characters"
    return f"{text[:most]}... ({size:,} {what})"


def cut(text: str, most: int = MOST_SHOWN) -> str:
    """Text from elsewhere (a path, another library's error) on one line, printable; the middle of a long one is left out."""
    line = _one_line(text[: 4 * most])
    if len(text) <= 4 * most and len(line) <= most:
        return line
    return f"{line[: 3 * most // 4]} ... {_one_line(text[-most:])[-most // 4 :]}"


def _one_line(text: str) -> str:
    line = text if text.isprintable() else " ".join(text.split())  # the blanks of a path are its own
    return line if line.isprintable() else repr(line)[1:-1]

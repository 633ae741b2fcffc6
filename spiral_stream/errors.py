"""Every exception a caller can meet: one class per reaction.

    SpiralError
    |-- PlanError        the plan cannot be what it says: fix the plan
    |   `-- TrustError   a saved plan names code that this process does not trust: import or allow it, if it is yours
    |-- CatalogError     a name, registration or saved stream: fix the catalog
    |-- SourceError      bytes, files or tables cannot be read as asked: fix the data or its path
    |   `-- DataError    one sample's own bytes are wrong: fix, filter out or (where allowed) skip it
    |-- CacheError       a cache cannot be built or read: see the path it names
    |   `-- DamageError  derived bytes are not what was written: they are built again as the message says
    |-- BindError        a run's bindings do not fit: epoch, rank, world size, device
    |-- ResumeError      a saved state belongs to something else: see the diff
    |-- StreamError      a running stream failed or was used after ``close``
    `-- MissingExtraError  a package is not installed: install the extra that the message names

    SpiralWarning        legal, and probably not what was meant

A message says where, what was found, what would be right, and the way out.
Values in it are `shown`, text from elsewhere is `cut`, so that it can be read.
"""

from typing import Final

MOST_SHOWN: Final = 200  # characters of one value


class SpiralError(Exception):
    """Anything this library raises on purpose."""


class PlanError(SpiralError):
    """The plan is not legal: the message names the verb and the way out."""


class TrustError(PlanError):
    """A saved plan names code that this process does not trust: the message names the module and what would allow it."""


class CatalogError(SpiralError):
    """A relation or stream name is unknown, taken, or registered wrongly."""


class SourceError(SpiralError):
    """A source could not be opened, listed, scanned or fetched from."""


class DataError(SourceError):
    """The bytes of one sample are not what the column declares.

    A function of the bytes alone, so it repeats on every run and may be skipped
    by a declared policy; an I/O fault never is a DataError.
    """


class CacheError(SpiralError):
    """A cache could not be written, committed or opened."""


class DamageError(CacheError):
    """A derived file (a cache, a selection, an index) is not what was written, or could not be read to its end.

    Nothing is lost, since it is derived: the message says who builds it again.
    """


class BindError(SpiralError):
    """A binding is missing, out of range, or asks for a device that is not there."""


class ResumeError(SpiralError):
    """A saved state does not belong to this plan, data version or run seed."""


class StreamError(SpiralError):
    """A stage of a running stream failed, or the stream is closed."""


class MissingExtraError(SpiralError, ImportError):
    """What is asked for needs a package that is not installed: the message says which extra brings it."""


class SpiralWarning(UserWarning):
    """What is asked for is legal, and probably not what was meant: the message says what happens, and the way out."""


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """A value as a message shows it: ``repr``, of at most so many characters; what was left out is said."""
    whole = value
    if isinstance(value, str | bytes | list | tuple):
        value = value[: most + 1]  # writing out gigabytes would take as long as reading them
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a class of the user's may fail to describe itself
        text = f"<a {type(value).__name__}>"
    if len(text) <= most:
        return text
    size = len(whole) if isinstance(whole, str | bytes | list | tuple) else len(text)
    what = "bytes" if isinstance(whole, bytes) else "items" if isinstance(whole, list | tuple) else "characters"
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

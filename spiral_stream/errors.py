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
    `-- StreamError      a running stream failed or was used after ``close``

    SpiralWarning        legal, and probably not what was meant

A message says where, what was found, what would be right, and the way out.
"""


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


class SpiralWarning(UserWarning):
    """What is asked for is legal, and probably not what was meant: the message says what happens, and the way out."""

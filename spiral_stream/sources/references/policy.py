"""Which files the references of a relation may name, and whether those are still the registered ones.

Every read of referenced bytes goes through here: what a reference says becomes a path, a file is opened only if it is
a regular one, only below the base where references are confined to it, and only as it was when it was registered.

**Confined** means: the file itself, after ``..`` and every symbolic link, lies in the base folder or below it. A link
inside the base that points outside is outside. It is asked of the opened file, so nobody can exchange a link in between.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

from spiral_stream.errors import DataError, SourceError, cut
from spiral_stream.integrity.regular_files import need_file, open_file
from spiral_stream.sources.files.paths import is_remote, local_path
from spiral_stream.sources.pins import Pinned
from spiral_stream.storage.faults import AwayError
from spiral_stream.storage.file_object import look
from spiral_stream.storage.local import stat_of
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import is_object, joined, printable, unknown


class ReferenceDataError(DataError):
    """A reference whose own value is wrong; ``row`` is its place in the call."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message, row=row)


class ReferenceSourceError(SourceError):
    """A reference whose file cannot be read; ``row`` is its place in the call."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message, row=row)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Where references start, how far they go, and what pins their files."""

    folder: str  # that relative references start from
    confined: bool = False  # whether a file outside the folder is refused
    pins: Pinned | None = None  # None: what was registered before there were pins, or never
    _real: str = field(init=False, default="")  # the folder without links, asked once
    is_remote: bool = field(init=False, default=False)  # whether relative references name objects of a store

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_remote", is_object(self.folder))
        if self.confined:
            object.__setattr__(self, "_real", os.path.realpath(self.folder))

    def path_of(self, uri: str, row: int) -> str:
        """Return the path that a reference names.

        Raises:
            ReferenceDataError: it holds a NUL.
            ReferenceSourceError: it is a URI that is not read here.
        """
        if "\0" in uri:
            msg = f"reference {cut(uri)} holds a NUL character, which no path has. Correct it, or filter the row out"
            raise ReferenceDataError(row, msg)
        if "://" not in uri and uri[:1] != "~":
            return os.path.join(self.folder, uri)  # noqa: PTH118
        if is_object(uri):  # only who reads files comes here
            msg = f"{cut(printable(uri))} is an object of a store, and this reads files of this machine only. Copy it"
            raise ReferenceSourceError(row, msg)
        if is_remote(uri):
            raise ReferenceSourceError(row, f"{cut(printable(uri))} {unknown(uri)}")
        try:
            return os.path.join(self.folder, local_path(uri))  # noqa: PTH118
        except ValueError as error:
            raise ReferenceSourceError(row, f"{cut(uri)} {error}") from error

    def object_of(self, uri: str, row: int) -> str | None:
        """Return the URI of the object that a reference names; None where it names a file of this machine.

        Raises:
            ReferenceDataError: it holds a NUL.
            ReferenceSourceError: it may not be read.
        """
        remote = "://" in uri and is_remote(uri)
        if not (is_object(uri) if remote else self.is_remote and not uri.startswith(("/", "~", "file://"))):
            return None
        if "\0" in uri:
            msg = f"reference {cut(uri)} holds a NUL character, which no URI has. Correct it, or filter the row out"
            raise ReferenceDataError(row, msg)
        try:
            named = uri if remote else joined(self.folder, uri)
            below = not self.confined or (
                self.is_remote and f"{joined(named, '')}/".startswith(f"{joined(self.folder, '')}/")
            )
        except SourceError as error:
            raise ReferenceSourceError(row, str(error)) from None
        if not below:
            msg = (
                f"{cut(printable(named))} lies outside {cut(self.folder)}, and the relation's references were registered as "
                "files below that base. Correct the reference, or register the source with allow_outside=True if you trust it"
            )
            raise ReferenceSourceError(row, msg)
        return named

    def pinned(self, uri: str) -> ObjectStat | None:
        """Return what an object is to be like, as it was registered; None where nothing says."""
        return None if self.pins is None else self.pins.object_of(uri)

    def stat(self, uri: str, row: int) -> tuple[str, ObjectStat]:
        """Return the path that a reference names, and what is there; opens nothing.

        Raises:
            ReferenceDataError: see `path_of`.
            ReferenceSourceError: nothing is there that may be read, or it changed since it was registered.
        """
        if (named := self.object_of(uri, row)) is not None:
            try:
                facts = look(named)
            except AwayError:
                raise
            except SourceError as error:
                raise ReferenceSourceError(row, str(error)) from None
            self.need_pinned(uri, printable(named), facts, row)
            return printable(named), facts
        path = self.path_of(uri, row)
        try:
            found = os.stat(path)  # noqa: PTH116
            need_file(path, found)
        except (OSError, ValueError) as error:
            raise unreadable(row, path, error) from error
        facts = stat_of(found)
        if self.confined:
            self._need_inside(os.path.realpath(path), path, row)
        self.need_pinned(uri, path, facts, row)
        return path, facts

    def open(self, uri: str, row: int) -> tuple[int, str, os.stat_result]:
        """Open the file that a reference names: its descriptor, its path, and what it is like. The caller closes it.

        Raises:
            ReferenceDataError: see `path_of`.
            ReferenceSourceError: it cannot be opened, may not be read, or changed since it was registered.
        """
        path = self.path_of(uri, row)
        try:
            handle, facts = open_file(path)
        except (OSError, ValueError) as error:
            raise unreadable(row, path, error) from error
        try:
            if self.confined:
                self._need_inside(_real(handle, path), path, row)
            self._need(uri, path, row, facts.st_size, facts.st_mtime_ns, facts.st_ino)
        except BaseException:
            os.close(handle)
            raise
        return handle, path, facts

    def _need_inside(self, real: str, path: str, row: int) -> None:
        if real.startswith(self._real.rstrip(os.sep) + os.sep):
            return
        to = "" if real == path else f" (which is {cut(real)})"
        msg = (
            f"{cut(path)}{to} lies outside {cut(self.folder)}, and the relation's references were registered as files "
            "below that base. Correct the reference, or register the source with allow_outside=True if you trust it"
        )
        raise ReferenceSourceError(row, msg)

    def need_pinned(self, uri: str, path: str, facts: ObjectStat, row: int) -> None:
        """Refuse a file or an object that is not what was registered.

        Args:
            uri: the reference.
            path: that it names, for messages.
            facts: what is there.
            row: of the reference.

        Raises:
            ReferenceSourceError: it changed.
        """
        self._need(uri, path, row, facts.size, facts.mark, facts.inode and facts.inode[1], facts.etag)

    def _need(
        self, uri: str, path: str, row: int, size: int, mark: int, inode: int | None, etag: str | None = None
    ) -> None:
        fault = None if self.pins is None else self.pins.fault(uri, size, mark, inode, etag)
        if fault is not None:
            raise ReferenceSourceError(row, f"{cut(path)} {fault}")


def reach_of(base: Reach | str) -> Reach:
    """Return a reach; a folder alone confines and pins nothing."""
    return Reach(base) if isinstance(base, str) else base


def unreadable(row: int, path: str, error: OSError | ValueError) -> ReferenceSourceError:
    """Return the error for a file that cannot be opened or read."""
    reason = getattr(error, "strerror", None) or str(error)
    return ReferenceSourceError(row, f"{cut(path)}: {reason}. Restore the file, or filter its rows out")


def _real(handle: int, path: str) -> str:
    """The path of an open file, without links."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115  a Path of it costs as much as the call
    return os.path.realpath(path)

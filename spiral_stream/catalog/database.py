"""The catalog's tables: rows by name in a LanceDB database, one writer at a time.

Such a database is a folder of Lance tables. They are read and written with Lance itself,
which costs an eighth of LanceDB's import; LanceDB opens the folder as one of its own.

Each row carries a digest of itself, so that damage, or a change from outside, is
found when the row is used. Tables made before there were digests are read as they
are; the next change writes them again, with digests.

Every change makes a version, which keeps its files. Now and then a writer tidies up: rows come together in one
fragment, and versions go that are older than an hour, so that whoever reads one meanwhile can go on.
"""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, final

import pyarrow as pa

from spiral_stream.catalog.lock import locked
from spiral_stream.errors import CatalogError, SpiralError, cut, is_failure, shown
from spiral_stream.integrity.locks import LONG_PAUSES_S, Wait
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.schema import unreadable

T = TypeVar("T")

READABLE_FOR: Final = timedelta(hours=1)  # a version that may be read still
TIDY_EVERY: Final = 64  # versions; tidying up takes as long as two changes
_STEPS: Final = 2  # versions that one change makes at most
_LAST_VERSION: Final = 2**64 - 1  # Lance names manifests by what is left to it, or by the version
_DIGEST: Final = "digest"
_DEADLINE_S: Final = 3.0  # of a commit that other writers' overtake
_RUST_LOCATION: Final = re.compile(r",? ?/\S+\.rs:\d+:\d+")  # where in its own code a library failed
_NO_ROWS: Final = (
    "Invalid user input",
    "LanceError(Schema)",
    "LanceError(Arrow)",
)  # what Lance says of rows it cannot keep
_REFUSED: Final = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "read-only file system",
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "disk quota exceeded",
}


@final
@dataclass(frozen=True, slots=True)
class CatalogTable:
    """One table: its name, and the columns of its rows, of which the first is their name."""

    name: str
    schema: pa.Schema

    def sealed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with its digest."""
        return {**row, _DIGEST: self._digest(row)}

    def is_sound(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is as it was written; one from before there were digests may be."""
        return _DIGEST not in row or row[_DIGEST] == self._digest(row)

    def _digest(self, row: Mapping[str, Any]) -> str:
        facts = {name: row[name] for name in self.schema.names}
        return content_key("catalog-row", self.name, json.dumps(facts, sort_keys=True, default=plain))


class _Versions(NamedTuple):
    """The versions of a table: equal ones are of one table, and have the same rows."""

    inode: int
    modified_ns: int
    names: frozenset[str]  # of all files there

    @property
    def any(self) -> bool:
        """Whether there is a version."""
        return any(each.endswith(".manifest") for each in self.names)


@final
class Database:
    """The tables of one catalog folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[
            str, tuple[_Versions, Mapping[str, Mapping[str, Any]]]
        ] = {}  # name -> rows as they were last read

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def rows(self, kind: CatalogTable) -> Mapping[str, Mapping[str, Any]]:
        """Return all rows of a table by name, with the digests it has; none where it was never completed.

        A table that has no new version since the last call is not read again: a plan of a thousand streams asks a
        thousand times.

        Raises:
            CatalogError: the table cannot be read.
        """
        with trying(self._root, f"read its {kind.name}"):
            versions = self._versions(kind.name)
        if not versions.any:
            return {}
        known = self._known.get(kind.name)
        if known is None or known[0] != versions:
            known = versions, self._rows(kind)
            self._known[kind.name] = known
        return known[1]

    def _rows(self, kind: CatalogTable) -> Mapping[str, Mapping[str, Any]]:
        with trying(self._root, f"read its {kind.name}"):
            table = self._read(kind.name)
            names = [*kind.schema.names, *([_DIGEST] if _DIGEST in table.schema.names else [])]
            if missing := [name for name in kind.schema.names if name not in table.schema.names]:
                msg = f"it has no column {missing[0]!r}"
                raise ValueError(msg)
            found: list[dict[str, Any]] = table.select(names).to_pylist()
            name_column = kind.schema.names[0]
            named = {row[name_column]: MappingProxyType(row) for row in found if isinstance(row[name_column], str)}
            return MappingProxyType(named)

    def put(self, kind: CatalogTable, row: Mapping[str, Any], *, replace: bool = True) -> bool:
        """Write a row, in place of the one of its name if asked; whether it was written.

        Raises:
            CatalogError: the folder cannot be written, or another process holds it for too long.
        """
        with self._writing(f"keep {row['name']!r}"):
            rows = pa.Table.from_pylist([kind.sealed(row)], schema=_with_digest(kind))
            if not self._is_complete(kind.name):
                shutil.rmtree(self.table_folder(kind.name), ignore_errors=True)
                self._create(kind.name, rows)
                return True
            before = self.rows(kind)
            if row["name"] in before and not replace:
                return False
            opened = self._with_digests(kind)
            versions, version = self._versions(kind.name), opened.version
            if row["name"] in before:
                change = opened.merge_insert("name").when_matched_update_all().when_not_matched_insert_all()
                self._retried(lambda: change.execute(rows))
            else:  # a new name: nothing to merge with
                self._retried(lambda: self._create(kind.name, rows, "append"))
            after = self._versions(kind.name)
            if len(after.names - versions.names) == 1:  # else a writer came between whom the lock does not reach
                changed = {**before, row["name"]: MappingProxyType(rows.to_pylist()[0])}
                self._known[kind.name] = after, MappingProxyType(changed)
            if version % TIDY_EVERY == 0:
                with suppress(Exception):  # the row is kept; the next one tidies up
                    self._tidy(kind.name)
        return True

    def remove(self, kind: CatalogTable, name: str) -> None:
        """Delete the row of this name.

        Raises:
            CatalogError: the folder cannot be written, or another process holds it for too long.
        """
        with self._writing(f"drop {name!r}"):
            self._retried(lambda: self._opened(kind.name).delete(_named(name)))

    def tidy(self, name: str) -> bool:
        """Bring the rows of a table together, and remove versions that are older than `READABLE_FOR`; whether there is one.

        Safe at any time: writers wait, and readers have the version that they began with.

        Raises:
            CatalogError: the folder cannot be written, or another process holds it for too long.
        """
        with self._writing(f"tidy up its {name}"):
            if not self._is_complete(name):
                return False
            self._tidy(name)
        return True

    def old_bytes(self, name: str) -> int:
        """Return how many bytes `tidy` would remove: of files that only old versions of a table need.

        Raises:
            CatalogError: the table cannot be read.
        """
        if not self._is_complete(name):
            return 0
        with trying(self._root, f"read its {name}"):
            newest, before = self._opened(name), time.time() - READABLE_FOR.total_seconds()
            readable = [each["version"] for each in newest.versions() if each["timestamp"].timestamp() >= before]
            needed, first = {"latest_version_hint.json"}, min([*readable, newest.version])
            for version in (*readable, newest.version):
                needed |= {f"{version}.manifest", f"{_LAST_VERSION - version}.manifest"}
            for each in [newest, *(newest.checkout_version(version) for version in readable)]:
                for fragment in each.get_fragments():
                    needed.update(Path(file.path).name for file in fragment.data_files())
                    needed.update(Path(path).name for path in [fragment.deletion_file()] if path)
            return sum(
                facts.st_size
                for file in self.table_folder(name).rglob("*.*")
                if (facts := file.stat()).st_mtime < before and not _is_needed(file, needed, first)
            )

    def copy(self, name: str, rows: pa.Table) -> None:
        """Keep rows as a table, unless it is there; one that was never completed is begun again.

        Raises:
            CatalogError: the rows cannot be kept, or the folder cannot be written.
        """
        if wrong := [column for column in rows.column_names if unreadable(column)]:
            msg = (
                f"Lance cannot keep these rows: it reads no column by the name {shown(wrong[0])}. Rename or cast the column that "
                "is named here"
            )
            raise CatalogError(msg)
        with self._writing("keep rows from memory"):
            if self._is_complete(name):
                return
            shutil.rmtree(self.table_folder(name), ignore_errors=True)
            try:
                self._create(name, rows)
            except (ValueError, RuntimeError, OSError) as error:
                if isinstance(error, OSError) and not any(text in str(error) for text in _NO_ROWS):
                    raise
                msg = f"Lance cannot keep these rows: {_reason(error)}. Rename or cast the column that is named here"
                raise CatalogError(msg) from error

    def forget(self, name: str) -> None:
        """Delete a table of copied rows."""
        shutil.rmtree(self.table_folder(name), ignore_errors=True)

    def table_folder(self, name: str) -> Path:
        """Return the folder of a table."""
        return self._root / f"{name}.lance"

    @contextmanager
    def _writing(self, doing: str) -> Iterator[None]:
        """One writer at a time.

        Raises:
            CatalogError: the folder cannot be written, or another process holds it for too long.
        """
        with trying(self._root, doing), locked(self._root / ".lock", f"catalog {self._root}"):
            yield

    def _opened(self, name: str) -> Any:
        """The newest version of a table, as a Lance data set."""
        import lance

        return lance.dataset(str(self.table_folder(name)))

    def _read(self, name: str) -> pa.Table:
        """The rows of the newest version; of one after it where a reader slept until its version was removed."""
        version = 0
        while True:
            try:
                opened = self._opened(name)
                return opened.to_table()
            except (OSError, RuntimeError, ValueError):
                before, version = version, self._opened(name).version
                if version == before:
                    raise

    def _tidy(self, name: str) -> None:
        """Tidy up; the caller is the only writer."""
        opened = self._opened(name)
        self._retried(opened.optimize.compact_files)
        self._opened(name).cleanup_old_versions(READABLE_FOR)

    def _create(self, name: str, rows: pa.Table, mode: str = "create") -> Any:
        """Write a table's first version, or one that takes the place of all its rows."""
        import lance

        return lance.write_dataset(rows, str(self.table_folder(name)), mode=mode)

    def _is_complete(self, name: str) -> bool:
        """Whether a table's creation was committed; a process that was killed leaves one without a version."""
        return self._versions(name).any

    def _versions(self, name: str) -> _Versions:
        """Which versions of a table are there, and in which state of their folder."""
        folder = self.table_folder(name) / "_versions"
        try:
            facts = folder.stat()
            names = frozenset(os.listdir(folder))  # noqa: PTH208  3 times as fast
        except (FileNotFoundError, NotADirectoryError):
            return _Versions(0, 0, frozenset())
        return _Versions(facts.st_ino, facts.st_mtime_ns, names)

    def _with_digests(self, kind: CatalogTable) -> Any:
        """The table, brought to its present columns."""
        opened = self._opened(kind.name)
        if _DIGEST in opened.schema.names:
            return opened
        rows = [kind.sealed(row) for row in self.rows(kind).values()]
        return self._create(kind.name, pa.Table.from_pylist(rows, schema=_with_digest(kind)), "overwrite")

    def _retried(self, change: Callable[[], T]) -> T:
        """Commit a change; where the file lock does not reach every writer, a commit may be overtaken."""
        wait = Wait(_DEADLINE_S, LONG_PAUSES_S)
        while True:
            try:
                return change()
            except (OSError, RuntimeError, ValueError) as error:
                if "conflict" not in str(error).lower() or not wait.pause():
                    raise


@contextmanager
def trying(root: Path, doing: str) -> Iterator[None]:
    """Name what goes wrong with the files of a catalog's folder.

    Raises:
        CatalogError: the operating system refuses, or a file is damaged; says the way out.
    """
    try:
        yield
    except (SpiralError, MemoryError):
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = _reason(error)
        known = _REFUSED.get(getattr(error, "errno", None) or 0)
        if known or any(text in reason.lower() for text in _REFUSED.values()):
            msg = (
                f"catalog {root}: cannot {doing}: {known or reason}. Make the folder writable and free space on its disk, "
                "or use a catalog in another folder: connect(folder) or $SPIRAL_CATALOG"
            )
        elif isinstance(error, OSError):
            path = error.filename or root
            msg = f"catalog {root}: cannot {doing}: {path}: {reason}. Mend that, or use a catalog in another folder"
        else:
            msg = (
                f"catalog {root}: cannot {doing}: {reason}. If its files are damaged, restore the folder from a copy, "
                f"or delete {root}/relations.lance (and streams.lance) and register again"
            )
        raise CatalogError(msg) from error


def _is_needed(file: Path, needed: set[str], first: int) -> bool:
    """Whether a version from ``first`` on needs a file. A transaction is called by a version shortly before its own."""
    if file.parent.name == "_transactions":
        return int(file.name.split("-")[0]) >= first - _STEPS
    return file.name in needed


def _with_digest(kind: CatalogTable) -> pa.Schema:
    return kind.schema.append(pa.field(_DIGEST, pa.utf8()))


def _named(name: str) -> str:
    quoted = name.replace("'", "''")
    return f"name = '{quoted}'"


def plain(value: Any) -> Any:
    """Return a value of a row as JSON has it."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, datetime) else value


def _reason(error: BaseException) -> str:
    """A library's error text without the place in its code."""
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return cut(_RUST_LOCATION.sub("", text)) or type(error).__name__

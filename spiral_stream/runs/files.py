"""Where the history and the records of a run lie: files that never change, in the catalog's folder or on its store.

A change of the run is a small JSON note; what was logged is a part, a Parquet file under its own seal. Both are called by the
attempt, the rank and a number, so no two processes write the same one. How far an attempt has come is the one note that is
written anew. On a store a record names each file, and comes after it.

Nothing here is derived: it cannot be made again, and nobody collects it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.records import need_name
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.shared.mirror import home_of
from spiral_stream.catalog.shared.records import LostError, Record
from spiral_stream.errors import CacheError, DamageError, RunError, SpiralError, cut
from spiral_stream.integrity.publish import publish_file, write_file
from spiral_stream.integrity.seal import content, read_json, sealed_json
from spiral_stream.keeping.in_use import FILE as LOCKS
from spiral_stream.keeping.in_use import Reading, reading, unread

_FOLDER: Final = "runs"
_NOTES: Final = "history"
_PARTS: Final = "records"
_CLAIMS: Final = "claims"
_TABLE: Final = "table"
_BRANCHES: Final = "branches"
_BUILT: Final = "built"
_REACHED: Final = "reached"
_DIGITS: Final = 6
_AS_IT_IS: Final = ("row", "number", "batch", "step", "index")  # ascending or scattered integers, cheap as differences


class UnwrittenError(RunError):
    """The catalog cannot be written, now or at all."""


@final
class RunFiles:
    """The files of one run.

    Args:
        catalog: that has the run.
        name: of the run.

    Raises:
        CatalogError: the name is not legal.
    """

    def __init__(self, catalog: Registry, name: str) -> None:
        need_name("run", name)
        self.name, self._root, self._home = name, catalog.root, home_of(catalog.root)
        self.folder = catalog.root / _FOLDER / name

    def make(self) -> None:
        """Make the run, unless it is there.

        Raises:
            RunError: the catalog cannot be written.
        """
        with writing(self.folder):
            for below in (_NOTES, _PARTS):
                (self.folder / below).mkdir(parents=True, exist_ok=True)
            self._home.keep(_FOLDER, self.name, {"created": datetime.now(UTC).isoformat()}, absent=True)

    def need(self) -> None:
        """Refuse a run that is not there.

        Raises:
            RunError: there is none of this name; lists near matches.
        """
        names = run_names(self._root)
        if self.name not in names:
            msg = f"run {self.name!r} is not in catalog {self._home.uri}; {suggestions(self.name, names)} "
            msg += f'catalog.run("{self.name}", stream) begins it'
            raise RunError(msg)

    def drop(self) -> None:
        """Remove the run with all that it recorded, its table and those of its branches.

        Raises:
            RunError: the catalog cannot be written.
        """
        with writing(self.folder):
            self._home.remove(_FOLDER, self.name)
            built = f"{_FOLDER}/{self.name}/{_BUILT}"
            for kind in (*map(self._kind, (_NOTES, _PARTS, _CLAIMS)), built, f"{built}/{_BRANCHES}"):
                for each in self._home.records(kind) or {}:
                    self._home.remove(kind, each)
            self._home.remove_below(f"{_FOLDER}/{self.name}")

    # ---- notes

    def claim(self, attempt: str, writer: str) -> None:
        """Take an attempt for one process: what it writes is called by both.

        Args:
            attempt: its name.
            writer: as `writer_of` calls the process.

        Raises:
            CatalogError: the name is not legal.
            RunError: another process has it, or had it; or the catalog cannot be written.
        """
        need_name("attempt", attempt)
        name = f"{attempt}.{writer}"
        path = self.folder / _CLAIMS / name
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            said = {"at": datetime.now(UTC).isoformat()}
            taken = not self._home.keep(self._kind(_CLAIMS), name, said, absent=True)
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                taken = True
            if taken:
                msg = (
                    f"run {self.name!r}: rank {rank_of(name + '.')} of attempt {attempt!r} records already, or did: its records "
                    "are not written over. Give each start of the training an attempt= of its own, and each rank its number: "
                    "bind. Of ranks that are given the same batches one records, or each its shard= of the tokens"
                )
                raise RunError(msg)

    def note(self, attempt: str, number: int, value: Mapping[str, Any]) -> None:
        """Write a change of the run.

        Raises:
            RunError: the catalog cannot be written.
        """
        name = f"{attempt}.{writer_of(0)}.{number:0{_DIGITS}d}"
        path = self.folder / _NOTES / f"{name}.json"
        with self._changing(path):
            self._home.keep(self._kind(_NOTES), name, {"value": dict(value)})
            write_file(path, sealed_json({"value": dict(value)}))

    def claimed(self) -> set[str]:
        """Return the attempts that were begun.

        Raises:
            CatalogError: the store failed.
        """
        return {name.rpartition(".")[0] for name in self._stored(_CLAIMS, "")}

    def recording(self, attempt: str) -> Reading:
        """Say that this process records an attempt, until what is returned is released or the process ends."""
        return reading(self.folder, attempt)

    def is_recorded(self, attempt: str) -> bool:
        """Return whether a process of this folder's machines records an attempt now; False where that is not known."""
        if not (self.folder / LOCKS).exists():
            return False
        with unread(self.folder, attempt) as nobody:
            return not nobody

    def reached(self, attempt: str, value: Mapping[str, Any]) -> None:
        """Write how far an attempt has come, in place of what was said before.

        Raises:
            RunError: the catalog cannot be written.
        """
        path = self.folder / _NOTES / f"{attempt}.{_REACHED}.json"
        with self._changing(path):
            write_file(path, sealed_json({"value": dict(value)}))
            self._home.keep(self._kind(_NOTES), f"{attempt}.{_REACHED}", {"value": dict(value)})

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return all notes by name, in order.

        Raises:
            RunError: one is not what was written, or is not there.
            CatalogError: the store failed.
        """
        found = {name: self._read_note(name, record) for name, record in self._stored(_NOTES, ".json").items()}
        self._need_all([name for name in found if not name.endswith(f".{_REACHED}")], _NOTES)
        return found

    def _read_note(self, name: str, record: Record | None) -> dict[str, Any]:
        if record is None:
            with self._reading():
                return dict(read_json(self.folder / _NOTES / f"{name}.json")["value"])
        if record.row is None:
            msg = f"{self._home.uri}: the record of change {name} is damaged"
            raise self._damaged(msg)
        return dict(record.row["value"])

    # ---- parts

    def part(self, attempt: str, writer: str, number: int, table: pa.Table) -> None:
        """Write a part of what a process logged.

        Raises:
            RunError: the catalog cannot be written.
        """
        name = f"{attempt}.{writer}.{number:0{_DIGITS}d}"
        path = self.folder / _PARTS / f"{name}.part"
        plain = [each for each in table.column_names if each in _AS_IT_IS]
        values = [
            each.name for each in table.schema if pa.types.is_floating(each.type)
        ]  # a dictionary of them costs, and is larger
        with self._changing(path):
            with publish_file(path) as draft:
                pq.write_table(
                    table,
                    draft,
                    compression="zstd",
                    use_dictionary=[each for each in table.column_names if each not in (*plain, *values)],
                    column_encoding=dict.fromkeys(plain, "DELTA_BINARY_PACKED"),
                    write_statistics=False,
                )
            self._home.keep(self._kind(_PARTS), name, {"rows": table.num_rows}, [path])

    def parts(self, attempt: str) -> list[str]:
        """Return the names of the parts of an attempt, of all ranks, in order.

        Raises:
            RunError: one is not there.
            CatalogError: the store failed.
        """
        stored = self._stored(_PARTS, ".part", f"{attempt}.[0-9]*")
        found = [name for name in stored if _attempt_of(name) == attempt]
        for name in found:
            if (record := stored[name]) is not None:
                self._bring(name, record)
        self._need_all(found, _PARTS)
        return found

    def last_parts(self, attempt: str) -> list[str]:
        """Return the last part of each process that has written any.

        Raises:
            RunError: one is not there.
            CatalogError: the store failed.
        """
        stored = self._stored(_PARTS, ".part", f"{attempt}.[0-9]*")
        found = {name.rpartition(".")[0]: name for name in stored if _attempt_of(name) == attempt}
        for name in found.values():
            if (record := stored[name]) is not None:
                self._bring(name, record)
        return list(found.values())

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a part, or columns of it.

        Raises:
            RunError: it is not what was written.
        """
        data = self._content(name)
        return pq.read_table(pa.BufferReader(pa.py_buffer(data)), columns=None if columns is None else list(columns))

    def read_schema(self, name: str) -> pa.Schema:
        """Return the columns of a part.

        Raises:
            RunError: it is not what was written.
        """
        data = self._content(name)
        return pq.read_schema(pa.BufferReader(pa.py_buffer(data)))

    def _stored(self, below: str, ending: str, pattern: str = "*") -> dict[str, Record | None]:
        """What is stored of a kind, by name and in order, with its record; the files of a folder have none."""
        records = self._home.records(self._kind(below))
        if records is not None:
            return dict(sorted(records.items()))
        paths = (self.folder / below).glob(f"{pattern}{ending}")
        return dict.fromkeys(sorted(path.name.removesuffix(ending) for path in paths if not path.name.startswith(".")))

    @contextmanager
    def _changing(self, path: Path) -> Iterator[None]:
        if not (self.folder / _NOTES).is_dir():
            msg = f"run {self.name!r} was dropped while it recorded: {self.folder} is not there. catalog.run begins it anew"
            raise UnwrittenError(msg)
        with writing(path):
            yield

    def _content(self, name: str) -> memoryview:
        """The bytes of a part. What a store has is fetched again if the copy here is damaged."""
        path = self.folder / _PARTS / f"{name}.part"
        with self._reading():
            try:
                return content(path)
            except DamageError:
                record = self._home.record(self._kind(_PARTS), name)
                if record is None:
                    raise
                path.unlink(missing_ok=True)
                self._bring(name, record)
                return content(path)

    def _bring(self, name: str, record: Record) -> None:
        if record.row is None:
            msg = f"{self._home.uri}: the record of part {name} is damaged"
            raise self._damaged(msg)
        with self._reading():
            self._home.bring(record, f"{_FOLDER}/{self.name}/{_PARTS}/")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (DamageError, LostError) as error:
            raise self._damaged(str(error).partition("; it would")[0]) from error

    def _damaged(self, found: str) -> RunError:
        msg = f"run {self.name!r}: {found}. It cannot be made again: restore it, or drop the run, catalog.drop_run({self.name!r})"
        return RunError(msg)

    def _need_all(self, names: Sequence[str], below: str) -> None:
        """Refuse a run of which files are lost: each rank numbers what it writes, from 0 on."""
        last: dict[str, int] = {}
        for name in sorted(names):
            of, _, number = name.rpartition(".")
            last[of] = last.get(of, -1) + 1
            if last[of] != int(number):
                msg = f"{self.folder / below / of}.{last[of]:0{_DIGITS}d} is not there"
                raise self._damaged(msg)

    # ---- the table

    def table(self, attempt: str | None) -> "TableFiles":
        """Return where the table of a branch lies; None takes the trained one."""
        run, name = f"{_FOLDER}/{self.name}", _TABLE if attempt is None else attempt
        at = name if attempt is None else f"{_BRANCHES}/{attempt}"
        kind = f"{run}/{_BUILT}" if attempt is None else f"{run}/{_BUILT}/{_BRANCHES}"
        return TableFiles(f"{self._home.uri}/{run}/{at}.lance", f"/{run}/{at}.lance", self._home, kind, name)

    @contextmanager
    def one_builder(self) -> Iterator[None]:
        """Hold the turn among this machine's processes that build the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".table-lock", f"run {self.name!r}"):
            yield

    def _kind(self, below: str) -> str:
        return f"{_FOLDER}-{below}/{self.name}"


@final
@dataclass(frozen=True, slots=True)
class TableFiles:
    """Where the table of a branch lies, and what was written into it.

    Attributes:
        uri: of the Lance dataset, in the catalog's folder or on its store.
        ending: of it, wherever the catalog lies.
    """

    uri: str
    ending: str
    _home: Any
    _kind: str
    _name: str

    def built(self) -> dict[str, Any]:
        """Return the steps in which it was built, as `keep_built` kept them; none where nobody knows.

        Raises:
            CatalogError: the store failed.
        """
        found: dict[str, Any] | None = None
        with suppress(CacheError, LostError):  # not there, or damaged: then it is built anew
            found = self._home.value(self._kind, self._name)
        return found or {"steps": []}

    def remove(self) -> None:
        """Remove the dataset, of which parts are damaged: it is made again from what was recorded.

        Raises:
            OSError: the folder cannot be written.
            CatalogError: the store cannot.
        """
        self._home.remove_below(self.ending.removeprefix("/"))

    def keep_built(self, value: Mapping[str, Any]) -> None:
        """Write down the steps in which it was built, and the one that comes.

        Raises:
            OSError: the folder cannot be written.
            CatalogError: the store cannot.
        """
        self._home.keep_value(self._kind, self._name, dict(value))


def writer_of(rank: int, shard: tuple[int, int] | None = None) -> str:
    """Return how a process is called in the names of what it writes: by its rank, and which shard of how many it has."""
    return f"{rank:05d}" if shard is None else f"{rank:05d}-{shard[0]:03d}of{shard[1]:03d}"


def rank_of(part: str) -> int:
    """Return the rank that wrote a part."""
    return int(part.rsplit(".", 2)[1].partition("-")[0])


def shard_of(part: str) -> tuple[int, int] | None:
    """Return which shard of how many a part has; None if it has whole batches."""
    number, _, count = part.rsplit(".", 2)[1].partition("-")[2].partition("of")
    return (int(number), int(count)) if count else None


def _attempt_of(part: str) -> str:
    return part.rsplit(".", 2)[0]


def run_names(root: Path) -> list[str]:
    """Return the names of the runs of a catalog, sorted."""
    records = home_of(root).records(_FOLDER)
    if records is not None:
        return sorted(records)
    return sorted(path.parent.name for path in (root / _FOLDER).glob(f"*/{_NOTES}"))


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Say what cannot be written.

    Raises:
        UnwrittenError: the catalog cannot be written.
    """
    try:
        yield
    except RunError:
        raise
    except (SpiralError, OSError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        msg = f"run: {cut(str(path))} cannot be written: {said}. Free space, or open the run in a catalog that can be written; "
        msg += 'with on_error="warn" the training goes on meanwhile'
        raise UnwrittenError(msg) from error

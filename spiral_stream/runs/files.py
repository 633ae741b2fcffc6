"""Where the history and the records of a run lie: files that never change, in the catalog's folder or on its store.

A change of the run is a small JSON note; what was logged is a part, a Parquet file under its own seal. Both are called by the
attempt, the rank and a number, so no two processes write the same one. How far an attempt has come is the one note that is
written anew. On a store a record names each file, and comes after it.

Nothing here is derived: it cannot be made again, and nobody collects it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.records import need_name
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.shared.mirror import home_of
from spiral_stream.errors import RunError, SpiralError, cut
from spiral_stream.integrity.publish import publish_file, take_out, write_file
from spiral_stream.integrity.seal import content, read_json, sealed_json

_FOLDER: Final = "runs"
_NOTES: Final = "history"
_PARTS: Final = "records"
_REACHED: Final = "reached"
_DIGITS: Final = 6
_AS_IT_IS: Final = ("row", "number", "batch", "step", "index")  # ascending or scattered integers, cheap as differences


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
        with _writing(self.folder):
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
        """Remove the run with all that it recorded.

        Raises:
            RunError: the catalog cannot be written.
        """
        with _writing(self.folder):
            self._home.remove(_FOLDER, self.name)
            for below in (_NOTES, _PARTS):
                for each in self._home.records(self._kind(below)) or {}:
                    self._home.remove(self._kind(below), each)
            take_out(self.folder)

    # ---- notes

    def note(self, attempt: str, rank: int, number: int, value: Mapping[str, Any]) -> None:
        """Write a change of the run.

        Raises:
            RunError: the catalog cannot be written, or the note is there already.
        """
        name = f"{attempt}.{rank:05d}.{number:0{_DIGITS}d}"
        path = self.folder / _NOTES / f"{name}.json"
        with _writing(path):
            if path.exists() or not self._home.keep(self._kind(_NOTES), name, {"value": dict(value)}, absent=True):
                msg = f"run {self.name!r}: attempt {attempt} has change {number} of rank {rank} already: another process records "
                msg += "under the same name. Give each start of the training an attempt= of its own"
                raise RunError(msg)
            write_file(path, sealed_json({"value": dict(value)}))

    def reached(self, attempt: str, value: Mapping[str, Any]) -> None:
        """Write how far an attempt has come, in place of what was said before.

        Raises:
            RunError: the catalog cannot be written.
        """
        path = self.folder / _NOTES / f"{attempt}.{_REACHED}.json"
        with _writing(path):
            write_file(path, sealed_json({"value": dict(value)}))
            self._home.keep(self._kind(_NOTES), f"{attempt}.{_REACHED}", {"value": dict(value)})

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return all notes by name, in order.

        Raises:
            DamageError: one is not what was written.
            CatalogError: the store failed.
        """
        records = self._home.records(self._kind(_NOTES))
        if records is None:
            paths = sorted((self.folder / _NOTES).glob("*.json"))
            return {path.stem: read_json(path)["value"] for path in paths if not path.name.startswith(".")}
        lost = next((name for name, each in records.items() if each.row is None), None)
        if lost is not None:
            msg = f"run {self.name!r}: {self._home.place(self._kind(_NOTES), lost)} is damaged. Restore that object"
            raise RunError(msg)
        return {name: dict(each.row["value"]) for name, each in sorted(records.items()) if each.row is not None}

    # ---- parts

    def part(self, attempt: str, rank: int, number: int, table: pa.Table) -> None:
        """Write a part of what a rank logged.

        Raises:
            RunError: the catalog cannot be written.
        """
        name = f"{attempt}.{rank:05d}.{number:0{_DIGITS}d}"
        path = self.folder / _PARTS / f"{name}.part"
        plain = [each for each in table.column_names if each in _AS_IT_IS]
        with _writing(path):
            with publish_file(path) as draft:
                pq.write_table(
                    table,
                    draft,
                    compression="zstd",
                    use_dictionary=[each for each in table.column_names if each not in plain],
                    column_encoding=dict.fromkeys(plain, "DELTA_BINARY_PACKED"),
                    write_statistics=False,
                )
            self._home.keep(self._kind(_PARTS), name, {"rows": table.num_rows}, [path])

    def parts(self, attempt: str) -> list[str]:
        """Return the names of the parts of an attempt, of all ranks, in order.

        Raises:
            CatalogError: the store failed, or a part that it had is gone.
        """
        kind = self._kind(_PARTS)
        records = self._home.records(kind)
        if records is not None:
            for name, record in records.items():
                if name.startswith(f"{attempt}."):
                    self._home.bring(record, f"{_FOLDER}/{self.name}/{_PARTS}/")
        found = (self.folder / _PARTS).glob(f"{attempt}.[0-9]*.part")
        return sorted(path.stem for path in found if _attempt_of(path.stem) == attempt)

    def read(self, name: str) -> pa.Table:
        """Return a part.

        Raises:
            DamageError: it is not what was written.
        """
        data = content(self.folder / _PARTS / f"{name}.part")
        return pq.read_table(pa.BufferReader(pa.py_buffer(data)))

    def read_schema(self, name: str) -> pa.Schema:
        """Return the columns of a part.

        Raises:
            DamageError: it is not what was written.
        """
        data = content(self.folder / _PARTS / f"{name}.part")
        return pq.read_schema(pa.BufferReader(pa.py_buffer(data)))

    def _kind(self, below: str) -> str:
        return f"{_FOLDER}-{below}/{self.name}"


def rank_of(part: str) -> int:
    """Return the rank that wrote a part or a note."""
    return int(part.rsplit(".", 2)[1])


def _attempt_of(part: str) -> str:
    return part.rsplit(".", 2)[0]


def run_names(root: Path) -> list[str]:
    """Return the names of the runs of a catalog, sorted."""
    records = home_of(root).records(_FOLDER)
    if records is not None:
        return sorted(records)
    return sorted(path.parent.name for path in (root / _FOLDER).glob(f"*/{_NOTES}"))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except RunError:
        raise
    except (SpiralError, OSError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        msg = f"run: {cut(str(path))} cannot be written: {said}. Free space, or open the run in a catalog that can be written"
        raise RunError(msg) from error

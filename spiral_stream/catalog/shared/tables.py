"""The catalog's rows on an object store, one record each, with the interface of `database.Database`.

Values are kept as JSON, with the digest that a row of a table has. Rows from memory are a Lance dataset of the mirror: the
first who keeps them on the store wins, and others take that dataset, because its file names are part of its content keys.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa

from spiral_stream.catalog.database import CatalogTable, Database, plain
from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.shared.mirror import FolderCatalog
from spiral_stream.catalog.shared.records import LostError, Record, SharedCatalog
from spiral_stream.errors import CatalogError
from spiral_stream.integrity.publish import new_draft, sweep_drafts

TABLES: Final = "rows"  # kind of the records that name the files of rows from memory
TAKEN: Final = "taken"  # file in the folder of such rows: they are those of the store


@final
class SharedRows:
    """The rows of one catalog on a store."""

    def __init__(self, shared: SharedCatalog) -> None:
        self._shared = shared
        self._local = Database(shared.root)

    def __getstate__(self) -> tuple[str, Path]:
        return self._shared.uri, self._shared.root

    def __setstate__(self, state: tuple[str, Path]) -> None:
        self._shared = SharedCatalog(*state)
        self._local = Database(self._shared.root)

    def rows(self, kind: CatalogTable) -> Mapping[str, Mapping[str, Any]]:
        """Return all rows of a kind, by name.

        Raises:
            CatalogError: the store failed.
        """
        return {row["name"]: row for row in (_row(kind, each) for each in self._shared.records(kind.name).values())}

    def put(self, kind: CatalogTable, row: Mapping[str, Any], *, replace: bool = True) -> bool:
        """Write a row, in place of the one of its name if asked; whether it was written.

        Raises:
            CatalogError: the store failed, or may not be written.
        """
        values = {name: plain(value) for name, value in kind.sealed(row).items()}
        return self._shared.keep(kind.name, str(row["name"]), values, absent=not replace)

    def remove(self, kind: CatalogTable, name: str) -> None:
        """Delete the row of this name.

        Raises:
            CatalogError: the store failed, or may not be written.
        """
        self._shared.remove(kind.name, name)

    def copy(self, name: str, rows: pa.Table) -> None:
        """Keep rows as a table; if another machine has kept them, take its table, unless the store has lost it.

        Raises:
            CatalogError: the rows cannot be kept, or the store failed.
        """
        is_lost = False
        try:
            if self.bring(name):
                return
        except LostError:
            is_lost = True
        self._local.copy(name, rows)
        folder = self.table_folder(name)
        if self._shared.keep(TABLES, name, {}, files_of_table(folder), absent=not is_lost, again=is_lost):
            (folder / TAKEN).touch()
        elif not self.bring(name):
            msg = (
                f"catalog {self._shared.uri}: the rows of {name} were removed while they were kept. Register them again"
            )
            raise CatalogError(msg)

    def bring(self, name: str) -> bool:
        """Have the rows that the store keeps under this name here; whether it keeps any.

        Raises:
            CatalogError: the store failed, or a file is damaged.
        """
        folder = self.table_folder(name)
        if self._shared.has_all(folder / TAKEN):
            return True
        if (record := self._shared.record(TABLES, name)) is not None:
            take_table(self._shared, record, folder)
        return record is not None

    def forget(self, name: str) -> None:
        """Delete nothing: another machine may be registering the same rows."""

    def table_folder(self, name: str) -> Path:
        """Return the folder of a table of copied rows."""
        return self._local.table_folder(name)

    def tidy(self, name: str) -> bool:  # noqa: ARG002  the face of a database
        """Do nothing: there are no versions."""
        return False

    def old_bytes(self, name: str) -> int:  # noqa: ARG002  the face of a database
        """Return 0: there are no versions."""
        return 0


def files_of_table(folder: Path) -> list[Path]:
    """Return the files of a table of copied rows."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != TAKEN]


def take_table(home: SharedCatalog | FolderCatalog, record: Record, folder: Path) -> None:
    """Fetch rows from memory, in place of what a registration that lost, or was killed, left in their folder.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    sweep_drafts(folder.parent, folder.name)
    work, held = new_draft(folder, Path.mkdir)
    try:
        (work / folder.name).mkdir()
        home.bring(record, f"{folder.name}/", to=work)
        (work / folder.name / TAKEN).touch()
        with locked(home.root / ".lock", f"catalog {home.uri}"):
            if not home.has_all(folder / TAKEN):
                shutil.rmtree(folder, ignore_errors=True)
                (work / folder.name).replace(folder)
    finally:
        held.release()
        shutil.rmtree(work, ignore_errors=True)


def _row(kind: CatalogTable, record: Record) -> dict[str, Any]:
    """The row of a record; one whose digest is none where something of it is not what was written."""
    with suppress(KeyError, TypeError, ValueError):
        values = dict(record.row or {})
        if values["name"] == record.name:
            return {"digest": values["digest"]} | {
                each.name: _typed(values[each.name], each.type) for each in kind.schema
            }
    return {each.name: None for each in kind.schema} | {"name": record.name, "digest": "damaged"}


def _typed(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_binary(kind):
        return bytes.fromhex(value)
    return datetime.fromisoformat(value) if pa.types.is_timestamp(kind) else value

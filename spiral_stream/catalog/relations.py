"""Which relations there are: look them up and drop them. What `register` writes of one is in `registering.register`."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from spiral_stream.catalog.database import Database
from spiral_stream.catalog.holding import unheld
from spiral_stream.catalog.imports.run import forget
from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.records import RELATIONS, entry_of
from spiral_stream.catalog.relation.entry import STORAGE_SHARD, Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.on_store import bring, bring_former, bring_rows
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.relation.row_identity import is_made
from spiral_stream.catalog.shared.mirror import location_of
from spiral_stream.catalog.shared.tables import SharedRows
from spiral_stream.catalog.vector_indexes import drop_indexes
from spiral_stream.errors import CatalogError, SpiralError, shown
from spiral_stream.integrity.one_look import written_at
from spiral_stream.sources.internal.former import FormerRows
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.serialize import classes_of, is_of_library
from spiral_stream.sources.source import Source, Unit


@final
class Relations:
    """The relations of one catalog folder."""

    def __init__(self, root: Path, database: Database | SharedRows) -> None:
        self._root, self._database = root, database
        self._known: tuple[Any, dict[str, Entry]] = (
            {},
            {},
        )  # entries, and the rows of the catalog that they were read from

    def __getstate__(self) -> dict[str, Any]:
        """Another process needs the classes of sources of a user's own: a catalog's text alone imports nothing."""
        classes: tuple[type[Source], ...] = ()
        with suppress(SpiralError):  # raised when a relation is asked for
            classes = classes_of(str(row["source"]) for row in self._rows().values())
        return {**self.__dict__, "_own": classes, "_known": ({}, {})}

    def entry(self, name: str) -> Entry:
        """Return the registered relation of this name.

        Raises:
            CatalogError: there is none; lists near matches.
        """
        return self.entries([name])[name]

    def entries(self, names: Iterable[str] | None = None) -> dict[str, Entry]:
        """Return the registered relations of these names, all of one moment: the catalog is read once.

        Args:
            names: None returns all that there are at that moment.

        Raises:
            CatalogError: there is none of a name; lists near matches.
        """
        rows, found = self._rows(), {}
        for name in sorted(rows) if names is None else names:
            if name not in rows:
                near = suggestions(str(name), rows)
                msg = f"relation {shown(name)} is not in catalog {location_of(self._root)}; {near} Register it first"
                raise CatalogError(msg)
            found[name] = bring(self._read(rows, name))
        return found

    def _read(self, rows: Mapping[str, Any], name: str) -> Entry:
        """The relation in a row, which is read once as long as the catalog has no new version."""
        of, known = self._known
        if of is not rows:
            known = {}
            self._known = rows, known
        if name in known:
            return known[name]
        entry = entry_of(self._root, rows[name])
        if is_of_library(entry.source):
            known[name] = entry
        return entry

    def former(self, entry: Entry, data_version: str) -> Entry:
        """Return a relation as it was at an earlier data version: its shards are known, its rows cannot be read.

        Args:
            entry: the relation as it is now, which is returned if it has that version and its source still holds it.
            data_version: one that it had in this catalog.

        Raises:
            CatalogError: its shard table of that version is not kept.
        """
        if entry.data_version == data_version and _is_there(entry):
            return entry
        bring_former(self._root, data_version)
        for path in sorted(manifests_of(self._root).glob("*.arrow"), key=written_at, reverse=True):
            with suppress(CatalogError):  # a damaged one is of no use here
                manifest = Manifest.load(path, path.stem)
                if manifest.data_version == data_version:
                    return _former(entry, path.name, manifest)
        msg = (
            f"{entry.name}: its shard table of data version {data_version[:8]} is not in catalog {location_of(self._root)}, so "
            "which rows were delivered is not known. Use the catalog that the run used, or start a new epoch on the new data"
        )
        raise CatalogError(msg)

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of every relation that can be read, by name."""
        found = {}
        for name, row in self._rows().items():
            with suppress(CatalogError):  # raised when the relation is asked for by name
                found[name] = entry_of(self._root, row).schema
        return found

    def names(self) -> list[str]:
        """Return the names of all relations, sorted."""
        return sorted(self._rows())

    def drop(self, name: str) -> None:
        """Forget a relation; its source's files stay, rows copied from memory and indexes of vectors go.

        Raises:
            CatalogError: there is none of this name.
        """
        rows = self._rows()
        if name not in rows:
            self.entry(name)
        self._database.remove(RELATIONS, name)
        drop_indexes(self._root, name)
        with suppress(CatalogError):  # a damaged row names no rows to delete
            source = entry_of(self._root, rows[name]).source
            if isinstance(source, ImportedRows) or (
                isinstance(source, Lance) and Path(source.uri).parent == self._root
            ):
                self.remove_unnamed(Path(source.uri))

    def remove_unnamed(self, folder: Path) -> bool:
        """Remove rows that the catalog keeps, unless a relation has them or is about to; whether they are gone.

        Args:
            folder: a folder of imported rows, or of rows from memory, which several relations with other bases may have.
        """
        with locked(self._root / ".lock", f"catalog {self._root}"), unheld(self._root, folder.name) as is_free:
            if not is_free or any(folder.name in str(row["source"]) for row in self._rows().values()):
                return False
            if folder.parent == self._root:
                self._database.forget(folder.stem)
            else:
                forget(folder, self._root)
        return True

    def found(self, name: str) -> Entry | None:
        """Return the relation of this name; None if there is none."""
        rows = self._rows()
        return bring(entry_of(self._root, rows[name])) if name in rows else None

    def _rows(self) -> Mapping[str, Mapping[str, Any]]:
        return self._database.rows(RELATIONS)


def _former(entry: Entry, manifest_name: str, manifest: Manifest) -> Entry:
    """A relation at an earlier version. Its columns are those of today, except that a shard's name may be none of them."""
    schema = _schema_now(entry)
    described = zip(
        manifest.unit_names.to_pylist(), manifest.unit_rows.tolist(), manifest.unit_keys.to_pylist(), strict=True
    )
    units = tuple(Unit(name, rows, None, key, ()) for name, rows, key in described)
    source = FormerRows(entry.name, manifest.data_version, schema, units)
    return replaced(entry, source=source, data_version=manifest.data_version, manifest_name=manifest_name)


def _schema_now(entry: Entry) -> pa.Schema:
    """The columns of the source as it is now; as it was registered, where it is not there any more."""
    with suppress(SpiralError):
        bring_rows(entry)
        with entry.source.open() as reader:
            return reader.schema
    return pa.schema([each for each in entry.schema if each.name != STORAGE_SHARD and not is_made(each)])


def _is_there(entry: Entry) -> bool:
    """Whether the source still holds what was registered, as far as opening it tells."""
    try:
        OpenRelation(entry).close()
    except SpiralError:
        return False
    return True


def manifests_of(root: Path) -> Path:
    """Return the folder of a catalog where shard tables and pins lie."""
    return root / "manifests"

"""What `register` and `refresh` read, check and write.

A row of the database names a relation's source and facts (`records.row_of`); its shard table lies next to the database as an
Arrow file under its own digest, what its references name beside it (`relation.pin`), and both on the store of a shared
catalog (`relation.on_store`). The rows of an `Arrow` source are copied into the catalog, and those of a source that is
imported are written there.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as replaced
from datetime import UTC, datetime
from pathlib import Path
from typing import final

import pyarrow as pa

from spiral_stream.catalog.database import Database, trying
from spiral_stream.catalog.first_look import refused_videos
from spiral_stream.catalog.holding import Hold, holding
from spiral_stream.catalog.imports.files import changed_files
from spiral_stream.catalog.imports.run import imported
from spiral_stream.catalog.records import RELATIONS, row_of
from spiral_stream.catalog.registering.compare import DATA, differences, some
from spiral_stream.catalog.registering.declaration import Declaration, complete, shard_column
from spiral_stream.catalog.registering.measure import changes, former, shards_of
from spiral_stream.catalog.registering.same_bytes import keep_same
from spiral_stream.catalog.registering.unique import are_distinct, check_columns, refuse_repeats
from spiral_stream.catalog.relation.entry import Changes, Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.on_store import bring_rows, publish
from spiral_stream.catalog.relation.pin import pinned
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.relation.row_identity import is_made, with_row_id
from spiral_stream.catalog.relation.stored_rows import copy_fault, copy_name, damaged_files
from spiral_stream.catalog.relations import Relations, manifests_of
from spiral_stream.catalog.shared.tables import SharedRows
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import CatalogError, PlanError, SpiralError, warn
from spiral_stream.integrity.publish import drafting
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.import_source import is_imported
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.source import Source


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """What reading a source found."""

    schema: pa.Schema
    shard: str | None
    manifest: Manifest
    identity_unique: bool
    changes: Changes | None


@final
class Registration:
    """Registers relations in one catalog folder.

    Args:
        root: the folder.
        database: its rows.
        relations: those that there are.
    """

    def __init__(self, root: Path, database: Database | SharedRows, relations: Relations) -> None:
        self._root, self._database, self._relations = root, database, relations

    @property
    def _folder(self) -> Path:
        """Where shard tables and pins lie."""
        return manifests_of(self._root)

    def register(
        self, name: str, source: Source, declared: Declaration, *, replace: bool, report: Report | None = None
    ) -> Entry:
        """Register a source under a name; see `Catalog.register`.

        Raises:
            CatalogError: the name is taken, or a column, type or identity is wrong.
            SourceError: the source cannot be read.
        """
        with working(f"register {name}", "rows", report=report) as tell:
            return self._registered(name, source, declared, tell, replace=replace)

    def _registered(self, name: str, source: Source, declared: Declaration, report: Report, *, replace: bool) -> Entry:
        old = self._former(name) if replace else self._relations.found(name)
        if old is not None and not replace:
            return self._again(old, source, declared)
        if isinstance(source, Arrow):
            self._refuse_early(name, source, declared)
        with holding(self._root) as hold:
            with _registering(name):
                stored = self._stored(source, report, hold, old, same_bytes=declared.same_bytes).pinned()
            measured = self._measured(name, stored, declared, old, report)
            entry = self._entry(name, stored, declared.identity, measured)
            publish(entry, measured.manifest, again=replace)
            if self._database.put(RELATIONS, row_of(entry, measured.manifest), replace=replace):
                return entry
        return self._again(self._relations.entry(name), source, declared)  # another process was faster

    def _refuse_early(self, name: str, source: Arrow, declared: Declaration) -> None:
        """Refuse rows in memory before they are copied. Where Arrow sees nothing wrong, they are measured once, as copied."""
        with _registering(name), source.open() as reader:
            _, shard = declared.applied(name, reader.schema)
        if shard is not None or not are_distinct(source.table, declared.identity):
            self._measured(name, source, declared, None, None)

    def refresh(self, name: str, report: Report | None = None, *, same_bytes: bool = False) -> Entry:
        """Register a relation again at its source's present version.

        Raises:
            CatalogError: the name is unknown, or the new rows are not legal.
            SourceError: the source cannot be read, or lost a column.
        """
        with working(f"refresh {name}", "rows", report=report) as tell, holding(self._root) as hold:
            return self._refreshed(name, tell, hold, same_bytes=same_bytes)

    def _refreshed(self, name: str, report: Report, hold: Hold, *, same_bytes: bool) -> Entry:
        old = self._relations.entry(name)
        with _registering(name):
            bring_rows(old)
            stored = self._latest(old, report, hold, same_bytes=same_bytes).pinned()
        with _registering(name), stored.open() as reader:
            shard_column(reader.schema, old.shard)
            types = _with_metadata_of(old.schema, reader.schema, name)
            check_columns(name, types, old.identity)
            manifest, found = shards_of(name, stored, reader, old.identity, old.shard, old, report, self._root)
            refuse_repeats(found, old.identity_unique, types)
            manifest = pinned(manifest, reader, types, self._folder)
            if same_bytes:
                manifest = keep_same(old, name, stored, reader, types, manifest, self._folder)
            measured = _Measured(types, old.shard, manifest, found is None, changes(former(old), manifest))
        entry = self._entry(name, stored, old.identity, measured)
        if entry.data_version == old.data_version and entry.schema.equals(old.schema, check_metadata=True):
            entry = replaced(entry, registered_at=old.registered_at)
        publish(entry, measured.manifest)
        self._database.put(RELATIONS, row_of(entry, measured.manifest))
        return entry

    def _measured(
        self, name: str, source: Source, declared: Declaration, before: Entry | None, report: Report | None
    ) -> _Measured:
        """Find the shards of a source, and check what is declared of it."""
        with _registering(name), source.open() as reader:
            if reader.left_out is not None:
                warn(f"register {name!r}: {reader.left_out}")
            schema, shard = declared.applied(name, reader.schema)
            if (refused := refused_videos(reader, schema)) is not None:
                warn(f"register {name!r}: {refused}")
            identity = declared.identity
            looked_at = () if declared.distinct else identity
            manifest, found = shards_of(name, source, reader, looked_at, shard, before, report, self._root)
            refuse_repeats(found, declared.unique, schema)
            if not isinstance(source, Arrow):
                manifest = pinned(manifest, reader, schema, self._folder)
                if declared.same_bytes:
                    manifest = keep_same(before, name, source, reader, schema, manifest, self._folder)
            return _Measured(schema, shard, manifest, found is None, changes(former(before), manifest))

    def _former(self, name: str) -> Entry | None:
        """Return the relation that is replaced; None without one, or if it is damaged."""
        with suppress(CatalogError):
            return self._relations.found(name)
        return None

    def _again(self, old: Entry, source: Source, declared: Declaration) -> Entry:
        """Return the registered relation if registering now would make the same; compares declarations and content keys.

        Raises:
            CatalogError: it would make another relation; lists the differences.
        """
        with _registering(old.name):
            bring_rows(old)
            source, note = source.settled_by(old.source)
            found = self._other_rows(old, source, same_bytes=declared.same_bytes)
            copied = isinstance(source, Arrow) or is_imported(source)  # then the rows are those that the catalog has
            if not found:
                stored = old.source if copied else source.pinned()
                with stored.open() as reader:
                    schema, shard = declared.applied(old.name, reader.schema)
                    now, types = (self._copy_of(source) if isinstance(source, Arrow) else stored), complete(schema)
                    units, unique = reader.units(), declared.unique
                    found = differences(old, now, types, declared.identity, shard, units, unique=unique)
        if not found:
            OpenRelation(old).close()  # finds files that were changed in place
        if found:
            way = "Pass replace=True, or drop it first"
            if found[0].startswith(DATA) and getattr(source, "version", None) is None:  # a refresh takes the newest
                way = f'Take the data as it is now with catalog.refresh("{old.name}"), pass replace=True, or drop it first'
            msg = f"register {old.name!r}: the name is taken, by another registration: {'; '.join(found)}. {way}"
            raise CatalogError(msg)
        if note:
            warn(f"register {old.name!r}: {note}")
        return replaced(old, changes=Changes())

    def _other_rows(self, old: Entry, source: Source, *, same_bytes: bool) -> list[str]:
        """Say how rows that are read once differ from those that the catalog keeps; empty for sources that are read in place."""
        if isinstance(source, Arrow):
            same = self._copy_of(source).uri == getattr(old.source, "uri", None)
            return [] if same else ["its rows differ"]
        if not is_imported(source):
            return []
        if not isinstance(old.source, ImportedRows) or old.source.of != source:
            return ["its source, or an option of it"]
        changed = changed_files(source, old.source, same_bytes=same_bytes)
        return [DATA + some(changed)] if changed else []

    def _entry(self, name: str, source: Source, identity: tuple[str, ...], measured: _Measured) -> Entry:
        return Entry(
            name=name,
            source=source,
            schema=complete(measured.schema),
            identity=identity,
            identity_unique=measured.identity_unique,
            shard=measured.shard,
            data_version=measured.manifest.data_version,
            registered_at=datetime.now(UTC),
            root=self._root,
            manifest_name=self._keep(measured.manifest),
            changes=measured.changes,
        )

    def _keep(self, manifest: Manifest) -> str:
        """Write the shard table under its own digest; the name appears only when the file is whole."""
        with trying(self._root, "keep a manifest"), drafting(self._folder, "manifest") as draft:
            manifest.save(draft)
            final_name = f"{content_key(draft.read_bytes())}.arrow"
            draft.replace(self._folder / final_name)
        return final_name

    def _latest(self, old: Entry, report: Report, hold: Hold, *, same_bytes: bool) -> Source:
        """Return a registered source as it is now; files of an import that are new, changed or damaged are read.

        Raises:
            CatalogError: rows that were registered from memory are damaged: only who has them can give them again.
        """
        source = old.source
        if isinstance(source, ImportedRows):
            damaged = damaged_files(old)
            return imported(source.of, self._root, source, report, hold, same_bytes=same_bytes, damaged=damaged)
        if old.is_copy and (fault := copy_fault(old)) is not None:
            msg = fault if old.way_out in fault else f"{fault}. {old.way_out}"
            raise CatalogError(msg)
        latest = replaced(source, version=None) if isinstance(source, Lance) else source
        return self._stored(latest, report, hold, same_bytes=same_bytes)

    def _stored(
        self, source: Source, report: Report, hold: Hold, old: Entry | None = None, *, same_bytes: bool
    ) -> Source:
        """Return the source itself, or the rows that the catalog keeps of it: from memory, or from files that are imported."""
        if is_imported(source):
            damaged = frozenset[str]() if old is None else damaged_files(old)
            return imported(source, self._root, None, report, hold, same_bytes=same_bytes, damaged=damaged)
        if not isinstance(source, Arrow):
            return source
        copy = self._copy_of(source)
        hold(Path(copy.uri).name)
        if old is not None and getattr(old.source, "uri", None) == copy.uri and copy_fault(old) is not None:
            self._database.forget(Path(copy.uri).stem)
        self._database.copy(Path(copy.uri).stem, source.table)
        return copy

    def _copy_of(self, source: Arrow) -> Lance:
        """Name the place of rows from memory; copies nothing."""
        folder = self._database.table_folder(copy_name(source))
        return Lance(str(folder), base=source.base, allow_outside=source.allow_outside)


@contextmanager
def _registering(name: str) -> Iterator[None]:
    """Add to an error which registration it belongs to."""
    try:
        yield
    except SpiralError as error:
        prefix = f"register {name!r}: "
        if str(error).startswith(prefix):
            raise
        kind = CatalogError if isinstance(error, PlanError) else type(error)
        raise kind(prefix + str(error)) from error


def _with_metadata_of(old: pa.Schema, now: pa.Schema, name: str) -> pa.Schema:
    """Return the present columns with the semantic types and descriptions they were registered with.

    Raises:
        CatalogError: identities were computed, and the source has a column of that name now.
    """
    if any(map(is_made, old)):
        now = with_row_id(name, now)
    return pa.schema(
        [
            (old.field(field.name) if field.name in old.names else field)
            .with_type(field.type)
            .with_nullable(field.nullable)
            for field in now
        ]
    )

"""The entry of one relation in the catalog: what is known of it, as a frozen value. `reader.OpenRelation` reads its rows."""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.shared.mirror import home_of
from spiral_stream.errors import CatalogError, SpiralError, cut
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.pins import SUFFIX, Pins
from spiral_stream.sources.source import Source

STORAGE_SHARD = "storage_shard"
_NAMED: Final = 3  # shards that a message names
DESCRIPTION = b"description"  # key of a column's description in its Arrow field's metadata


@final
@dataclass(frozen=True, slots=True)
class Changes:
    """Storage shards that differ between two registrations of a relation, by name.

    Examples:
        >>> catalog.register("grown", spiral.Arrow(text_rows.slice(0, 30)), identity="doc_id").changes is None
        True
        >>> longer = catalog.register("grown", spiral.Arrow(text_rows), identity="doc_id", replace=True)
        >>> isinstance(longer.changes, spiral.results.Changes), bool(longer.changes)
        (True, True)
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        kinds = (("added", self.added), ("changed", self.changed), ("removed", self.removed))
        return "; ".join(f"{len(names):,} {kind} ({_some(names)})" for kind, names in kinds if names) or "none"


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(cut, names[:_NAMED])) + more


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A registered relation at one data version.

    Examples:
        >>> entry = catalog.entry("photos")
        >>> entry.identity, entry.manifest().total
        (('photo_id',), 48)
    """

    name: str
    source: Source
    schema: pa.Schema  # semantic types and descriptions in the fields' metadata; always has ``storage_shard``
    identity: tuple[str, ...]
    identity_unique: bool  # whether registration found every identity once
    shard: str | None  # the column asked to define the storage shards
    data_version: str
    registered_at: datetime  # recorded for people; enters no fingerprint
    root: Path  # folder of the catalog
    manifest_name: str
    changes: Changes | None = field(default=None, compare=False)  # made by this registration; None if it was the first

    def __repr__(self) -> str:
        from spiral_stream.sources.internal.imported import ImportedRows

        source = self.source.of if isinstance(self.source, ImportedRows) else self.source
        rows = "unknown"
        with suppress(SpiralError, OSError):  # a damaged shard table is no reason to fail here
            rows = f"{self.manifest().total:,}"
        where = cut(source.place) if source.place else "memory"
        return f"<Entry {self.name}: {rows} rows, {len(self.schema):,} columns, {source.KIND} at {where}>"

    def manifest(self) -> Manifest:
        """Return the shard table; opens no source.

        Raises:
            CatalogError: its file is missing, damaged, or of another version.
        """
        path = self.root / "manifests" / self.manifest_name
        try:
            return Manifest.load(path, path.stem)
        except CatalogError as error:
            if home_of(self.root).bring_again("manifests", f"{self.data_version}/{path.stem}", path):
                return Manifest.load(path, path.stem)
            raise CatalogError(str(error).replace("<name>", f'"{self.name}"')) from error

    def pins(self, manifest: Manifest) -> Pins | None:
        """Return size, time and inode of the relation's files at registration; None if nothing was pinned then.

        Raises:
            SourceError: the file of pins is missing or cut.
        """
        if not manifest.pins:
            return None
        return Pins(
            self.root / "manifests" / f"{manifest.pins}{SUFFIX}",
            self.name,
            self.way_out if self.has_stored_rows else "",
        )

    @property
    def is_copy(self) -> bool:
        """Whether its rows are rows from memory, which the catalog keeps."""
        return isinstance(self.source, Lance) and Path(self.source.uri).parent == self.root

    @property
    def has_stored_rows(self) -> bool:
        """Whether the catalog keeps its rows: a file of them that was restored with its time is as it was."""
        return self.is_copy or isinstance(self.source, ImportedRows)

    @property
    def way_out(self) -> str:
        """What to do if its rows are not as they were; the catalog alone writes those that it keeps, so these are damaged."""
        if isinstance(self.source, ImportedRows):
            return f'Read the files again with catalog.refresh("{self.name}")'
        if self.is_copy:
            return f'Register the rows again with catalog.register("{self.name}", ..., replace=True)'
        return f'Take the data as it is now with catalog.refresh("{self.name}")'

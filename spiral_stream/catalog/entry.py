"""What the catalog knows of one relation: a frozen value. `opened.OpenRelation` reads its rows."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import final

import pyarrow as pa

from spiral_stream.catalog.manifest import Manifest
from spiral_stream.errors import CatalogError
from spiral_stream.sources.pins import SUFFIX, Pins
from spiral_stream.sources.source import Source

STORAGE_SHARD = "storage_shard"
DESCRIPTION = b"description"  # key of a column's description in its Arrow field's metadata


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A registered relation at one data version."""

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

    def manifest(self) -> Manifest:
        """Return the shard table; opens no source.

        Raises:
            CatalogError: its file is missing, damaged, or of another version.
        """
        try:
            return Manifest.load(self.root / "manifests" / self.manifest_name, Path(self.manifest_name).stem)
        except CatalogError as error:
            raise CatalogError(str(error).replace("<name>", f'"{self.name}"')) from error

    def pins(self, manifest: Manifest) -> Pins | None:
        """Return size, time and inode of the relation's files at registration; None if nothing was pinned then.

        Raises:
            SourceError: the file of pins is missing or cut.
        """
        if not manifest.pins:
            return None
        return Pins(self.root / "manifests" / f"{manifest.pins}{SUFFIX}", self.name)

"""What registration learns from the rows of a source: its shards, and whether every identity occurs once.

What an earlier registration of the name knows is not read again: units and shards with the same content keys.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from spiral_stream.catalog.registering.unique import duplicate
from spiral_stream.catalog.relation.entry import Changes, Entry
from spiral_stream.catalog.relation.manifest import Manifest, build_manifest
from spiral_stream.catalog.relation.row_identity import ROW_ID, repeated
from spiral_stream.catalog.relation.shard_rows import SourceRows
from spiral_stream.catalog.shared.mirror import location_of
from spiral_stream.derived.build import open_built
from spiral_stream.derived.folder import derived_root, note_catalog
from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.derived.pieces import Pieces
from spiral_stream.display.progress import Report
from spiral_stream.errors import CacheError, CatalogError
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.source import Reader, Source


def former(before: Entry | None) -> Manifest | None:
    """Return the shard table of an earlier registration; None if there is none, or it cannot be read."""
    with suppress(CatalogError):
        return None if before is None else before.manifest()
    return None


def shards_of(
    name: str,
    source: Source,
    reader: Reader,
    identity: Sequence[str],
    shard: str | None,
    before: Entry | None,
    report: Report | None,
    root: Path,
) -> tuple[Manifest, str | None]:
    """Build the shard table, and say where an identity occurs twice; None if every row has its own.

    Args:
        name: of the relation.
        source: of the rows.
        reader: of the source.
        identity: the columns that tell rows apart; none are looked at where it is known that they do.
        shard: the column that names the storage shards.
        before: the registration whose place this one takes.
        report: called while identities are read.
        root: the catalog's folder.

    Raises:
        CatalogError: an identity is null, or a shard column is not legal.
        SourceError: the source is empty or cannot be read.
    """
    old = former(before)
    manifest = build_manifest(reader, shard, old if before is not None and before.shard == shard else None)
    if not identity:
        return manifest, None
    if tuple(identity) == (ROW_ID,) and ROW_ID not in reader.schema.names:
        manifest = replace(manifest, runs=reader.row_runs())
        return manifest, repeated(manifest)
    identities = Identities(tuple(identity), tuple(reader.schema.field(column).type for column in identity))
    rows = SourceRows(source, manifest, reader)
    unique = before is not None and before.identity_unique and before.identity == tuple(identity)
    known = _known(rows.manifest, old) if old is not None and unique else frozenset[str]()
    with derived_folder(None if isinstance(source, Arrow) else root) as folder:  # rows in memory are copied later
        pieces = identity_pieces(rows, identities, folder, report)
        found = duplicate(name, rows.manifest, reader.fetch, identities, pieces, known)
    return manifest, found


def identity_pieces(
    rows: SourceRows, identities: Identities, root: Path, report: Report | None = None, *, unasked: bool = False
) -> Pieces:
    """Open the identities of a relation's rows; those of shards that are not known yet are made.

    Raises:
        CacheError: the folder cannot be written.
        SourceError: the source cannot be read.
    """
    return open_built(rows, [identities], root, report, unasked=unasked)[0]


def changes(before: Manifest | None, after: Manifest) -> Changes | None:
    """Say which shards differ; None if there was no earlier registration."""
    if before is None:
        return None
    then = dict(zip(before.shard_names.to_pylist(), before.content_keys.to_pylist(), strict=True))
    now = dict(zip(after.shard_names.to_pylist(), after.content_keys.to_pylist(), strict=True))
    return Changes(
        added=tuple(name for name in now if name not in then),
        changed=tuple(name for name, key in now.items() if then.get(name, key) != key),
        removed=tuple(name for name in then if name not in now),
    )


def _known(now: Manifest, before: Manifest) -> frozenset[str]:
    """Keys of shards that an earlier registration had; one that occurs twice now repeats identities."""
    times = Counter(now.content_keys.to_pylist())
    return frozenset(key for key in before.row_keys.to_pylist() if times[key] == 1)


@contextmanager
def derived_folder(root: Path | None) -> Iterator[Path]:
    """The folder of a catalog's derived data; where nothing can be written there, or of no catalog, one for this call only."""
    folder_of_catalog = None if root is None else writable_folder(root)
    if folder_of_catalog is not None:
        yield folder_of_catalog
        return
    with TemporaryDirectory(prefix="spiral-") as folder:
        yield Path(folder)


def writable_folder(root: Path) -> Path | None:
    """Return the folder of derived data; None where nothing can be written there."""
    with suppress(CacheError, OSError):
        folder = derived_root(root)
        folder.mkdir(parents=True, exist_ok=True)
        note_catalog(folder, root, location_of(root))
        return folder if os.access(folder, os.W_OK) else None
    return None

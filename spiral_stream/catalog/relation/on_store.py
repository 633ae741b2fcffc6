"""The files of a shared relation on a store: written before its record, fetched when they are first used.

An entry needs its shard table, the pins, and of imported rows the snapshot; they come when the entry is looked up. The rows
themselves, where the catalog keeps them, come when they are first opened.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.refused import refused_path
from spiral_stream.catalog.shared.mirror import shared_of
from spiral_stream.catalog.shared.records import Record, SharedCatalog
from spiral_stream.catalog.shared.tables import SharedRows
from spiral_stream.errors import CatalogError, SpiralError
from spiral_stream.integrity.publish import new_draft, publish_file
from spiral_stream.sources.internal.imported import BYTES, ROWS, ImportedRows, Snapshot, snapshot_path
from spiral_stream.sources.lance.fragments import DATA, commit_fragments, files_in
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.pins import SUFFIX

MANIFESTS: Final = "manifests"  # kinds of records; also the folder
IMPORTS: Final = "imports"
FILES: Final = "files"  # records of one file each, called by its path
_BROUGHT: Final = "brought"  # folder of an import with a file per snapshot whose rows are here


def publish(entry: Entry, manifest: Manifest) -> None:
    """Write what the row of a relation names; the row itself comes after it.

    Raises:
        CatalogError: the store failed, or may not be written.
    """
    shared = shared_of(entry.root)
    if shared is None:
        return
    if isinstance(entry.source, ImportedRows):
        _publish_import(shared, entry.source)
    paths = [f"manifests/{entry.manifest_name}", *([f"manifests/{manifest.pins}{SUFFIX}"] if manifest.pins else [])]
    name = _manifest_name(entry)
    if shared.record(MANIFESTS, name) is None:
        shared.keep(MANIFESTS, name, {}, paths, absent=True)


def bring(entry: Entry) -> Entry:
    """Fetch what tells of a relation's rows, where it is not here; returns the entry.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    shared = shared_of(entry.root)
    if shared is not None:
        here = (entry.root / "manifests" / entry.manifest_name).exists()
        if not here and not shared.bring_all(MANIFESTS, _manifest_name(entry)):
            raise _missing(shared, f"the shard table of {entry.name!r} ({entry.manifest_name})")
        if isinstance(entry.source, ImportedRows):
            _bring_snapshot(shared, entry.source)
    return entry


def bring_rows(entry: Entry) -> None:
    """Fetch the rows that the catalog keeps of a relation, where they are not here.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    shared = shared_of(entry.root)
    if shared is None:
        return
    if isinstance(entry.source, ImportedRows):
        bring_import(Path(entry.source.uri), entry.source.snapshot)
    elif isinstance(entry.source, Lance) and Path(entry.source.uri).parent == entry.root:
        name = Path(entry.source.uri).stem
        if not SharedRows(shared).bring(name):
            raise _missing(shared, f"rows of {entry.name!r} ({name})")


def bring_former(root: Path, data_version: str) -> None:
    """Fetch the shard tables that relations of a data version had.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    shared = shared_of(root)
    if shared is not None:
        for name in shared.names_below(MANIFESTS, data_version):
            shared.bring_all(MANIFESTS, name)


def publish_file_of(root: Path, path: Path) -> None:
    """Share a file of the catalog that others do not replace: the first that is shared stays.

    Raises:
        CatalogError: the store failed, or may not be written.
    """
    shared = shared_of(root)
    if shared is not None:
        name = str(path.relative_to(root))
        if not shared.keep(FILES, name, {}, [name], absent=True):
            path.unlink(missing_ok=True)
            bring_file_of(root, path)


def bring_file_of(root: Path, path: Path) -> None:
    """Fetch a file that was shared by `publish_file_of`, if there is one and it is not here.

    Raises:
        CatalogError: the store failed, or the file is damaged.
    """
    shared = shared_of(root)
    if shared is None or path.exists():
        return
    name = str(path.relative_to(root))
    record = shared.record(FILES, name)
    if record is not None:
        shared.bring(record, name)


def _manifest_name(entry: Entry) -> str:
    return f"{entry.data_version}/{Path(entry.manifest_name).stem}"


def _missing(shared: SharedCatalog, what: str) -> CatalogError:
    msg = f"catalog {shared.uri}: {what} is not there. Restore it, or register the relation again with replace=True"
    return CatalogError(msg)


def _publish_import(shared: SharedCatalog, source: ImportedRows) -> None:
    folder = Path(source.uri)
    name = f"{folder.name}-{source.snapshot}"
    if shared.record(IMPORTS, name) is not None:
        return
    units = Snapshot.load(source.uri, source.snapshot).table
    paths = [snapshot_path(source.uri, source.snapshot)]
    paths += [folder / ROWS / DATA / file for text in _fragments(units) for file in files_in(text)]
    paths += [path for key in units.column("key").unique().to_pylist() if (path := refused_path(folder, key)).exists()]
    paths += [folder / BYTES] if (folder / BYTES).exists() else []
    names = [str(path.relative_to(shared.root)) for path in paths]
    shared.keep(IMPORTS, name, {}, names, absent=True)


def _bring_snapshot(shared: SharedCatalog, source: ImportedRows) -> None:
    """Make the snapshot of the store one of the mirror, whose dataset counts its own versions."""
    path = snapshot_path(source.uri, source.snapshot)
    if path.exists():
        return
    folder = Path(source.uri)
    record = _import_record(shared, folder, source.snapshot)
    at, below = str(path.relative_to(shared.root)), f"imports/{folder.name}/"
    for each in (path.parent, folder / ROWS / DATA):
        each.mkdir(parents=True, exist_ok=True)
    work, held = new_draft(path, Path.mkdir)
    try:
        shared.bring(record, f"{below}refused/")
        if not (folder / BYTES).exists():
            shared.bring(record, f"{below}{BYTES}")
        shared.bring(record, at, to=work)
        there = _parsed(shared, work / at, source.snapshot)
        with locked(folder / "committing", str(folder)):
            if path.exists():
                return
            version = commit_fragments(folder / ROWS, there.schema, _fragments(there.table))
            with publish_file(path) as draft, pa.OSFile(str(draft), "wb") as sink:
                marked = Snapshot(there.table, version, there.schema).marked()
                with pa.ipc.new_file(sink, marked.schema) as writer:
                    writer.write_table(marked)
    finally:
        held.release()
        shutil.rmtree(work, ignore_errors=True)


def bring_import(folder: Path, snapshot: str) -> None:
    """Fetch the data files of a snapshot that is here; those of one that was made on this machine are here too.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    shared, mark = shared_of(folder.parent.parent), folder / _BROUGHT / snapshot
    if shared is None or mark.exists():
        return
    files = [f for text in _fragments(Snapshot.load(str(folder), snapshot).table) for f in files_in(text)]
    below = f"imports/{folder.name}/{ROWS}/{DATA}/"
    missing = {f"{below}{each}" for each in files if not (folder / ROWS / DATA / each).exists()}
    if missing:
        record = _import_record(shared, folder, snapshot)
        shared.bring(record, below, only=missing.__contains__)
    with suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        mark.touch()


def _import_record(shared: SharedCatalog, folder: Path, snapshot: str) -> Record:
    record = shared.record(IMPORTS, f"{folder.name}-{snapshot}")
    if record is None:
        raise _missing(shared, f"its import ({folder.name}-{snapshot})")
    return record


def _parsed(shared: SharedCatalog, path: Path, snapshot: str) -> Snapshot:
    try:
        return Snapshot.load(str(path.parent.parent), snapshot)
    except SpiralError as error:
        msg = f"catalog {shared.uri}: snapshot {snapshot} is damaged: {error}"
        raise CatalogError(msg) from error


def _fragments(units: pa.Table) -> Sequence[str]:
    return [text for text in units.column("fragment").to_pylist() if text]

"""The files of a shared relation on a store: written before its record, fetched when they are first used.

An entry needs its shard table, the pins, and of imported rows the snapshot; they come when the entry is looked up. The rows
themselves, where the catalog keeps them, come when they are first opened.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.refused import refused_path
from spiral_stream.catalog.shared.mirror import FolderCatalog, home_of
from spiral_stream.catalog.shared.records import LostError, Record, SharedCatalog
from spiral_stream.catalog.shared.tables import TABLES, TAKEN, files_of_table, take_table
from spiral_stream.errors import CatalogError, SpiralError
from spiral_stream.integrity.publish import new_draft, publish_file, write_file
from spiral_stream.sources.internal.imported import BYTES, ROWS, ImportedRows, Snapshot, snapshot_path
from spiral_stream.sources.lance.fragments import DATA, commit_fragments, files_in
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.pins import SUFFIX

MANIFESTS: Final = "manifests"  # kinds of records; also the folder
IMPORTS: Final = "imports"
FILES: Final = "files"  # records of one file each, called by its path
_BROUGHT: Final = "brought"  # folder of an import with a file per snapshot whose rows are here


def publish(entry: Entry, manifest: Manifest, *, again: bool = False) -> None:
    """Write what the row of a relation names; the row itself comes after it.

    Args:
        entry: the relation.
        manifest: its shard table.
        again: write it although it is there, because it may be damaged or lost.

    Raises:
        CatalogError: the store failed, or may not be written.
    """
    home, source = home_of(entry.root), entry.source
    if isinstance(source, ImportedRows):
        home.share(
            IMPORTS, _import_name(Path(source.uri), source.snapshot), lambda: _files_of_import(source), again=again
        )
    elif again and isinstance(source, Lance) and entry.is_copy:
        folder = Path(source.uri)
        home.share(TABLES, folder.stem, lambda: files_of_table(folder), again=True)
    names = [entry.manifest_name, *([f"{manifest.pins}{SUFFIX}"] if manifest.pins else [])]
    home.share(MANIFESTS, _manifest_name(entry), lambda: [entry.root / MANIFESTS / name for name in names], again=again)


def bring(entry: Entry) -> Entry:
    """Fetch what tells of a relation's rows, where it is not here; returns the entry.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    home = home_of(entry.root)
    with _of(entry):
        if not (entry.root / MANIFESTS / entry.manifest_name).exists():
            what = f"its shard table ({entry.manifest_name})"
            if (record := home.need(MANIFESTS, _manifest_name(entry), what)) is not None:
                home.bring(record, f"{MANIFESTS}/")
        if isinstance(entry.source, ImportedRows):
            _bring_snapshot(home, entry.source)
    return entry


def bring_rows(entry: Entry) -> None:
    """Fetch the rows that the catalog keeps of a relation, where they are not here.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    with _of(entry):
        if isinstance(entry.source, ImportedRows):
            bring_import(Path(entry.source.uri), entry.source.snapshot)
        elif isinstance(entry.source, Lance) and entry.is_copy:
            home, folder = home_of(entry.root), Path(entry.source.uri)
            if not home.has_all(folder / TAKEN):
                record = home.need(TABLES, folder.stem, f"the record of its rows ({folder.stem})")
                if record is not None:
                    take_table(home, record, folder)


@contextmanager
def _of(entry: Entry) -> Iterator[None]:
    """Say of which relation something is lost."""
    try:
        yield
    except LostError as error:
        msg = f"relation {entry.name!r}: {error}"
        raise LostError(msg) from error


def bring_former(root: Path, data_version: str) -> None:
    """Fetch the shard tables that relations of a data version had.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    home_of(root).bring_below(MANIFESTS, data_version)


def publish_file_of(root: Path, path: Path) -> None:
    """Share a file of the catalog that others do not replace: the first that is shared stays, unless it is lost.

    Raises:
        CatalogError: the store failed, or may not be written.
    """
    home, name = home_of(root), str(path.relative_to(root))
    if home.keep(FILES, name, {}, [path], absent=True, again=True):
        return
    mine = path.read_bytes()
    path.unlink(missing_ok=True)
    try:
        bring_file_of(root, path)
    except LostError:
        write_file(path, mine)
        home.keep(FILES, name, {}, [path], again=True)


def bring_file_of(root: Path, path: Path, way_out: str = "do that again") -> None:
    """Fetch a file that was shared by `publish_file_of`, if there is one and it is not here.

    Args:
        root: of the catalog.
        path: of the file.
        way_out: what makes it again once its record is removed.

    Raises:
        LostError: it is damaged, or not there.
        CatalogError: the store failed.
    """
    home, name = home_of(root), str(path.relative_to(root))
    try:
        if not path.exists() and (record := home.record(FILES, name)) is not None:
            home.bring(record, name)
    except LostError as error:
        msg = f"{str(error).split('. ')[0]}. Remove the object {home.place(FILES, name)}, and {way_out}"
        raise LostError(msg) from error


def _manifest_name(entry: Entry) -> str:
    return f"{entry.data_version}/{Path(entry.manifest_name).stem}"


def _import_name(folder: Path, snapshot: str) -> str:
    return f"{folder.name}-{snapshot}"


def _files_of_import(source: ImportedRows) -> list[Path]:
    folder, units = Path(source.uri), Snapshot.load(source.uri, source.snapshot).table
    paths = [snapshot_path(source.uri, source.snapshot)]
    paths += [folder / ROWS / DATA / file for text in _fragments(units) for file in files_in(text)]
    paths += [path for key in units.column("key").unique().to_pylist() if (path := refused_path(folder, key)).exists()]
    return [*paths, folder / BYTES] if (folder / BYTES).exists() else paths


def _bring_snapshot(home: SharedCatalog | FolderCatalog, source: ImportedRows) -> None:
    """Make the snapshot of the store one of the mirror, whose dataset counts its own versions."""
    path = snapshot_path(source.uri, source.snapshot)
    folder = Path(source.uri)
    if path.exists() or (record := _import_record(home, folder, source.snapshot)) is None:
        return
    at, below = str(path.relative_to(home.root)), f"{IMPORTS}/{folder.name}/"
    for each in (path.parent, folder / ROWS / DATA):
        each.mkdir(parents=True, exist_ok=True)
    work, held = new_draft(path, Path.mkdir)
    try:
        home.bring(record, f"{below}refused/")
        if not (folder / BYTES).exists():
            home.bring(record, f"{below}{BYTES}")
        home.bring(record, at, to=work)
        there = _parsed(home.uri, work / at, source.snapshot)
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
    home, mark = home_of(folder.parent.parent), folder / _BROUGHT / snapshot
    if home.has_all(mark):
        return
    files = [f for text in _fragments(Snapshot.load(str(folder), snapshot).table) for f in files_in(text)]
    below = f"{IMPORTS}/{folder.name}/{ROWS}/{DATA}/"
    missing = {f"{below}{each}" for each in files if not (folder / ROWS / DATA / each).exists()}
    if missing and (record := _import_record(home, folder, snapshot)) is not None:
        home.bring(record, below, only=missing.__contains__)
    with suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        mark.touch()


def _import_record(home: SharedCatalog | FolderCatalog, folder: Path, snapshot: str) -> Record | None:
    name = _import_name(folder, snapshot)
    return home.need(IMPORTS, name, f"the record of its import ({name})")


def _parsed(uri: str, path: Path, snapshot: str) -> Snapshot:
    try:
        return Snapshot.load(str(path.parent.parent), snapshot)
    except SpiralError as error:
        msg = f"catalog {uri}: snapshot {snapshot} is damaged: {error}"
        raise CatalogError(msg) from error


def _fragments(units: pa.Table) -> Sequence[str]:
    return [text for text in units.column("fragment").to_pylist() if text]

"""Import a source's files into a catalog: each unit is read once, by any process, and its rows become Lance fragments.

One folder per (source without its place, columns) holds the rows of all units ever imported, a file per unit that is done,
the rows that were refused, and the snapshots. Builders share the units by lease (`derived.work.cooperative_build`). What is
made of a unit is written to a draft; when the unit is done its files are moved into the dataset and the unit is noted, under a
lock. A killed import leaves drafts, which the next one removes, and units that are done, which it does not read again.
"""

import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.holding import Hold
from spiral_stream.catalog.imports.files import known_files, listed
from spiral_stream.catalog.imports.snapshot import committed
from spiral_stream.catalog.imports.unit import ImportedUnit, import_units
from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.relation.on_store import bring_import
from spiral_stream.catalog.relation.refused import REFUSED, refused_path, sweep_refused
from spiral_stream.derived.index import keys_of
from spiral_stream.derived.work.cooperative_build import Job, Maker, Shards, Target, make, refusals
from spiral_stream.derived.work.executors import Shared, builders_in_force
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import SourceError, SpiralError, cut, warn
from spiral_stream.integrity.locks import Held
from spiral_stream.integrity.one_look import look
from spiral_stream.integrity.publish import drafts, new_draft, sweep_draft, take_out, write_file
from spiral_stream.integrity.seal import read_json, sealed_json
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.import_source import FILE, INDEX, LINE_COLUMNS, ImportedSource, ImportUnit
from spiral_stream.sources.internal.imported import (
    ROWS,
    SNAPSHOTS,
    UNITS,
    ImportedRows,
    Snapshot,
)
from spiral_stream.sources.lance.fragments import DATA, files_in
from spiral_stream.sources.serialize import source_to_json
from spiral_stream.sources.source import ROW

IMPORTS: Final = "imports"
_DRAFTS: Final = "drafts"
JOB_BYTES: Final = 64 << 20  # small units are read together, so that a lease is worth its while
JOB_UNITS: Final = 64
ENTER_EVERY_S: Final = 1.0
_VERSION: Final = 2  # of what is kept of a unit


def imported(
    source: ImportedSource,
    root: Path,
    before: ImportedRows | None,
    report: Report,
    hold: Hold,
    *,
    same_bytes: bool = False,
    damaged: Collection[str] = (),
) -> ImportedRows:
    """Import what is missing of a source, and return its kept rows as they are now.

    Args:
        source: to read.
        root: the catalog's folder.
        before: what is registered of the same source; its columns are kept.
        report: called with rows that were read and, as far as can be tell, rows to read.
        hold: shares the name of what is kept, so that nobody removes it before it is registered.
        same_bytes: keep the rows of files whose time changed and whose bytes are the same.
        damaged: files of kept rows that are not as they were written: the units that they have rows of are read again.

    Raises:
        SourceError: nothing is there, or a unit cannot be read; units that were read stay kept.
        CacheError: the catalog cannot be written.
    """
    files = listed(source)
    schema = _schema_of(before) or _columns(source.import_schema(files))
    folder = root / IMPORTS / _folder_key(source, schema)
    hold(folder.name)
    with refusals(root, "Give a catalog folder that can be written", root, "cannot be written"):
        units = source.import_pieces(known_files(folder, files, same_bytes=same_bytes))
        known = _known(folder, before, damaged)
        target = _Target(folder, [unit.content_key for unit in units], known, damaged)
        missing = target.missing(np.arange(len(units)))
        if missing.any():
            _sweep(folder, known)
            with working(f"reading {len(units):,} files", "rows", report=report) as tell:
                make(_Units(source, schema, units, target, tell), builders_in_force)
        drafted = [target.drafted(unit) for unit in units]
        _warn(drafted)
        snapshot = committed(folder, schema, units, drafted, anew=bool(damaged))
        if damaged:
            _sweep(folder, {})
        return ImportedRows(source, str(folder), snapshot)


def _warn(units: Sequence[ImportedUnit]) -> None:
    """Say that rows were left out."""
    if refused := sum(each.refused for each in units):
        first = next(text for each in units for text in each.examples)
        msg = (
            f"{refused:,} rows could not be read and are left out, such as {first}. catalog.refused(name) returns them"
        )
        warn(msg)


def forget(folder: Path, root: Path) -> None:
    """Delete what a catalog keeps of a source that nobody registers any more."""
    if folder.parent == root / IMPORTS and folder.is_dir():
        with suppress(OSError):
            take_out(folder)


def _columns(schema: pa.Schema) -> pa.Schema:
    """The columns that are kept: those of the source, and where each row comes from."""
    if ROW in schema.names:
        msg = f"the source has a column {ROW!r}, a name that is reserved for row ordinals. Rename the column"
        raise SourceError(msg)
    for name, kind in ((FILE, pa.utf8()), (INDEX, pa.int64())):
        if name not in schema.names:
            schema = schema.append(pa.field(name, kind, metadata={LINE_COLUMNS: b"import"}))
    return schema.remove_metadata()


def _folder_key(source: ImportedSource, schema: pa.Schema) -> str:
    options = {name: value for name, value in source_to_json(source).items() if name not in source.PATHS}
    return content_key("import", _VERSION, json.dumps(options, sort_keys=True), schema.serialize().to_pybytes())


def _written_ns(path: Path) -> int:
    found = look(path)
    return 0 if found is None else found.st_mtime_ns


def _schema_of(before: ImportedRows | None) -> pa.Schema | None:
    """The columns that were kept before; None if nobody knows them any more."""
    with suppress(SourceError):  # the snapshot is damaged, and is written again
        return None if before is None else Snapshot.load(before.uri, before.snapshot).schema
    return None


def _known(folder: Path, before: ImportedRows | None, damaged: Collection[str] = ()) -> dict[str, ImportedUnit]:
    """What the newest snapshot says of the units, by content key; notes of single units add to it."""
    paths = sorted((folder / SNAPSHOTS).glob("*.sealed.arrow"), key=_written_ns)
    names = [path.name.split(".")[0] for path in paths[-1:]]
    if before is not None and Path(before.uri) == folder:
        names.append(before.snapshot)
    found: dict[str, ImportedUnit] = {}
    for name in dict.fromkeys(names):
        with suppress(SpiralError):  # a damaged one: its units are read again
            bring_import(folder, name)
            found |= _units_of(Snapshot.load(str(folder), name).table)
    return {key: unit for key, unit in found.items() if _files(unit.fragments).isdisjoint(damaged)}


def _units_of(table: pa.Table) -> dict[str, ImportedUnit]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        found.setdefault(row["key"], []).append(row)
    return {key: _unit_of(sorted(rows, key=lambda row: int(row["part"]))) for key, rows in found.items()}


def _unit_of(rows: Sequence[dict[str, Any]]) -> ImportedUnit:
    live = [row for row in rows if row["rows"]]
    return ImportedUnit(
        rows=tuple(row["rows"] for row in live),
        kept_bytes=tuple(row["kept_bytes"] for row in live),
        fragments=tuple(row["fragment"] for row in live),
        files=tuple(file["rows"] for file in rows[0]["files"]),
        refused=rows[0]["refused"],
        examples=tuple(rows[0]["examples"]),
        cpu_s=rows[0]["cpu_s"],
    )


@final
class _Target(Target):
    """The units of one source under way."""

    def __init__(
        self, folder: Path, keys: Sequence[str], known: dict[str, ImportedUnit], damaged: Collection[str]
    ) -> None:
        self.folder, self._keys, self._found, self._damaged = folder, keys, known, damaged
        self._read = self._snapshots()
        self._noted = self._names()
        self._seen = 0

    def prepare(self) -> Path:
        for name in (UNITS, SNAPSHOTS, REFUSED, _DRAFTS, f"{ROWS}/{DATA}"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        return self.folder

    def missing(self, shards: Shards) -> NDArray[np.bool_]:
        return np.array(
            [self._keys[k] not in self._found and self._keys[k] not in self._noted for k in shards], np.bool_
        )

    def look(self) -> bool:
        before, noted = len(self._noted) + len(self._found), self._names()
        snapshots = self._snapshots()  # after the notes, which go once a snapshot says the same
        if snapshots != self._read:
            self._found |= _known(self.folder, None, self._damaged)
        self._noted, self._read = noted, snapshots
        signs = sum(len(files) for _, _, files in os.walk(self.folder / _DRAFTS))
        alive, self._seen = signs != self._seen, signs
        return len(self._noted) + len(self._found) != before or alive

    def drafted(self, unit: ImportUnit) -> ImportedUnit:
        """Return what is kept of a unit that is not missing.

        Raises:
            SourceError: what was noted of it is damaged.
        """
        path = self._note(unit.content_key)
        if unit.content_key not in self._found and not path.exists():  # another process made a snapshot of it
            self._found |= _known(self.folder, None, self._damaged)
        if unit.content_key in self._found:
            return self._found[unit.content_key]
        try:
            return ImportedUnit.parsed(read_json(path))
        except (SpiralError, TypeError) as error:
            path.unlink(missing_ok=True)
            msg = f"import of {cut(unit.path)}: what was noted of it is damaged, and was removed. Register it again"
            raise SourceError(msg) from error

    def note(self, key: str, unit: ImportedUnit) -> None:
        """Say that a unit is done."""
        write_file(self._note(key), sealed_json(dataclasses.asdict(unit)))
        self._found[key] = unit

    def _note(self, key: str) -> Path:
        return self.folder / UNITS / f"{key}.json"

    def _snapshots(self) -> set[str]:
        return {path.name for path in (self.folder / SNAPSHOTS).glob("*.sealed.arrow")}

    def _names(self) -> set[str]:
        with suppress(FileNotFoundError), os.scandir(self.folder / UNITS) as entries:
            return {entry.name.removesuffix(".json") for entry in entries}
        return set()


@dataclass(eq=False)
class _Job(Job):
    """The import of some units."""

    draft: Path = field(default_factory=Path)
    held: Held = field(default_factory=lambda: Held(-1))


@final
class _Units(Maker[list[ImportedUnit]]):
    """The missing units of one source."""

    ahead = 1
    enter_every_s = ENTER_EVERY_S

    def __init__(
        self, source: ImportedSource, schema: pa.Schema, units: Sequence[ImportUnit], target: _Target, report: Report
    ) -> None:
        self._source, self._schema, self._all, self._target, self._report = (
            Shared(source),
            schema,
            units,
            target,
            report,
        )
        self.targets = [target]
        self.keys = keys_of(pa.array([unit.content_key for unit in units], pa.utf8()))
        self._bytes = np.array([max(1, unit.size_bytes) for unit in units], np.int64)
        self._todo = target.missing(np.arange(len(units)))
        self.units = _together(self._bytes)
        self._rows = 0

    def job(self, wanted: dict[int, Shards]) -> _Job:
        [shards] = wanted.values()
        draft, held = new_draft(self._target.folder / _DRAFTS / uuid.uuid4().hex, Path.mkdir)
        args = (self._source, self._schema.serialize().to_pybytes(), [self._all[k] for k in shards], draft)
        return _Job(wanted, import_units, args, lambda: _drop(draft, held), draft, held)

    def enter(self, done: Sequence[tuple[Job, list[ImportedUnit]]]) -> None:
        for job, made in done:
            assert isinstance(job, _Job)
            [shards] = job.leases.values()
            with locked(self._target.folder / "entering", str(self._target.folder)):
                for at, (k, unit) in enumerate(zip(shards.tolist(), made, strict=True)):
                    for fragment in unit.fragments:
                        _move_fragment(job.draft, self._target.folder, fragment)
                    refused = job.draft / str(at) / REFUSED
                    if refused.exists():
                        _move(refused, refused_path(self._target.folder, self._all[k].content_key))
                    self._target.note(self._all[k].content_key, unit)
                    self._rows += sum(unit.rows)

    def tell(self, running: Sequence[Job]) -> None:  # noqa: ARG002  a unit takes a second
        left = self._todo & self._target.missing(np.arange(len(self._all)))
        done = float(self._bytes[self._todo & ~left].sum())
        if done:
            self._report(self._rows, round(self._rows * float(self._bytes[self._todo].sum()) / done))


def _together(sizes: NDArray[np.int64]) -> list[Shards]:
    """Runs of units that are read by one job."""
    before = np.concatenate([[0.0], np.cumsum(np.maximum(sizes / JOB_BYTES, 1 / JOB_UNITS))[:-1]])
    return np.split(np.arange(len(sizes), dtype=np.int64), np.flatnonzero(np.diff(np.floor(before))) + 1)


def _move_fragment(draft: Path, folder: Path, fragment: str) -> None:
    """Move the data files of a fragment into the dataset."""
    for file in files_in(fragment):
        [found] = draft.glob(f"*/{DATA}/{file}")
        _move(found, folder / ROWS / DATA / file)


def _move(found: Path, to: Path) -> None:
    with found.open("rb") as handle:
        os.fsync(handle.fileno())
    found.replace(to)


def _drop(draft: Path, held: Held) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    held.release()


def _sweep(folder: Path, known: dict[str, ImportedUnit]) -> None:
    """Remove what killed imports left: drafts, and files that no unit names."""
    for path in drafts(folder / _DRAFTS):
        sweep_draft(path)
    data = folder / ROWS / DATA
    if not data.is_dir():
        return
    with locked(folder / "entering", str(folder)):
        named, keys = {file for unit in known.values() for file in _files(unit.fragments)}, set(known)
        for note in (folder / UNITS).glob("*.json"):
            keys.add(note.stem)
            with suppress(SpiralError):
                named |= _files(read_json(note)["fragments"])
        for snapshot in (folder / SNAPSHOTS).glob("*.sealed.arrow"):
            with suppress(SpiralError):
                table = Snapshot.load(str(folder), snapshot.name.split(".")[0]).table
                named |= _files(table.column("fragment").to_pylist())
                keys |= set(table.column("key").to_pylist())
        with os.scandir(data) as entries:
            for entry in entries:
                if entry.name not in named:
                    Path(entry.path).unlink(missing_ok=True)
        sweep_refused(folder, keys)


def _files(fragments: Iterable[str]) -> set[str]:
    return {file for fragment in fragments if fragment for file in files_in(fragment)}

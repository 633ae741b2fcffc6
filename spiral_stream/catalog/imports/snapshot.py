"""Make the imported units of a source one version of a dataset, and record which units it has: a snapshot."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from spiral_stream.catalog.imports.unit import ImportedUnit
from spiral_stream.catalog.lock import locked
from spiral_stream.errors import SourceError
from spiral_stream.integrity.publish import publish_file
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.import_source import ImportUnit
from spiral_stream.sources.internal.imported import ROWS, SNAPSHOT, UNITS, Snapshot, snapshot_path
from spiral_stream.sources.lance.fragments import commit_fragments
from spiral_stream.sources.lance.source import Lance


def committed(
    folder: Path,
    schema: pa.Schema,
    units: Sequence[ImportUnit],
    imported: Sequence[ImportedUnit],
    *,
    anew: bool = False,
) -> str:
    """Make the units' fragments a version of the dataset, and note it as a snapshot; returns its name.

    Args:
        folder: of the import.
        schema: of its rows.
        units: of the source.
        imported: what is kept of each.
        anew: units were read again whose rows were damaged, so a snapshot of these units names those.

    Raises:
        SourceError: there are no rows, or Lance refuses.
    """
    name = content_key("snapshot", *(part for unit in units for part in (unit.name, unit.content_key)))
    if not anew and snapshot_path(str(folder), name).exists():
        with suppress(SourceError):  # one that is damaged, another's, or whose version is gone, is written again
            there = Snapshot.load(str(folder), name)
            Lance(str(folder / ROWS), version=there.version).open().close()
            if _units(there.table) == [(unit.name, unit.content_key) for unit in units]:
                _forget_notes(folder, units)  # whoever wrote it may have died before
                return name
    fragments = [text for each in imported for text in each.fragments]
    if not fragments:
        skipped = sum(each.refused for each in imported)
        msg = f"the files have no rows{f'; {skipped:,} were left out, such as {imported[0].examples[0]}' if skipped else ''}. "
        raise SourceError(msg + "Register the source when it has some")
    with locked(folder / "committing", str(folder)):
        version = commit_fragments(folder / ROWS, schema, fragments)
        table = pa.Table.from_pylist(_lines(units, imported), SNAPSHOT)
        with publish_file(snapshot_path(str(folder), name)) as draft, pa.OSFile(str(draft), "wb") as sink:
            marked = Snapshot(table, version, schema).marked()
            with pa.ipc.new_file(sink, marked.schema) as writer:
                writer.write_table(marked)
    _forget_notes(folder, units)
    return name


def _forget_notes(folder: Path, units: Sequence[ImportUnit]) -> None:
    """Remove what was noted of units: a snapshot says it."""
    for unit in units:
        (folder / UNITS / f"{unit.content_key}.json").unlink(missing_ok=True)


def _units(table: pa.Table) -> list[tuple[str, str]]:
    """The names and content keys of the units of a snapshot."""
    columns = (table.column(name).to_pylist() for name in ("unit", "key", "part"))
    return [(unit, key) for unit, key, part in zip(*columns, strict=True) if part == 0]


def _lines(units: Sequence[ImportUnit], imported: Sequence[ImportedUnit]) -> list[dict[str, Any]]:
    """The rows of a snapshot. The parts of a file follow each other."""
    found: list[dict[str, Any]] = []
    file, base = "", 0
    for unit, each in zip(units, imported, strict=True):
        base = base if unit.of is not None and unit.of.name == file else 0
        found += _parts(unit, each, base)
        file, base = unit.file.name, base + sum(each.rows)
    return found


def _parts(unit: ImportUnit, imported: ImportedUnit, base: int) -> Iterator[dict[str, Any]]:
    count = max(1, len(imported.rows))
    files = [each.file for each in unit.files or (unit,)]
    for k in range(count):
        yield {
            "unit": unit.name,
            "key": unit.content_key,
            "part": k,
            "parts": count,
            "rows": imported.rows[k] if imported.rows else 0,
            "kept_bytes": imported.kept_bytes[k] if imported.rows else 0,
            "fragment": imported.fragments[k] if imported.rows else "",
            "source_bytes": 0 if k else unit.size_bytes,
            "refused": 0 if k else imported.refused,
            "examples": [] if k else list(imported.examples),
            "cpu_s": 0.0 if k else imported.cpu_s,
            "files": []
            if k
            else [
                {"name": file.name, "key": file.content_key, "rows": rows}
                for file, rows in zip(files, imported.files, strict=True)
            ],
            "base": base,
        }

"""Whether the rows that a catalog keeps of a relation are as they were registered.

The catalog alone writes its copies of rows: of rows from memory, and of files that it imported. So a file of them that is
missing, or is another one than its pin says, is damaged, and is never "the data as it is now". Files of a mirror have no pins.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.errors import SourceError, SpiralError
from spiral_stream.integrity.one_look import look
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.internal.imported import ROWS, ImportedRows, Snapshot
from spiral_stream.sources.lance.fragments import DATA, files_in
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.pins import source_file_name
from spiral_stream.sources.source import ROW, Source


def copy_name(rows: Arrow) -> str:
    """Return the name of the table that holds a copy of rows from memory: it says which they are."""
    return f"rows-{rows.digest()}"


def damaged_files(entry: Entry) -> frozenset[str]:
    """Return the names of files of imported rows that are missing, or not as they were when the relation was registered."""
    source, found = entry.source, set[str]()
    if isinstance(source, ImportedRows):
        with suppress(SpiralError):  # a snapshot that is damaged names nothing, and is written again
            fragments = Snapshot.load(source.uri, source.snapshot).table.column("fragment").to_pylist()
            names = [file for text in fragments if text for file in files_in(text)]
            paths = {f"{DATA}/{name}": Path(source.uri, ROWS, DATA, name) for name in names}
            found = {name.removeprefix(f"{DATA}/") for name, _ in _faults(entry, paths.items())}
    return frozenset(found)


def copy_fault(entry: Entry) -> str | None:
    """Say what is wrong with the rows from memory that the catalog keeps of a relation, if anything is."""
    try:
        with entry.source.open() as reader:
            paths = {name: Path(path) for name, path in reader.files().items()}
            now = [(unit.name, unit.content_key) for unit in reader.units()]
    except SourceError as error:
        return str(error)
    with suppress(SpiralError):  # a shard table that is damaged tells nothing, and is written again
        then = entry.manifest()
        if now != list(zip(then.unit_names.to_pylist(), then.unit_keys.to_pylist(), strict=True)):
            return f"{entry.source} has other rows than were registered"
    said = next((f"{paths[name]} {said}" for name, said in _faults(entry, paths.items())), None)
    return None if said is None or _is_as_given(entry.source) else said


def _is_as_given(copy: Source) -> bool:
    """Whether a copy holds the rows that its folder is named after: a catalog that was copied has other times and inodes."""
    assert isinstance(copy, Lance)
    with suppress(SpiralError), copy.open() as reader:
        rows = [batch.drop_columns([ROW]) for batch in reader.scan(reader.schema.names)]
        return Path(copy.uri).stem == copy_name(Arrow(pa.Table.from_batches(rows, reader.schema)))
    return False


def _faults(entry: Entry, paths: Iterable[tuple[str, Path]]) -> list[tuple[str, str]]:
    """Of files, by their names within the source: which are not as they were registered, and how."""
    pins = None
    with suppress(SpiralError):  # pins that are damaged tell nothing, and are written again
        pins = entry.pins(entry.manifest())
    found: list[tuple[str, str]] = []
    for name, path in paths:
        facts, pinned = look(path), source_file_name(name)
        if facts is None:
            found.append((name, "is missing"))
        elif pins is not None and pins.size(pinned) is not None:
            said = pins.fault(pinned, facts.st_size, facts.st_mtime_ns, facts.st_ino)
            found += [] if said is None else [(name, said)]
    return found

"""Whether the rows that a catalog keeps of a relation are as they were registered.

The catalog alone writes its copies of rows: of rows from memory, and of files that it imported. So a file of them that is
missing, or is another one than its pin says, is damaged, and is never "the data as it is now". Files of a mirror have no pins.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.pin import source_file_name
from spiral_stream.errors import SourceError, SpiralError
from spiral_stream.integrity.one_look import look
from spiral_stream.sources.internal.imported import ROWS, ImportedRows, Snapshot
from spiral_stream.sources.lance.fragments import DATA, files_in


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
    return next((f"{paths[name]} {said}" for name, said in _faults(entry, paths.items())), None)


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

"""Which files an import reads, and which files have the bytes that were read before.

A content key covers the size and the time of a file. Where bytes are compared, a record next to the import holds for each file
the key that listing gave, the key that its rows are kept under, and a digest (XXH3-128) of the file. A file whose listed key
is another and whose bytes are the same keeps its rows, and with them the identities that were made of them. The first import
that compares reads every file for its digest; later ones those whose size or time changed.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.verify import digest_of_file
from spiral_stream.errors import SourceError, SpiralError, cut
from spiral_stream.integrity.publish import publish_file
from spiral_stream.integrity.regular_files import open_file
from spiral_stream.integrity.seal import table
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.import_source import ImportedSource, ImportUnit
from spiral_stream.sources.internal.imported import BYTES, ImportedRows, Snapshot
from spiral_stream.threads import Workers, thread_share

THREADS: Final = 8
_SCHEMA: Final = pa.schema([(name, pa.utf8()) for name in ("name", "listed", "kept", "digest")])


@final
@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was when its bytes were read."""

    listed: str  # content key
    kept: str  # the content key that its rows have
    digest: str  # of the bytes, and of what else the rows depend on


def listed(source: ImportedSource) -> list[ImportUnit]:
    """Return the files of a source.

    Raises:
        SourceError: there are none, or one is there twice.
    """
    files = list(source.import_units())
    kind = type(source).__name__
    if not files:
        msg = f"{kind}: there are no files. Correct the path"
        raise SourceError(msg)
    for what, values in (
        ("name", [file.name for file in files]),
        ("content key", [file.content_key for file in files]),
    ):
        if len(set(values)) < len(values):
            twice = max(values, key=values.count)
            names = [file.name for file, value in zip(files, values, strict=True) if value == twice]
            msg = f"{kind}: units {', '.join(map(cut, names[:2]))} have the same {what}. Each file is read once; name it once"
            raise SourceError(msg)
    return files


def changed_files(source: ImportedSource, imported: ImportedRows, *, same_bytes: bool) -> list[str]:
    """Return the names of files that were added, changed or removed since a snapshot; reads no rows.

    Raises:
        SourceError: nothing is there, or the snapshot cannot be read.
    """
    then = Snapshot.load(imported.uri, imported.snapshot).files()
    now = {
        file.name: file.content_key for file in known_files(Path(imported.uri), listed(source), same_bytes=same_bytes)
    }
    return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))


def known_files(folder: Path, files: Sequence[ImportUnit], *, same_bytes: bool) -> Sequence[ImportUnit]:
    """Return files with the content keys that their rows are kept under.

    Args:
        folder: of the import.
        files: as they are listed.
        same_bytes: read files whose content key is new, and compare their bytes; otherwise keep to what is known.

    Raises:
        CatalogError: another process writes there for too long.
        OSError: the record cannot be written.
    """
    seen = _record(folder / BYTES)
    if same_bytes:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "comparing", str(folder), _DEADLINE_S):
            seen = _compared(files, _record(folder / BYTES))
            _keep(folder / BYTES, seen)
    found = []
    for file in files:
        known = seen.get(file.name)
        same = known is not None and known.listed == file.content_key
        found.append(replace(file, content_key=known.kept) if known is not None and same else file)
    return found


_DEADLINE_S: Final = 24 * 3600.0  # of who waits while another process reads all files


def _compared(files: Sequence[ImportUnit], before: dict[str, _Seen]) -> dict[str, _Seen]:
    new = [file for file in files if file.name not in before or before[file.name].listed != file.content_key]
    with Workers(thread_share().waiting(THREADS), "spiral-bytes") as pool:
        digests = dict(zip([file.name for file in new], pool.map(_digest, new), strict=True))
    found = {}
    for file in files:
        known, digest = before.get(file.name), digests.get(file.name)
        if known is not None and known.listed == file.content_key:
            found[file.name] = known
        elif digest is not None:
            same = known is not None and known.digest == digest
            content_key = known.kept if known is not None and same else file.content_key
            found[file.name] = _Seen(file.content_key, content_key, digest)
    return found


def _digest(file: ImportUnit) -> str | None:
    """The digest of a file and of those that are read with it; None if one cannot be read, or changes meanwhile."""
    parts: list[str | int] = [file.also]
    for path in (file.path, *file.others):
        try:
            handle, facts = open_file(path)
            parts += digest_of_file(handle, facts)
            now = os.stat(path)  # noqa: PTH116
        except (OSError, SourceError):  # who reads its rows says so
            return None
        if (now.st_size, now.st_mtime_ns) != (facts.st_size, facts.st_mtime_ns):
            return None
    return content_key(*parts)


def _record(path: Path) -> dict[str, _Seen]:
    with suppress(SpiralError, pa.ArrowException, ValueError):  # one that is missing or damaged is made again
        rows = table(path).cast(_SCHEMA).to_pydict() if path.exists() else {}
        return {
            name: _Seen(*values)
            for name, *values in zip(*(rows.get(field, ()) for field in _SCHEMA.names), strict=True)
        }
    return {}


def _keep(path: Path, seen: dict[str, _Seen]) -> None:
    columns = [list(seen), *([getattr(each, name) for each in seen.values()] for name in _SCHEMA.names[1:])]
    with publish_file(path) as draft, pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_table(pa.table([pa.array(column, pa.utf8()) for column in columns], schema=_SCHEMA))

"""Text files: one row per file. Neighbours are read together, so that a million small files are few units."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import pyarrow as pa

from spiral_stream.arguments import check, class_door
from spiral_stream.errors import SourceError, anew, cut, shown
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.listing import matching
from spiral_stream.sources.files.paths import absolute_folder
from spiral_stream.sources.files.units import joined
from spiral_stream.sources.import_source import (
    FILE,
    ON_ERROR,
    RAISE,
    ImportedSource,
    ImportUnit,
    Refused,
)
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Get

BATCH_BYTES: Final = 16 << 20
TOGETHER: Final = 256  # objects that are asked for at once
FILE_BYTES: Final = 1 << 30  # of the largest file: one value of a column
SCHEMA: Final = pa.schema([("text", pa.utf8()), ("size_bytes", pa.int64()), (FILE, pa.utf8())])
_BOM: Final = b"\xef\xbb\xbf"


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class TextFiles(ImportedSource):
    """One row per file: ``text``, ``size_bytes``, and ``__file__``, its path relative to ``path``.

    Args:
        path: a folder, or the URI of one on an object store.
        pattern: of the files in it, such as ``"**/*.txt"``; ``**`` stands for any folders.
        on_error: ``"raise"``, or ``"skip"`` to leave out files that are not UTF-8; they are counted.

    Examples:
        >>> Path("notes").mkdir()
        >>> size = Path("notes/a.txt").write_text("The fox.")
        >>> entry = catalog.register("from-texts", spiral.sources.TextFiles("notes"), identity=spiral.RowIdentity())
        >>> catalog.table("from-texts").count()
        1
    """

    KIND: ClassVar[str] = "text_files"
    JOINED: ClassVar[bool] = True
    path: str
    pattern: str = "**/*.txt"
    on_error: str = RAISE

    def __post_init__(self) -> None:
        check(self, "TextFiles", "=", SourceError, on_error=ON_ERROR)
        object.__setattr__(self, "path", absolute_folder(self.path))
        if not isinstance(self.pattern, str) or not self.pattern or os.path.isabs(self.pattern):  # noqa: PTH117
            msg = f'TextFiles: pattern={shown(self.pattern)}. Give one relative to the folder, such as "**/*.txt"'
            raise SourceError(msg)

    @property
    def base(self) -> str:
        return self.path

    def import_units(self) -> Sequence[ImportUnit]:
        return [
            ImportUnit(name, f"{self.path}/{name}", seen.size, content_key(name, seen.size, seen.mark))
            for name, seen in matching(self.path, self.pattern, "TextFiles")
        ]

    def import_pieces(self, files: Sequence[ImportUnit]) -> Sequence[ImportUnit]:
        return list(joined(files))

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        del units
        return SCHEMA

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        texts: list[bytes] = []
        names: list[str] = []
        held = 0
        for file, data in _read(unit.files or (unit,)):
            fault = _not_utf8(data)
            if fault:
                refused.unit = file
                refused.row("the whole text", fault, data)
                continue
            texts.append(data)
            names.append(file.name)
            held += len(data)
            if held >= BATCH_BYTES:
                yield _batch(texts, names, schema)
                texts, names, held = [], [], 0
        if texts:
            yield _batch(texts, names, schema)


def _read(files: Sequence[ImportUnit]) -> Iterator[tuple[ImportUnit, bytes]]:
    """Each file of one place with its bytes; many are asked for at a time.

    Raises:
        SourceError: one cannot be read, is too large, or changed since it was listed.
    """
    for at in range(0, len(files), TOGETHER):
        some = files[at : at + TOGETHER]
        places = [store_of(file.path) for file in some]
        found = places[0][0].read([Get(key, most_bytes=FILE_BYTES) for _, key in places])
        for file, got in zip(some, found, strict=True):
            if isinstance(got, SourceError):
                raise anew(got)
            if got.data is None:
                msg = f"{cut(file.path)} has more than {FILE_BYTES >> 20:,} MiB, too much for one text. Leave it out, or split it"
                raise SourceError(msg)
            if got.facts.size != file.size_bytes:
                msg = f"{cut(file.path)} changed while it is being read. Take the files as they are now with catalog.refresh(...)"
                raise SourceError(msg)
            yield file, bytes(got.data)


def _not_utf8(data: bytes) -> str | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start:,} is {data[error.start : error.start + 1]!r}, and the text is not UTF-8; UTF-8 would be right"
    return None


def _batch(texts: list[bytes], names: list[str], schema: pa.Schema) -> pa.RecordBatch:
    sizes = pa.array([len(text) for text in texts], pa.int64())
    columns = {
        "text": pa.array([text.removeprefix(_BOM) for text in texts], pa.binary()).cast(pa.utf8()),
        "size_bytes": sizes,
    }
    return pa.record_batch([columns.get(name, pa.array(names, pa.utf8())) for name in schema.names], schema)

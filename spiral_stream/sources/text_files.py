"""Text files: one row per file. Neighbours are read together, so that a million small files are few units."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.imports import FILE, RAISE, ImportedSource, ImportUnit, Refused, need_on_error
from spiral_stream.sources.listing import file_units
from spiral_stream.sources.paths import absolute, is_remote, not_found, open_file
from spiral_stream.sources.pieces import joined

BATCH_BYTES: Final = 16 << 20
FILE_BYTES: Final = 1 << 30  # of the largest file: one value of a column
SCHEMA: Final = pa.schema([("text", pa.utf8()), ("size_bytes", pa.int64()), (FILE, pa.utf8())])
_BOM: Final = b"\xef\xbb\xbf"


@final
@dataclass(frozen=True, slots=True)
class TextFiles(ImportedSource):
    """One row per file: ``text``, ``size_bytes``, and ``__file__``, its path relative to ``path``.

    Args:
        path: a folder.
        pattern: of the files in it, such as ``"**/*.txt"``; ``**`` stands for any folders.
        on_error: ``"raise"``, or ``"skip"`` to leave out files that are not UTF-8; they are counted.
    """

    KIND: ClassVar[str] = "text_files"
    JOINED: ClassVar[bool] = True
    path: str
    pattern: str = "**/*.txt"
    on_error: str = RAISE

    def __post_init__(self) -> None:
        need_on_error("TextFiles", self.on_error)
        object.__setattr__(self, "path", absolute(self.path))
        if not isinstance(self.pattern, str) or not self.pattern or os.path.isabs(self.pattern):  # noqa: PTH117
            msg = f'TextFiles: pattern={shown(self.pattern)}. Give one relative to the folder, such as "**/*.txt"'
            raise SourceError(msg)

    @property
    def base(self) -> str:
        return self.path

    def import_units(self) -> Sequence[ImportUnit]:
        if is_remote(self.path) or not os.path.isdir(self.path):  # noqa: PTH112
            raise not_found(self.path, "TextFiles")
        found = glob.glob(self.pattern, root_dir=self.path, recursive=True)  # noqa: PTH207
        names = sorted({name for name in found if not os.path.isdir(os.path.join(self.path, name))})  # noqa: PTH112,PTH118
        if not names:
            msg = f"TextFiles: nothing in {cut(self.path)} matches {shown(self.pattern)}. Correct the pattern"
            raise SourceError(msg)
        return file_units(self.path, names, "TextFiles")

    def import_pieces(self, files: Sequence[ImportUnit]) -> Sequence[ImportUnit]:
        return list(joined(files))

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        del units
        return SCHEMA

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        texts: list[bytes] = []
        names: list[str] = []
        held = 0
        for file in unit.files or (unit,):
            data = _read(file.path)
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


def _read(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        SourceError: it cannot be read, or is too large.
    """
    try:
        number, facts = open_file(path)
        with os.fdopen(number, "rb") as file:
            data = file.read(min(facts.st_size, FILE_BYTES) + 1)
    except OSError as error:
        msg = f"{cut(path)}: {error.strerror}. Restore it, or take the files as they are now with catalog.refresh(...)"
        raise SourceError(msg) from error
    if len(data) > FILE_BYTES:
        msg = f"{cut(path)} has more than {FILE_BYTES >> 20:,} MiB, too much for one text. Leave it out, or split it"
        raise SourceError(msg)
    return data


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

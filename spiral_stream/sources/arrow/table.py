"""A small relation that is in memory already: registering it copies it into the catalog."""

from dataclasses import dataclass
from typing import ClassVar, final

import pyarrow as pa

from spiral_stream.arguments import class_door
from spiral_stream.errors import SourceError
from spiral_stream.sources.arrow.memory import MemoryReader
from spiral_stream.sources.arrow.views import as_plain
from spiral_stream.sources.files.paths import absolute, outside_allowed
from spiral_stream.sources.source import Reader, Source, Unit, content_key


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True, eq=False)
class Arrow(Source):
    """A pyarrow Table or RecordBatch, for relations of some thousands of rows (labels).

    Args:
        table: the rows.
        base: folder that relative references are resolved against; by default
            the working directory at the time.
        allow_outside: whether references may name files that do not lie below ``base``; by default
            only where no base is given.

    Examples:
        >>> entry = catalog.register("from-arrow", spiral.Arrow(text_rows), identity="doc_id")
        >>> catalog.table("from-arrow").count()
        40
    """

    KIND: ClassVar[str] = "arrow"
    table: pa.Table
    base: str | None = None
    allow_outside: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.table, pa.RecordBatch):
            object.__setattr__(self, "table", pa.Table.from_batches([self.table]))
        if not isinstance(self.table, pa.Table):
            msg = f"Arrow: takes a pyarrow Table, not {type(self.table).__name__}. Convert it with pyarrow.table(...)"
            raise SourceError(msg)
        names = self.table.column_names
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            msg = f"Arrow: two columns are called {twice[0]!r}. Give one another name: table.rename_columns([...])"
            raise SourceError(msg)
        object.__setattr__(self, "table", as_plain(self.table))
        object.__setattr__(self, "allow_outside", outside_allowed(self.base, self.allow_outside))
        object.__setattr__(self, "base", absolute(self.base or "."))

    def open(self) -> Reader:
        table = self.table.replace_schema_metadata(None)
        rows = len(table)
        unit = Unit("table", rows, table.nbytes, self.digest(), (rows,) if rows else ())
        assert self.base is not None
        return MemoryReader(table, [unit], self.base, allow_outside=bool(self.allow_outside))

    def digest(self) -> str:
        """Return the content key of schema and rows, whatever the chunks are."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table.combine_chunks())
        return content_key(sink.getvalue().to_pybytes())

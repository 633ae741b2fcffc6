"""Rows of an earlier data version: their shards are known, but the rows can no longer be read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError
from spiral_stream.expr import Expr
from spiral_stream.sources.source import Reader, Source, Unit


@final
@dataclass(frozen=True, slots=True)
class FormerRows(Source):
    """A source as it was; it is never registered or saved.

    Args:
        name: of the relation.
        data_version: that it had.
        schema: of its rows.
        held: its physical units.
    """

    KIND: ClassVar[str] = "former"
    name: str
    data_version: str
    schema: pa.Schema
    held: tuple[Unit, ...]

    def open(self) -> "FormerReader":
        return FormerReader(self)


@final
class FormerReader(Reader):
    """Knows the units and columns of a `FormerRows`, and refuses to read rows."""

    gone = True

    def __init__(self, source: FormerRows) -> None:
        self.schema, self.base = source.schema, ""
        self._source = source

    def units(self) -> Sequence[Unit]:
        return self._source.held

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        del predicate, units
        self._refuse(columns)

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        del rows
        self._refuse(columns)

    def _refuse(self, columns: Sequence[str]) -> NoReturn:
        msg = (
            f"{self._source.name}: {', '.join(columns) or 'the rows'} of data version {self._source.data_version[:8]} must be "
            "read, but the data changed since and only what Spiral kept of those rows is left. Put the old data back and "
            f'catalog.refresh("{self._source.name}"), or start a new epoch on the new data'
        )
        raise SourceError(msg)

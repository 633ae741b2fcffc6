"""Read one unit of an imported source, and write its rows as Lance fragments to a draft."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.derived.executors import Shared
from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.imports import FILE, INDEX, RAISE, ImportedSource, ImportUnit, Refused
from spiral_stream.sources.lance_fragments import draft_fragments

PLACED: Final = b"spiral:placed"  # marks columns that no source yields: where a row comes from
FRAGMENT_ROWS: Final = 1 << 20  # at most
FRAGMENT_BYTES: Final = 512 << 20  # about, at most: a fragment is what is read, shuffled and cached at once


@final
@dataclass(frozen=True, slots=True)
class KeptUnit:
    """What is kept of one unit; also the JSON file that says it is done."""

    rows: tuple[int, ...]  # of each fragment
    kept_bytes: tuple[int, ...]
    fragments: tuple[str, ...]  # Lance's own descriptions
    refused: int
    examples: tuple[str, ...]
    cpu_s: float

    @classmethod
    def parsed(cls, noted: dict[str, Any]) -> "KeptUnit":
        """Return what a JSON file says.

        Raises:
            TypeError: it says something else.
        """
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in noted.items()}
        return cls(**values)


def import_units(
    source: Shared[ImportedSource], schema: bytes, units: Sequence[ImportUnit], draft: Path
) -> list[KeptUnit]:
    """Read units and write their rows to a draft. Runs wherever the executor likes."""
    columns = pa.ipc.read_schema(pa.py_buffer(schema))
    return [_import_unit(source.value, columns, unit, draft / str(k)) for k, unit in enumerate(units)]


def _import_unit(source: ImportedSource, schema: pa.Schema, unit: ImportUnit, draft: Path) -> KeptUnit:
    begun = time.thread_time()
    refused = Refused(unit, getattr(source, "on_error", RAISE))
    own = pa.schema([field for field in schema if PLACED not in (field.metadata or {})])
    rows = _Rows(source.import_rows(unit, own, refused), unit, schema)
    first = next(rows, None)
    if first is None:
        return KeptUnit((), (), (), refused.count, tuple(refused.examples), time.thread_time() - begun)
    try:
        made = draft_fragments(draft, rows.with_first(first), schema, FRAGMENT_ROWS, FRAGMENT_BYTES)
    except SourceError as error:
        if rows.error is not None:
            raise rows.error from None
        msg = f"{cut(unit.path)}: its rows cannot be kept: {error}"
        raise SourceError(msg) from error
    return KeptUnit(
        rows=tuple(each.rows for each in made),
        kept_bytes=tuple(each.size_bytes for each in made),
        fragments=tuple(each.described for each in made),
        refused=refused.count,
        examples=tuple(refused.examples),
        cpu_s=time.thread_time() - begun,
    )


@final
class _Rows:
    """The batches of a unit with where each row comes from; keeps the error, which Lance would turn into text."""

    def __init__(self, batches: Iterator[pa.RecordBatch], unit: ImportUnit, schema: pa.Schema) -> None:
        self._batches, self._unit, self._schema, self._at = iter(batches), unit, schema, 0
        self.error: BaseException | None = None

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
            while not len(batch):
                batch = next(self._batches)
            return self._placed(batch)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise

    def with_first(self, first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """All batches, of which the first was taken already."""
        yield first
        yield from self

    def _placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        rows = len(batch)
        if FILE not in columns:
            columns[FILE] = pa.repeat(pa.scalar(self._unit.name, pa.utf8()), rows)
        if INDEX not in columns:
            columns[INDEX] = pa.array(np.arange(self._at, self._at + rows, dtype=np.int64))
        self._at += rows
        if missing := [name for name in self._schema.names if name not in columns]:
            msg = f"{cut(self._unit.path)} has no column {missing[0]!r}, which the source has. Register the file separately"
            raise SourceError(msg)
        return pa.record_batch([columns[name] for name in self._schema.names], self._schema)

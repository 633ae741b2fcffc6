"""Values that cached functions return for the rows of a shard, stored in row order like narrow columns.

    numbers, texts, lists of integers    as `derived.kinds.column` lays them out
    anything else                        an Arrow stream of one record batch

A piece holds a value for each row that the plan keeps of the shard, and the derivation names which rows these are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.derivation import Derivation, Piece, ShardRows, Spool
from spiral_stream.derived.kinds.column import LIST, Column, form_of
from spiral_stream.derived.kinds.gather import NarrowColumn, PiecesOf
from spiral_stream.derived.pieces import Pieces

CHUNK_ROWS: Final = 1 << 12  # of a function that takes a millisecond per row: four seconds
_BYTE: Final = np.dtype("u1")
_ROWS: Final = "rows"

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


@final
@dataclass(frozen=True)
class Values(Derivation):
    """The values of some functions for the rows of a relation that a plan keeps.

    Args:
        kinds: the types of the columns; they are called "0", "1", ...
        about: what the fingerprint covers, as JSON: the functions with their code, their inputs, and which rows.
    """

    KIND: ClassVar[str] = "values"
    VERSION: ClassVar[int] = 1
    kinds: tuple[pa.DataType, ...]
    about: str

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(str(k) for k in range(len(self.kinds)))

    @property
    def chunk_rows(self) -> int | None:
        return CHUNK_ROWS

    @property
    def SUMMARY(self) -> tuple[str, ...]:  # type: ignore[override]  # noqa: N802  as many as there are columns
        """The numbers of each column, behind its number, and the rows."""
        return (_ROWS, *(f"{k}.{name}" for k, each in enumerate(self.forms) if each for name in each.SUMMARY))

    @cached_property
    def forms(self) -> tuple[Column | None, ...]:
        """How each column is laid out; None for an Arrow stream."""
        return tuple(None if form_of(kind) is None else Column(str(k), kind) for k, kind in enumerate(self.kinds))

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        out: dict[str, np.dtype[Any]] = {}
        for k, form in enumerate(self.forms):
            out |= {f"{k}.{name}": kind for name, kind in ({"data": _BYTE} if form is None else form.slots).items()}
        return out

    def facts(self) -> dict[str, object]:
        return {**json.loads(self.about), "types": [str(kind) for kind in self.kinds], "version": self.VERSION}

    def piece(self, shard: ShardRows) -> Piece:
        arrays: dict[str, NDArray[Any] | Spool] = {}
        summary = {_ROWS: len(shard.table)}
        for k, form in enumerate(self.forms):
            if form is None:
                arrays[f"{k}.data"] = _streamed(shard.table.select([str(k)]))
                continue
            given = form.piece(ShardRows(len(shard.table), shard.offsets, shard.table))
            arrays |= {f"{k}.{name}": array for name, array in given.arrays.items()}
            summary |= {f"{k}.{name}": value for name, value in given.summary.items()}
        return Piece(arrays, summary)


def _streamed(table: pa.Table) -> NDArray[Any]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return np.frombuffer(sink.getvalue(), _BYTE)


@final
class ValueRows:
    """The kept values of one stream, by surviving row. Thread-safe."""

    def __init__(self, values: Values, pieces: Pieces) -> None:
        self.pieces = pieces
        self.firsts: UInt64 = np.concatenate([[0], np.cumsum(pieces.summary[_ROWS])]).astype(np.uint64)
        columns = [PiecesOf(pieces, f"{k}.") for k in range(len(values.kinds))]
        self._columns: list[NarrowColumn | _Streams] = [
            _Streams(kind, each) if form is None else NarrowColumn(form, each)
            for kind, form, each in zip(values.kinds, values.forms, columns, strict=True)
        ]

    @property
    def is_lossless(self) -> list[bool]:
        """Of each column whether every value can be given back: lists with null items cannot."""
        return [isinstance(each, _Streams) or each.is_lossless for each in self._columns]

    def read(self, k: int, shards: Int64, offsets: UInt64, *, ragged: bool) -> Any:
        """Return a column for rows, whose shards and places `derived.kinds.gather.located` finds in ``firsts``.

        Args:
            k: the column.
            shards: shape [P].
            offsets: shape [P].
            ragged: whether a list of integers is wanted as addresses.
        """
        column = self._columns[k]
        if ragged and isinstance(column, NarrowColumn) and column.column.form == LIST:
            return column.ragged(shards, offsets)
        return column.arrow(shards, offsets)


@final
class _Streams:
    """A column of any type: an Arrow stream per shard, which is read where it is mapped."""

    def __init__(self, kind: pa.DataType, pieces: PiecesOf) -> None:
        self._kind, self._pieces = kind, pieces
        self._open: dict[int, pa.Array] = {}

    def arrow(self, shards: Int64, offsets: UInt64) -> pa.Array:
        """Return rows as an Arrow array of the column's type."""
        if not len(shards):
            return pa.array([], self._kind)
        by = np.argsort(shards, kind="stable")
        present, first = np.unique(shards[by], return_index=True)
        groups = zip(present.tolist(), np.split(by, first[1:]), strict=True)
        parts = [self._shard(shard).take(pa.array(offsets[at])) for shard, at in groups]
        back = np.empty(len(by), np.int64)
        back[by] = np.arange(len(by))
        return parts[0].take(pa.array(back)) if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(back))

    def _shard(self, shard: int) -> pa.Array:
        if shard not in self._open:
            data = self._pieces.array("data", shard)
            column = pa.ipc.open_stream(pa.py_buffer(data)).read_all().column(0).combine_chunks()
            self._open[shard] = column if isinstance(column, pa.Array) else column.chunk(0)
        return self._open[shard]

"""Narrow columns that all streams of a mixture have: one gather for a whole batch, however many streams it draws from.

The shards of all relations are laid end to end, so a sample is found by one look-up, and its value by one copy. A stream
costs a call of its own only where a filter or a join selects its rows. A batch of 50 samples of 1,000 streams and 3 columns
takes 0.5 ms in all; with a gather for each stream it took 4 ms.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import final

import numpy as np

from spiral_stream.derived.kinds.gather import Int64, NarrowColumn, located
from spiral_stream.derived.pieces import Pieces, PiecesTogether
from spiral_stream.planner.columns.streams import StreamStage, split
from spiral_stream.planner.selection.fetched_columns import Read
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64


@final
class MixedColumns:
    """Reads what can be read for all streams together. Thread-safe.

    Args:
        streams: of the mixture.
    """

    def __init__(self, streams: Sequence[StreamStage]) -> None:
        self._streams = streams
        bases = {id(stream.base): stream.base for stream in streams}
        numbers = {key: k for k, key in enumerate(bases)}
        self._relation = np.array([numbers[id(stream.base)] for stream in streams])
        starts = [base.manifest.starts for base in bases.values()]
        firsts = np.cumsum([0, *(int(each[-1]) for each in starts)]).astype(np.uint64)
        laid = [each[:-1] + first for each, first in zip(starts, firsts[:-1], strict=True)]
        self._starts = np.concatenate([*laid, firsts[-1:]])
        self._first = firsts[self._relation]  # [S] of each stream: the first row of its relation among all
        self._selects = np.array([not stream.selected.rows.has_all_rows for stream in streams])
        self._columns: dict[str, NarrowColumn | None] = {}

    def read(self, stream_rows: StreamRows, names: Sequence[str], ragged: AbstractSet[str]) -> dict[str, Read]:
        """Return those columns of samples that can be read together, in the order of ``stream_rows``.

        Args:
            stream_rows: S samples.
            names: which columns are wanted.
            ragged: those that are wanted as addresses.

        Raises:
            DamageError: a piece is not what was written.
        """
        found = {name: column for name in names if (column := self.column(name)) is not None}
        if not found:
            return {}
        shards, offsets = self.located(stream_rows)
        return {
            name: column.ragged(shards, offsets) if name in ragged else column.arrow(shards, offsets)
            for name, column in found.items()
        }

    def lengths(self, stream_rows: StreamRows, name: str) -> Int64 | None:
        """Return the items of a list column of S samples, shape [S]; None where it cannot be read for all streams together."""
        column = self.column(name)
        return None if column is None else column.lengths(*self.located(stream_rows))

    def located(self, stream_rows: StreamRows) -> tuple[Int64, UInt64]:
        """Return where the rows of S samples lie in the columns that `column` returns: shard and offset, shape [S] each."""
        return located(self._starts, self._rows(stream_rows))

    def _rows(self, stream_rows: StreamRows) -> UInt64:
        """Shape [S]: the rows among those of all relations."""
        rows = np.asarray(stream_rows.rows, dtype=np.uint64)
        if self._selects[stream_rows.streams].any():
            rows = rows.copy()
            for stream, at in split(stream_rows):
                if self._selects[stream]:
                    rows[at] = self._streams[stream].selected.rows.ordinals(rows[at])
        among: UInt64 = rows + self._first[stream_rows.streams]
        return among

    def column(self, name: str) -> NarrowColumn | None:
        """Return a column that can be read for all streams together; None where it cannot."""
        if name not in self._columns:
            self._columns[name] = self._together(name)
        return self._columns[name]

    def _together(self, name: str) -> NarrowColumn | None:
        """The kept column of all relations; None if one does not keep it, or keeps another column under that name."""
        of: dict[int, NarrowColumn] = {}
        for relation, stream in zip(self._relation.tolist(), self._streams, strict=True):
            column = stream.selected.narrow.base_column(name) if name in stream.selected.columns.env else None
            if not isinstance(column, NarrowColumn) or of.setdefault(relation, column) is not column:
                return None
        pieces = [of[relation].pieces for relation in range(len(of))]
        kinds = {each.column.kind for each in of.values()}
        if len(kinds) > 1 or not all(isinstance(each, Pieces) and each.is_mapped for each in pieces):
            return None
        found = NarrowColumn(of[0].column, PiecesTogether([each for each in pieces if isinstance(each, Pieces)]))
        return found if found.is_lossless else None

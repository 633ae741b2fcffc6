"""Compare tokens with the lengths that the plan takes from a column (``length=`` of a formation).

Such a plan decides who shares a batch without its tokens, so a wrong length is found only when a batch reads them.
"""

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.packing import Packed
from spiral_stream.errors import DataError
from spiral_stream.expr import parse
from spiral_stream.fields.ragged import Ragged
from spiral_stream.planner.lineage import Key, Lineage
from spiral_stream.planner.physical import Stages

Int64 = NDArray[np.int64]
_NO_CAP: Final = np.iinfo(np.int64).max


@final
class DeclaredLengths:
    """The lengths that a formation takes from a column, and the token columns that they stand for."""

    def __init__(self, stages: Stages, lineage: Lineage, length: str) -> None:
        self.expr, self._text = parse(length), length
        self._columns = sorted({stage.field.column for stage in stages.sequences})
        self.tokens: list[Key] = list(lineage.keys(self._columns, lineage.end))
        self.keys = lineage.expression_keys(self.expr, lineage.end)
        formation = stages.formation
        self._packed = isinstance(formation, Packed)
        cut = isinstance(formation, Packed) and formation.oversize == "truncate"
        self._cap = formation.max_tokens if isinstance(formation, Packed) and cut else _NO_CAP

    def check(self, stated: pa.Array, columns: Mapping[Key, Any], refused: NDArray[np.bool_]) -> None:
        """Refuse samples whose tokens are not as many as stated.

        Args:
            stated: shape [S]: the values of the column.
            columns: of S samples, with their tokens.
            refused: shape [S]: samples whose text cannot be read; they have no tokens.

        Raises:
            DataError: says what was stated and what was found; ``row`` is the first such sample.
        """
        wanted = np.asarray(stated.to_numpy(zero_copy_only=False), dtype=np.int64)
        found = [_lengths(columns[key]) for key in self.tokens]
        if not self._packed:  # which pads every column by itself: the longest decides
            found = [np.maximum.reduce(found)]
        for name, lengths in zip(self._columns, found, strict=False):
            unlike = (np.minimum(lengths, self._cap) != np.minimum(wanted, self._cap)) & ~refused
            if unlike.any():
                row = int(np.flatnonzero(unlike)[0])
                msg = (
                    f"collate: length={self._text!r} says {int(wanted[row]):,} tokens, and {name!r} has {int(lengths[row]):,}. "
                    "Mend that column, or leave length out"
                )
                raise DataError(msg, row=row)


def _lengths(column: pa.Array | Ragged) -> Int64:
    if isinstance(column, Ragged):
        return column.lengths
    found: Int64 = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found

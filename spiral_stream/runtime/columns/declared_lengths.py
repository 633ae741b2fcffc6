"""Compare tokens with the lengths that the plan takes from a column (``length=`` of a formation).

Such a plan decides who shares a batch without its tokens, so a wrong length is found only when a batch reads them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.formation import Formation
from spiral_stream.batching.packing import Packed
from spiral_stream.errors import DataError
from spiral_stream.expr import parse
from spiral_stream.fields.ragged import Ragged
from spiral_stream.planner.columns.lineage import Key, Lineage
from spiral_stream.planner.stages import Stages

Int64 = NDArray[np.int64]
_NO_CAP: Final = np.iinfo(np.int64).max


@final
class DeclaredLengths:
    """The lengths that a formation takes from columns, and the token columns that they stand for."""

    def __init__(self, stages: Stages, lineage: Lineage, formation: Formation) -> None:
        self._texts = formation.length_texts
        self.exprs = [parse(text) for text in self._texts]
        self._columns = sorted({stage.field.column for stage in stages.sequences})
        self.tokens: list[Key] = list(lineage.keys(self._columns, lineage.end))
        self.keys = [key for each in self.exprs for key in lineage.expression_keys(each, lineage.end)]
        self._packed = isinstance(formation, Packed)
        self._own = bool(formation.widths)  # which are sorted by column too
        self._caps = [_NO_CAP]
        if isinstance(formation, Packed) and formation.oversize == "truncate":
            self._caps = list(formation.row_widths)

    def check(self, stated: Sequence[pa.Array], columns: Mapping[Key, Any], refused: NDArray[np.bool_]) -> None:
        """Refuse samples whose tokens are not as many as stated.

        Args:
            stated: the values of each column, shape [S].
            columns: of S samples, with their tokens.
            refused: shape [S]: samples whose text cannot be read; they have no tokens.

        Raises:
            DataError: says what was stated and what was found; ``row`` is the first such sample.
        """
        values = [np.asarray(each.to_numpy(zero_copy_only=False), dtype=np.int64) for each in stated]
        found = [_lengths(columns[key]) for key in self.tokens]
        if not self._packed:  # which pads every column by itself: the longest decides
            found = [np.maximum.reduce(found)]
        for at, (name, lengths) in enumerate(zip(self._columns, found, strict=False)):
            wanted, text = (each[at if self._own else 0] for each in (values, self._texts))
            cap = self._caps[at if len(self._caps) > 1 else 0]
            unlike = (np.minimum(lengths, cap) != np.minimum(wanted, cap)) & ~refused
            if unlike.any():
                row = int(np.flatnonzero(unlike)[0])
                msg = (
                    f"collate: length={text!r} says {int(wanted[row]):,} tokens, and {name!r} has {int(lengths[row]):,}. "
                    "Mend that column, or leave length out"
                )
                raise DataError(msg, row=row)


def _lengths(column: pa.Array | Ragged) -> Int64:
    if isinstance(column, Ragged):
        return column.lengths
    found: Int64 = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found

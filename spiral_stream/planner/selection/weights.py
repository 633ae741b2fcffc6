"""The weights of selected rows: read from narrow columns, summed by blocks of rows in a file that every rank maps.

The file is made once per selection and weight, by reading every weight; bad ones are found then. It has 8 bytes per 64
rows. The weights themselves are read when rows are drawn.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream import expr
from spiral_stream.dialects.numpy import to_column
from spiral_stream.errors import PlanError, shown
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import mended, publish_file
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.planner.selection.selected import INDEX_ROWS, Selected
from spiral_stream.sampling.order import WEIGHT_BLOCK, Float64, UInt64


@final
class SelectedWeights:
    """The weights of the surviving rows of one stream. Thread-safe."""

    def __init__(self, selected: Selected, text: str, identity: Sequence[str], stream: str) -> None:
        """Open the cumulated weights, which are made where they are missing.

        Args:
            selected: the rows.
            text: the column of weights, or an expression.
            identity: columns that name a row in messages.
            stream: the stream's name in a mixture, for messages.

        Raises:
            PlanError: a weight is missing, negative or no finite number, or all of them are 0; says of which row.
            CacheError: the folder cannot be written.
        """
        self._selected, self._text, self._identity = selected, text, tuple(identity)
        self._where = f"Weighted: {f'stream {stream!r}: ' if stream else ''}weights={shown(text)}"
        self._value = expr.bind(expr.parse(text), selected.columns.schema)
        self._names = tuple(sorted(self._value.columns()))
        file = selected.folder / f"weights-{digest(text)[:16]}.npy"

        def make() -> None:
            with publish_file(file) as draft, draft.open("wb") as out:
                np.save(out, self._cumulate())

        def opened() -> Float64:
            found = seal.array(file)
            if found.dtype != np.float64 or len(found) != 1 - (-selected.total // WEIGHT_BLOCK):
                raise seal.damaged(file, f"it has {len(found):,} sums of {found.dtype}, for {selected.total:,} rows")
            return found

        found = mended(file, opened, make)
        self._sums, self.positive = found[1:], int(found[0])

    def __reduce__(self) -> tuple[Any, ...]:
        msg = "weights of an open selection are not pickled; open the stream again"
        raise TypeError(msg)

    def of(self, rows: UInt64) -> Float64:
        table = self._selected.columns.fetch(rows, self._names)
        return self._weights(table, rows)

    def cumulated(self) -> Float64:
        return self._sums

    def _weights(self, table: pa.Table, rows: UInt64) -> Float64:
        columns = {name: table[name].combine_chunks() for name in self._names}
        return np.asarray(_numbers(to_column(self._value, columns, len(rows))), dtype=np.float64)

    def _cumulate(self) -> Float64:
        """Shape [1 + B]: how many weights are above 0, then the sums up to the end of each block; read once."""
        sums, positive = [np.empty(0)], 0
        for start in range(0, self._selected.total, INDEX_ROWS):
            rows = np.arange(start, min(start + INDEX_ROWS, self._selected.total), dtype=np.uint64)
            weights = self.of(rows)
            bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
            if len(bad):
                raise self._refused(rows[bad[0]], weights[bad[0]])
            positive += int(np.count_nonzero(weights))
            padded = np.concatenate([weights, np.zeros(-len(weights) % WEIGHT_BLOCK)])
            sums.append(np.cumsum(padded.reshape(-1, WEIGHT_BLOCK), axis=1)[:, -1])
        with np.errstate(over="ignore"):
            found = np.cumsum(np.concatenate(sums))
        if not positive:
            msg = f"{self._where}: all {self._selected.total:,} rows have weight 0{self._example(0)}. Give some a weight above 0"
            raise PlanError(msg)
        if not np.isfinite(found[-1]):
            msg = f"{self._where}: the weights make more than {np.finfo(np.float64).max:.2g} together. Divide them by a number"
            raise PlanError(msg)
        return np.concatenate([[float(positive)], found])

    def _refused(self, row: np.uint64, weight: np.float64) -> PlanError:
        text = "missing or NaN" if np.isnan(weight) else f"{weight:g}"
        msg = (
            f"{self._where}: the weight of row {int(row):,} is {text}{self._example(int(row))}. Weights are finite numbers from "
            "0 up; filter the row out before sample, or compute another weight"
        )
        return PlanError(msg)

    def _example(self, row: int) -> str:
        """The identity of a row, for a message."""
        table = self._selected.columns.fetch(np.array([row], dtype=np.uint64), self._identity)
        return f" ({', '.join(f'{name}={shown(table[name][0].as_py())}' for name in self._identity)})"


def _numbers(column: pa.Array | pa.ChunkedArray) -> Any:
    """Weights as float64, NaN where there is none."""
    return pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy()

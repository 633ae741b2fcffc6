"""How unevenly rows are shared between values of a column, and what a number tells of them.

The effective number of values is the exponential of the entropy of their shares: what so many equal shares would
have. What a number explains is the correlation ratio: the part of its variance that lies between the values, 0 where
every value has the same mean, 1 where the value decides the number.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


@final
@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Rows of each value, most first."""

    names: tuple[str | None, ...]  # [K]
    counts: NDArray[np.int64]  # [K], at least 1 each

    @classmethod
    def of(cls, column: "pa.ChunkedArray") -> "Shares":
        """Count a column; ties by name, null last."""
        counted = sorted(
            ((row["values"], row["counts"]) for row in column.value_counts().to_pylist()),
            key=lambda pair: (-pair[1], pair[0] is None, str(pair[0])),
        )
        return cls(tuple(name for name, _ in counted), np.array([count for _, count in counted], dtype=np.int64))

    @property
    def largest(self) -> float:
        """The share of the most frequent value; 0 without rows."""
        return float(self.counts[0] / self.counts.sum()) if len(self.counts) else 0.0

    @property
    def effective(self) -> float:
        """The effective number of values; 0 without rows."""
        if not len(self.counts):
            return 0.0
        share = self.counts / self.counts.sum()
        return float(np.exp(-(share * np.log(share)).sum()))


def explained(numbers: "pa.ChunkedArray", column: "pa.ChunkedArray") -> float:
    """The correlation ratio of a number and a column of few values, from 0 to 1; rows with a null do not count.

    Args:
        numbers: shape [P].
        column: shape [P].
    """
    import pyarrow.compute as pc

    both = pc.and_(numbers.is_valid(), column.is_valid())
    values: Any = numbers.filter(both).to_numpy().astype(np.float64)
    codes = column.filter(both).combine_chunks().dictionary_encode().indices.to_numpy()
    if not len(values):
        return 0.0
    values = values - values.mean()
    whole = float((values**2).sum())
    sums, counts = np.bincount(codes, weights=values), np.bincount(codes)
    return float((sums**2 / counts).sum() / whole) if whole else 0.0

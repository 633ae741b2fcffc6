"""What each stream had in each step of a run: rows, and the sum of a value. One pass over the table; a row per pair.

A value that is no number, or infinite, is counted and is in no sum.
"""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.runs.losses.table_query import RunRows

Int64 = NDArray[np.int64]
Floats = NDArray[np.float64]

_QUERY: Final = """
SELECT stream, step, count(*) AS rows, count(*) FILTER (isfinite(v)) AS finite,
       coalesce(sum(v) FILTER (isfinite(v)), 0) AS total, bool_and(applied) AS applied, min(epoch)::BIGINT AS epoch
FROM (SELECT stream, step, applied, epoch, v::DOUBLE AS v FROM rows WHERE v IS NOT NULL)
GROUP BY stream, step ORDER BY stream, step
"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepSeries:
    """A value by stream and step: N pairs, sorted by stream, then step.

    Attributes:
        streams: names, sorted.
        stream: [N], int32: number of the name.
        step: [N].
        rows: [N]: with a value.
        finite: [N]: of them, those whose value is finite.
        total: [N]: sum of the finite values.
        applied: [N]: whether the step was trained on.
        epoch: [N].
    """

    streams: tuple[str, ...]
    stream: NDArray[np.int32]
    step: Int64
    rows: Int64
    finite: Int64
    total: Floats
    applied: NDArray[np.bool_]
    epoch: Int64

    def pairs(self) -> pa.Table:
        """Return the pairs as a table: ``stream``, ``step``."""
        return pa.table({"stream": self.stream, "step": self.step})

    def means(self) -> Floats:
        """Shape [N]: the mean of the finite values; NaN where there is none."""
        found = np.full(len(self.total), np.nan)
        np.divide(self.total, self.finite, out=found, where=self.finite > 0)
        return found

    def all_streams(self) -> "StepSeries":
        """Return the same of all streams together."""
        steps, at = np.unique(self.step, return_inverse=True)
        count = len(steps)

        def summed(values: NDArray[Any]) -> NDArray[Any]:
            return np.bincount(at, weights=values, minlength=count).astype(values.dtype)

        applied, epoch = np.ones(count, np.bool_), np.zeros(count, np.int64)
        np.logical_and.at(applied, at, self.applied)
        epoch[at] = self.epoch
        sums = summed(self.rows), summed(self.finite), summed(self.total)
        return StepSeries(("",), np.zeros(count, np.int32), steps, *sums, applied, epoch)


def step_series(rows: RunRows, value: str) -> StepSeries:
    """Read what every stream had in every step.

    Args:
        rows: of the run.
        value: a column of `RunRows.values`.
    """
    columns = {"stream": "stream", "step": "step", "applied": "applied", "epoch": "epoch", "v": value}
    found = rows.answer(_QUERY, rows.reader(columns))
    streams = pa.concat_arrays([pa.array([], pa.utf8()), *found.column("stream").chunks]).dictionary_encode()
    numbers = {name: found.column(name).to_numpy() for name in ("step", "rows", "finite", "total", "epoch")}
    applied = found.column("applied").fill_null(True).to_numpy()
    return StepSeries(
        tuple(streams.dictionary.to_pylist()),  # sorted, as the rows are
        streams.indices.to_numpy(),
        numbers["step"].astype(np.int64),
        numbers["rows"],
        numbers["finite"],
        numbers["total"].astype(np.float64),
        applied.astype(np.bool_),
        numbers["epoch"].astype(np.int64),
    )

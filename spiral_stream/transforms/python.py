"""A user's function in a plan: which columns it takes, what it returns, and whether it draws random numbers.

A function runs on Arrow arrays of many samples (``batched``), or on the Python values of one sample at a time. Its
result for a sample must depend on that sample alone. A random function gets a generator that belongs to the sample
(docs/decisions/0032), or, if batched, the samples' 64-bit keys. So the numbers it draws depend on neither workers nor
batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.dialects.offsets import unsliced
from spiral_stream.errors import DataError, PlanError, shown

_UNFIT: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, OverflowError)  # of Arrow


@final
@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A user's function over columns, and what the plan knows of it before it runs."""

    function: Callable[..., Any]
    columns: tuple[str, ...]
    kind: pa.DataType  # of the values it returns
    batched: bool = True
    random: bool = False
    version: str | None = None  # stands for its code in fingerprints

    def __post_init__(self) -> None:
        if not callable(self.function):
            given = shown(self.function)
            msg = f"map: {given} is no function. Give a transform, for example Tokenize(...) >> 'tokens', or a function"
            raise PlanError(msg)
        if not self.columns:
            msg = f"map ({self.name}): columns=(). Name the columns that the function takes, in order"
            raise PlanError(msg)
        if not isinstance(self.kind, pa.DataType):
            given = shown(self.kind)
            msg = (
                f"map ({self.name}): returns={given}. Give the Arrow type of what it returns, for example pa.float32()"
            )
            raise PlanError(msg)

    @property
    def name(self) -> str:
        """The function's own name, for messages."""
        return str(getattr(self.function, "__qualname__", None) or type(self.function).__name__)

    def run(self, table: pa.Table, keys: NDArray[np.uint64]) -> pa.Array:
        """Call the function for some samples.

        Args:
            table: S samples with at least `columns`.
            keys: shape [S], uint64: random keys of the samples, for this function alone.

        Returns:
            S values of type ``kind``.

        Raises:
            DataError: the function failed, or did not return S values of type ``kind``; ``row`` is the sample, if known.
        """
        columns = [table[name].combine_chunks() for name in self.columns]
        values = self._batched(columns, keys) if self.batched else self._singly([c.to_pylist() for c in columns], keys)
        if len(values) != len(table):
            msg = f"map ({self.name}): returned {len(values):,} values for {len(table):,} samples. Return one for each, in order"
            raise DataError(msg)
        return values

    def _batched(self, columns: list[Any], keys: NDArray[np.uint64]) -> pa.Array:
        try:
            values = self.function(*columns, keys) if self.random else self.function(*columns)
        except Exception as error:
            msg = f"map ({self.name}): failed on {len(keys):,} samples: {type(error).__name__}: {error}"
            raise DataError(msg, row=self._failing(columns, keys)) from error
        return self._typed(values)

    def _failing(self, columns: list[Any], keys: NDArray[np.uint64]) -> int | None:
        """Return the first sample that fails by itself: one call per sample, after a failure only."""
        for row in range(len(keys)):
            given = [column.slice(row, 1) for column in columns]
            try:
                self.function(*given, keys[row : row + 1]) if self.random else self.function(*given)
            except Exception:  # noqa: BLE001  the caller raises, with the row found here
                return row
        return None

    def _singly(self, columns: list[list[Any]], keys: NDArray[np.uint64]) -> pa.Array:
        out = []
        for row, values in enumerate(zip(*columns, strict=True)):  # batched=False: the user asked for a call per sample
            drawn = (np.random.Generator(np.random.Philox(key=int(keys[row]))),) if self.random else ()
            try:
                out.append(self.function(*values, *drawn))
            except Exception as error:
                msg = f"map ({self.name}): failed: {type(error).__name__}: {error}"
                raise DataError(msg, row=row) from error
        try:
            return self._typed(out)
        except DataError as error:
            error.row = next((row for row, value in enumerate(out) if self._unfit(value)), None)
            raise

    def _unfit(self, value: Any) -> bool:
        try:
            pa.array([value], self.kind)
        except _UNFIT:
            return True
        return False

    def _typed(self, values: Any) -> pa.Array:
        try:
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            if isinstance(values, pa.Array):
                return unsliced(values.cast(self.kind))  # rows of it will be chosen
            return pa.array(values, self.kind)
        except _UNFIT as error:
            msg = (
                f"map ({self.name}): returned {type(values).__name__} that is no {self.kind} ({error}). "
                "State another returns=, or mend the function"
            )
            raise DataError(msg) from error

"""A user's function in a plan: which columns it takes, what it returns, and whether it draws random numbers.

A function has one of three forms. It takes Arrow arrays of many samples (``batched``), the Python values of one sample,
or record batches (``records``), or one sample as a dict, and then returns several columns. Its result for a sample must
depend on that sample alone. A random function gets a generator that belongs to the sample (docs/decisions/0032), or, if
batched, the samples' 64-bit keys. So the numbers it draws depend on neither workers nor batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, SourceError, SpiralError, shown
from spiral_stream.transforms.returned import column_of, columns_of, need_rows


@final
@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A user's function over columns, and what the plan knows of it before it runs."""

    function: Callable[..., Any]
    columns: tuple[str, ...]
    kind: pa.DataType  # of the values it returns; for records a struct of its columns
    batched: bool = True
    random: bool = False
    version: str | None = None  # stands for its code in fingerprints
    records: bool = False  # takes record batches (or dicts) and returns several columns
    workers: int | None = None  # processes that run it; None runs it on the stream's threads. Not in fingerprints

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
        workers = self.workers
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            msg = f"map ({self.name}): workers={shown(workers)}. Give a number of processes of at least 1, or None for threads"
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
        if self.records:
            return self._records(pa.RecordBatch.from_arrays(columns, names=list(self.columns)), keys)
        if self.batched:
            values = column_of(self._called(columns, keys), self.kind, self._who)
        else:
            values = column_of(self._singly([c.to_pylist() for c in columns], keys), self.kind, self._who)
        need_rows(len(values), len(table), self._who)
        return values

    @property
    def _who(self) -> str:
        return f"map ({self.name})"

    def _records(self, batch: pa.RecordBatch, keys: NDArray[np.uint64]) -> pa.Array:
        if self.batched:
            return columns_of(self._called([batch], keys), self.kind, len(batch), self._who)
        return columns_of(self._singly([batch.to_pylist()], keys), self.kind, len(batch), self._who)

    def _called(self, given: list[Any], keys: NDArray[np.uint64]) -> Any:
        """One call for all samples; ``given`` holds arrays, or one record batch."""
        try:
            return self.function(*given, keys) if self.random else self.function(*given)
        except Exception as error:
            if not is_of_the_row(error):
                raise self._fault(error) from error
            self._need_each(given, keys)
            msg = f"{self._who}: failed on {len(keys):,} samples: {type(error).__name__}: {error}"
            raise DataError(msg) from error

    def _need_each(self, given: list[Any], keys: NDArray[np.uint64]) -> None:
        """Raise the error of the first sample that fails by itself: one call per sample, after a failure only."""
        for row in range(len(keys)):
            one = [each.slice(row, 1) for each in given]
            try:
                self.function(*one, keys[row : row + 1]) if self.random else self.function(*one)
            except Exception as error:
                raise self._of_row(error, row) from error

    def _singly(self, columns: list[list[Any]], keys: NDArray[np.uint64]) -> list[Any]:
        out = []
        for row, values in enumerate(zip(*columns, strict=True)):  # batched=False: the user asked for a call per sample
            drawn = (np.random.Generator(np.random.Philox(key=int(keys[row]))),) if self.random else ()
            try:
                out.append(self.function(*values, *drawn))
            except Exception as error:
                raise self._of_row(error, row) from error
        return out

    def _of_row(self, error: Exception, row: int) -> SourceError:
        """The error of one sample: its own fault, or another's."""
        if not is_of_the_row(error):
            return self._fault(error, row)
        return DataError(f"{self._who}: failed: {type(error).__name__}: {error}", row=row)

    def _fault(self, error: Exception, row: int | None = None) -> SourceError:
        """A fault of storage or memory that the function met: no property of the sample."""
        return SourceError(f"{self._who}: failed: {type(error).__name__}: {error}", row=row)


def is_of_the_row(error: Exception) -> bool:
    """Whether what a function raised may be a property of its row, so that `on_error` may leave the row out.

    Memory that is used up, a fault of storage or network, and our own errors are none. An `OSError` without a number is
    what Pillow raises of a bad image.
    """
    kind = type(error)
    if isinstance(error, MemoryError) or kind.__name__ == "OutOfMemoryError":
        return False
    if isinstance(error, SpiralError):
        return isinstance(error, DataError)
    if isinstance(error, OSError):
        whose = kind.__module__.split(".")[0]
        lost = isinstance(error, ConnectionError | TimeoutError)
        return error.errno is None and not lost and whose in ("builtins", "PIL")
    return True

"""Where the values of a relation's shard column lie: runs of equal values, in physical order.

The column is read once, batch by batch; what is kept grows with the runs, never with the rows. Units that an earlier
registration read are not read again.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import CatalogError
from spiral_stream.sources.source import ROW, Reader, Unit

UInt64 = NDArray[np.uint64]
Runs = tuple[UInt64, pa.StringArray]  # first rows, ascending, and values


@final
class KnownRuns:
    """The runs of units that were read before.

    Args:
        keys: the content keys of the units, in physical order.
        rows: of each unit.
        starts: where runs begin, in physical order.
        names: their values.
    """

    def __init__(self, keys: Sequence[str], rows: UInt64, starts: UInt64, names: pa.StringArray) -> None:
        self._place = {key: k for k, key in enumerate(keys)}
        self._ends = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)
        self._starts, self._names = starts, names

    def of(self, key: str) -> Runs | None:
        """Return the runs of a unit, counted from its first row; None if nobody read it."""
        if key not in self._place:
            return None
        begin, end = self._ends[self._place[key]], self._ends[self._place[key] + 1]
        low, high = int(np.searchsorted(self._starts, begin, side="right")) - 1, int(np.searchsorted(self._starts, end))
        if begin == end:
            return np.empty(0, np.uint64), self._names[:0]
        return np.maximum(self._starts[low:high], begin) - begin, self._names[low:high]


def shard_runs(reader: Reader, column: str, units: Sequence[Unit], known: KnownRuns | None) -> Runs:
    """Find where runs of equal values begin, in physical order, and their values.

    Raises:
        CatalogError: the column holds nulls, or is no text or integer.
        SourceError: the source cannot be read.
    """
    begins = np.concatenate([[0], np.cumsum([unit.rows for unit in units])]).astype(np.uint64)
    found: list[Runs] = []
    unread: list[int] = []

    def read() -> None:
        if unread:
            found.append(_scanned(reader, column, None if len(unread) == len(units) else unread))
            unread.clear()

    for k, unit in enumerate(units):
        runs = None if known is None else known.of(unit.content_key)
        if runs is None:
            unread.append(k)
        else:
            read()
            found.append((runs[0] + begins[k], runs[1]))
    read()
    names = pa.concat_arrays([each for _, each in found])
    codes = names.dictionary_encode().indices.to_numpy()
    first = np.flatnonzero(np.diff(codes, prepend=-1))  # runs may go on in the next unit
    return np.concatenate([each for each, _ in found])[first], names.take(pa.array(first))


def _scanned(reader: Reader, column: str, units: Sequence[int] | None) -> Runs:
    """Find the runs of some units, or of all of them, by a scan."""
    import pyarrow.compute as pc

    starts, values = [], []
    last: str | None = None
    for batch in reader.scan([column], None, units):
        array = batch.column(column)
        if array.null_count:
            row = batch.column(ROW)[pc.index(array.is_null(), True).as_py()]
            msg = (
                f"storage shard column {column!r} is null at row {row}. "
                "Fill it in, or register with shard=None to take the physical units"
            )
            raise CatalogError(msg)
        begins = _begins(array, column)
        runs = _texts(array.take(pa.array(begins)))
        if last is not None and len(runs) and runs[0].as_py() == last:
            begins, runs = begins[1:], runs[1:]
        starts.append(batch.column(ROW).to_numpy()[begins])
        values.append(runs)
        last = _texts(array[-1:])[0].as_py() if len(array) else last
    return np.concatenate([np.empty(0, np.uint64), *starts]), pa.concat_arrays([pa.array([], pa.utf8()), *values])


def _begins(array: pa.Array, column: str) -> NDArray[np.intp]:
    """Where runs of equal values begin: [R]."""
    import pyarrow.compute as pc

    whole = pa.types.is_dictionary(array.type)
    kind = array.type.value_type if whole else array.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        msg = f"storage shard column {column!r} is {kind}; a shard is named by text or an integer. Name another column"
        raise CatalogError(msg)
    codes = array.indices if whole else array
    changed = pc.not_equal(codes[1:], codes[: max(0, len(codes) - 1)]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.concatenate([[True][: len(codes)], changed]))


def _texts(array: pa.Array) -> pa.StringArray:
    plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return plain.cast(pa.utf8())

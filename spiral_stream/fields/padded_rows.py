"""`PaddedRows`: rows of unequal length that are not tokens, padded to one array. `Pad` and `PadMask` become it.

Such rows are lists of floats (sound, features of frames), or of values of one shape (boxes, key points, tensors). Nothing
is packed or split here, and no formation counts them as tokens. Numbers of 4 and 8 bytes are written by `_tokens.c` as
bits; others by one NumPy assignment.
"""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.field import Field, FieldSpec, fixed_items, fixed_numpy, fixed_parts, write
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.sequence import TokenFill
from spiral_stream.semantic import is_ragged

Int64 = NDArray[np.int64]

_BITS: Final[dict[int, np.dtype[Any]]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}  # by bytes of an item


@final
@dataclass(frozen=True, slots=True)
class PaddedRows(Field):
    """An array of shape ``[B, T, ...]``: row b holds the values of sample b, then padding.

    Args:
        column: lists of numbers, or of values of one shape.
        dtype: NumPy name of the result.
        padding: what stands after the last value of a row.
        multiple: T is a multiple of this.
        length: T; None takes the longest row of the batch.
        mask: write 1 at values and 0 at padding, shape ``[B, T]``, instead of the values.
        device: where the field is delivered; None leaves it on the host.
    """

    column: str
    dtype: str
    padding: float
    multiple: int
    length: int | None
    mask: bool
    device: str | None

    def spec(self, column: pa.Field) -> FieldSpec:
        """Describe the entry of a batch.

        Raises:
            PlanError: the values are floats, and the dtype is not.
        """
        kind = column.type
        items, shape = fixed_parts(kind.value_type)
        if pa.types.is_floating(items) and not self.mask and not self.dtype.startswith(("float", "bfloat")):
            msg = f'the column is {kind}, and dtype is {self.dtype}. Say which floats: Pad("{self.column}", dtype="float32")'
            raise PlanError(msg)
        return FieldSpec(self.dtype, (self.length, *(() if self.mask else shape)), None, self.device)

    def longest(self, values: pa.Array) -> Int64:
        """Return how many values the longest of these rows has, shape []."""
        return np.asarray(_lengths(values).max(initial=0))

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any]:
        assert out is not None
        lengths = _lengths(values)
        self._need_room(lengths, out.shape[1])
        if self.mask:
            out[...] = np.arange(out.shape[1]) < lengths[:, None]
            return out
        flat = values.flatten()  # without the items behind a null list
        _, null = fixed_items(flat)
        if null is not None:
            raise self._refused(_row(lengths, null), "holds a null. Fill it in, or filter the row out")
        self._scatter(fixed_numpy(flat), lengths, out)
        return out

    def _scatter(self, found: NDArray[Any], lengths: Int64, out: NDArray[Any]) -> None:
        """Write the values of all rows, end to end, to their places."""
        items = np.empty(found.shape, dtype=out.dtype)
        wrong = write(found, items)
        if wrong is not None:
            row = _row(lengths, int(np.argwhere(wrong)[0, 0]))
            raise self._refused(
                row, f"has {found[wrong][0]}, which does not fit dtype {self.dtype}. Give a wider dtype"
            )
        bits = _BITS.get(out.itemsize)
        if bits is None or not out.flags.c_contiguous:
            write(np.full(out.shape, self.padding), out)
            out[np.arange(out.shape[1]) < lengths[:, None]] = items
            return
        wide = int(np.prod(out.shape[2:], dtype=np.int64))
        ends = np.concatenate([[0], np.cumsum(lengths * wide)])
        rows = Ragged.of_flat(items.reshape(-1).view(bits), ends)
        padding = int(np.array(self.padding, dtype=out.dtype).view(bits))
        specs = TokenFill.TOKENS, padding, out.itemsize
        rows.write(specs, (out,), len(rows), out.shape[1] * wide, rows.lengths)

    def _need_room(self, lengths: Int64, width: int) -> None:
        over = np.flatnonzero(lengths > width)
        if len(over):
            row = int(over[0])
            raise self._refused(
                row, f"has {lengths[row]:,} values, above length={width}. Raise it, or cut the row before"
            )

    def _refused(self, row: int, found: str) -> DataError:
        return DataError(f"{'PadMask' if self.mask else 'Pad'}({self.column!r}): the row {found}", row=row)


def are_rows(kind: pa.DataType) -> bool:
    """Whether a column holds lists of numbers, or of values of one shape."""
    items = fixed_parts(kind.value_type)[0] if is_ragged(kind) else pa.null()
    return bool(pa.types.is_integer(items) or pa.types.is_floating(items) or pa.types.is_boolean(items))


def _lengths(values: pa.Array) -> Int64:
    """How many values each row has, shape [B]; a null row has none."""
    return np.asarray(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)


def _row(lengths: Int64, item: int) -> int:
    """The row of one of the values that lie end to end."""
    return int(np.searchsorted(np.cumsum(lengths), item, side="right"))

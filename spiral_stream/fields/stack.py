"""`Stack`: values of equal shape become one array with a batch dimension."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.field import Field, FieldSpec, fixed_numpy
from spiral_stream.schema import semantic_of

DTYPES: Final = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)


@final
@dataclass(frozen=True, slots=True)
class Stack(Field):
    """One array ``[B, ...]`` of a number column, or of decoded and transformed images.

    Args:
        column: the column of the relation.
        decode: how to read a semantic reference: ``"jpeg"``, or ``"image"`` for any format Pillow reads.
        transforms: image transforms in order, for a decoded column.
        dtype: NumPy name of the result; None keeps the column's type (uint8 for images).
        layout: ``"nchw"`` (default) or ``"nhwc"``, for images.
        device: where the field is delivered; None leaves it on the host.
    """

    column: str
    decode: str | None = None
    transforms: tuple[Any, ...] | Sequence[Any] = ()
    dtype: str | None = None
    layout: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if self.dtype is not None and self.dtype not in DTYPES:
            msg = f"Stack({self.column!r}): dtype={self.dtype!r} is unknown; it is one of {', '.join(DTYPES)}"
            raise PlanError(msg)
        if self.decode is None and (self.transforms or self.layout):
            msg = f'Stack({self.column!r}): transforms and layout are for decoded images; add decode="jpeg"'
            raise PlanError(msg)

    def spec(self, column: pa.Field) -> FieldSpec:
        semantic = semantic_of(column)
        if semantic is not None:
            msg = (
                f'Stack({self.column!r}): the column is {semantic} and names bytes; say how to read them, decode="jpeg"'
            )
            raise PlanError(msg)
        kind = column.type
        shape: tuple[int, ...] = ()
        if pa.types.is_fixed_size_list(kind):
            shape, kind = (kind.list_size,), kind.value_type
        if pa.types.is_timestamp(kind):
            kind = pa.int64()
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            msg = (
                f"Stack({self.column!r}): the column is {column.type}; numbers, booleans, timestamps and fixed-size lists "
                f'of them stack. Use List("{self.column}") for Python values'
            )
            raise PlanError(msg)
        dtype = self.dtype or str(np.dtype(kind.to_pandas_dtype()))
        return FieldSpec(dtype, shape, None, self.device)

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any]:
        assert out is not None
        inner = values.flatten() if pa.types.is_fixed_size_list(values.type) and not values.null_count else values
        if inner.null_count:
            place = int(np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._refused(
                place * len(values) // len(inner),
                f"is null{'' if inner is values else ' in part'}; filter it out before sample, "
                f'for example .filter(~col("{self.column}").is_null()), or use List',
            )
        found = fixed_numpy(values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values)
        with np.errstate(invalid="ignore", over="ignore"):  # what these would warn of is refused below
            out[...] = found
        if not np.can_cast(found.dtype, out.dtype, "safe"):
            wrong = out != found if out.dtype.kind in "biu" else np.isinf(out) & np.isfinite(found)
            if wrong.any():
                row = int(np.argwhere(wrong)[0, 0])
                value = found[wrong][0]
                raise self._refused(
                    row, f"{value} does not fit dtype {out.dtype}; ask for a wider one, or compute one that fits"
                )
        return out

    def _refused(self, row: int, found: str) -> DataError:
        error = DataError(f"Stack({self.column!r}): the value {found}")
        error.row = row  # type: ignore[attr-defined]  # read by whoever knows the batch's identities
        return error

"""`List`: one Python value per sample, never moved to a device."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.semantic import JPEG_REF, semantic_of


@final
@dataclass(frozen=True, slots=True)
class List(Field):
    """A Python list of B values, for strings and whatever does not stack.

    A null becomes None. Timestamps in nanoseconds become `numpy.datetime64`, since Python's ``datetime`` holds
    microseconds only. In packed batches the list has B entries, one per row; each is a list with a value per piece.

    Args:
        column: any column but a reference to images or videos.

    Raises:
        PlanError: the column is a reference; `Stack` decodes it.

    Example:
        ``fields={"caption": List("caption"), "id": List("sample_id")}``
    """

    column: str

    def spec(self, column: pa.Field) -> FieldSpec:
        if semantic_of(column) is not None:
            how = "jpeg" if semantic_of(column) == JPEG_REF else "h264"
            msg = f'List({self.column!r}): the column names bytes. Use Stack("{self.column}", decode="{how}")'
            raise PlanError(msg)
        return FieldSpec(None, ())

    def copies(self, kind: pa.DataType) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> list[Any]:
        del out
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns":  # Python's datetime ends at microseconds
            return [None if np.isnat(value) else value for value in values.to_numpy(zero_copy_only=False)]
        result: list[Any] = values.to_pylist()
        return result

"""`List`: one Python value per sample, never moved to a device."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec, named
from spiral_stream.host_dtypes import unknown_zone
from spiral_stream.semantic import is_text


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class List(Field):
    """A Python list of B values, for strings and whatever does not stack.

    A null becomes None. Timestamps in nanoseconds become `numpy.datetime64`, since Python's ``datetime`` holds
    microseconds only. In packed batches the list has B entries, one per row; each is a list with a value per piece.

    Args:
        column: any column. Of a column that names bytes (images, videos, others), the value is those bytes as they are
            stored; of a column of lists of references, it is a list of them. `Stack` decodes images and clips instead.

    Examples:
        >>> samples.collate(batch_size=2, fields={"caption": spiral.List("caption")}).to_numpy()[0]
        {'caption': ['Two OWLS', 'Two OWLS']}
    """

    PACKS: ClassVar[bool] = True

    column: str

    def spec(self, column: pa.Field) -> FieldSpec:
        if (zone := unknown_zone(column.type)) is not None:
            msg = (
                f"{named(self)}: the column is {column.type}, and this machine knows no time zone {zone!r}. Register it "
                f'with a zone that is known, such as "UTC", or use Stack({self.column!r}), which gives whole numbers'
            )
            raise PlanError(msg)
        return FieldSpec(None, ())

    def copies(self, kind: pa.DataType) -> bool:
        return is_text(kind)

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> list[Any]:
        del out
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns":  # Python's datetime ends at microseconds
            return [None if np.isnat(value) else value for value in values.to_numpy(zero_copy_only=False)]
        result: list[Any] = values.to_pylist()
        return result

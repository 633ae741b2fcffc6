"""`Real`: which rows of a batch are samples."""

from dataclasses import dataclass
from typing import Any, final

import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.fields.field import Field, FieldSpec


@final
@dataclass(frozen=True, slots=True)
class Real(Field):
    """True for each sample, shape [B], bool. `collate` adds it for ``PadPartial(value=)``, which puts False in other rows.

    Args:
        column: any column; its values are not looked at.
    """

    column: str

    def spec(self, column: pa.Field) -> FieldSpec:
        del column
        return FieldSpec("bool", ())

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any] | list[Any]:
        del values
        assert out is not None
        out[...] = True
        return out

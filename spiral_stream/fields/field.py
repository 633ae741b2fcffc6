"""The interface of fields: a field turns a column's values into one entry of a batch.

`Field.spec` fixes its dtype and shape; `plan.dtypes` does so for fields that decode.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What a batch will hold under a field's name, known before the first read.

    Attributes:
        dtype: NumPy name; None for a Python list.
        shape: without the batch dimension; None for a dimension that varies from batch to batch.
        layout: order of the dimensions of images and clips, such as ``"nchw"``; None for other fields.
        device: where the field is delivered; None for the host.
    """

    dtype: str | None
    shape: tuple[int | None, ...]
    layout: str | None = None
    device: str | None = None


class Field(ABC):
    """One column of the samples, and how a batch represents it. Subclasses are frozen dataclasses, part of the plan."""

    column: str

    @abstractmethod
    def spec(self, column: pa.Field) -> FieldSpec:
        """Describe the entry of a batch.

        Args:
            column: name, type and metadata of the column, as the plan leaves it.

        Raises:
            PlanError: the field cannot represent a column of this type.
        """

    def copies(self, kind: pa.DataType) -> bool:
        """Whether `fill` only copies values of a type that has no nulls: numbers as they are, or texts to a list."""
        del kind
        return False

    @abstractmethod
    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any] | list[Any]:
        """Convert the values of one batch.

        Args:
            values: B values of the column.
            out: array of shape [B, *spec.shape] to write into; None if the field is a list.

        Returns:
            ``out``, or a list of B values.

        Raises:
            DataError: a value is null or does not fit the dtype; ``row`` is its place in ``values``.
        """


def fixed_numpy(values: pa.Array) -> NDArray[Any]:
    """Convert a column of numbers or of fixed-size lists to an array, without Python objects.

    Args:
        values: B numbers, booleans, timestamps or equal-length lists of them.

    Returns:
        shape [B] or [B, K].
    """
    kind = values.type
    if pa.types.is_fixed_size_list(kind):
        flat = values.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(flat).reshape(len(values), kind.list_size)
    return np.asarray(values.to_numpy(zero_copy_only=False))

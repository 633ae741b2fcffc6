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
    """Convert a column of numbers, fixed-size lists or tensors to an array, without Python objects.

    Args:
        values: B numbers, booleans, timestamps, equal-length lists of them, or tensors of one shape; none is null.

    Returns:
        shape [B], [B, K], or [B] and the shape of a tensor.
    """
    shape = fixed_shape(values.type)
    flat = leaves_of(values).to_numpy(zero_copy_only=False)
    return np.asarray(flat).reshape(len(values), *shape)


def fixed_shape(kind: pa.DataType) -> tuple[int, ...]:
    """Return the shape of one value: that of a tensor, or the sizes of fixed-size lists, outermost first."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape)
    if pa.types.is_fixed_size_list(kind):
        return (kind.list_size, *fixed_shape(kind.value_type))
    return ()


def leaf_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the numbers that a fixed-size list or a tensor holds; else the type itself."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.value_type
    return leaf_type(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def leaves_of(values: pa.Array) -> pa.Array:
    """Return the numbers of fixed-size lists or tensors, end to end; a null list leaves none."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return leaves_of(values.flatten()) if pa.types.is_fixed_size_list(values.type) else values

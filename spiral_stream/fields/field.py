"""What a field must do: turn a column's values for one batch into what the loop gets."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What a batch will hold under a field's name, known before the first read.

    ``shape`` counts without the batch dimension; None stands for a length that
    only the data knows. ``dtype`` is a NumPy name, or None for a Python list.
    """

    dtype: str | None
    shape: tuple[int | None, ...]
    layout: str | None = None
    device: str | None = None


class Field(ABC):
    """A frozen value of the plan: one column, one representation."""

    column: str

    @abstractmethod
    def spec(self, column: pa.Field) -> FieldSpec:
        """What the batch will hold.

        Raises:
            PlanError: the column's type cannot be represented so.
        """

    @abstractmethod
    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any] | list[Any]:
        """Represent the values of one batch.

        Args:
            values: B values of the column.
            out: array of shape [B, *spec.shape] to write into; None for lists.

        Returns:
            ``out``, or a list of B values.

        Raises:
            DataError: a null where none may be; ``row`` is its place in the batch.
        """


def fixed_numpy(values: pa.Array) -> NDArray[Any]:
    """Values of a number or fixed-size list column as an array, without Python objects.

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

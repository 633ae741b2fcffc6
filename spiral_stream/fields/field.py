"""The interface of fields: a field turns a column's values into one entry of a batch.

`Field.spec` fixes its dtype and shape; `plan.fields.dtypes` does so for fields that decode.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import PlanError, shown
from spiral_stream.host_dtypes import BFLOAT16, dtype_name, rounded, widened


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What a batch will hold under a field's name, known before the first read.

    Attributes:
        dtype: NumPy name, or ``"bfloat16"``; None for a Python list.
        shape: without the batch dimension; None for a dimension that varies from batch to batch.
        layout: order of the dimensions of images and clips, such as ``"nchw"``; None for other fields.
        device: where the field is delivered; None for the host.
        widened: the dtype that torch gets in place of uint16 token ids, with which it computes nothing; None for none.

    Examples:
        >>> from spiral_stream.fields import FieldSpec
        >>> FieldSpec("float32", (3, 224, 224)).shape
        (3, 224, 224)
    """

    dtype: str | None
    shape: tuple[int | None, ...]
    layout: str | None = None
    device: str | None = None
    widened: str | None = None


class Field(ABC):
    """One column of the samples, and how a batch represents it. Subclasses are frozen dataclasses, part of the plan.

    Examples:
        >>> spiral.Stack("width").spec(pa.field("width", pa.int64())).dtype
        'int64'
    """

    MASK: ClassVar[bool] = False  # whether it tells values from padding
    PER_ROW: ClassVar[bool] = True  # whether it has a value for each row of a batch
    PACKS: ClassVar[bool] = False  # whether it shows the several samples of a packed row

    column: str

    @property
    def is_decoded(self) -> bool:
        """Whether it decodes the bytes that its column names, instead of copying values."""
        return False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is made of, `column` first."""
        return (self.column,)

    @abstractmethod
    def spec(self, column: pa.Field) -> FieldSpec:
        """Describe the entry of a batch.

        Args:
            column: name, type and metadata of the column, as the plan leaves it.

        Raises:
            PlanError: the field cannot represent a column of this type.
        """

    def need_column(self, where: str, column: pa.Field) -> None:
        """Refuse another of its `columns` than the first, where it does not fit.

        Args:
            where: how the message begins.
            column: as the plan leaves it.

        Raises:
            PlanError: says what it is.
        """
        del where, column

    def spec_among(self, spec: FieldSpec, fields: "Sequence[Field]") -> FieldSpec:
        """Return what the batch holds given its other fields; most fields stand alone.

        Args:
            spec: of this field alone.
            fields: of the batch.

        Raises:
            PlanError: says which field is missing.
        """
        del fields
        return spec

    def in_evaluation(self, fixed: Callable[[Any], tuple[Any, ...]]) -> "Field":
        """Return the field with nothing random; ``fixed`` gives what stands for an image transform then."""
        del fixed
        return self

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


def named(field: Any) -> str:
    """Return a field as messages name it: ``Pad('tokens')``."""
    return f"{type(field).__name__}({shown(field.column)})"


def settle_dtype(field: Any, known: Sequence[str], found: str = "") -> None:
    """Write the dtype of a field by its name, at birth.

    Args:
        field: has the dtype.
        known: those that it may have.
        found: what a message says of another one.

    Raises:
        PlanError: it is not one of ``known``.
    """
    name = dtype_name(field.dtype)
    if not isinstance(name, str) or name not in known:
        msg = f"{named(field)}: dtype={shown(field.dtype)}{found}; it is one of {', '.join(known)}"
        raise PlanError(msg)
    object.__setattr__(field, "dtype", name)


def fixed_parts(kind: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]]:
    """Return the type and the shape of one value: of a number, of fixed-size lists in each other, or of a tensor.

    ``fixed_size_list<fixed_size_list<float>[3]>[2]`` and Arrow's fixed-shape tensors of 2 by 3 have shape ``(2, 3)``. A
    column of dictionary codes, as of a pandas categorical, has the values of its dictionary.
    """
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    shape: list[int] = []
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.value_type, tuple(kind.shape[axis] for axis in _axes(kind))
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return kind, tuple(shape)


def decoded(values: pa.Array) -> pa.Array:
    """Return the values that dictionary codes stand for; other values as they are."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def as_fixed(values: pa.Array, shape: Sequence[int]) -> tuple[pa.Array, int | None]:
    """Return lists in each other as fixed-size lists of one shape.

    Args:
        values: B lists, as deep as ``shape`` is long.
        shape: of each.

    Returns:
        The fixed-size lists, and the place of the first value that has another shape or a null list; None if there is none.
    """
    level, rows = values, 1
    for size in shape:
        counts = pc.list_value_length(level).fill_null(-1).to_numpy(zero_copy_only=False)
        if (wrong := np.flatnonzero(counts != size)).size:
            return values, int(wrong[0]) // rows
        level, rows = level.flatten(), rows * size
    for size in reversed(shape):
        level = pa.FixedSizeListArray.from_arrays(level, size)
    return level, None


def fixed_items(values: pa.Array) -> tuple[pa.Array, int | None]:
    """Take values of one shape apart into their numbers.

    Args:
        values: B values; `fixed_parts` tells their shape.

    Returns:
        The numbers, and the place of the first value that is null or has a null in it; None if there is none. Then the
        numbers are those of the values in order, as `fixed_numpy` shapes them.
    """
    inner, count = getattr(values, "storage", values), len(values)
    while True:
        if inner.null_count:
            at = int(np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))[0])
            return inner, at * count // len(inner)
        if not pa.types.is_fixed_size_list(inner.type):
            return inner, None
        inner = inner.flatten()


def fixed_numpy(values: pa.Array) -> NDArray[Any]:
    """Convert a column of numbers, fixed-size lists or tensors to an array, without Python objects.

    Args:
        values: B numbers, booleans, timestamps, equal-length lists of them, lists of such lists, or tensors; no nulls in
            lists.

    Returns:
        shape [B, ...].
    """
    kind = values.type
    _, shape = fixed_parts(kind)
    inner, _ = fixed_items(values)
    flat = np.asarray(inner.to_numpy(zero_copy_only=False))
    if not isinstance(kind, pa.FixedShapeTensorType):
        return flat.reshape(len(values), *shape)
    stored = flat.reshape(len(values), *kind.shape)
    return stored.transpose(0, *(axis + 1 for axis in _axes(kind)))


def write(found: NDArray[Any], out: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Copy numbers to an array of another dtype.

    Args:
        found: numbers.
        out: of the same shape; overwritten.

    Returns:
        Which numbers the dtype does not hold, of the same shape; None if it holds all.
    """
    if out.dtype == BFLOAT16:
        out[...] = rounded(found).view(BFLOAT16)
        wrong = np.isinf(widened(out)) & np.isfinite(found)
        return np.asarray(wrong) if wrong.any() else None
    with np.errstate(invalid="ignore", over="ignore"):  # what these would warn of is returned
        out[...] = found
    if np.can_cast(found.dtype, out.dtype, "safe"):
        return None
    wrong = out != found if out.dtype.kind in "biu" else np.isinf(out) & np.isfinite(found)
    return np.asarray(wrong) if wrong.any() else None


def _axes(kind: pa.FixedShapeTensorType) -> Sequence[int]:
    """Which stored axis each axis of a tensor is."""
    return kind.permutation or range(len(kind.shape))

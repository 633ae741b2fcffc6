"""`Pad`, `PadMask` and `Real`: rows of unequal length as one array, and masks of its values and of its rows."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, is_number, text
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec, named, settle_dtype, write
from spiral_stream.fields.padded_rows import PaddedRows, are_rows
from spiral_stream.fields.sequence import (
    INTEGERS,
    NARROW,
    TokenField,
    TokenFill,
    check_value,
    check_width,
    is_tokens,
)
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.semantic import is_list, semantic_of

MASKS: Final = ("int64", "int32", "bool", "uint8", "int8", "int16")
FLOATS: Final = ("float32", "float64", "float16", "bfloat16")


@final
@class_door(PlanError, excepted=("column", "also"))
@dataclass(frozen=True, slots=True)
class Pad(TokenField):
    """Rows of unequal length as one array, with ``pad_value`` after the last value of each row.

    | column | shape | dtype |
    |---|---|---|
    | lists of integers, such as the output of `Tokenize` | ``[B, T]`` | ``"int64"``, ``"int32"`` or ``"uint16"`` |
    | lists of floats, such as sound | ``[B, T]`` | ``"float32"``, ``"float64"``, ``"float16"`` or ``"bfloat16"`` |
    | lists of fixed-size lists of K, such as boxes; lists of tensors | ``[B, T, K]``, ``[B, T, ...]`` | any but uint16 |

    ``"uint16"`` takes a quarter of the memory of int64, on the host and on its way to a device; it holds ids up to 65,535. NumPy
    and JAX get it as it is. torch computes nothing with it, so ``to_torch`` delivers int64: what lies on a device was copied as
    16 bits and widened there. A tokenizer with larger ids is refused when the batch is planned.

    T is ``length``, or what the formation says, or else the longest row of the batch. All fields of a column share it.

    Args:
        column: a column of lists.
        pad_to_multiple_of: round T up to a multiple of this; None does not round. One field per column is enough.
        pad_value: the value at padding. If the vocabulary uses this id too, tell padding apart with `PadMask`.
        dtype: NumPy name of the result, or a dtype of NumPy, torch or Arrow. A value that does not fit is a `DataError`.
        device: where the field is delivered; None leaves it on the host.
        length: T of every batch. A longer row is a `DataError`: cut it before, for example with ``Tokenize(max_length=)``.
            One field per column is enough.
        also: another token column that gets the same T, such as the rejected answer of a pair. Packed, the samples of both
            columns begin at the same places, and the shorter one is padded.

    Raises:
        PlanError: the dtype is unknown or cannot hold ``pad_value``, ``pad_to_multiple_of`` or ``length`` is below 1, or
            ``length`` is no multiple of ``pad_to_multiple_of``.

    Examples:
        >>> fields = {
        ...     "input_ids": spiral.Pad("tokens", pad_to_multiple_of=4),
        ...     "attention_mask": spiral.PadMask("tokens"),
        ... }
        >>> documents.collate(batch_size=8, fields=fields).to_numpy()[0]["input_ids"].shape
        (8, 8)
        >>> caption, boxes = spiral.Pad("tokens", length=77), spiral.Pad("boxes", dtype="float32")
    """

    KIND: ClassVar[TokenFill] = TokenFill.TOKENS
    column: str
    pad_to_multiple_of: int | None = None
    pad_value: float = 0
    dtype: str | Any = "int64"
    device: str | None = None
    length: int | None = None
    also: str | None = None

    def __post_init__(self) -> None:
        other = text("another token column, which gets the same T", none=True, besides=self.column, verb="Name")
        check(self, named(self), also=other)
        settle_dtype(self, (*INTEGERS, *FLOATS))
        check_width(self)
        if self.dtype in INTEGERS:
            check_value(self, "pad_value")
        else:
            _check_float(self)

    @property
    def padding(self) -> int:
        return int(self.pad_value)

    def spec(self, column: pa.Field) -> FieldSpec:
        if are_rows(column.type) and not is_tokens(column.type):
            if self.dtype == NARROW:
                msg = f"{named(self)}: dtype='uint16' is of token ids, and the column is {column.type}. Give int32, or int64"
                raise PlanError(msg)
            return self.rows(self.multiple, self.length).spec(column)
        if is_tokens(column.type) and self.dtype not in INTEGERS:
            msg = f"{named(self)}: dtype={self.dtype!r}; the column holds integers. Give int64 or int32"
            raise PlanError(msg)
        return TokenField.spec(self, column)

    def rows(self, multiple: int, length: int | None) -> PaddedRows:
        return PaddedRows(self.column, self.dtype, self.pad_value, multiple, length, mask=False, device=self.device)


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class PadMask(TokenField):
    """1 where ``[B, T]`` holds a value, 0 at padding: the ``attention_mask`` of transformers.

    Of a column of lists of images it is ``[B, N]``, next to the field of `Stack` that decodes them.

    In packed rows this mask does not keep samples apart: use `Segments` or `CuSeqlens`.

    Args:
        column: the column, the same as in `Pad`.
        pad_to_multiple_of: round T up to a multiple of this; see `Pad`.
        dtype: ``"int64"``, ``"int32"``, ``"int16"``, ``"int8"``, ``"uint8"`` or ``"bool"``.
        device: where the field is delivered; None leaves it on the host.
        length: T of every batch; see `Pad`.

    Raises:
        PlanError: the dtype is unknown, ``pad_to_multiple_of`` or ``length`` is below 1, or ``length`` is no multiple of
            ``pad_to_multiple_of``.

    Examples:
        >>> fields = {"input_ids": spiral.Pad("tokens"), "attention_mask": spiral.PadMask("tokens")}
        >>> documents.collate(batch_size=2, fields=fields).to_numpy()[0]["attention_mask"].tolist()
        [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    """

    MASK: ClassVar[bool] = True
    KIND: ClassVar[TokenFill] = TokenFill.ONES
    column: str
    pad_to_multiple_of: int | None = None
    dtype: str | Any = "int64"
    device: str | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        settle_dtype(self, MASKS)
        check_width(self)

    def spec(self, column: pa.Field) -> FieldSpec:
        if is_list(column.type) and semantic_of(column) is not None:
            if self.pad_to_multiple_of is not None:
                msg = f"{named(self)}: pad_to_multiple_of is of numbers, not of images. Give length=, or none"
                raise PlanError(msg)
            return FieldSpec(self.dtype, (self.length,), None, self.device)
        if are_rows(column.type) and not is_tokens(column.type):
            return self.rows(self.multiple, self.length).spec(column)
        return TokenField.spec(self, column)

    def rows(self, multiple: int, length: int | None) -> PaddedRows:
        return PaddedRows(self.column, self.dtype, 0, multiple, length, mask=True, device=self.device)


def _check_float(field: Pad) -> None:
    value = field.pad_value
    if not is_number(value) or write(np.array([value]), np.empty(1, host_dtype(field.dtype))) is not None:
        msg = f"{named(field)}: pad_value={value!r}. Give a finite number that fits {field.dtype}"
        raise PlanError(msg)
    object.__setattr__(field, "pad_value", float(value))  # 0 and 0.0 are one plan


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

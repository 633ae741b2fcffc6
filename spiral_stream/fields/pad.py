"""`Pad` and `PadMask`: token ids as one array, and which places of it hold tokens."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.fields.sequence import WIDE, TokenField, TokenFill, check_dtype, check_multiple, check_value

MASKS: Final = ("int64", "int32", "bool", "uint8", "int8", "int16")


@final
@dataclass(frozen=True, slots=True)
class Pad(TokenField):
    """Token ids, shape ``[B, T]``, with ``pad_value`` after the last token of each row.

    T is the longest sequence of the batch, or what the formation says. All fields of a column share it.

    Args:
        column: a column of lists of integers, such as the output of `Tokenize`.
        pad_to_multiple_of: round T up to a multiple of this; None does not round. One field per column is enough.
        pad_value: the id at padding. If the vocabulary uses this id too, tell padding apart with `PadMask`.
        dtype: ``"int64"`` or ``"int32"``. A token that does not fit is a `DataError`.
        device: where the field is delivered; None leaves it on the host.

    Raises:
        PlanError: the dtype is unknown or cannot hold ``pad_value``, or ``pad_to_multiple_of`` is below 1.

    Example:
        ``fields={"input_ids": Pad("tokens", pad_to_multiple_of=128), "attention_mask": PadMask("tokens")}``
    """

    KIND: ClassVar[TokenFill] = TokenFill.TOKENS
    column: str
    pad_to_multiple_of: int | None = None
    pad_value: int = 0
    dtype: str = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        check_dtype(self, WIDE)
        check_multiple(self, self.pad_to_multiple_of)
        check_value(self, "pad_value")

    @property
    def padding(self) -> int:
        return self.pad_value


@final
@dataclass(frozen=True, slots=True)
class PadMask(TokenField):
    """1 where ``[B, T]`` holds a token, 0 at padding: the ``attention_mask`` of transformers.

    In packed rows this mask does not keep samples apart: use `Segments` or `CuSeqlens`.

    Args:
        column: the token column, the same as in `Pad`.
        pad_to_multiple_of: round T up to a multiple of this; see `Pad`.
        dtype: ``"int64"``, ``"int32"``, ``"int16"``, ``"int8"``, ``"uint8"`` or ``"bool"``.
        device: where the field is delivered; None leaves it on the host.

    Raises:
        PlanError: the dtype is unknown, or ``pad_to_multiple_of`` is below 1.
    """

    KIND: ClassVar[TokenFill] = TokenFill.ONES
    column: str
    pad_to_multiple_of: int | None = None
    dtype: str = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        check_dtype(self, MASKS)
        check_multiple(self, self.pad_to_multiple_of)

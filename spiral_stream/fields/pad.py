"""`Pad` and `PadMask`: token ids as one array, and which of them are real."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.fields.sequence import WIDE, TokenField, TokenFill, check_dtype, check_multiple, check_value

MASKS: Final = ("int64", "int32", "bool", "uint8", "int8", "int16")


@final
@dataclass(frozen=True, slots=True)
class Pad(TokenField):
    """Token ids ``[B, T]``, ``pad_value`` where there are none.

    Args:
        column: a list of integers, such as the output of `Tokenize`.
        pad_to_multiple_of: T is a multiple of it; one field of a column is enough, all of them share T.
        pad_value: the id at padding; a mask is safer than an id that the vocabulary uses too.
        dtype: ``"int64"`` or ``"int32"``; wider columns are refused where a value does not fit.
        device: where the field is delivered; None leaves it on the host.
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
    """1 on the real tokens of ``[B, T]``, 0 at padding: ``attention_mask``.

    Packed rows need more than this mask to keep their samples apart: see `Segments` and `CuSeqlens`.

    Args:
        column: the column that `Pad` names.
        pad_to_multiple_of: as in `Pad`.
        dtype: an integer type or ``"bool"``.
        device: where the field is delivered; None leaves it on the host.
    """

    KIND: ClassVar[TokenFill] = TokenFill.ONES
    column: str
    pad_to_multiple_of: int | None = None
    dtype: str = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        check_dtype(self, MASKS)
        check_multiple(self, self.pad_to_multiple_of)

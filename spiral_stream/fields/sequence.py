"""Fields of a token column: where the parts of a sequence lie in the batch, and how they are written there.

`Placed` says where each piece of each sequence lies in ``[B, T]``. A `SequenceField` says what is written there, and
at padding. `_tokens.c` writes each field in a single pass over the output, the fields of a column in one call; it can write
a range of rows, so that several threads share a batch.

Cost: the bytes of the output, and each token read once per field. Ids, mask and shifted labels (int64 from uint16, 400
tokens per document, documents in random order) are written at 12 to 16 GB/s on one shared EPYC core of 2.6 GHz, whose
plain stores reach 23 GB/s. That is 250 to 320 million tokens per CPU second. Stores past the caches and prefetching
the next document gained nothing.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import chain
from typing import Any, ClassVar, Final, NoReturn, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import Rule, check, integer, is_integer
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.field import Field, FieldSpec, named
from spiral_stream.fields.ragged import Ragged
from spiral_stream.semantic import is_ragged, is_text

# B rows, T places of a row, S pieces

Int64 = NDArray[np.int64]

WIDE: Final = ("int64", "int32")  # hold every vocabulary
NARROW: Final = "uint16"  # holds ids up to 65,535
INTEGERS: Final = (*WIDE, NARROW)
WIDENED: Final = (
    "int64"  # what torch gets in place of NARROW: its cross entropy takes nothing else (docs/decisions/0097)
)
_MULTIPLE: Final = integer(1, None, "an integer of at least 1, such as 128, or leave it out", none=True)
_FEW: Final = 4096  # rows of a batch
_INT64: Final = np.dtype(np.int64)


class TokenFill(IntEnum):
    """What a field writes at the places of a piece; the numbers are those of `_tokens.c`."""

    TOKENS = 0
    SHIFTED = 1  # the next token; padding at the piece's last place
    LABELS = 2  # the token; padding at the first place of a piece that does not begin its row
    ONES = 3
    SEGMENTS = 4
    POSITIONS = 5


@final
@dataclass(frozen=True, slots=True, eq=False)
class SequenceLayout:
    """Where S pieces lie in a batch: piece i is ``tokens[offsets[i] : offsets[i] + lengths[i]]`` of sequence i.

    It lies at ``[rows[i], starts[i] : starts[i] + lengths[i]]``. Pieces do not overlap; places that no piece covers are
    padding. `TokenField.fill_tokens` checks that the pieces fit the batch and the sequences.

    Raises:
        ValueError: an array is not int64 of shape [S].
    """

    rows: Int64  # [S] non-decreasing
    starts: Int64  # [S] ascending inside a row
    offsets: Int64  # [S] 0 unless a sequence was split
    lengths: Int64  # [S]
    B: int
    T: int
    numbers: Int64 | None = None  # [S] what `Segments` writes; None counts the pieces of each row that hold a token

    def __post_init__(self) -> None:
        shape = (len(self.rows),)
        for array in (self.rows, self.starts, self.offsets, self.lengths, self.numbers):
            if array is not None and (array.dtype != _INT64 or array.shape != shape):
                name = next(name for name in self.__slots__ if getattr(self, name) is array)
                msg = f"Placed: {name} is {array.dtype} of shape {list(array.shape)}. Give int64 of shape [{len(self.rows)}]"
                raise ValueError(msg)

    @classmethod
    def at_row_starts(cls, lengths: Int64, width: int) -> "SequenceLayout":
        """Place the first ``lengths[i]`` tokens of sequence i at the start of row i.

        Args:
            lengths: shape [B].
            width: T.
        """
        rows, nothing = _rows(len(lengths))
        return cls(rows, nothing, nothing, lengths, len(lengths), width)

    def write(self, tokens: Ragged, specs: tuple[int, ...], outs_BT: tuple[NDArray[Any], ...]) -> int:
        """Write the pieces to fields: `Ragged.write`, which says what the arguments are, what comes back and what is refused."""
        return tokens.write(
            *(specs, outs_BT, self.B, self.T, self.lengths), *(self.rows, self.starts, self.offsets, self.numbers)
        )

    def part(self, first: int, last: int) -> tuple["SequenceLayout", slice]:
        """Return rows ``[first, last)`` as a batch of their own, and the slice of pieces that lie in them.

        ``fill_tokens(tokens.take(np.arange(pieces.start, pieces.stop)), part, out_BT[first:last])`` writes the same
        as filling the whole batch would write to these rows.
        """
        if (first, last) == (0, self.B):
            return self, slice(0, len(self.rows))
        low, high = (int(bound) for bound in np.searchsorted(self.rows, (first, last)))
        pieces = slice(low, high)
        part = SequenceLayout(
            self.rows[pieces] - first,
            self.starts[pieces],
            self.offsets[pieces],
            self.lengths[pieces],
            last - first,
            self.T,
            None if self.numbers is None else self.numbers[pieces],
        )
        return part, pieces


def _rows(count: int) -> tuple[Int64, Int64]:
    """Return the numbers of rows, and as many zeros: shape [B] each, not to be written."""
    if count > _FEW:
        return np.arange(count), np.zeros(count, dtype=np.int64)
    rows, nothing = _few_rows()
    return rows[:count], nothing[:count]


@cache
def _few_rows() -> tuple[Int64, Int64]:
    """`_rows` of few rows, made once: `np.arange` gives up the interpreter's lock (`Ragged.near`)."""
    rows, nothing = np.arange(_FEW), np.zeros(_FEW, dtype=np.int64)
    rows.flags.writeable = nothing.flags.writeable = False
    return rows, nothing


class SequenceField(Field):
    """A field of a token column.

    The fields of one column share T in a batch, and T is a multiple of every field's `multiple`.
    """

    IN_SLOT: ClassVar[bool] = True  # False: the field is not [B, T] and allocates its own array, as `CuSeqlens` does
    device: str | None

    @property
    @abstractmethod
    def dtype_name(self) -> str:
        """NumPy name of the result's dtype."""

    @property
    def multiple(self) -> int:
        """The number that T must be a multiple of for this field."""
        return getattr(self, "pad_to_multiple_of", None) or 1

    @property
    def fixed(self) -> int | None:
        """T of every batch, if the field says it."""
        return getattr(self, "length", None)

    def rows(self, multiple: int, length: int | None) -> Field:
        """Return the field that pads a column of lists that are no tokens. Fields that can do without tokens have one.

        Args:
            multiple: T is a multiple of this, for all fields of the column.
            length: T, if one of the column's fields says it.
        """
        del multiple, length
        raise AssertionError(self)  # `spec` has refused the column

    def spec(self, column: pa.Field) -> FieldSpec:
        """Describe the entry of a batch: shape ``[B, T]``, where T varies.

        Raises:
            PlanError: the column does not hold lists of integers.
        """
        if not is_tokens(column.type):
            name, kind = type(self).__name__, column.type
            msg = f"{name}({column.name!r}): the column is {kind}, not a list of integers. {_way_out(column)}"
            raise PlanError(msg)
        widened = WIDENED if self.dtype_name == NARROW else None
        return FieldSpec(self.dtype_name, (self.fixed,), None, self.device, widened)

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NoReturn:
        """Raise: a token column has to be placed first, and `fill_tokens` writes it."""
        del values, out
        msg = f"{type(self).__name__}: a token column is placed first. Call fill_tokens"
        raise TypeError(msg)


class TokenField(SequenceField):
    """A field of shape ``[B, T]``: what it writes at tokens, what it writes at padding, and its dtype."""

    KIND: ClassVar[TokenFill]
    dtype: str

    @property
    def dtype_name(self) -> str:
        return self.dtype

    @property
    def padding(self) -> int:
        """The value at places that no piece covers."""
        return 0

    def fill_tokens(self, tokens: Ragged, layout: SequenceLayout, out_BT: NDArray[Any]) -> NDArray[Any]:
        """Write the field, padding included.

        Args:
            tokens: S sequences.
            layout: where their pieces lie.
            out_BT: shape [B, T] of the field's dtype, C-contiguous; overwritten.

        Returns:
            ``out_BT``.

        Raises:
            DataError: a token does not fit the dtype; ``row`` is its place in ``tokens``.
            ValueError: a piece is outside the batch or its sequence, or overlaps another; nothing was written.
        """
        assert out_BT.shape == (layout.B, layout.T), (out_BT.shape, layout.B, layout.T)
        assert out_BT.dtype == self.dtype, (out_BT.dtype, self.dtype)
        refused = layout.write(tokens, (self.KIND, self.padding, out_BT.itemsize), (out_BT,))
        if refused >= 0:
            msg = f"{named(self)}: {self._unfit()}"
            raise DataError(msg, row=refused)
        return out_BT

    def _unfit(self) -> str:
        """What does not fit, and the way out."""
        if self.dtype == NARROW:
            return self.too_wide
        return f"a token does not fit dtype {self.dtype}; ids are below 2**31. Ask for int64, or look at the values with List"

    @property
    def too_wide(self) -> str:
        """What uint16 does not hold, and the way out."""
        return 'a token does not fit dtype uint16, which holds ids from 0 to 65,535. Give dtype="int32", or "int64"'


def specs_of(fields: Sequence[TokenField]) -> tuple[int, ...]:
    """Return what fields write, as `Ragged.write` takes it."""
    return tuple(chain.from_iterable((each.KIND, each.padding, np.dtype(each.dtype).itemsize) for each in fields))


def is_tokens(kind: pa.DataType) -> bool:
    """Whether a column holds lists of integers: what formations count, pack and split."""
    return is_ragged(kind) and bool(pa.types.is_integer(kind.value_type))


def check_value(field: TokenField, name: str) -> None:
    """Refuse a value for padding at birth.

    Raises:
        PlanError: it is no integer, or the field's dtype cannot hold it.
    """
    bounds = np.iinfo(field.dtype)
    fitting = integer(int(bounds.min), int(bounds.max), f"an integer that fits {field.dtype}")
    check(field, named(field), **{name: fitting})


def check_width(field: SequenceField) -> None:
    """Refuse ``pad_to_multiple_of`` and ``length`` at birth.

    Raises:
        PlanError: one is neither None nor a positive integer, or ``length`` is no multiple of ``pad_to_multiple_of``.
    """
    check(field, named(field), pad_to_multiple_of=_MULTIPLE)
    also = f" that is a multiple of pad_to_multiple_of={field.multiple}" if field.multiple > 1 else ""
    fits = Rule(
        lambda value: value is None or (is_integer(value, 1) and value % field.multiple == 0),
        f"an integer of at least 1{also}, or leave it out",
    )
    check(field, named(field), length=fits)


def _way_out(column: pa.Field) -> str:
    if is_text(column.type):
        return f'Map it before: .map(Tokenize("{column.name}", tokenizer=...) >> "tokens"), and name the field\'s column "tokens"'
    if pa.types.is_fixed_size_list(column.type):
        return f'Values of equal length need no padding: use Stack("{column.name}")'
    return 'Name the output of a Tokenize, such as "tokens", or a stored column of type list<int32>'

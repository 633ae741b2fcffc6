"""Which type a column of texts has: the narrowest that keeps every text apart.

A text becomes a number only if the number says all that the text says: ``0012``, ``0x1F`` and ``+49170`` stay text, and so
does a column of whole numbers that no 64-bit integer holds. A column with fractions is float64 unless a whole number among
them would lose digits. Columns that were typed by their first rows are checked block by block: `needs_texts` looks at the
bytes (1 ms per 4 MiB), and only where they may hold such a text are the texts themselves compared.
"""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.sources.text import _records
from spiral_stream.sources.text.csv_records import NO_QUOTE

TRUE: Final = ("true", "True", "TRUE")
FALSE: Final = ("false", "False", "FALSE")
_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_UINT64: Final = (0, (1 << 64) - 1)
_EXACT: Final = 1 << 53  # up to here float64 holds every whole number
_WHOLE: Final = r"^(0|-?[1-9][0-9]*)$"
_ODD: Final = r"^[+-]?0[0-9]|^\+[0-9]+$"  # zeros in front, or a plus before a whole number
_INFINITE: Final = r"(?i)^[+-]?inf(inity)?$"
_NO_NUMBER: Final = r"(?i)^[+-]?nan$"
_WHOLE_BIT, _SIGNED_BIT = 1, 2  # of `_records.odd`


@final
@dataclass(frozen=True, slots=True)
class ColumnGuess:
    """What the values of a column were so far."""

    kind: pa.DataType = pa.null()  # noqa: RUF009  a type is a constant; int64 stands for whole numbers of any size
    low: int = 0  # of whole numbers
    high: int = 0

    def wider(self, other: "ColumnGuess") -> "ColumnGuess":
        """Return what holds the values of both."""
        if pa.types.is_null(self.kind):
            return other
        if pa.types.is_null(other.kind):
            return self
        if self.kind == other.kind:
            return ColumnGuess(self.kind, min(self.low, other.low), max(self.high, other.high))
        whole = next((each for each in (self, other) if each.kind == pa.int64()), None)
        is_number = whole is not None and pa.float64() in (self.kind, other.kind)
        if is_number and whole is not None and whole.low >= -_EXACT and whole.high <= _EXACT:
            return ColumnGuess(pa.float64())
        return ColumnGuess(pa.utf8())

    @property
    def type(self) -> pa.DataType:
        """The type of the column; what was null everywhere is text."""
        if self.kind != pa.int64():
            return pa.utf8() if pa.types.is_null(self.kind) else self.kind
        for kind, (least, most) in ((pa.int64(), _INT64), (pa.uint64(), _UINT64)):
            if least <= self.low and self.high <= most:
                return kind
        return pa.utf8()


def guess_of(values: pa.ChunkedArray, texts: pa.ChunkedArray | None) -> ColumnGuess:
    """Return what the values of one file are.

    Args:
        values: as Arrow infers them.
        texts: as they are written; None where their bytes hold nothing that `needs_texts` asks about.
    """
    kind = values.type
    if kind in (pa.null(), pa.bool_()):
        return ColumnGuess(kind)
    if kind not in (pa.int64(), pa.float64()):
        return ColumnGuess(pa.utf8())
    if texts is not None:
        written = _trimmed(texts).filter(pc.is_valid(values))
        if kind == pa.float64() and pc.all(pc.match_substring_regex(written, _WHOLE), min_count=0).as_py():
            numbers = [int(text) for text in pc.unique(written).to_pylist()]
            return ColumnGuess(pa.int64(), min(numbers), max(numbers))
        if inexact(values, texts) is not None:
            return ColumnGuess(pa.utf8())
    if kind == pa.float64():
        return ColumnGuess(kind)
    found = pc.min_max(values).as_py()
    return ColumnGuess(kind, found["min"], found["max"])


def needs_texts(values: pa.ChunkedArray, odd: "OddNumbers") -> bool:
    """Whether only the texts tell if the numbers of a column say all that they say."""
    if pa.types.is_integer(values.type):
        return odd.whole
    if not pa.types.is_floating(values.type):
        return False
    if odd.whole or odd.signed:
        return True
    numbers = np.abs(values.to_numpy())
    return bool((~(numbers < _EXACT) & values.is_valid().to_numpy()).any())


def inexact(values: pa.ChunkedArray, texts: pa.ChunkedArray) -> str | None:
    """Return a text that says more than the number that was made of it; None if there is none.

    Args:
        values: whole numbers or floats; null where the text is none.
        texts: as they are written.
    """
    there = pc.is_valid(values)
    numbers, written = values.filter(there), _trimmed(texts).filter(there)
    if pa.types.is_integer(values.type):
        wrong = pc.not_equal(written, numbers.cast(pa.utf8()))
    else:
        wrong = pc.or_(pc.match_substring_regex(written, _ODD), _lost(numbers, written))
    return next((str(text) for text in written.filter(wrong).slice(0, 1).to_pylist()), None)


def _lost(numbers: pa.ChunkedArray, written: pa.ChunkedArray) -> Any:
    """Whether each text is infinite as a float and not as text, no number, or a whole number that loses digits."""
    endless = pc.and_(pc.is_inf(numbers), pc.invert(pc.match_substring_regex(written, _INFINITE)))
    none = pc.and_(pc.is_nan(numbers), pc.invert(pc.match_substring_regex(written, _NO_NUMBER)))
    large = pc.and_(pc.is_finite(numbers), pc.greater_equal(pc.abs(numbers), float(_EXACT)))
    places = np.flatnonzero(pc.and_(large, pc.match_substring_regex(written, r"^-?[0-9]+$")).to_numpy())
    lost = np.zeros(len(numbers), np.bool_)
    pairs = zip(numbers.take(places).to_pylist(), written.take(places).to_pylist(), strict=True)
    lost[places] = [int(number) != int(text) for number, text in pairs]
    return pc.or_(pc.or_(endless, none), pa.array(lost))


def _trimmed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.ascii_trim_whitespace(texts)


@final
class OddNumbers:
    """Whether the bytes of some rows may hold a number with zeros or a plus in front.

    Attributes:
        whole: a field may begin as ``00``, ``0x`` or ``-0`` does.
        signed: one may begin with a plus.
    """

    __slots__ = ("signed", "whole")

    def __init__(self, data: bytes, delimiter: str, quote: str | None) -> None:
        found = _records.odd(data, ord(delimiter), NO_QUOTE if quote is None else ord(quote))
        self.whole, self.signed = bool(found & _WHOLE_BIT), bool(found & _SIGNED_BIT)

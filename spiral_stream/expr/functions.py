"""The functions of expressions, one entry each: what it takes, what it gives, how it is computed, and its SQL.

A new function is an entry here and a method of `Expr`. Binding, the normal form, saved plans, the reference evaluation and
DuckDB's text read this table; no room has a branch per function. `compute` is called with Arrow arrays (or, if `lowers`, with
expressions of `pyarrow.compute`) and must give the same answer on every machine and with every version of a library
(docs/decisions/0065).

Constants of a call follow its values: ``replace(text, "a", "b")`` has one value and two constants.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.expr.letters import lower_letters, upper_letters

_SPACES: Final = "".join(map(chr, (*range(9, 14), *range(28, 33), 133, 160, 5760, *range(8192, 8203))))
WHITE: Final = _SPACES + "".join(map(chr, (8232, 8233, 8239, 8287, 12288)))  # what Python's str.strip takes off
LONGEST_PATTERN: Final = 10_000  # characters; RE2 has a limit of its own, near which it complains on standard error
_HALF: Final = 0.5
_SPLIT: Final = 2.0**27 + 1
MOST_DIGITS: Final = 15  # of a decimal fraction that float64 holds exactly enough
Arrow = Any  # pa.Array, pa.ChunkedArray or pc.Expression; pyarrow ships no types


@final
@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """One function.

    Attributes:
        takes: kinds of its first value, as `kind_of` names them.
        gives: the type of the answer, of the type of the first value and the constants.
        compute: the answer, of the values and then the constants.
        sql: DuckDB's text by the number of arguments, beginning with the least; the last is for all further ones. ``{0}``,
            ``{1}`` stand for values and constants, ``{all}`` for all of them, joined by ``||``.
        constants: the kinds of constants that follow the values.
        optional: how many of those, from the end, may be missing.
        values: the most values.
        lowers: whether `compute` takes expressions of Arrow.
        check: refuses constants: returns what is wrong, and the way out; None if nothing is.
        widens: whether numbers are int64 or float64 before they are taken, as in arithmetic.
        wraps: whether an answer may leave int64 and then wraps; DuckDB would refuse it.
        shown: how EXPLAIN writes a call, with ``{0}``, ``{1}``; empty: the name and the arguments.
    """

    takes: tuple[str, ...]
    gives: Callable[..., pa.DataType | None]
    compute: Callable[..., Arrow]
    sql: tuple[str, ...]
    constants: tuple[type, ...] = ()
    optional: int = 0
    values: int = 1
    lowers: bool = True
    check: Callable[..., tuple[str, str] | None] = lambda *_: None
    widens: bool = False
    wraps: bool = False
    shown: str = ""

    @property
    def arity(self) -> tuple[int, int]:
        """The least and most arguments of a call."""
        return 1 + len(self.constants) - self.optional, self.values + len(self.constants)

    def duckdb(self, args: Sequence[str]) -> str:
        """Return the call in DuckDB's SQL, of the SQL of its arguments."""
        text = self.sql[min(len(args) - self.arity[0], len(self.sql) - 1)]
        return text.format(*args, all=" || ".join(args))


def _same(kind: pa.DataType, *_: object) -> pa.DataType:
    return kind


def _bool(*_: object) -> pa.DataType:
    return pa.bool_()


def _int(*_: object) -> pa.DataType:
    return pa.int64()


def _cased(array: Arrow, plain: Callable[[Arrow], Arrow], letters: Callable[[], dict[int, int]]) -> Arrow:
    """Map the case of letters: Arrow's kernel where all texts are ASCII, else each distinct text once."""
    if pc.all(pc.string_is_ascii(array), min_count=0).as_py():
        return plain(array)
    flat = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    coded = (flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat).dictionary_encode()
    table = letters()
    mapped = pa.array([each.translate(table) for each in coded.dictionary.to_pylist()], array.type)
    return mapped.take(coded.indices)


def _lowercase(array: Arrow) -> Arrow:
    return _cased(array, pc.ascii_lower, lower_letters)


def _uppercase(array: Arrow) -> Arrow:
    return _cased(array, pc.ascii_upper, upper_letters)


def _strip(array: Arrow, characters: str = WHITE) -> Arrow:
    return pc.utf8_trim(array, characters=characters) if characters else array


def _like(array: Arrow, pattern: str) -> Arrow:
    return pc.match_substring_regex(array, pattern=like_regex(pattern))


def like_regex(pattern: str) -> str:
    """Return SQL's LIKE as a regular expression of RE2: ``%`` is any text, ``_`` one code point, all else is itself."""
    parts = {"%": ".*", "_": "."}
    return rf"(?s)\A{''.join(parts.get(each) or re.escape(each) for each in pattern)}\z"


def _bad_like(pattern: str) -> tuple[str, str] | None:
    return _too_long(pattern) or _bad_regex(like_regex(pattern))


def _regexp(array: Arrow, pattern: str) -> Arrow:
    return pc.match_substring_regex(array, pattern=pattern)


def _too_long(pattern: str) -> tuple[str, str] | None:
    fits = len(pattern) <= LONGEST_PATTERN
    return None if fits else (f"a pattern of {len(pattern):,} characters", f"Give at most {LONGEST_PATTERN:,}")


def _bad_pattern(pattern: str) -> tuple[str, str] | None:
    return _too_long(pattern) or _bad_regex(pattern)


def _bad_regex(pattern: str) -> tuple[str, str] | None:
    try:
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        said = str(error).splitlines()[0]
        return f"{pattern!r} is no regular expression ({said})", "Write it as RE2 and DuckDB do: no look-around"
    return None


def _replace(array: Arrow, old: str, new: str) -> Arrow:
    return pc.replace_substring(array, pattern=old, replacement=new)


def _nothing_old(old: str, _: str) -> tuple[str, str] | None:
    return None if old else ("it replaces an empty text", "Give the text to look for")


def _concat(*arrays: Arrow) -> Arrow:
    return pc.binary_join_element_wise(*arrays, pa.scalar("", arrays[0].type))


def _round(array: Arrow, digits: int = 0) -> Arrow:
    valid, data = _numbers(array)
    return pa.array(_rounded(data, digits), mask=~valid)


def _numbers(array: Arrow) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    filled = pc.fill_null(array, 0.0)
    data = filled.to_numpy() if isinstance(filled, pa.ChunkedArray) else filled.to_numpy(zero_copy_only=False)
    return np.asarray(pc.is_valid(array)), data


def _rounded(data: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """Round halves away from zero, at a decimal place: scaled, rounded, and scaled back, in float64.

    Where scaling rounds to a half, the exact product decides: 2.675 * 100 is 267.5 in float64, and below it in truth, so the
    answer is 2.67.
    """
    scale = 10.0**digits
    with np.errstate(all="ignore"):
        size = np.abs(data)
        scaled = size * scale
        rounded = np.floor(scaled)
        rest = scaled - rounded  # exact
        rounded += (rest > _HALF) | ((rest == _HALF) & (_lost(size, scale, scaled) >= 0))
        found = np.copysign(rounded, data) / scale
    return np.where(np.isfinite(found), found, data)


def _lost(values: NDArray[np.float64], scale: float, products: NDArray[np.float64]) -> NDArray[np.float64]:
    """What rounding took from ``values * scale``: Dekker's product of halves of 26 bits, exact where products are below 2**52."""
    high, low = _halves(values)
    by_high, by_low = _halves(np.float64(scale))
    return np.asarray(((high * by_high - products) + high * by_low + low * by_high) + low * by_low)


def _halves(values: Any) -> tuple[Any, Any]:
    shifted = values * _SPLIT
    high = shifted - (shifted - values)
    return high, values - high


def _bad_digits(digits: int = 0) -> tuple[str, str] | None:
    fits = 0 <= digits <= MOST_DIGITS
    return None if fits else (f"{digits} digits", f"Round to 0 to {MOST_DIGITS} digits after the point")


def _part(part: Callable[[Arrow], Arrow]) -> Callable[[Arrow], Arrow]:
    """A part of a date, or of a moment in UTC: rules of zones change with the machine's tables, so none is asked."""

    def compute(array: Arrow) -> Arrow:
        zoned = pa.types.is_timestamp(array.type) and array.type.tz is not None
        return part(array.cast(pa.timestamp(array.type.unit)) if zoned else array)

    return compute


def _field(array: Arrow, name: str) -> Arrow:
    return pc.struct_field(array, [name])


def _field_type(kind: pa.DataType, name: str) -> pa.DataType | None:
    at = kind.get_all_field_indices(name)
    return kind.field(at[0]).type if len(at) == 1 else None


_TEXT: Final = ("text",)
_MOMENT: Final = ("time", "date")
_NUMBER: Final = ("int", "float")
_FLOATS: Final = ("float",)  # of an integer, it is the integer itself
_STRUCT: Final = ("struct",)
_MOST_TEXTS: Final = 1_000  # that are joined

FUNCTIONS: Final[Mapping[str, ColumnFunction]] = MappingProxyType(
    {
        "lowercase": ColumnFunction(_TEXT, _same, _lowercase, ("lower({0})",), lowers=False),
        "uppercase": ColumnFunction(_TEXT, _same, _uppercase, ("upper({0})",), lowers=False),
        "strip": ColumnFunction(
            _TEXT, _same, _strip, (f"trim({{0}}, '{WHITE}')", "trim({0}, {1})"), (str,), optional=1
        ),
        "like": ColumnFunction(_TEXT, _bool, _like, ("({0} LIKE {1})",), (str,), check=_bad_like),
        "regexp": ColumnFunction(_TEXT, _bool, _regexp, ("regexp_matches({0}, {1})",), (str,), check=_bad_pattern),
        "replace": ColumnFunction(_TEXT, _same, _replace, ("replace({0}, {1}, {2})",), (str, str), check=_nothing_old),
        "concat": ColumnFunction(_TEXT, _same, _concat, ("({all})",), values=_MOST_TEXTS, lowers=False),
        "abs": ColumnFunction(_NUMBER, _same, pc.abs, ("abs({0})",), widens=True, wraps=True),
        "floor": ColumnFunction(_FLOATS, _same, pc.floor, ("floor({0})",), widens=True),
        "round": ColumnFunction(
            *(_FLOATS, _same, _round, ("round({0})", "round({0}, {1})"), (int,)),
            optional=1,
            lowers=False,
            check=_bad_digits,
            widens=True,
        ),
        "year": ColumnFunction(_MOMENT, _int, _part(pc.year), ("year({0})",), lowers=False),
        "month": ColumnFunction(_MOMENT, _int, _part(pc.month), ("month({0})",), lowers=False),
        "day": ColumnFunction(_MOMENT, _int, _part(pc.day), ("day({0})",), lowers=False),
        "field": ColumnFunction(_STRUCT, _field_type, _field, ("struct_extract({0}, {1})",), (str,), shown="{0}[{1}]"),
    }
)

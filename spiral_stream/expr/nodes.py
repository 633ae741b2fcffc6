"""What an expression is: five frozen nodes, and the operators that build them.

`Col` and `Lit` are leaves; `Call` is every operator and function, by name;
`Cast` and `Alias` carry a type and a name. Operators build trees and compute
nothing, so ``==`` is no test of equality: use `Expr.same_as`.
"""

import datetime as dt
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, final

import numpy as np
import pyarrow as pa

from spiral_stream.arguments import door
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr.functions import FUNCTIONS
from spiral_stream.habits import OF_EXPRESSIONS, answer

Text = str  # inside `Expr` the name ``str`` is the namespace of string functions
Value = None | bool | int | float | str | bytes

COMPARISONS: Final = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}  # each with its mirror
ARITHMETIC: Final = ("+", "-", "*", "/", "//", "%")
TEXT_TESTS: Final = ("starts_with", "ends_with", "contains")
TEXT_MAPS: Final = ("lower", "upper")
_SYMBOLS: Final = {"and": " & ", "or": " | "}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Expr:
    """A value computed for each row. Build it with `col`, `lit` and operators.

    Examples:
        >>> wide = (col("width") >= 512) & ~col("score").is_null() | (col("label") % 2 == 1)
        >>> wide
        <expr ((width >= 512) & ~is_null(score)) | ((label % 2) == 1)>
        >>> photos.filter(wide).count()
        32
    """

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # NumPy scalars on the left hand the operation to us

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: Text) -> NoReturn:
            """Say what an expression lacks, and where it is; an AttributeError, so that `hasattr` answers."""
            if name.startswith("_"):
                msg = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg)
            if name in OF_EXPRESSIONS:
                msg = f"expression: {name!r} is no function of expressions. {OF_EXPRESSIONS[name]}"
                raise AttributeError(msg)
            near = difflib.get_close_matches(name, [each for each in dir(Expr) if not each.startswith("_")], n=3)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            way_out = f'catalog.sql("select *, {name}(...) as ... from ...")'  # noqa: S608  a text for people
            msg = f"expression: {name!r} is no function of expressions. {hint}What they lack, SQL has: {way_out}"
            raise AttributeError(msg)

    def __getitem__(self, key: Text) -> "Expr":
        """Return a field of a struct: ``col("meta")["lang"]``; null where the struct is missing.

        Raises:
            PlanError: ``key`` is no text.
        """
        if not isinstance(key, Text):
            way_out = f'catalog.sql("select *, {self}[1] as ... from ...")'  # noqa: S608  a text for people
            msg = f"expression {self}[{shown(key)}]: a struct's field is named by a text. Items of a list are for SQL: {way_out}"
            raise PlanError(msg)
        return Call("field", (self, lit(key)))

    __iter__ = None  # with __getitem__, Python would ask for items 0, 1, 2, ...

    def __contains__(self, _: object) -> NoReturn:
        msg = f"what {self} holds is only known row by row. Write {self}.contains(...) or {self}.is_in([...])"
        raise TypeError(msg)

    def __bool__(self) -> NoReturn:
        msg = (
            f"the truth of {self} is only known row by row. Combine conditions with & | ~ and parentheses, "
            "not with and / or / not, and write x.between(lo, hi) instead of lo <= x <= hi"
        )
        raise TypeError(msg)

    def __len__(self) -> NoReturn:
        msg = f"the length of {self} is only known row by row. Write {self}.len() or len_({self})"
        raise TypeError(msg)

    def __str__(self) -> Text:
        return _show(self)

    def __repr__(self) -> Text:
        return f"<expr {self}>"

    def __eq__(self, other: object) -> "Expr":  # type: ignore[override]  # builds a tree, as in every column API
        return _call("==", self, other)

    def __ne__(self, other: object) -> "Expr":  # type: ignore[override]  # builds a tree, as in every column API
        return _call("!=", self, other)

    __hash__ = None  # type: ignore[assignment]  # a set or dict would call ``==``

    def __lt__(self, other: Any) -> "Expr":
        return _call("<", self, other)

    def __le__(self, other: Any) -> "Expr":
        return _call("<=", self, other)

    def __gt__(self, other: Any) -> "Expr":
        return _call(">", self, other)

    def __ge__(self, other: Any) -> "Expr":
        return _call(">=", self, other)

    def __and__(self, other: Any) -> "Expr":
        return _call("and", self, other)

    def __rand__(self, other: Any) -> "Expr":
        return _call("and", other, self)

    def __or__(self, other: Any) -> "Expr":
        return _call("or", self, other)

    def __ror__(self, other: Any) -> "Expr":
        return _call("or", other, self)

    def __invert__(self) -> "Expr":
        return Call("not", (self,))

    def __neg__(self) -> "Expr":
        if isinstance(self, Lit) and self.type is None and type(self.value) in (int, float):
            return Lit(-self.value)  # type: ignore[operator]  # a number by the line above
        return Call("neg", (self,))

    def __abs__(self) -> "Expr":
        return self.abs()

    def __round__(self, digits: int | None = None) -> "Expr":
        return self.round(0 if digits is None else digits)

    def __floor__(self) -> "Expr":
        return self.floor()

    def __add__(self, other: Any) -> "Expr":
        return _call("+", self, other)

    def __radd__(self, other: Any) -> "Expr":
        return _call("+", other, self)

    def __sub__(self, other: Any) -> "Expr":
        return _call("-", self, other)

    def __rsub__(self, other: Any) -> "Expr":
        return _call("-", other, self)

    def __mul__(self, other: Any) -> "Expr":
        return _call("*", self, other)

    def __rmul__(self, other: Any) -> "Expr":
        return _call("*", other, self)

    def __truediv__(self, other: Any) -> "Expr":
        return _call("/", self, other)

    def __rtruediv__(self, other: Any) -> "Expr":
        return _call("/", other, self)

    def __floordiv__(self, other: Any) -> "Expr":
        return _call("//", self, other)

    def __rfloordiv__(self, other: Any) -> "Expr":
        return _call("//", other, self)

    def __mod__(self, other: Any) -> "Expr":
        return _call("%", self, other)

    def __rmod__(self, other: Any) -> "Expr":
        return _call("%", other, self)

    def __pow__(self, times: object) -> "Expr":
        if times not in (2, 3) or not isinstance(times, int):
            msg = f"{self} ** {shown(times)}: 2 and 3 are the powers of an expression. Multiply it out, or use a column"
            raise PlanError(msg)
        return _call("*", _call("*", self, self), self) if times == 3 else _call("*", self, self)  # noqa: PLR2004

    @door(PlanError)
    def is_in(self, values: Iterable[Any]) -> "Expr":
        """True where the value equals one of ``values`` (as ``==`` does, so never for NaN).

        Examples:
            >>> photos.filter(col("label").is_in([0, 2])).count()
            32
            >>> photos.filter(col("label").isin([0, 2])).count()
            32
        """
        if isinstance(values, (str, bytes)):
            msg = f"is_in: {shown(values)} is one text, not a list of values. Write is_in([{shown(values)}])"
            raise PlanError(msg)
        return Call("is_in", (self, *(lit(value) for value in values)))

    isin = is_in

    def between(self, lo: Any, hi: Any) -> "Expr":
        """``(self >= lo) & (self <= hi)``: both ends belong to it.

        Examples:
            >>> photos.filter(col("width").between(384, 512)).count()
            21
        """
        return Call("and", (self >= lo, self <= hi))

    def is_null(self) -> "Expr":
        """True where the value is missing. NaN is a value.

        Examples:
            >>> photos.filter(col("score").is_null()).count()
            4
        """
        return Call("is_null", (self,))

    def is_nan(self) -> "Expr":
        """True where a floating-point value is NaN; null where it is missing.

        Examples:
            >>> photos.filter(col("score").is_nan()).count()
            0
        """
        return Call("is_nan", (self,))

    def len(self) -> "Expr":
        """Elements of a list, code points of a text, bytes of a binary value: int64.

        Examples:
            >>> texts.filter(col("tokens").length() > 3).count()
            16
        """
        return Call("len", (self,))

    length = len  # noqa: A003  Polars' and pandas' word is `len`; DuckDB's and ibis' this one

    def lower(self) -> "Expr":
        """The text in lower case: letters of Unicode 14, one by one.

        Examples:
            >>> photos.filter(col("caption").lower() == "two owls").count()
            24
        """
        return Call("lowercase", (self,))

    def upper(self) -> "Expr":
        """The text in upper case: letters of Unicode 14, one by one, so that ``ŉ``, which is two letters there, stays.

        Examples:
            >>> photos.filter(col("meta")["lang"].upper() == "FR").count()
            24
        """
        return Call("uppercase", (self,))

    def strip(self, characters: Text | None = None) -> "Expr":
        """The text without these characters at both ends.

        Args:
            characters: each of them is taken off; None takes white space, as Python's ``str.strip`` does.

        Examples:
            >>> photos.filter(col("caption").strip() == "A red fox").count()
            24
        """
        return Call("strip", (self,) if characters is None else (self, lit(characters)))

    def startswith(self, prefix: Text) -> "Expr":
        """Whether the text begins with ``prefix``.

        Examples:
            >>> photos.filter(col("photo_id").startswith("p0")).count()
            10
        """
        return Call("starts_with", (self, lit(prefix)))

    def endswith(self, suffix: Text) -> "Expr":
        """Whether the text ends with ``suffix``.

        Examples:
            >>> photos.filter(col("photo_id").endswith("0")).count()
            5
        """
        return Call("ends_with", (self, lit(suffix)))

    def contains(self, part: Text) -> "Expr":
        """Whether ``part`` occurs in the text, as it is written; `regexp` and `like` take patterns.

        Examples:
            >>> photos.filter(col("caption").contains("fox")).count()
            24
        """
        return Call("contains", (self, lit(part)))

    def like(self, pattern: Text) -> "Expr":
        """Whether the whole text is like SQL's pattern: ``%`` is any text, ``_`` one character; nothing escapes them.

        Examples:
            >>> photos.filter(col("photo_id").like("p_7")).count()
            5
        """
        return Call("like", (self, lit(pattern)))

    def regexp(self, pattern: Text) -> "Expr":
        """Whether a regular expression (RE2, as in DuckDB) matches somewhere in the text; ``^...$`` matches all of it.

        Examples:
            >>> photos.filter(col("photo_id").regexp("^p[01]")).count()
            20
        """
        return Call("regexp", (self, lit(pattern)))

    def replace(self, old: Text, new: Text) -> "Expr":
        """The text with ``new`` for every ``old``, from the left; no pattern language.

        Examples:
            >>> texts.project(said=col("text").replace("fox", "owl")).head(2).to_arrow()["said"].to_pylist()
            ['owl', 'owl owl']
        """
        return Call("replace", (self, lit(old), lit(new)))

    def concat(self, *others: "Expr | Text") -> "Expr":
        """The text and others, one after the other; null where one of them is missing, as SQL's ``||``.

        Examples:
            >>> photos.project(key=col("camera").concat("/", col("photo_id"))).head(1).to_arrow()["key"].to_pylist()
            ['camera-0/p00']
        """
        return Call("concat", (self, *map(lit, others)))

    def abs(self) -> "Expr":
        """The number without its sign: int64 or float64. As arithmetic does, the least int64 wraps to itself.

        Examples:
            >>> photos.filter((col("width") - 512).abs() <= 64).count()
            21
        """
        return Call("abs", (self,))

    def round(self, digits: int = 0) -> "Expr":
        """The number rounded; halves go away from zero, as in SQL: 2.5 to 3, -2.5 to -3. Whole numbers stay, as int64.

        Args:
            digits: after the decimal point, 0 to 15. Of floats, what decides is the exact value: 2.675, which lies below the
                half in float64, becomes 2.67.

        Examples:
            >>> photos.project(s=col("score").round(1)).limit(3).to_arrow()["s"].to_pylist()
            [None, 0.1, 0.3]
        """
        return Call("round", (self, lit(digits)) if type(digits) is not int or digits else (self,))

    def floor(self) -> "Expr":
        """The greatest whole number that is not above the number: float64, and int64 of whole numbers.

        Examples:
            >>> photos.filter(col("score").floor() == 2).count()
            8
        """
        return Call("floor", (self,))

    def year(self) -> "Expr":
        """The year of a date or time, int64. A time with a zone is looked at in UTC, as ``catalog.sql`` does.

        Examples:
            >>> photos.filter(col("taken").year() == 2023).count()
            1
        """
        return Call("year", (self,))

    def month(self) -> "Expr":
        """The month of a date or time, 1 to 12, int64; zones as for `year`.

        Examples:
            >>> photos.filter(col("taken").month() == 12).count()
            1
        """
        return Call("month", (self,))

    def day(self) -> "Expr":
        """The day of the month of a date or time, 1 to 31, int64; zones as for `year`.

        Examples:
            >>> photos.filter(col("taken").day() == 2).count()
            23
        """
        return Call("day", (self,))

    def hash(self, seed: int = 0) -> "Expr":
        """A number from 0 to 2**63 - 1 that depends on the value and the seed alone: int64, null where it is missing.

        Of integers, texts and bytes; equal values have equal hashes on every platform. For splits: see `Relation.split`.

        Examples:
            >>> part = photos.filter(col("photo_id").hash(seed=3) % 10 < 8)
        """
        return Call("hash", (self, lit(seed)))

    @door(PlanError, excepted=("to",))
    def cast(self, to: pa.DataType | Text) -> "Expr":
        """Return the value in another type: widening of numbers, and numbers to floats.

        Examples:
            >>> photos.project(w=col("width").cast("float32")).schema.field("w").type
            DataType(float)
        """
        try:
            return Cast(self, pa.type_for_alias(to) if isinstance(to, Text) else to)
        except ValueError as error:
            msg = f"cast: {shown(to)} is no Arrow type. Give a type, such as pa.int64(), or its name"
            raise PlanError(msg) from error

    @door(PlanError, excepted=("name",))
    def alias(self, name: Text) -> "Expr":
        """Return the same value under a column name of its own.

        Examples:
            >>> photos.project((col("width") // 2).alias("half")).columns
            ['half']
        """
        return Alias(self, name)

    def columns(self) -> frozenset[Text]:
        """Return the columns that the value is computed from.

        Examples:
            >>> sorted((col("width") > col("label")).columns())
            ['label', 'width']
        """
        return frozenset([node.name for node in self.walk() if isinstance(node, Col)])

    def walk(self) -> Iterator["Expr"]:
        """This node and all below it, parents first.

        Examples:
            >>> len(list((col("width") > 3).walk()))
            3
        """
        found: list[Expr] = []
        pending: list[Expr] = [self]
        while pending:
            node = pending.pop()
            found.append(node)
            pending += reversed(children(node))
        return iter(found)

    def same_as(self, other: object) -> bool:
        """Whether two trees are written the same (for the same meaning, compare `canonical` forms).

        Examples:
            >>> (col("width") > 3).same_as(col("width") > 3)
            True
        """
        if type(self) is not type(other):
            return False
        mine, theirs = children(self), children(other)
        if len(mine) != len(theirs) or not _same_leaf(self, other):
            return False
        return all(a.same_as(b) for a, b in zip(mine, theirs, strict=True))

    @property
    def str(self) -> "StringFunctions":
        """Functions of text.

        Examples:
            >>> photos.filter(col("photo_id").str.starts_with("p0")).count()
            10
        """
        return StringFunctions(self)


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Col(Expr):
    """The value of a column."""

    name: Text


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lit(Expr):
    """A constant. Without a type it takes the type of what it meets.

    Times are counts of their type's unit since 1970 in UTC, dates are days.
    """

    value: Value
    type: pa.DataType | None = None


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expr):
    """An operator or function over its arguments."""

    op: Text
    args: tuple[Expr, ...]


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Expr):
    """A value in another type."""

    source: Expr
    type: pa.DataType


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alias(Expr):
    """A value with a column name."""

    source: Expr
    name: Text


@final
@dataclass(frozen=True, slots=True)
class StringFunctions:
    """``expr.str``: tests and maps of text, as they were before `Expr` had them.

    Here `lower` and `upper` are of ASCII: other alphabets stay as they are. ``expr.lower()`` is of all letters.
    """

    source: Expr

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: Text) -> NoReturn:
            words = {
                **dict.fromkeys(
                    ("to_lowercase", "to_uppercase", "casefold"), "Write .lower() or .upper(), without .str"
                ),
                **{each: f"Write .{each}(...), without .str" for each in dir(Expr) if not each.startswith("_")},
            }
            answer(self, name, "str", words)

    def starts_with(self, prefix: Text) -> Expr:
        """Whether the text begins with ``prefix``."""
        return Call("starts_with", (self.source, lit(prefix)))

    def ends_with(self, suffix: Text) -> Expr:
        """Whether the text ends with ``suffix``."""
        return Call("ends_with", (self.source, lit(suffix)))

    def contains(self, part: Text) -> Expr:
        """Whether ``part`` occurs in the text; no pattern language."""
        return Call("contains", (self.source, lit(part)))

    def lower(self) -> Expr:
        """``A`` to ``Z`` in lower case."""
        return Call("lower", (self.source,))

    def upper(self) -> Expr:
        """``a`` to ``z`` in upper case."""
        return Call("upper", (self.source,))


def col(name: str) -> Col:
    """Return the column called ``name``.

    Examples:
        >>> photos.filter(col("width") > 600).count()
        13
    """
    if not isinstance(name, str) or not name:
        msg = f"col: a column is named by a text, not by {shown(name)}"
        raise PlanError(msg)
    return Col(name)


@door(PlanError)
def len_(value: Expr | str) -> Expr:
    """Return the length of a column or expression, as ``len(tokens)`` in a bucket key.

    Examples:
        >>> texts.filter(spiral.len_("tokens") > 3).count()
        16
    """
    return (col(value) if isinstance(value, str) else value).len()


@door(PlanError)
def lit(value: Any) -> Expr:
    """Return a constant; an expression is returned as it is.

    Args:
        value: a bool, int, float, str, bytes, datetime, date, None, or a NumPy or Arrow scalar of these.

    Raises:
        PlanError: it is something else.

    Examples:
        >>> texts.with_columns(source=spiral.lit("web")).schema.field("source").type
        DataType(string)
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, np.datetime64):
        value = pa.scalar(value)
    if isinstance(value, pa.Scalar):
        if isinstance(value, (pa.TimestampScalar, pa.Date32Scalar)):
            return Lit(value.value, value.type)
        value = value.as_py()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        kind = pa.timestamp("us", tz="UTC" if value.tzinfo else None)
        return Lit((aware - _EPOCH) // dt.timedelta(microseconds=1), kind)
    if isinstance(value, dt.date):
        return Lit((value - _EPOCH.date()).days, pa.date32())
    if value is None or type(value) in (bool, int, float, str, bytes):
        return Lit(value)
    msg = (
        f"lit: {shown(value)} is a {type(value).__name__}; a constant is a bool, int, float, str, bytes, date or datetime. "
        "Use is_in([...]) for several values"
    )
    raise PlanError(msg)


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the nodes directly below ``expr``."""
    if isinstance(expr, Call):
        return expr.args
    return (expr.source,) if isinstance(expr, (Cast, Alias)) else ()


def name_of(expr: Expr) -> str | None:
    """Return the column name that a projection of ``expr`` gets; None if it needs an alias."""
    return expr.name if isinstance(expr, (Alias, Col)) else None


def _call(op: str, left: Any, right: Any) -> Expr:
    first, second = lit(left), lit(right)
    if op in _SYMBOLS and isinstance(first, Call) and first.op == op:
        return Call(op, (*first.args, second))  # a long chain stays flat: depth is recursion
    return Call(op, (first, second))


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, Lit):
        return type(a.value) is type(b.value) and repr(a.value) == repr(b.value) and a.type == b.type
    if isinstance(a, Call):
        return bool(a.op == b.op)
    return bool(a.type == b.type if isinstance(a, Cast) else a.name == b.name)


def _show(expr: Expr) -> str:  # noqa: PLR0911  one return a kind of node
    if isinstance(expr, Col):
        return expr.name if expr.name.isidentifier() and not iskeyword(expr.name) else f"`{expr.name}`"
    if isinstance(expr, Lit):
        return repr(expr.value) if expr.type is None or isinstance(expr.value, (str, bool)) else _show_typed(expr)
    if isinstance(expr, Cast):
        return f"cast({expr.source}, {expr.type})"
    if isinstance(expr, Alias):
        return f"{expr.source} as {expr.name}"
    assert isinstance(expr, Call)
    parts = [f"({a})" if isinstance(a, Call) and a.op in _INFIX else _show(a) for a in expr.args]
    if expr.op in _SYMBOLS:
        return _SYMBOLS[expr.op].join(parts)
    if expr.op in _INFIX:
        return f"{parts[0]} {expr.op} {parts[1]}"
    if expr.op in ("not", "neg"):
        return f"{'~' if expr.op == 'not' else '-'}{parts[0]}"
    if expr.op in FUNCTIONS and FUNCTIONS[expr.op].shown:
        return FUNCTIONS[expr.op].shown.format(*parts)
    if expr.op == "is_in":
        return f"{parts[0]} in [{', '.join(parts[1:])}]"
    return f"{expr.op}({', '.join(map(_show, expr.args))})"


_INFIX: Final = frozenset((*COMPARISONS, *ARITHMETIC, *_SYMBOLS))


def _show_typed(expr: Lit) -> str:
    assert expr.type is not None
    if pa.types.is_temporal(expr.type):
        storage = pa.int32() if pa.types.is_date32(expr.type) else pa.int64()
        try:
            return str(pa.scalar(expr.value, storage).cast(expr.type))
        except (ValueError, OverflowError, KeyError):  # nanoseconds, other ages and unknown zones have no datetime
            return f"{expr.value!r} ({expr.type})"
    return str(np.float32(expr.value)) if pa.types.is_float32(expr.type) else repr(expr.value)

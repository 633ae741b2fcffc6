"""Which Arrow type holds the values of some JSON rows, and what is wrong with a value that is of another.

Nothing is guessed: a text that looks like a date stays text, and no number becomes a text. Integers are int64, or uint64
where one is above 2^63 - 1; with fractions among them they are float64. An integer that would lose digits is named: one
beyond 64 bits, and one that float64 does not hold. Some 1 us per value.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from spiral_stream.errors import cut, shown
from spiral_stream.semantic import is_inline, is_list, is_number, is_text
from spiral_stream.sources.json.parts import is_parts, parts_type
from spiral_stream.sources.schema import GIVE

LARGE: Final = 1 << 53  # up to here float64 holds every integer
MOST_FIELDS: Final = 1000  # of one object: more are no columns, but a dictionary with data as its keys
_INT_END, _UINT_END = 1 << 63, 1 << 64
# An integer of 2^63 or more, among others that are not negative. No column of a file has this type before `settled`.
_WHOLE: Final = pa.uint32()
_PLAIN: Final[Mapping[type, pa.DataType]] = {
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.utf8(),
    type(None): pa.null(),
}
_SHOWN: Final = 60  # characters of a value in a message


class MixedTypesError(ValueError):
    """Two values that no column holds both.

    Args:
        path: of the column, such as ``meta.tags[]``.
        one: what the column held before.
        other: what it holds now.
    """

    def __init__(self, path: str, one: str, other: str) -> None:
        super().__init__(f"column {path!r} holds {other}, and {one} before")
        self.path, self.one, self.other = path, one, other


class BeyondError(MixedTypesError):
    """An integer that no 64 bits hold.

    Args:
        path: of the column.
        value: the integer.
    """

    def __init__(self, path: str, value: int) -> None:
        super().__init__(path, "integers of 64 bits", str(value))
        msg = f"column {path!r} holds {shown(value, _SHOWN)}, an integer that no 64 bits hold. "
        self.args = (f'{msg}Write it as text, or declare it as ("decimal128", 38, 0)',)


def shape_of(value: Any) -> Hashable:
    """Return what `type_of` depends on: values of one shape have one type. A tenth of its cost."""
    kind = type(value)
    if kind is dict:
        return tuple([(name, shape_of(each)) for name, each in value.items()])
    if kind is list:
        return frozenset(map(shape_of, value))
    if kind is int and not 0 <= value < _INT_END:
        return str(type_of(value)) if _in_64_bits(value) else "beyond"
    return kind.__name__


def type_of(value: Any, path: str = "") -> pa.DataType:
    """Return the type of one value; null for one that says nothing.

    Raises:
        MixedTypesError: a list holds values of several types, an object has too many keys, or an integer is too large.
    """
    if isinstance(value, dict):
        if len(value) > MOST_FIELDS:
            raise _too_many(path)
        return pa.struct([(name, type_of(each, _below(path, name))) for name, each in value.items()])
    if isinstance(value, list):
        kind, inside = pa.null(), f"{path}[]"
        for each in value:
            kind = merged(kind, type_of(each, inside), inside)
        return pa.list_(kind)
    if type(value) is int:
        if 0 <= value < _INT_END:
            return _WHOLE
        if not _in_64_bits(value):
            raise BeyondError(path, value)
        return pa.uint64() if value >= _INT_END else pa.int64()
    return _PLAIN[type(value)]


def merged(one: pa.DataType, other: pa.DataType, path: str = "") -> pa.DataType:
    """Return the type of a column that holds values of both types.

    Raises:
        MixedTypesError: there is none.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_number(one) and is_number(other):
        return _number(one, other, path)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merged(one.value_type, other.value_type, f"{path}[]"))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {field.name: field.type for field in one}
        for field in other:
            kinds[field.name] = merged(kinds.get(field.name, pa.null()), field.type, _below(path, field.name))
        if len(kinds) > MOST_FIELDS:
            raise _too_many(path)
        return pa.struct(list(kinds.items()))
    if (parts := parts_type(one, other, path)) is not None:
        return merged(one if pa.types.is_list(one) else other, parts, path)
    raise MixedTypesError(path, words(one), words(other))


def settled(kind: pa.DataType) -> pa.DataType:
    """Return the type as a column has it: what was null everywhere is text."""
    if pa.types.is_null(kind):
        return pa.utf8()
    if kind == _WHOLE:
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, settled(field.type)) for field in kind])
    return kind


def without_empty(kind: pa.DataType) -> pa.DataType:
    """Return a struct without the fields that were empty objects everywhere, which no column keeps."""
    fields = [field for field in kind if not _is_empty(field.type)]
    return pa.struct([field.with_type(_without_empty(field.type)) for field in fields])


def adds_nothing(found: Iterable[pa.Field], wanted: Iterable[pa.Field]) -> bool:
    """Whether fields are those that are wanted, and others in which every value is null or an empty object."""
    kinds = {field.name: field.type for field in wanted}
    return all(
        _adds_nothing(field.type, kinds[field.name]) if field.name in kinds else _says_nothing(field.type)
        for field in found
    )


def _adds_nothing(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        return adds_nothing(found, wanted)
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _adds_nothing(found.value_type, wanted.value_type)
    return bool(found == wanted)


def _says_nothing(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind)) or _is_empty(kind, _says_nothing)


def _is_empty(kind: pa.DataType, inside: Callable[[pa.DataType], bool] | None = None) -> bool:
    """Whether a type is that of empty objects, or of lists of them."""
    if pa.types.is_list(kind):
        return not pa.types.is_null(kind.value_type) and _is_empty(kind.value_type, inside)
    return bool(pa.types.is_struct(kind)) and all((inside or _is_empty)(field.type) for field in kind)


def _without_empty(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return without_empty(kind)
    return pa.list_(_without_empty(kind.value_type)) if pa.types.is_list(kind) else kind


def faults(value: Any, kind: pa.DataType, path: str, *, known_only: bool) -> Iterator[str]:
    """Yield what is wrong with a value: which column, what was found, what would be right.

    Args:
        value: as ``json`` reads it.
        kind: of the column.
        path: of the column.
        known_only: whether nobody but the first values said what the type is: then a field that it does not have is
            wrong, and an integer that loses digits as a float.
    """
    t = pa.types
    if value is None or (isinstance(value, str) and is_parts(kind, path)):
        return
    if t.is_struct(kind) and isinstance(value, dict):
        kinds = {field.name: field.type for field in kind}
        for name, each in value.items():
            inside = _below(path, name)
            if name in kinds:
                yield from faults(each, kinds[name], inside, known_only=known_only)
            elif known_only and not is_nothing(each):
                yield f"field {shown(inside)} is in none of the rows that the columns were taken from. {GIVE}"
    elif is_list(kind) and isinstance(value, list):
        if t.is_fixed_size_list(kind) and len(value) != kind.list_size:
            yield f"column {shown(path)} holds {len(value)} items, and is {kind}"
        for each in value:
            yield from faults(each, kind.value_type, f"{path}[]", known_only=known_only)
    elif (found := _fault(value, kind, known_only=known_only)) is not None:
        yield f"column {shown(path)} holds {shown(value, _SHOWN)} ({_word(value)}), and is {kind}{found}"


def _fault(value: Any, kind: pa.DataType, *, known_only: bool) -> str | None:
    """What is wrong with one value beyond that it is there, in words that end a message; None if nothing is."""
    if not _fits(value, kind):
        return f". {GIVE}" if known_only else ""
    if known_only and type(value) is int and pa.types.is_floating(kind) and not _is_exact(value):
        return f", which would lose digits. {GIVE}"
    return None


def _is_exact(value: int) -> bool:
    """Whether float64 holds a whole number."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def is_nothing(value: Any) -> bool:
    """Whether a value says nothing: null, or empty objects."""
    try:
        return _says_nothing(type_of(value))
    except MixedTypesError:
        return False


def words(kind: pa.DataType) -> str:
    """Name a type for a message."""
    return str(settled(kind))


def _fits(value: Any, kind: pa.DataType) -> bool:
    t = pa.types
    if type(value) in (list, dict):
        return False
    if t.is_integer(kind):
        low = -(1 << (kind.bit_width - 1)) if t.is_signed_integer(kind) else 0
        return type(value) is int and bool(low <= value < low + (1 << kind.bit_width))
    if t.is_floating(kind):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if t.is_boolean(kind):
        return isinstance(value, bool)
    if is_text(kind) or is_inline(kind):
        return isinstance(value, str)
    return bool(kind != pa.null())  # dates and decimals: their text decides, which Arrow reads


def _word(value: Any) -> str:
    if type(value) is int and not _in_64_bits(value):
        return "integer"
    return "object" if isinstance(value, dict) else "list" if isinstance(value, list) else words(type_of(value))


def _in_64_bits(value: int) -> bool:
    return -_INT_END <= value < _UINT_END


def _number(one: pa.DataType, other: pa.DataType, path: str) -> pa.DataType:
    kinds = {one, other}
    if pa.float64() in kinds:
        return pa.float64()
    if kinds == {pa.int64(), pa.uint64()}:
        raise MixedTypesError(path, words(one), words(other))
    return pa.int64() if pa.int64() in kinds else pa.uint64()


def _too_many(path: str) -> MixedTypesError:
    many = f"more than {MOST_FIELDS:,} different fields, which are no columns"
    return MixedTypesError(path or "(the row)", "others", cut(many))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

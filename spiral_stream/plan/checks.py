"""Checks that plan nodes run when they are made. A refusal names the verb, what was found, similar names, and the way out."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from spiral_stream.arguments import integer
from spiral_stream.errors import PlanError, cut, shown, warn
from spiral_stream.expr import Cast, Col, Expr, kind_of, name_of, parse, type_of
from spiral_stream.sampling.order import LARGEST, Order
from spiral_stream.semantic import semantic_of

_DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d{1,4})?")
_IDENTITIES: Final = ("int", "text", "binary")
_COMPARED: Final = ("bool", "int", "float", "text", "binary", "time", "date")


def need_columns(verb: str, names: tuple[str, ...], have: pa.Schema) -> None:
    """Refuse names that the input does not have.

    Raises:
        PlanError: names the first unknown column and those that look like it.
    """
    for name in names:
        if isinstance(name, list | tuple):
            one_by_one = ", ".join(f'"{each}"' for each in name[:3])
            msg = f"{verb}: {shown(name)} is a list. Give the names one by one: {verb}({one_by_one}), or {verb}(*names)"
            raise PlanError(msg)
        if name not in have.names:
            near = get_close_matches(str(name), have.names, 3)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            msg = f"{verb}: {name!r} is not a column of the input; {hint}it has {', '.join(have.names)}"
            raise PlanError(msg)


def need_name(verb: str, expr: Expr) -> str:
    """Return the name of an expression.

    Raises:
        PlanError: it has none.
    """
    name = name_of(expr)
    if name is None:
        msg = f'{verb}: {expr} has no name. Write .{verb}(name={expr}) or ({expr}).alias("name")'
        raise PlanError(msg)
    return name


def need_new_names(verb: str, names: Iterable[str], way_out: str) -> None:
    """Refuse a column name that would come twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            msg = f"{verb}: two columns would be called {name!r}. {way_out}"
            raise PlanError(msg)
        seen.add(name)


def need_integer(verb: str, name: str, value: Any, least: int, most: int = LARGEST) -> None:
    """Refuse what is no integer from ``least`` to ``most``."""
    integer(least).need(f"{verb}: {name}=", value)
    if value > most:
        msg = f"{verb}: {name} is {value if value < 2**128 else 'past 2**128'}. Give at most {most}"
        raise PlanError(msg)


def device_name(where: str, value: object) -> str:
    """Return a device as text; a ``torch.device`` is one as well.

    Raises:
        PlanError: batches are not delivered to such a device.
    """
    named = str(value) if isinstance(value, str) or type(value).__module__ == "torch" else ""
    if not _DEVICE.fullmatch(named):
        msg = f'{where}={shown(value)}. Give "cpu", "cuda", a CUDA device by number ("cuda:0"), or "auto": CUDA if there is any'
        raise PlanError(msg)
    return named


def column_list(where: str, columns: object) -> tuple[str, ...]:
    """Return the columns that a function takes, as a tuple.

    Raises:
        PlanError: it is one text, which would be taken letter by letter, or holds what is no text.
    """
    if isinstance(columns, str):
        msg = f"{where}: columns={shown(columns)} is a text. Give a list of columns: columns=[{shown(columns)}]"
        raise PlanError(msg)
    names = tuple(columns) if isinstance(columns, Iterable) else (None,)
    if not all(isinstance(each, str) for each in names):
        msg = f'{where}: columns={shown(columns)}. Give a list of the columns\' names: columns=["text", ...]'
        raise PlanError(msg)
    return names


def column_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return column names as a tuple, where one name may stand by itself."""
    return (names,) if isinstance(names, str) else tuple(names)


def need_compared(verb: str, names: tuple[str, ...], have: pa.Schema) -> None:
    """Refuse columns whose values have no order or equality of their own, and those that name payload."""
    need_columns(verb, names, have)
    if not names:
        msg = f"{verb}: no columns. Name at least one of {', '.join(have.names)}"
        raise PlanError(msg)
    for name in names:
        field = have.field(name)
        if (semantic := semantic_of(field)) is not None:
            msg = f"{verb}: {name!r} is {semantic}, so comparing it would read all payload. Name other columns"
            raise PlanError(msg)
        if kind_of(plain_type(field.type)) not in _COMPARED:
            key = f'catalog.sql("select *, md5({name}::varchar) as key from ...").{verb}("key")'  # noqa: S608  a text for people
            found = f"{verb}: {name!r} is {cut(str(field.type))}, which has no order"
            msg = f"{found}. Name columns of numbers, text or times, or one made of it: {key}"
            raise PlanError(msg)


def need_identity(names: tuple[str, ...], have: pa.Schema) -> None:
    """Refuse columns whose values cannot identify samples permanently."""
    need_columns("sample (identity)", names, have)
    if not names:
        msg = f"sample: no identity column. Name one or several of {', '.join(have.names)}"
        raise PlanError(msg)
    need_new_names("sample (identity)", names, "Name it once")
    for name in names:
        if len(names) == 1 and kind_of(plain_type(have.field(name).type)) not in _IDENTITIES:
            msg = f"sample: identity {name!r} is {have.field(name).type}. Name a column of text, integers or bytes"
            raise PlanError(msg)


class Verb(Protocol):
    """The part of a node that these checks look at."""

    VERB: ClassVar[str]

    def inputs(self) -> "tuple[Verb, ...]":
        """Return the nodes it reads from."""
        ...


def unheeded_sort(node: Verb) -> str | None:
    """The columns of a sort that no limit or distinct after it looks at: it decides nothing about samples of these rows."""
    if node.VERB == "sort":
        return ", ".join(getattr(node, "names"))  # noqa: B009  this room does not know the nodes
    if node.VERB in ("limit", "distinct"):
        return None
    inputs = node.inputs()[:1] if node.VERB == "join" else node.inputs()
    return next((found for each in inputs if (found := unheeded_sort(each)) is not None), None)


def warn_of_unheeded_sort(node: Verb, order: Order) -> None:
    """Warn where samples come in another order than that of a sort before them."""
    if not order.follows_sort and (sorted_by := unheeded_sort(node)) is not None:
        msg = (
            f"sample: sort({sorted_by}) has no effect, because {type(order).__name__} decides the order. Drop the sort, put "
            "a limit or distinct after it, or take Sequential(), which goes through the rows in that order"
        )
        warn(msg)


def need_steady_order(node: Verb, order: Order) -> None:
    """Refuse an order that a mixture cannot keep: it draws the samples of each stream in random order inside its slices.

    `concat` keeps each stream's order, and so each stream's sort.

    Raises:
        PlanError: says what would be ignored, and the way out.
    """
    if not order.follows_sort or not _is_mixed(node):
        return
    sorted_by = unheeded_sort(node)
    if sorted_by is not None:
        msg = (
            f"sample: a mixture draws the samples of each stream in random order, so sort({sorted_by}) would be ignored. "
            "Sort and sample one relation without mix, such as a union or a concat of the streams; or drop the sort"
        )
        raise PlanError(msg)
    if order.goes_in_turn:
        msg = (
            f"sample: {type(order).__name__} goes through the rows as they lie, and a mixture draws the samples of each stream "
            "in random order, another one in each epoch. Take concat([...]), which keeps each stream's order; a union of the "
            "streams; or a shuffle such as GlobalShuffle(seed=...)"
        )
        raise PlanError(msg)


def need_steady(verb: str, unsteady: tuple[str, ...]) -> None:
    """Refuse SQL text whose rows are others on every run: ranks and resumed runs would not agree on the samples.

    Raises:
        PlanError: names what in the text differs, and the way out.
    """
    if unsteady:
        msg = (
            f"{verb}: the SQL text has {', '.join(unsteady)}, so each run and each rank would get other rows. Keep the rows "
            "once: catalog.register(name, Arrow(relation.to_arrow()), identity=...), and sample that relation"
        )
        raise PlanError(msg)


def _is_mixed(node: Verb) -> bool:
    """Whether streams are drawn in proportion; streams that follow each other are not."""
    if node.VERB == "mix":
        return not getattr(node, "in_turn")  # noqa: B009  this room does not know the nodes
    return any(_is_mixed(each) for each in node.inputs()[:1])


def need_weights(text: str, have: pa.Schema) -> None:
    """Refuse weights that are no numbers.

    Raises:
        PlanError: the text is no expression, names an unknown column, or has values of another type.
    """
    try:
        kind = bound_type("Weighted (weights)", parse(text), have)
    except PlanError as error:
        raise error if str(error).startswith("Weighted") else PlanError(f"Weighted (weights): {error}") from error
    if kind_of(kind) not in ("int", "float"):
        msg = f"Weighted: weights={shown(text)} is {kind}, no number. Name a column of numbers, or cast it"
        raise PlanError(msg)


def need_like_keys(left: pa.Field, right: pa.Field) -> None:
    """Refuse join keys of different types; says which side to cast, if either can be without loss."""
    compared = all(kind_of(plain_type(field.type)) in _COMPARED for field in (left, right))
    if compared and left.type == right.type:
        return
    found = f"join: {left.name!r} is {left.type} on the left and {right.name!r} is {right.type} on the right"
    for side, field, other in (("left", left, right), ("right", right, left)) if compared else ():
        try:
            type_of(Cast(Col(field.name), other.type), pa.schema([field]))
        except PlanError:
            continue
        way_out = f'.with_columns({field.name}=col("{field.name}").cast("{other.type}"))'
        msg = f"{found}. Cast the {side} one first: {way_out}"
        raise PlanError(msg)
    msg = f"{found}. Join on columns of one type: numbers, text or times"
    raise PlanError(msg)


def bound_type(verb: str, value: object, have: pa.Schema) -> pa.DataType:
    """Return the type of an expression's value.

    Raises:
        PlanError: it is no expression, names an unknown column, or its types do not fit; starts with the verb.
    """
    if not isinstance(value, Expr):
        kind = "a function" if callable(value) else f"a {type(value).__name__}"
        msg = f'{verb}: {shown(value)} is {kind}, not an expression. Write one with col, for example col("x") > 3'
        if isinstance(value, bool):
            msg += '. Python compared by itself: a function of an expression has parentheses, as in col("t").year() == 2025'
        raise PlanError(msg)
    try:
        return type_of(value, have)
    except PlanError as error:
        msg = f"{verb}: {error}"
        raise PlanError(msg) from error


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, where a column holds them through a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind

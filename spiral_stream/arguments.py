"""Check the arguments of public functions: a wrong one is named at the door, before it breaks something inside.

A callable behind a `door` runs as it is; a number of NumPy becomes Python's where a number is meant. Only if it fails with a
raw error, one that Python or another library raised, are its arguments held against what its signature says of them, and
the first that does not fit is refused by name. So a right call costs a frame, the words that a room has of its own pass, and
so does an error that no argument explains.

What a value may be is declared once, as a `Rule`: `check` holds the attributes of a dataclass against theirs at its birth.

A face whose methods are those of an object that it holds takes them by `forwarded`: arguments, types and docstring are written
once, at the object.
"""

import opcode
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from inspect import Parameter, Signature, signature
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeGuard, TypeVar, Union, final, get_args, get_origin

import numpy as np

from spiral_stream.errors import PlanError, SpiralError, is_ours, shown
from spiral_stream.habits import misfit

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type[Any])

_RAW: Final = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    NotImplementedError,
    OSError,
)
_RAISE: Final = opcode.opmap["RAISE_VARARGS"]  # what a `raise` statement runs
_MAKING: Final = ("__new__", "__init__", "__post_init__")
_OPEN: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NUMBERS: Final = (int, float, bool)
_LARGEST: Final = 2**63 - 1
_NAME: Final = 255  # characters of a file's name
_DEEPEST: Final = 8  # of lists in lists
_MOST: Final = 1_000  # items of a list that are looked at
_WORDS: Final[dict[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bytes: "bytes",
    NoneType: "None",
}
_MANY: Final[dict[Any, str]] = {int: "whole numbers", float: "numbers", str: "texts", bool: "True or False"}


# ---- what a value may be


def is_integer(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is an integer of Python's in a range. A bool is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """What a value may be.

    Attributes:
        fits: whether a value is right.
        right: what a message asks for, such as "True or False".
        verb: what a message says to do with it.
    """

    fits: Callable[[Any], bool]
    right: str
    verb: str = "Give"

    def need(self, where: str, value: object, error: type[Exception] = PlanError) -> None:
        """Refuse a value that is not right.

        Args:
            where: how the message begins, up to the value: ``show: count=``.
            value: as it was given.
            error: what to raise.
        """
        if not self.fits(value):
            msg = f"{where}{shown(value)}. {self.verb} {self.right}"
            raise error(msg)


def integer(least: int | None, most: int | None = None, right: str = "", *, none: bool = False) -> Rule:
    """Return the rule of an integer in a range, or None where ``none`` allows it."""
    right = right or (f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}")
    return Rule(lambda value: (none and value is None) or is_integer(value, least, most), right)


def one_of(known: Collection[Any], right: str = "") -> Rule:
    """Return the rule of a value that is one of some."""
    return Rule(known.__contains__, right or f"one of {', '.join(known)}")


def of_kind(kind: Any, right: str) -> Rule:
    """Return the rule of an object of a class, or of one of several."""
    return Rule(lambda value: isinstance(value, kind), right)


def text(right: str, *, none: bool = False, besides: object = None, verb: str = "Give") -> Rule:
    """Return the rule of a text that is not empty, or None where ``none`` allows it, and not ``besides``."""

    def fits(value: object) -> bool:
        return (none and value is None) or (isinstance(value, str) and value not in ("", besides))

    return Rule(fits, right, verb)


FLAG: Final = of_kind(bool, "True or False")


def check(owner: object, where: str, joint: str = "=", error: type[Exception] = PlanError, /, **rules: Rule) -> None:
    """Hold attributes against their rules, in the order in which these are given.

    Args:
        owner: has the attributes.
        where: how messages begin.
        joint: stands between an attribute's name and its value.
        error: what to raise.
        **rules: by attribute.
    """
    for name, rule in rules.items():
        rule.need(f"{where}: {name}{joint}", getattr(owner, name), error)


# ---- doors


def door(
    error: type[SpiralError], where: str | None = None, *, excepted: Collection[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name the argument that breaks a function.

    Args:
        error: what to raise.
        where: how messages begin; None takes the function's name.
        excepted: arguments that are only kept here and used later, so that they are looked at in any case.
    """

    def guarded(function: Callable[P, R]) -> Callable[P, R]:
        begin = function.__name__ if where is None else where

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if [each for each in (*args, *kwargs.values()) if isinstance(each, np.generic)]:
                args, kwargs = _as_python(function, args, kwargs)  # type: ignore[assignment]  # the same arguments
            try:
                out = function(*args, **kwargs)
            except _RAW as found:
                if isinstance(found, TypeError) and found.__traceback__ and found.__traceback__.tb_next is None:
                    raise TypeError(_misfit(function, begin, args, kwargs) or str(found)) from None
                wrong = None if is_worded(found) else _wrong(function, begin, args, kwargs)
                if wrong is None:
                    raise
                raise error(wrong) from found
            wrong = _wrong(function, begin, args, kwargs, excepted) if excepted else None
            if wrong is not None:
                raise error(wrong)
            return out

        return call

    return guarded


def class_door(error: type[SpiralError], *, excepted: Collection[str] = ()) -> Callable[[C], C]:
    """Name the argument that breaks the making of an object; as `door`, for a class."""

    def guarded(cls: C) -> C:
        cls.__init__ = door(error, cls.__name__, excepted=excepted)(cls.__init__)
        return cls

    return guarded


def forwarded(attribute: str, method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls one of the object in an attribute, with its name, signature and docstring.

    Args:
        attribute: holds the object.
        method: of the object's class.
    """

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(self, attribute), *args, **kwargs)

    return call


def _as_python(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with NumPy's numbers as Python's, where the signature says that a number is meant."""
    known, hints = _signature(function)
    try:
        bound = known.bind(*args, **kwargs)
    except TypeError:
        return tuple(args), dict(kwargs)
    for name, value in bound.arguments.items():
        hint = hints.get(name)
        if isinstance(value, np.generic) and any(each is kind for each in (hint, *get_args(hint)) for kind in _NUMBERS):
            bound.arguments[name] = value.item()
    return bound.args, bound.kwargs


def is_worded(error: BaseException) -> bool:
    """Whether a room of ours raised an error, in words of its own: the innermost place is a ``raise`` of the library.

    One in an operator of an object, such as the truth of an expression, is raw: it does not know what the object was given for.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not is_ours(trace.tb_frame):
        return False
    code = trace.tb_frame.f_code
    return code.co_code[trace.tb_lasti] == _RAISE and (code.co_name[:2] != "__" or code.co_name in _MAKING)


def _wrong(
    function: Callable[..., Any], where: str, args: Sequence[Any], kwargs: Mapping[str, Any], only: Collection[str] = ()
) -> str | None:
    """Say which argument is wrong; None if all fit, or if the call itself is none (a wrong keyword).

    Args:
        function: what was called.
        where: how the message begins.
        args: it was called with these.
        kwargs: and with these.
        only: look at these alone; empty looks at all.
    """
    known, hints = _signature(function)
    try:
        given = known.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    for name, value in _by_name(known, given):
        hint = hints.get(name, Any)
        if only and name not in only:
            continue
        label, each = value if name.startswith("*") else (name, value)
        if not fits(each, hint):
            return f"{where}: {label}={shown(each)} is {_kind(each)}. Give {_words(hint)}"
        fault = _fault(each)
        if fault is not None:
            return f"{where}: {label}={shown(each)} {fault}"
    return None


def _misfit(function: Callable[..., Any], where: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Say why a call does not fit the signature; None if it does."""
    known, _ = _signature(function)
    try:
        known.bind(*args, **kwargs)
    except TypeError:
        taken = [each for each in known.parameters.values() if each.name != "self" and each.kind not in _OPEN]
        positional = [each for each in known.parameters.values() if each.kind in _POSITIONAL]
        begun = {each.name for each in positional[: len(args)]}
        must = {each.name: each.default is Parameter.empty for each in taken}
        rest = {each.kind: each.name for each in known.parameters.values() if each.kind in _OPEN}
        many = rest.get(Parameter.VAR_POSITIONAL)
        more = ", ".join([*([f"*{many}"] if many else []), *(["name=value"] if Parameter.VAR_KEYWORD in rest else [])])
        surplus = 0 if many else max(len(args) - len(positional), 0)
        return misfit(where, must, [*sorted(begun - {"self"}), *kwargs], surplus, more)
    return None


def _by_name(known: Signature, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each argument by its name; those of ``*name`` and ``**name`` as pairs of a label and a value."""
    for at, (name, value) in enumerate(given.items()):
        kind = known.parameters[name].kind
        if at == 0 and name == "self":
            continue
        if kind is Parameter.VAR_POSITIONAL:
            for each in value:
                yield f"*{name}", (name, each)
        elif kind is Parameter.VAR_KEYWORD:
            for label, each in value.items():
                yield f"*{name}", (label, each)
        else:
            yield name, value


@lru_cache(maxsize=512)
def _signature(function: Callable[..., Any]) -> tuple[Signature, dict[str, Any]]:
    known, names = signature(function), getattr(function, "__globals__", {})
    hints = {}
    for name, each in known.parameters.items():
        many = each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        hints[f"*{name}" if many else name] = _resolved(each.annotation, names)
    return known, hints


def _resolved(hint: Any, names: Mapping[str, Any]) -> Any:
    if hint is Parameter.empty:
        return Any
    if isinstance(hint, str):
        try:
            return eval(hint, dict(names))  # noqa: S307  our own source
        except Exception:  # noqa: BLE001  a name that only type checkers import says nothing here
            return Any
    return hint


def as_integer(value: object) -> int | None:
    """Return an integer, NumPy's too, as Python's; None if it is none. A bool is none, and so is an array."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # whether it is one is the question
    except TypeError:
        return None


def fits(value: Any, hint: Any, depth: int = 0) -> bool:  # noqa: C901, PLR0911  one line per kind of hint
    """Whether a value is of the kind that a signature says. NumPy's numbers are numbers; a list may stand for a tuple."""
    origin, parts = get_origin(hint), get_args(hint)
    if depth > _DEEPEST:
        return False
    if origin in (Union, UnionType):
        return any(fits(value, each, depth + 1) for each in parts)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in parts)
    if hint is None or hint is NoneType:
        return value is None
    if hint is bool:
        return isinstance(value, bool) or type(value).__name__ == "bool_"
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, parts[0], depth + 1) and fits(each, parts[1], depth + 1) for key, each in value.items()
        )
    if origin is tuple and isinstance(value, list | tuple) and parts and parts[-1] is not Ellipsis:
        return len(value) == len(parts) and all(map(fits, value, parts, [depth + 1] * len(parts)))
    if origin is type:
        return isinstance(value, type)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, (origin, list)):
            return False
        looked_at = value[:_MOST] if isinstance(value, list | tuple) else ()
        return all(fits(each, parts[0], depth + 1) for each in looked_at)
    if origin is not None:
        return callable(value) if origin is Callable or "Callable" in str(origin) else _is(value, origin)
    return not isinstance(hint, type) or hint is object or _is(value, hint)


def _is(value: Any, kind: Any) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be asked
        return True


def _fault(value: Any) -> str | None:
    """Say what no number and no text may be, where something broke."""
    flat = value if isinstance(value, list | tuple) else (value,)
    flat = [*value, *value.values()] if isinstance(value, Mapping) else flat
    for each in flat[:_MOST]:
        if isinstance(each, str):
            if "\0" in each:
                return "holds a zero byte. Leave it out"
            if any("\ud800" <= letter <= "\udfff" for letter in each):
                return "holds half of a surrogate pair, which is no character. Give text that UTF-8 can write"
            if max(map(len, each.split("/"))) > _NAME:
                return f"is too long. Give at most {_NAME} characters"
        elif isinstance(each, Integral) and abs(int(each)) > _LARGEST:
            return "is too large. Give a number that 64 bits hold"
    return None


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, type):
        return "a class"
    return _a(type(value).__name__)


def _words(hint: Any) -> str:  # noqa: PLR0911  one line per kind of hint
    """What a signature asks for, in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(each) for each in parts))
    if origin is Literal:
        return "one of " + ", ".join(f'"{each}"' if isinstance(each, str) else str(each) for each in parts)
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        return "(" + ", ".join(_words(each) for each in parts) + ")"
    if origin is type:
        return "a class"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a dict of {_many(parts[0])} and {_many(parts[1])}"
    if origin is not None and "Callable" in str(origin):
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return f"a list of {_many(parts[0])}"
    if origin is os.PathLike or hint is os.PathLike:
        return "a path"
    return _WORDS.get(hint, _a(getattr(origin or hint, "__name__", str(hint))))


def _many(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_many(each) for each in get_args(hint)))
    return _MANY.get(hint, "values" if hint is Any else getattr(hint, "__name__", "lists"))


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"

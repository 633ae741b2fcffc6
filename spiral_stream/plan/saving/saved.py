"""A saved plan read back: JSON values become nodes and values of the types that their fields declare.

Whoever wrote them, they are checked here in one way: a value is compared with the annotation of
the field that it is to fill, before anything is made of it. Our own classes are named by a closed
table, code of the user's by `plan.functions.trust`; so what fits no field is refused with its place in the
plan, and nothing is imported to find out. What a value of the right type may be is said by the
class itself, at birth.
"""

import collections.abc
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin

import pyarrow as pa

from spiral_stream import expr
from spiral_stream.errors import PlanError, SpiralError, shown, warn
from spiral_stream.fields.stack import Stack
from spiral_stream.plan import nodes
from spiral_stream.plan.functions.trust import AGAIN, Trust, check_code
from spiral_stream.plan.saving.canonical import CLASS, CODE, EXPR, FUNCTION, NODE, NODES, VALUES, VERSION, version_of
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.transform import Transform

Resolve = Callable[[str], nodes.Scan]
ResolveSql = Callable[[str], nodes.Sql]

_KINDS: Final[Mapping[tuple[type, str], Any]] = {
    (Stack, "transforms"): tuple[Transform | Function, ...]
}  # fields cannot import transforms to say so
_FUNCTION_KINDS: Final[Mapping[str, Any]] = {
    "columns": tuple[str, ...],
    "kind": str,
    "batched": bool,
    "random": bool,
    "version": str | None,
    CODE: str | None,
}
_LATER_OF_FUNCTION: Final[Mapping[str, Any]] = {
    "records": bool,
    "workers": int | None,
    "with_index": bool,
    "draws": int | None,
    "call_rows": int | None,
}


def from_json(data: object, resolve: Resolve, resolve_sql: ResolveSql, trust: Trust | None = None) -> nodes.Node:
    """Read a plan back.

    Args:
        data: what `canonical.to_json` wrote, or anything else of JSON.
        resolve: gives the scan of a relation by name.
        resolve_sql: gives the node of a SQL text.
        trust: whose code it may name; by default the user's own that is imported.

    Raises:
        PlanError: it is no plan that this version can read; says where, and what to do.
        TrustError: it names code that is not trusted.
    """
    reader = _Reader(resolve, resolve_sql, trust or Trust())
    try:
        node = reader.node(data, "plan")
    except RecursionError as error:
        msg = f"saved plan: its verbs or expressions are nested too deeply to be read. {AGAIN} with fewer of them"
        raise PlanError(msg) from error
    if reader.unproven:
        names = ", ".join(sorted(reader.unproven))
        msg = (
            f"saved plan: an earlier version saved {names:.200} without a fingerprint of the code, so a change of it since then "
            f"is not seen. {AGAIN}"
        )
        warn(msg)
    return node


class _Reader:
    """One plan in the reading."""

    def __init__(self, resolve: Resolve, resolve_sql: ResolveSql, trust: Trust) -> None:
        self._resolve = resolve
        self._resolve_sql = resolve_sql
        self._trust = trust
        self.unproven: set[str] = set()  # names of code of which no fingerprint was saved

    def node(self, data: object, at: str) -> nodes.Node:
        verb = data.get("verb") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(verb, str):
            raise _unfit(at, data, 'a verb with its values: {"verb": ...}')
        if verb == "scan":
            return self._resolve(self.value(data.get("relation"), str, "scan.relation"))
        if verb == "sql":
            text = self.value(data.get("text"), str, "sql.text")
            query: nodes.Node = _made(lambda: self._resolve_sql(text), "sql", {}, "sql.text")
            return query
        cls = NODES.get(verb)
        if cls is None:
            msg = f"saved plan: verb {shown(verb)} is unknown to this version. Upgrade spiral, or save the stream again"
            raise PlanError(msg)
        node: nodes.Node = self._filled(cls, verb, {k: v for k, v in data.items() if k != "verb"}, verb)
        return node

    def value(self, data: object, kind: Any, at: str) -> Any:
        """Return a value of the kind that an annotation says."""
        if isinstance(data, dict):
            return self._tagged(data, kind, at)
        members = _members(kind)
        if isinstance(data, list):
            items = next((each for each in (_items(member, len(data)) for member in members) if each is not None), None)
            if items is None:
                raise _unfit(at, data, _kind_text(kind))
            return tuple(
                self.value(each, hint, f"{at}[{i}]") for i, (each, hint) in enumerate(zip(data, items, strict=True))
            )
        if not any(_fits(data, member) for member in members):
            raise _unfit(at, data, _kind_text(kind))
        if isinstance(data, str) and not _is_text(data):
            raise _unfit(at, data, "text of whole characters")
        return data

    def _tagged(self, data: Mapping[str, Any], kind: Any, at: str) -> Any:
        """Return what a JSON object stands for: a node, an expression, a function, or a value of a class."""
        allowed = tuple(
            object if each is Any else each for each in _members(kind) if each is Any or isinstance(each, type)
        )
        tag = next((each for each in (NODE, EXPR, FUNCTION, CLASS) if each in data), None)
        if tag in (NODE, EXPR) and len(data) == 1:
            of, read = (nodes.Node, self.node) if tag == NODE else (expr.Expr, _expression)
            if issubclass(of, allowed):
                return read(data[tag], at)
        if tag == FUNCTION and issubclass(Function, allowed):
            return self._function(data, at)
        if tag == CLASS:
            return self._instance(data, allowed, _kind_text(kind), at)
        raise _unfit(at, data, _kind_text(kind))

    def _function(self, data: Mapping[str, Any], at: str) -> Function:
        name = data[FUNCTION]
        given = {CODE: None, **{key: value for key, value in data.items() if key != FUNCTION}}
        kinds = {**_FUNCTION_KINDS, **_LATER_OF_FUNCTION}
        _need_keys(given, _FUNCTION_KINDS, kinds, f"function {shown(name)}")
        facts = {key: self.value(given[key], hint, f"{at}.{key}") for key, hint in kinds.items() if key in given}
        found = self._trust.find(name, at)
        if facts["version"] is None:  # else that stands for its code
            self._check_code(found, facts[CODE], name, at)
        facts = {"function": found, **facts, "kind": _arrow(facts["kind"], at)}
        del facts[CODE]
        made: Function = _made(Function, f"function {name}", facts, at)
        return made

    def _instance(self, data: Mapping[str, Any], allowed: tuple[type, ...], written: str, at: str) -> Any:
        """A value by the short name of our class, or by ``module:qualname`` of the user's."""
        name = data[CLASS]
        cls = VALUES.get(name) if isinstance(name, str) else None
        ours = cls is not None
        if cls is None:
            cls = self._trust.find(name, at)
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            msg = (
                f"saved plan: {at}: {shown(name)} is not a frozen dataclass, so it cannot be read back from its fields"
            )
            raise PlanError(msg)
        if not issubclass(cls, allowed):
            raise _unfit(at, data, written)
        if not ours:
            _need_version(name, cls, data)
            self._check_code(cls, self.value(data.get(CODE), str | None, f"{at}.{CODE}"), name, at)
        fields = {key: value for key, value in data.items() if key not in (CLASS, VERSION, CODE)}
        made = self._filled(cls, name, fields, at, ours=ours)
        if ours:  # whose version may depend on its parameters
            _need_version(name, made, data)
        return made

    def _check_code(self, found: Any, saved: str | None, name: str, at: str) -> None:
        if saved is None:
            self.unproven.add(name)
        else:
            check_code(found, saved, name, at)

    def _filled(self, cls: Any, name: str, data: Mapping[str, Any], at: str, *, ours: bool = True) -> Any:
        """A dataclass with its fields read."""
        declared = {each.name: each for each in dataclasses.fields(cls) if each.init}
        needed = [key for key, each in declared.items() if _lacks_default(each)]
        _need_keys(data, needed, declared, name)
        kinds = _hints(cls) if ours else dict.fromkeys(declared, Any)  # a user's annotations are for people
        fields = {key: self.value(value, kinds[key], f"{at}.{key}") for key, value in data.items()}
        return _made(cls, name, fields, at)


def _made(make: Callable[..., Any], name: str, values: Mapping[str, Any], at: str) -> Any:
    try:
        return make(**values)
    except (SpiralError, RecursionError):
        raise
    except (
        Exception
    ) as error:  # a user's own class raises what it likes; ours refuse by name, and this is their last net
        msg = (
            f"saved plan: {at}: {name} cannot be made of what was saved ({type(error).__name__}: {error!s:.200}). "
            "Save the stream again"
        )
        raise PlanError(msg) from error


def _need_version(name: str, found: Any, data: Mapping[str, Any]) -> None:
    """Refuse a class or value whose results were others when the plan was saved."""
    if type(data.get(VERSION)) is not int or version_of(found) != data[VERSION]:
        msg = (
            f"saved plan: {name} was saved at version {shown(data.get(VERSION))}, here it is {version_of(found)}: "
            "its results differ. Run the version of spiral that saved it, or save the stream again"
        )
        raise PlanError(msg)


def _need_keys(
    data: Mapping[str, Any], needed: collections.abc.Iterable[str], known: collections.abc.Container[str], name: str
) -> None:
    lacking = [key for key in needed if key not in data]
    unknown = [key for key in data if key not in known]
    if lacking or unknown:
        what = f"it lacks {lacking[0]!r}" if lacking else f"{shown(unknown[0])} is unknown"
        msg = f"saved plan: {name} cannot be read here ({what}). Upgrade spiral, or save the stream again"
        raise PlanError(msg)


def _lacks_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {key: _KINDS.get((cls, key), kind) for key, kind in hints.items()}


def _members(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the kind alone."""
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(member for each in get_args(kind) for member in _members(each))
    return (kind,)


def _items(kind: Any, count: int) -> tuple[Any, ...] | None:
    """The kinds of the items of a list that is to be of some kind; None where it is no list, or of another length."""
    if kind is Any:
        return (Any,) * count
    args = get_args(kind)
    if get_origin(kind) is collections.abc.Sequence or (get_origin(kind) is tuple and args[1:] == (...,)):
        return (args[0],) * count
    return args if get_origin(kind) is tuple and len(args) == count else None


def _fits(value: object, kind: Any) -> bool:
    """Whether a number, text, truth value or null is of a kind."""
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(kind))
    if kind is float:
        return type(value) in (int, float)
    return kind in (bool, int, str, type(None)) and type(value) is kind


def _kind_text(kind: Any) -> str:
    """A kind for people."""
    members = _members(kind)
    if len(members) > 1:
        return " or ".join(dict.fromkeys(map(_kind_text, members)))
    if get_origin(kind) is Literal:
        return " or ".join(map(json.dumps, get_args(kind)))
    if get_origin(kind) in (tuple, collections.abc.Sequence):
        parts = [_kind_text(each) for each in get_args(kind) if each is not ...]
        return f"[{', '.join(parts)}{', ...' if get_origin(kind) is not tuple or ... in get_args(kind) else ''}]"
    return "anything" if kind is Any else "null" if kind is type(None) else str(getattr(kind, "__name__", kind))


def _unfit(at: str, found: object, wanted: str) -> PlanError:
    if isinstance(found, dict):
        shown = f"{found[CLASS]!r:.80}" if CLASS in found else f"an object of {', '.join(map(repr, found))!s:.80}"
    else:
        shown = f"{found!r:.80}"
    return PlanError(f"saved plan: {at} is {shown}; it should be {wanted:.200}. {AGAIN}")


def _expression(data: object, at: str) -> expr.Expr:
    del at  # the expression's own errors show it
    return expr.from_json(data)


def _arrow(text: str, at: str) -> pa.DataType:
    """The Arrow type of what a function returns."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text))).field(0).type
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError) as error:
        msg = f"saved plan: {at}.kind is no Arrow type ({error!s:.100}). {AGAIN}"
        raise PlanError(msg) from error


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True

"""A content hash of the code that a plan names: what it is and what it does.

A walk starts at a function or class and collects *definitions*: the syntax tree
without docstrings, annotations and positions, with defaults, closure values and
everything of the user's own code that it names. Own code is the top-level package
the walk starts in, and whatever no installed distribution supplies (a script's
neighbours, editable installs); the rest enters as its dotted name and version.
Definitions refer to each other by label, so cycles need no care, and the walk goes
through names in sorted order, so the hash sees no dict, set or import order.

What was set on code after its definition counts as well, where the code may read it
(`plan.functions.attached`): attributes of functions and classes, methods put in place of others,
implementations of `functools.singledispatch`, own functions put into a library. An expression
that finds code by a name made at run time (``globals()[name]``) is a *blind spot*: values
that are kept may not rest on it. docs/concepts/kept-values.md says what nothing sees.
``__spiral_version__ = "2"`` on a function or class replaces its definition where the
walk would need more than it can see; on an instance it replaces its attributes as well.

Cost, measured on one core: 5 ms to parse a file of 300 lines, 1.2 ms a definition (42
of them 50 ms, 371 of them 0.5 s). The first package that is not distributed under its
own name costs a scan of the installed ones, 0.25 s for 165 of them.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib
import json
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, Final

from spiral_stream.errors import PlanError
from spiral_stream.plan.functions import attached as afterwards
from spiral_stream.plan.functions import syntax
from spiral_stream.plan.functions.attached import VERSION_ATTRIBUTE
from spiral_stream.plan.functions.constants import encode_constant
from spiral_stream.plan.functions.origin import (
    cells,
    dotted_name,
    found_name,
    home,
    installed,
    is_users,
    lookup,
    top_level,
)

_FORMAT: Final = 1  # raised when the encoding changes
_OF_THE_IMPORT: Final = {"__file__", "__cached__", "__path__", "__loader__", "__spec__", "__builtins__"}
_WAY_OUT: Final = f'Pass it as an argument, or set an explicit version ({VERSION_ATTRIBUTE} = "1") on'


def code_fingerprint(thing: Callable[..., Any] | type) -> str:
    """Return the content hash of a function, class, method of a frozen value, or partial.

    Args:
        thing: what the plan names.

    Returns:
        32 hex digits of SHA-256; moves with source, defaults, closure, and the own
        helpers, classes and constants in use, not with comments, docstrings,
        annotations, formatting or where the file lies.

    Raises:
        PlanError: the code uses a value that has no content to hash, or its source
            cannot be read.
    """
    return _Walk(top_level(home(thing))).fingerprint(thing)


def blind_spots(thing: Callable[..., Any] | type) -> list[str]:
    """Return what the code of a function uses that `code_fingerprint` does not see, in words: the values kept of it may be old.

    Raises:
        PlanError: as `code_fingerprint`.
    """
    walk = _Walk(top_level(home(thing)))
    walk.fingerprint(thing)
    return list(dict.fromkeys(walk.blind))


def stable_name(thing: Any, allow_main: bool = False) -> str:
    """Return the ``module:qualname`` under which another process finds a function or class.

    Args:
        thing: a function or class.
        allow_main: accept names of the script that is being run.

    Raises:
        PlanError: no such name leads to it, with the reason.
    """
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    way_out = "Define it with `def` or `class` at the top level of a module that can be imported"
    if not isinstance(module, str) or not isinstance(qualname, str):
        msg = f"plan: {thing!r} has no module and name of its own, so no other process could find it. {way_out}"
        raise PlanError(msg)
    name = f"{module}:{qualname}"
    if "<lambda>" in qualname:
        msg = f"plan: {name} is a lambda, which has no name that another process could look up. {way_out}"
        raise PlanError(msg)
    if "<locals>" in qualname:
        msg = f"plan: {name} is local to a function and exists only while that runs. {way_out}"
        raise PlanError(msg)
    if module == "__main__" and not allow_main:
        msg = f"plan: {name} belongs to the script being run, which no other process can import. {way_out}"
        raise PlanError(msg)
    if lookup(module, qualname) != thing:
        msg = f"plan: the name {name} leads to something else than {thing!r}. {way_out}, and do not rebind the name"
        raise PlanError(msg)
    return name


class _Walk:
    """One fingerprint in the making: the definitions met so far, and those still to be read."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._labels: dict[int, tuple[str, Any]] = {}  # by id, with the object, which keeps the id its own
        self._names: Counter[str] = Counter()
        self._pending: list[tuple[str, Any]] = []
        self._open: set[int] = set()
        self._at = ("plan", "the value itself")
        self._in_set = False
        self.blind: list[str] = []  # what it cannot see, in words
        self._carriers: list[
            tuple[str, dict[str, Any], bool]
        ] = []  # attributes that no definition explains, by who has them
        self._carrying: set[int] = set()
        self._read_names: set[str] = set()
        self._computes_names = False

    def fingerprint(self, thing: Any) -> str:
        root = self._value(thing, getattr(thing, "__qualname__", type(thing).__qualname__), "the value itself")
        definitions: dict[str, Any] = {}
        later: dict[str, Any] = {}
        while True:
            for label, found in self._pending[len(definitions) :]:
                definitions[label] = (
                    self._class(found, label) if isinstance(found, type) else self._function(found, label)
                )
            before = len(later)
            self._add_later(later)
            if len(definitions) == len(self._pending) and len(later) == before:
                break
        parts = [_FORMAT, root, definitions, *([later] if any(each is not None for each in later.values()) else [])]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _add_later(self, later: dict[str, Any]) -> None:
        """Add the attributes that the code read so far may read; None stands for one without content."""
        for label, attributes, is_class in list(self._carriers):
            for name, value in attributes.items():
                key = f"{label}.{name}"
                called = is_class and (
                    name.startswith("@") or afterwards.functions_of(value)
                )  # by whoever has the class
                if key in later or not (called or self._may_read(name)):
                    continue
                later[key] = self._tried(value)
                if later[key] is None:
                    what = f"attribute {name!r} of {label.split('#')[0]}, a {type(value).__qualname__} set after its definition"
                    self.blind.append(what)

    def _may_read(self, name: str) -> bool:
        name = name.rsplit(".", 1)[-1]  # of a method
        halves = name.split("__", 1)
        plain = f"__{halves[1]}" if name.startswith("_") and len(halves) > 1 else name  # mangled in a class
        names = self._read_names
        return self._computes_names or name in names or plain in names

    def _tried(self, value: Any, chain: tuple[str, ...] = ()) -> Any:
        """What a value, or what is read from it, becomes; None, and nothing is remembered of it, where it has no content."""
        before = dict(self._labels), Counter(self._names), len(self._pending), self._in_set, set(self._open)
        carried = len(self._carriers), set(self._carrying), len(self.blind)
        try:
            return self._attribute(value, chain)
        except PlanError:
            self._labels, self._names, pending, self._in_set, self._open = before
            del self._pending[pending:]
            del self._carriers[carried[0] :], self.blind[carried[2] :]
            self._carrying = carried[1]
            return None

    def _carry(self, label: str, value: Any) -> None:
        """Remember the attributes that were set on a function or a wrapper."""
        held = afterwards.set_on_value(value) if isinstance(value, enum.Enum) else afterwards.set_on(value)
        if held and id(value) not in self._carrying:
            self._carrying.add(id(value))
            self._carriers.append((f"{label}@{len(self._carriers)}", held, False))

    def _value(self, value: Any, owner: str, variable: str) -> Any:
        """JSON values that stand for what ``variable`` of ``owner`` holds."""
        self._at = (owner, variable)
        return self._encode(value)

    def _encode(self, value: Any) -> Any:
        if id(value) in self._open:
            raise self._refusal("a value that contains itself")
        self._open.add(id(value))
        before, start = self._in_set, len(self._pending)
        self._in_set = before or isinstance(value, set | frozenset)
        out = encode_constant(value, self._encode)
        if isinstance(value, enum.Enum):
            self._carry(f"{dotted_name(type(value))}.{value.name}", value)
        if self._in_set:  # what was met in hash order is read in the order of its labels
            self._pending[start:] = sorted(self._pending[start:], key=lambda each: each[0])
        self._in_set = before
        out = self._object(value) if out is None else out
        self._open.discard(id(value))
        return out

    def _object(self, value: Any) -> Any:  # noqa: C901, PLR0911, PLR0912  one case a kind of value
        """Code, and values that know their class."""
        if _states_version(value):
            return self._versioned(value)
        if isinstance(value, type | types.FunctionType):
            return self._code(value)
        if _versioned_class(type(value)):
            return self._instance(value)
        if isinstance(value, types.ModuleType) and not self._is_walked(value.__name__):
            return self._external(value.__name__)
        if isinstance(value, functools.partial):
            self._carry(f"partial of {getattr(value.func, '__qualname__', '')}", value)
            return ["partial", *self._all([value.func, value.args, value.keywords])]
        if isinstance(value, types.MethodType):
            if _versioned_class(type(value.__self__)):
                return ["method", self._encode(value.__self__), value.__func__.__qualname__]
            self._at = (dotted_name(value), "self")
            return ["method", self._encode(value.__self__), self._encode(value.__func__)]
        if isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, types.ModuleType | None):
            return ["method", self._encode(value.__self__), value.__name__]
        if typing.get_origin(value) is not None:
            return ["alias", self._encode(typing.get_origin(value)), self._all(typing.get_args(value))]
        if type(value).__module__ == "typing":
            return ["typing", repr(value)]
        if _is_frozen(value):
            held = self._all(getattr(value, each.name, None) for each in fields(value))
            return ["value", self._encode(type(value)), held, *self._other_attributes(value)]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ["value", self._encode(type(value)), self._all(value), *self._other_attributes(value)]
        if isinstance(value, property):
            return ["property", *self._all([value.fget, value.fset, value.fdel])]
        if isinstance(value, functools.partialmethod):
            return ["partialmethod", *self._all([value.func, value.args, value.keywords])]
        if functions := afterwards.functions_of(value):  # a method of a kind: static, of the class, ...
            return ["descriptor", type(value).__name__, *self._all(functions)]
        name = found_name(value)
        if name is not None and not is_users(top_level(name)):  # compiled: the installed version says what it does
            return self._external(name)
        if callable(value) and hasattr(value, "__wrapped__"):  # functools.cache and its kin
            if self._is_walked(home(type(value))):
                return ["decorated", *self._instance(value), self._encode(value.__wrapped__)]
            self._carry(dotted_name(type(value)), value)
            return ["wrapped", self._external(dotted_name(type(value))), self._encode(value.__wrapped__)]
        what = (
            f"module {value.__name__!r} as a whole" if isinstance(value, types.ModuleType) else dotted_name(type(value))
        )
        raise self._instance_refusal(value) if self._is_walked(home(type(value))) else self._refusal(what)

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self._encode(value) for value in values]

    def _code(self, value: Any) -> Any:
        """A reference to a function or class; own code is queued to be read."""
        module = home(value)
        if self._is_walked(module):
            return ["own", self._label(value, f"{module}:{value.__qualname__}")]
        if isinstance(value, type) or "<locals>" not in value.__code__.co_qualname:
            return self._external(dotted_name(value))
        if lookup(value.__module__, value.__qualname__) is value and not self._is_walked(value.__module__):
            return self._external(dotted_name(value))
        made = self._external(f"{module}.{value.__code__.co_qualname}")
        if hasattr(value, "__wrapped__"):  # a decorator from elsewhere; its arguments stand in the source it decorates
            self._carry(dotted_name(value), value)
            return ["wrapped", made, self._encode(value.__wrapped__), *self._given(value)]
        return ["made", made, self._all(value.__defaults__ or ()), self._all(cells(value).values())]

    def _given(self, value: Any) -> list[Any]:
        """What a decorator from elsewhere was given beside the function: own values in its call, what was registered with it."""
        out: list[Any] = []
        registered = afterwards.registered(value)
        if registered:
            out.append(["registered", *([name, *self._all([kind, found])] for name, kind, found in registered)])
        inner = value.__wrapped__
        if isinstance(inner, types.FunctionType) and self._is_walked(home(inner)):
            uses = afterwards.decorating(inner)
            found = {".".join((name, *chain)): self._tried(inner.__globals__[name], chain) for name, chain in uses}
            of_ours = {name: each for name, each in found.items() if each is not None and each[0] != "external"}
            out += [["given", of_ours]] if of_ours else []
        return out

    def _other_attributes(self, value: Any) -> list[Any]:
        """The attributes of a frozen value that are no fields and do not follow from them."""
        extra = afterwards.set_on_value(value)
        again = afterwards.made_again(value) if extra else {}
        out = {}
        for name, each in extra.items():
            found = self._tried(each)
            if name in again and self._tried(again[name]) == found:
                continue
            if found is None:
                self._at = (dotted_name(type(value)), f"attribute {name!r}, no field,")
                raise self._refusal(dotted_name(type(each)))
            out[name] = found
        return [out] if out else []

    def _instance(self, value: Any) -> Any:
        """A value of an own class by its class and its attributes."""
        cls = type(value)
        if isinstance(getattr(cls, VERSION_ATTRIBUTE, None), property):
            return ["version", dotted_name(cls), self._stated(value, getattr(value, VERSION_ATTRIBUTE)), None]
        state = afterwards.set_on(value) | afterwards.set_on_value(value)
        if dataclasses.is_dataclass(value):
            state |= {each.name: getattr(value, each.name, None) for each in fields(value)}
        state = {name: each for name, each in state.items() if name not in afterwards.OF_WRAPS}
        out = {}
        for name, each in sorted(state.items()):
            try:
                out[name] = self._encode(each)
            except PlanError as error:
                msg = (
                    f"{dotted_name(cls)}: attribute {name!r} of the instance, a {type(each).__qualname__}, has no content to "
                    f'fingerprint. Set self.{VERSION_ATTRIBUTE} = "1" on the instance too, and another version whenever '
                    "what it computes changes"
                )
                raise PlanError(msg) from error
        return ["instance", self._encode(cls), out]

    def _versioned(self, value: Any) -> Any:
        """A version in place of a definition; the fields of a method's frozen self still count."""
        code = value.func if isinstance(value, functools.partial) else value
        code = code if hasattr(code, "__qualname__") else type(code)
        version = self._stated(code, value.__dict__[VERSION_ATTRIBUTE])
        bound_to = getattr(value, "__self__", None)
        return ["version", dotted_name(code), version, self._encode(bound_to) if _is_frozen(bound_to) else None]

    def _stated(self, code: Any, version: object) -> str:
        if not isinstance(version, str):
            name = dotted_name(code if hasattr(code, "__qualname__") else type(code))
            msg = f'{name}: {VERSION_ATTRIBUTE} is {version!r}; it must be a string such as "1"'
            raise PlanError(msg)
        return version

    def _label(self, value: Any, name: str) -> str:
        if id(value) not in self._labels:
            if self._in_set and ("<" in name or name in self._names):
                what = f"a set with {name}, which no name of its own sorts (a tuple would do)"
                raise self._refusal(what)
            label = f"{name}#{self._names[name]}"
            self._names[name] += 1
            self._labels[id(value)] = (label, value)
            self._pending.append((label, value))
        return self._labels[id(value)][0]

    def _function(self, function: types.FunctionType, label: str) -> Any:
        name = dotted_name(function)
        tree = syntax.function_tree(function)
        if tree is None:
            raise _unreadable(name, f"line {function.__code__.co_firstlineno} of {function.__code__.co_filename}")
        defaults = [self._value(value, name, "a default") for value in (function.__defaults__ or ())]
        keywords = {
            key: self._value(value, name, f"default {key!r}") for key, value in (function.__kwdefaults__ or {}).items()
        }
        bound = cells(function)
        closure = self._closure(bound, name)
        names = self._references(tree, name, function.__globals__, bound)
        self._carry(label, function)
        return ["function", syntax.dump(tree), defaults, keywords, closure, names]

    def _class(self, cls: type, label: str) -> Any:
        name = dotted_name(cls)
        bases = [self._value(base, name, "a base class") for base in cls.__bases__ if base is not object]
        tree = syntax.class_tree(cls)
        if tree is None and hasattr(cls, "_field_defaults"):  # by collections.namedtuple
            made: Any = cls
            return ["namedtuple", list(made._fields), self._value(made._field_defaults, name, "a default")]
        if tree is None and not is_users(top_level(cls.__module__)):  # compiled
            return self._external(name)
        if tree is None:
            raise _unreadable(name, f"a `class` statement in module {cls.__module__}")
        bound = _bound_by_methods(cls)
        closure = self._closure(bound, name)
        attributes = {
            key: self._value(vars(cls)[key], name, f"class attribute {key!r}")
            for key in sorted(syntax.assigned(tree) & vars(cls).keys())
            # Descriptors and members of an enum are what the source says.
            if not hasattr(type(vars(cls)[key]), "__get__") and not isinstance(vars(cls)[key], cls)
        }
        names = self._references(tree, name, vars(sys.modules[cls.__module__]), bound)
        self._carriers.append((label, afterwards.set_on_class(cls, tree, _labels_in(names)), True))
        return ["class", syntax.dump(tree), bases, attributes, closure, names]

    def _closure(self, bound: dict[str, Any], owner: str) -> Any:
        return {key: self._value(value, owner, f"closure variable {key!r}") for key, value in sorted(bound.items())}

    def _references(self, tree: syntax.Definition, owner: str, scope: dict[str, Any], bound: Iterable[str]) -> Any:
        """Return what the names in a definition lead to, by name, except those that its closure binds."""
        out: dict[str, Any] = {}
        imports = syntax.local_imports(tree, str(scope.get("__package__") or ""))
        names, computes = afterwards.reads(tree)
        self._read_names |= names
        self._computes_names |= computes
        self.blind += [f"{each} in {owner}" for each in afterwards.blind_spots(tree, scope, {*imports, *bound})]
        for name, chains in sorted(syntax.free_names(tree, imports).items()):
            for chain in chains:
                dotted = ".".join((name, *chain))
                self._at = (owner, f"name {dotted!r}")
                if name in imports:
                    out[dotted] = self._imported(*imports[name], chain)
                elif name in scope and name not in bound and name not in _OF_THE_IMPORT:
                    out[dotted] = self._attribute(scope[name], chain)
                elif name not in scope and name not in bound and (put := afterwards.builtin_patch(name)) is not None:
                    out[dotted] = self._encode(put)
                reached = out.get(dotted)
                if reached and reached[0] == "external" and afterwards.is_blind(reached[1], tree, (name, *chain)):
                    self.blind.append(f"{dotted} in {owner}")
        return out

    def _imported(self, module: str, names: tuple[str, ...], chain: tuple[str, ...]) -> Any:
        if not self._is_walked(module):
            return self._external(".".join((module, *names, *chain)))
        try:
            return self._attribute(importlib.import_module(module), (*names, *chain))
        except ImportError:
            return ["missing", module]

    def _attribute(self, value: Any, chain: tuple[str, ...]) -> Any:
        for i, attribute in enumerate(chain):
            if not isinstance(value, types.ModuleType):
                break
            if not self._is_walked(value.__name__):
                return self._external(".".join((value.__name__, *chain[i:])))
            if not hasattr(value, attribute):
                return self._imported(f"{value.__name__}.{attribute}", (), chain[i + 1 :])
            value = getattr(value, attribute)
        return self._encode(value)

    def _external(self, dotted: str) -> list[Any]:
        put = [[name, self._encode(value)] for name, value in afterwards.patches(dotted) if id(value) not in self._open]
        return ["external", dotted, *installed(top_level(dotted)), *([["patched", *put]] if put else [])]

    def _is_walked(self, dotted: str) -> bool:
        package = top_level(dotted)
        return is_users(package) or (package == self._root and package not in sys.stdlib_module_names)

    def _refusal(self, what: str) -> PlanError:
        owner, variable = self._at
        return PlanError(f"{owner}: {variable} is {what}, which has no content to fingerprint. {_WAY_OUT} {owner}")

    def _instance_refusal(self, value: Any) -> PlanError:
        """An object of an own class, whose attributes may change under the plan."""
        owner, variable = self._at
        name = dotted_name(type(value))
        msg = (
            f"{owner}: {variable} is {name}, an instance of a class, which has no content to fingerprint. Make {name} a frozen "
            f'dataclass, whose fields count; or set {VERSION_ATTRIBUTE} = "1" in class {name}, which stands for its code while '
            'the attributes of the instance count; or give version="1" to the verb that takes the function, or set an explicit '
            f"version on {owner}. Raise it whenever results change"
        )
        return PlanError(msg)


def _unreadable(name: str, missing: str) -> PlanError:
    return PlanError(
        f"{name}: its source cannot be read, because {missing} does not hold its definition. Define it in a module's "
        f'file, restart the process after editing it, or set an explicit version ({VERSION_ATTRIBUTE} = "1") on {name}'
    )


def _states_version(value: Any) -> bool:
    """Whether a version stands on the value itself; a property is one of its instances."""
    if isinstance(value, types.ModuleType):
        return False
    held = getattr(value, "__dict__", None) or {}
    return VERSION_ATTRIBUTE in held and not (isinstance(value, type) and isinstance(held[VERSION_ATTRIBUTE], property))


def _versioned_class(cls: type) -> bool:
    """Whether a class or one of its bases states a version."""
    return any(VERSION_ATTRIBUTE in vars(each) for each in cls.__mro__)


def _labels_in(names: Any) -> set[str]:
    """The own code that a definition refers to, as module:name."""
    if isinstance(names, dict):
        return {label for each in names.values() for label in _labels_in(each)}
    if isinstance(names, list):
        if len(names) == 2 and names[0] == "own":  # noqa: PLR2004  a kind and a label
            return {names[1].rsplit("#", 1)[0]}
        return {label for each in names for label in _labels_in(each)}
    return set()


def _is_frozen(value: Any) -> bool:
    return bool(getattr(getattr(value, "__dataclass_params__", None), "frozen", False)) and not isinstance(value, type)


def _bound_by_methods(cls: type) -> dict[str, Any]:
    """The variables that methods of a class inside a function take from there."""
    out: dict[str, Any] = {}
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    for each in vars(cls).values():
        for method in afterwards.functions_of(each):
            if method.__code__.co_filename == file:  # others are generated
                out |= {name: value for name, value in cells(method).items() if value is not cls}
    return out

"""What the source text of a function or class does not show: attributes set later, and names resolved at run time.

Two questions for `plan.functions.code`. `set_on` lists the attributes that a value holds and that its definition does
not explain: a method put in place of another one, an attribute of a function, a field of a frozen value that its class
does not declare. `blind_spots` lists the expressions whose result no reading finds: ``globals()``,
``importlib.import_module(name)``, ``__subclasses__()``. A plan may hold those; values that outlive the process may not
rest on them.
"""

import abc
import ast
import builtins
import dataclasses
import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from spiral_stream.plan.functions import syntax
from spiral_stream.plan.functions.origin import home, is_users, top_level

VERSION_ATTRIBUTE: Final = "__spiral_version__"
DEF, DECORATED, CLASS, OTHER = "def", "decorated", "class", "other"  # what binds a name in a class body
OF_WRAPS: Final = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", VERSION_ATTRIBUTE}
_OF_TUPLES: Final = {"_fields", "_field_defaults", "_make", "_replace", "_asdict"}
_OF_DISPATCH: Final = {"registry", "dispatch", "register", "_clear_cache"}
_BLIND_NAMES: Final = {"globals", "eval", "exec", "compile", "__import__"}
_BLIND_WITHOUT_ARGUMENTS: Final = {"vars", "dir"}
_BLIND_ATTRIBUTES: Final = {  # those of the second line are left out of a definition
    *("__subclasses__", "__globals__", "__builtins__", "f_globals", "f_back"),
    *("__annotations__", "__doc__", "return_annotation", "co_firstlineno", "co_linetable", "co_positions"),
}
_BLIND_MODULES: Final = {"runpy", "gc"}
_BLIND_EXTERNALS: Final = {
    "importlib.import_module",
    "importlib.__import__",
    "importlib.reload",
    "inspect.currentframe",
    "inspect.get_annotations",
    "inspect.getdoc",
    "inspect.getsource",
    "typing.get_type_hints",
    "inspect.getmodule",
    "inspect.stack",
    "pkgutil.resolve_name",
    "pydoc.locate",
    "sys._getframe",
    "sys.modules",
    *(f"builtins.{name}" for name in _BLIND_NAMES),
}
_IMPORTERS: Final = {"importlib.import_module", "importlib.__import__", "builtins.__import__"}


def reads(tree: syntax.Definition) -> tuple[set[str], bool]:
    """Return the attributes that a definition may read: by name, as a text, and whether it reads some by a name it computes."""
    names, computed = set[str](), False
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
            computed |= node.attr in ("__dict__", "attrgetter", "methodcaller", "getmembers")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name, given = node.func.id, node.args
            literal = len(given) > 1 and isinstance(given[1], ast.Constant)
            computed |= (name == "getattr" and not literal) or name in ("vars", "dir", "attrgetter", "methodcaller")
    return names, computed


def set_on(value: Any) -> dict[str, Any]:
    """Return the attributes of a function, a wrapper or a partial: none of them stands in a definition."""
    held = getattr(value, "__dict__", None) or {}
    known = OF_WRAPS | (_OF_DISPATCH if is_dispatching(value) else set())
    return {name: each for name, each in sorted(held.items()) if name not in known and not _is_dunder(name)}


def set_on_class(cls: type, tree: ast.ClassDef, reached: set[str]) -> dict[str, Any]:
    """Return the attributes of an own class that its ``class`` statement does not explain.

    Args:
        cls: the class.
        tree: its definition.
        reached: the dotted names of the own functions and classes that its definition refers to, as far as is known.
    """
    bound: dict[str, str] = {}
    for name, kind in _bound(tree):
        bound[_mangled(name, cls)] = kind if bound.get(_mangled(name, cls), kind) == kind else OTHER
    hidden = {_mangled(name, cls): value for name, value in _literals(tree) if name.startswith("__")}
    out: dict[str, Any] = {}
    for name, value in sorted(vars(cls).items()):
        functions = functions_of(value)
        if functions:
            explained = all(_explains(cls, tree, bound.get(name), name, each, reached) for each in functions)
        else:
            explained = _explains_value(cls, bound.get(name), name, value, hidden)
        if name != VERSION_ATTRIBUTE:
            out |= _inside(name, value, functions, tree) if explained else {name: value}
        if isinstance(value, functools.singledispatchmethod):
            out |= {f"{name} of {kind}": each for kind, each in _registered_afterwards(cls, tree, value)}
    if declared := _declared(cls):
        out["@fields"] = declared
    gone = {name for name, kind in bound.items() if kind == DEF and name not in vars(cls)}
    return out | dict.fromkeys(sorted(gone))


def _explains_value(cls: type, kind: str | None, name: str, value: Any, hidden: Mapping[str, list[Any]]) -> bool:
    """Whether a class statement says that this value, no function, stands under this name."""
    if kind is None:
        return _is_dunder(name) or _is_bookkeeping(cls, name, value)
    if kind == CLASS:
        return not isinstance(value, type) or value.__qualname__ == f"{cls.__qualname__}.{name}"
    private = name in hidden and not _is_dunder(
        name
    )  # which `plan.functions.code` does not find under its name in the source
    return kind != DEF and not (private and repr(hidden[name]) != repr([value]))


def _inside(name: str, value: Any, functions: list[types.FunctionType], tree: ast.ClassDef) -> dict[str, Any]:
    """What was set on the methods of a class, and on descriptors of the user's own."""
    out: dict[str, Any] = {}
    for each in functions:
        out |= {f"{name}.{attribute}": held for attribute, held in set_on(each).items()}
        if _moved_defaults(each, tree):
            out[f"@defaults of {name}"] = (each.__defaults__, each.__kwdefaults__)
    if not functions and hasattr(type(value), "__get__") and is_users(top_level(type(value).__module__)):
        state = getattr(value, "__dict__", None) or {}
        out |= {f"@state of {name}.{attribute}": state[attribute] for attribute in sorted(state.keys() - OF_WRAPS)}
    return out


def _registered_afterwards(
    cls: type, tree: ast.ClassDef, method: "functools.singledispatchmethod[Any]"
) -> Iterator[tuple[str, Any]]:
    file = _file_of(cls)
    for kind, _, function in registered(method.dispatcher):
        if isinstance(function, types.FunctionType) and not syntax.is_within(function, tree, file):
            yield kind, function


def _file_of(cls: type) -> str | None:
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


def set_on_value(value: Any) -> dict[str, Any]:
    """Return the attributes of a frozen value, a named tuple or a member of an enum that are no fields of its own."""
    held = dict(getattr(value, "__dict__", None) or {})
    known = {VERSION_ATTRIBUTE}
    if dataclasses.is_dataclass(value):
        known |= {each.name for each in dataclasses.fields(value)}
    for cls in type(value).__mro__:
        known |= {name for name, each in vars(cls).items() if isinstance(each, functools.cached_property)}
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                held.setdefault(name, getattr(value, name))
    if isinstance(value, enum.Enum):  # what `__init__` sets from the value is what the source says
        known |= {name for name in held if name[:1] == name[-1:] == "_"} | _stored(type(value))
    return {name: each for name, each in sorted(held.items()) if name not in known}


def _stored(cls: type) -> set[str]:
    """The attributes that the methods of a class assign."""
    tree = syntax.class_tree(cls)
    return {
        node.attr
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def made_again(value: Any) -> dict[str, Any]:
    """Return the attributes beside its fields that a value made of the same fields has; none if it cannot be made."""
    try:
        fresh = type(value)(*value) if isinstance(value, tuple) else dataclasses.replace(value)
        return set_on_value(fresh)
    except Exception:  # noqa: BLE001  a constructor of the user's, which may ask for more than fields
        return {}


def is_dispatching(value: Any) -> bool:
    """Whether a function is one by `functools.singledispatch`."""
    return isinstance(getattr(value, "registry", None), Mapping) and callable(getattr(value, "dispatch", None))


def registered(value: Any) -> list[tuple[str, type, Any]]:
    """Return the implementations of a `functools.singledispatch` function, by the name of the class each is for."""
    if not is_dispatching(value):
        return []
    found = [(f"{kind.__module__}.{kind.__qualname__}", kind, function) for kind, function in value.registry.items()]
    return sorted((each for each in found if each[1] is not object), key=lambda each: each[0])


def decorating(function: types.FunctionType) -> list[syntax.Use]:
    """Return the names that the arguments of a function's decorators hold, each with the attributes read from it."""
    tree = syntax.function_tree(function)
    if tree is None or isinstance(tree, ast.Lambda):
        return []
    given = [
        each
        for decorator in tree.decorator_list
        if isinstance(decorator, ast.Call)
        for each in (*decorator.args, *(keyword.value for keyword in decorator.keywords))
    ]
    found = {use for each in given for use in syntax.uses(each)}
    return sorted(use for use in found if use[0] in function.__globals__)


def patches(dotted: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of the user's own that stand in a library under the names that a dotted name passes."""
    parts = dotted.split(".")
    at = next((k for k in range(len(parts), 0, -1) if ".".join(parts[:k]) in sys.modules), 0)
    if not at:
        return
    value: Any = sys.modules[".".join(parts[:at])]
    seen: list[Any] = [value]
    for part in parts[at:]:
        value = vars(value).get(part) if isinstance(value, types.ModuleType) else getattr(value, part, None)
        if value is None:
            break
        seen.append(value)
    if isinstance(value, types.FunctionType) and (module := sys.modules.get(value.__module__)) is not None:
        seen.append(module)  # what it calls of its own module
    for each in seen:
        yield from _patched(each)


def _patched(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, types.ModuleType):
        if is_users(top_level(value.__name__)):
            return []
        return [
            (f"{value.__name__}.{name}", each)
            for name, each in sorted(vars(value).items())
            if _is_put(each, value.__name__)
        ]
    if isinstance(value, type):
        return [
            (f"{cls.__module__}.{cls.__qualname__}.{name}", each)
            for cls in value.__mro__
            if not is_users(top_level(cls.__module__))
            for name, each in sorted(vars(cls).items())
            if any(_is_put(inner, cls.__module__) for inner in functions_of(each))
        ]
    return []


def _is_put(value: Any, module: str) -> bool:
    """Whether a value in a library is the user's own function or class."""
    if not isinstance(value, types.FunctionType | type):
        return False
    package = top_level(home(value) if isinstance(value, types.FunctionType) else str(value.__module__))
    if package in (top_level(module), "builtins") or package in sys.stdlib_module_names:
        return False
    return package in sys.modules and is_users(package) and _has_file(value)


def _has_file(value: Any) -> bool:
    """Whether code lies in a file of its module: what a library makes at run time does not."""
    if isinstance(value, types.FunctionType):
        return not value.__code__.co_filename.startswith("<")
    return syntax.class_tree(value) is not None


def blind_spots(tree: syntax.Definition, scope: Mapping[str, Any], bound: Container[str]) -> list[str]:
    """Return the expressions of a definition whose result no reading of it finds, as source.

    Args:
        tree: the definition.
        scope: the globals that it reads.
        bound: the names that imports inside it bind, and variables of its closure.
    """
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _BLIND_ATTRIBUTES:
            out.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            builtin = name not in scope and name not in bound
            blind = name in _BLIND_NAMES or (name in _BLIND_WITHOUT_ARGUMENTS and not node.args)
            if builtin and blind and not (name == "__import__" and _is_external(node)):
                out.append(f"{name}(...)")
        elif isinstance(node, ast.Constant) and node.value in _BLIND_ATTRIBUTES:
            out.append(repr(node.value))
    return sorted(set(out))


def is_blind(dotted: str, tree: syntax.Definition, chain: tuple[str, ...]) -> bool:
    """Whether a name of another package finds code at run time: an import of a module of another package by its name does not."""
    if top_level(dotted) in _BLIND_MODULES:
        return True
    if dotted not in _BLIND_EXTERNALS:
        return False
    if dotted not in _IMPORTERS:
        return True
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _chain(node.func) == chain]
    return not calls or not all(_is_external(call) for call in calls)


def _is_external(call: ast.Call) -> bool:
    first = call.args[0] if len(call.args) == 1 else None
    name = first.value if isinstance(first, ast.Constant) else None
    return isinstance(name, str) and not name.startswith(".") and not is_users(top_level(name))


def _chain(node: ast.AST) -> tuple[str, ...]:
    names: tuple[str, ...] = ()
    while isinstance(node, ast.Attribute):
        names, node = (node.attr, *names), node.value
    return (node.id, *names) if isinstance(node, ast.Name) else ()


# ---- what a `class` statement explains


def functions_of(value: Any) -> list[types.FunctionType]:
    """Return the functions that a value in a class is made of: a method, a property, ..."""
    if isinstance(value, staticmethod | classmethod):
        return functions_of(value.__func__)
    if isinstance(value, property):
        return [each for part in (value.fget, value.fset, value.fdel) for each in functions_of(part)]
    if isinstance(value, functools.cached_property | functools.partialmethod | functools.singledispatchmethod):
        return functions_of(value.func)
    return [value] if isinstance(value, types.FunctionType) else []


def _explains(
    cls: type, tree: ast.ClassDef, kind: str | None, name: str, function: types.FunctionType, reached: set[str]
) -> bool:
    """Whether a class statement says that this function stands under this name."""
    ours = is_users(top_level(home(function)))
    if function.__code__.co_filename.startswith("<"):  # generated, as by `dataclass`
        return _is_dunder(name) or _is_bookkeeping(cls, name, function)
    if kind is None:
        return not ours and (_is_dunder(name) or _is_bookkeeping(cls, name, function))
    file = _file_of(cls)
    if syntax.is_within(function, tree, file):
        return kind == OTHER or _mangled(function.__code__.co_name, cls) == name
    if kind == DEF:
        return False
    inner = inspect.unwrap(function)
    outer = function.__code__.co_qualname.split(".<locals>")[0]
    return f"{home(function)}:{outer}" in reached or (
        not ours and (inner is function or syntax.is_within(inner, tree, file))
    )


def _declared(cls: type) -> list[tuple[str, str]]:
    """What annotations, which the definition leaves out, say of the fields of a class where that is not what one expects.

    A name in capitals is expected to be a ``ClassVar``, every other one a field that is given by place.
    """
    out = []
    for name, each in vars(cls).get("__dataclass_fields__", {}).items():
        kind = getattr(each, "_field_type", None)
        kind = getattr(kind, "name", str(kind)).removeprefix("_FIELD_").removeprefix("_")
        if kind == "FIELD" and each.kw_only:
            kind = "KEYWORD"
        if name in vars(cls).get("__annotations__", {}) and kind != ("CLASSVAR" if name.isupper() else "FIELD"):
            out.append((name, kind))
    metaclass = type(cls)
    known = metaclass in (type, abc.ABCMeta) or top_level(metaclass.__module__) in (
        "enum",
        "typing",
        "typing_extensions",
    )
    if not known and not is_users(top_level(metaclass.__module__)):  # it may read types, as pydantic's does
        out += [(name, str(each)) for name, each in sorted(vars(cls).get("__annotations__", {}).items())]
    return out


def _moved_defaults(function: types.FunctionType, tree: ast.ClassDef) -> bool:
    """Whether a method has other defaults than the literals of its ``def``."""
    if not function.__defaults__ and not function.__kwdefaults__:
        return False
    first = function.__code__.co_firstlineno
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and min([node.lineno, *(each.lineno for each in node.decorator_list)]) == first
    ]
    if len(nodes) != 1:
        return False
    given, have = nodes[0].args, function.__defaults__ or ()
    if len(given.defaults) != len(have):
        return True
    named = function.__kwdefaults__ or {}
    pairs = [*zip(given.defaults, have, strict=True)]
    pairs += [
        (node, named.get(each.arg)) for each, node in zip(given.kwonlyargs, given.kw_defaults, strict=True) if node
    ]
    return any(_is_other_literal(node, value) for node, value in pairs)


def _is_other_literal(node: ast.expr, value: Any) -> bool:
    try:
        return repr(ast.literal_eval(node)) != repr(value)
    except ValueError:  # no literal: what it rests on counts by its name
        return False


def _bound(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The names that a class body binds: to a plain ``def``, a ``class``, or anything else."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, DECORATED if node.decorator_list else DEF
        elif isinstance(node, ast.ClassDef):
            yield node.name, OTHER if node.decorator_list else CLASS
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, OTHER
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name.split(".")[0]), OTHER
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, OTHER
        elif not isinstance(node, ast.Lambda):
            todo += ast.iter_child_nodes(node)


def _literals(tree: ast.ClassDef) -> Iterator[tuple[str, list[Any]]]:
    """The names that a class body assigns, and the value in a list where it is a literal."""
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                try:
                    yield target.id, [ast.literal_eval(value)]
                except ValueError:
                    yield target.id, []


def _is_bookkeeping(cls: type, name: str, value: Any) -> bool:
    """Whether a class's metaclass or base keeps an attribute for itself."""
    if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType) or name == "_abc_impl":
        return True
    if isinstance(cls, enum.EnumType) and (isinstance(value, cls) or (name[:1] == name[-1:] == "_")):
        return True
    if issubclass(cls, tuple) and (name in _OF_TUPLES or name in getattr(cls, "_fields", ())):
        return True
    if name in ("_is_protocol", "_is_runtime_protocol"):
        return True
    bases = [
        each
        for each in cls.__mro__[1:]
        if each not in (object, typing.Generic) and not is_users(top_level(each.__module__))
    ]
    return any(name in vars(each) for each in bases)


def _mangled(name: str, cls: type) -> str:
    private = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if private else name


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def builtin_patch(name: str) -> Any | None:
    """Return the user's own function or class that stands among the built-in names, or None."""
    value = getattr(builtins, name, None)
    return value if _is_put(value, "builtins") else None

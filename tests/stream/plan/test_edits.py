"""Drawn edits of a small package: an edit that changes what a function computes moves its fingerprint, or is refused for keeping.

A package is made of drawn features: a constant, a method, an implementation of `singledispatch`, an attribute set on
somebody else's function, ... Each holds a number. An edit draws another number for one of them, or changes nothing that
runs. What the function gives before and after is the judge.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spiral_stream.errors import PlanError
from spiral_stream.plan.functions.code import blind_spots, code_fingerprint
from tests.fixtures.examples import few

HEAD = """
import abc
import builtins
import collections
import contextlib
import enum
import functools
import importlib
import math
import operator
import sys
import types
import typing
from dataclasses import InitVar, dataclass, field

import edlib
import edlib.inner
import numpy as np
from edlib.inner import scaled
"""
# A feature: what stands in a module, and the expression of x that uses it. @V is the number, @I tells features apart.
FEATURES: dict[str, tuple[str, str]] = {
    "a constant": ("C@I = @V", "x + C@I"),
    "a constant in a dict": ("C@I = {'a': (1, @V)}", "x + C@I['a'][1]"),
    "an array": ("C@I = np.arange(@V)", "x + len(C@I)"),
    "a helper": ("def h@I(x):\n    return x + @V", "h@I(x)"),
    "a default": ("def h@I(x, k=@V):\n    return x + k", "h@I(x)"),
    "a keyword default": ("K@I = @V\ndef h@I(x, *, k=K@I):\n    return x + k", "h@I(x)"),
    "a closure": ("def m@I(n):\n    def f(x):\n        return x + n\n    return f\nh@I = m@I(@V)", "h@I(x)"),
    "a lambda in a dict": ("T@I = {'a': lambda x: x + @V}", "T@I['a'](x)"),
    "a partial": ("h@I = functools.partial(operator.add, @V)", "h@I(x)"),
    "a decorator of its own": (
        (
            "def by@I(n):\n    def deco(f):\n        def g(x): return f(x) + n\n        return g\n    return deco\n"
            "@by@I(@V)\ndef h@I(x): return x"
        ),
        "h@I(x)",
    ),
    "a decorator from elsewhere with a value of its own": (
        "T@I = @V\n@edlib.adding(T@I)\ndef h@I(x): return x",
        "h@I(x)",
    ),
    "a decorator from elsewhere with an attribute": (
        "class T@I:\n    n = @V\n@edlib.adding(T@I.n)\ndef h@I(x): return x",
        "h@I(x)",
    ),
    "a remembered function": ("@functools.lru_cache\ndef h@I(x):\n    return x + @V", "h@I(x)"),
    "wraps": (
        "def deco@I(f):\n    @functools.wraps(f)\n    def g(x): return f(x) + @V\n    return g\n@deco@I\ndef h@I(x): return x",
        "h@I(x)",
    ),
    "update_wrapper on an own class: its call": (
        (
            "class D@I:\n    def __init__(self, f):\n        self.f = f\n        functools.update_wrapper(self, f)\n"
            "    def __call__(self, x): return self.f(x) + @V\n@D@I\ndef h@I(x): return x"
        ),
        "h@I(x)",
    ),
    "update_wrapper on an own class: its state": (
        (
            "class D@I:\n    def __init__(self, f):\n        self.n = @V\n        functools.update_wrapper(self, f)\n"
            "    def __call__(self, x): return self.__wrapped__(x) + self.n\n@D@I\ndef h@I(x): return x"
        ),
        "h@I(x)",
    ),
    "update_wrapper on an own class: state set afterwards": (
        (
            "class D@I:\n    def __init__(self, f):\n        functools.update_wrapper(self, f)\n"
            "    def __call__(self, x): return self.__wrapped__(x) + self.n\n@D@I\ndef h@I(x): return x\nh@I.n = @V"
        ),
        "h@I(x)",
    ),
    "singledispatch": (
        "@functools.singledispatch\ndef h@I(x): return x\n@h@I.register\ndef _(x: int): return x + @V",
        "h@I(x)",
    ),
    "singledispatch by a table": (
        "@functools.singledispatch\ndef h@I(x): return x\ndef a@I(x): return x + @V\nh@I.register(int, a@I)",
        "h@I(x)",
    ),
    "singledispatchmethod": (
        (
            "class A@I:\n    @functools.singledispatchmethod\n    def f(self, x): return x\n"
            "    @f.register\n    def _(self, x: int): return x + @V"
        ),
        "A@I().f(x)",
    ),
    "singledispatchmethod, registered afterwards": (
        (
            "class A@I:\n    @functools.singledispatchmethod\n    def f(self, x): return x\n"
            "def _n@I(self, x): return x + @V\nA@I.f.register(int, _n@I)"
        ),
        "A@I().f(x)",
    ),
    "a method": ("class A@I:\n    def f(self, x): return x + @V", "A@I().f(x)"),
    "a method set afterwards": (
        "class A@I:\n    def f(self, x): return x\ndef n@I(self, x): return x + @V\nA@I.f = n@I",
        "A@I().f(x)",
    ),
    "a new method set afterwards": (
        "class A@I:\n    pass\ndef n@I(self, x): return x + @V\nA@I.f = n@I",
        "A@I().f(x)",
    ),
    "a lambda set afterwards": ("class A@I:\n    f = None\nA@I.f = lambda self, x: x + @V", "A@I().f(x)"),
    "a special method set afterwards": (
        "class A@I:\n    pass\nA@I.__add__ = lambda self, x: x + @V",
        "A@I() + x",
    ),
    "methods exchanged": (
        "class A@I:\n    def f(self): return 1\n    def g(self): return 2\nif @V % 2:\n    A@I.f = A@I.g",
        "x + A@I().f()",
    ),
    "a property set afterwards": (
        "class A@I:\n    @property\n    def n(self): return 0\nA@I.n = property(lambda self: @V)",
        "x + A@I().n",
    ),
    "a static method set afterwards": (
        "class A@I:\n    @staticmethod\n    def f(x): return x\nA@I.f = staticmethod(lambda x: x + @V)",
        "A@I.f(x)",
    ),
    "a property of a class": ("class A@I:\n    @property\n    def n(self): return @V", "x + A@I().n"),
    "a cached property": ("class A@I:\n    @functools.cached_property\n    def n(self): return @V", "x + A@I().n"),
    "a partial method": (
        "class A@I:\n    def f(self, n, x): return x + n\n    g = functools.partialmethod(f, @V)",
        "A@I().g(x)",
    ),
    "a class attribute": ("class A@I:\n    n = @V", "x + A@I.n"),
    "a class attribute set afterwards": ("class A@I:\n    pass\nA@I.n = @V", "x + A@I.n"),
    "a class attribute changed afterwards": ("class A@I:\n    n = 0\nA@I.n = @V", "x + A@I.n"),
    "a private class attribute changed afterwards": (
        "class A@I:\n    __n = 0\n    def f(self): return self.__n\nA@I._A@I__n = @V",
        "x + A@I().f()",
    ),
    "a class attribute read by a name": ("class A@I:\n    pass\nA@I.n = @V", "x + getattr(A@I, ''.join(['n']))"),
    "a nested class set afterwards": (
        "class A@I:\n    class B:\n        n = 0\nclass C@I:\n    n = @V\nA@I.B = C@I",
        "x + A@I.B.n",
    ),
    "what an own decorator of a class sets": (
        "def deco@I(cls):\n    cls.n = @V\n    return cls\n@deco@I\nclass A@I:\n    pass",
        "x + A@I.n",
    ),
    "what __init_subclass__ sets": (
        "class B@I:\n    def __init_subclass__(cls, n): cls.n = n\nclass A@I(B@I, n=@V):\n    pass",
        "x + A@I.n",
    ),
    "a base class": ("class B@I:\n    n = @V\nclass A@I(B@I):\n    pass", "x + A@I.n"),
    "a metaclass": ("class M@I(type):\n    n = @V\nclass A@I(metaclass=M@I):\n    pass", "x + A@I.n"),
    "an abstract class": (
        "class B@I(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\nclass A@I(B@I):\n    def f(self): return @V",
        "x + A@I().f()",
    ),
    "a ClassVar": (
        "@dataclass(frozen=True)\nclass A@I:\n    a: int = 1\n    n: typing.ClassVar[int] = @V\nK@I = A@I()",
        "x + K@I.n",
    ),
    "a ClassVar set afterwards": (
        "@dataclass(frozen=True)\nclass A@I:\n    a: int = 1\n    n: typing.ClassVar[int]\nA@I.n = @V\nK@I = A@I()",
        "x + K@I.n",
    ),
    "a ClassVar that holds a function": (
        (
            "@dataclass(frozen=True)\nclass A@I:\n    a: int = 1\n    n: typing.ClassVar[typing.Any] = staticmethod(abs)\n"
            "A@I.n = staticmethod(lambda x: x + @V)\nK@I = A@I()"
        ),
        "K@I.n(x)",
    ),
    "a field that became a ClassVar": (
        "@dataclass(frozen=True)\nclass A@I:\n    a: int = 1\n    b: (int, typing.ClassVar[int])[@V % 2] = 7\n    c: int = 3\n",
        "x + A@I(*range(10, 10 + len(A@I.__match_args__))).c",
    ),
    "a field of a frozen value": ("@dataclass(frozen=True)\nclass A@I:\n    n: int\nK@I = A@I(@V)", "x + K@I.n"),
    "an attribute of a frozen value that is no field": (
        "@dataclass(frozen=True)\nclass A@I:\n    a: int = 1\nK@I = A@I()\nobject.__setattr__(K@I, 'n', @V)",
        "x + K@I.n",
    ),
    "what __post_init__ sets": (
        (
            "@dataclass(frozen=True)\nclass A@I:\n    a: int = @V\n    def __post_init__(self):\n"
            "        object.__setattr__(self, 'n', self.a)\n"
            "K@I = A@I()"
        ),
        "x + K@I.n",
    ),
    "what __post_init__ sets, changed afterwards": (
        (
            "@dataclass(frozen=True)\nclass A@I:\n    a: int = 1\n    def __post_init__(self):\n"
            "        object.__setattr__(self, 'n', self.a)\n"
            "K@I = A@I()\nobject.__setattr__(K@I, 'n', @V)"
        ),
        "x + K@I.n",
    ),
    "a default factory": (
        "@dataclass(frozen=True)\nclass A@I:\n    n: list = field(default_factory=lambda: [@V])",
        "x + A@I().n[0]",
    ),
    "a method of a frozen value": (
        "@dataclass(frozen=True)\nclass A@I:\n    n: int\n    def f(self, x): return x + self.n\nh@I = A@I(@V).f",
        "h@I(x)",
    ),
    "an attribute of a named tuple": (
        "class A@I(collections.namedtuple('A', 'a')):\n    pass\nK@I = A@I(1)\nK@I.n = @V",
        "x + K@I.n",
    ),
    "a named tuple": ("class A@I(typing.NamedTuple):\n    n: int = @V", "x + A@I().n"),
    "an enum": ("class A@I(enum.Enum):\n    N = @V", "x + A@I.N.value"),
    "an attribute of an enum's member": ("class A@I(enum.Enum):\n    N = 1\nA@I.N.n = @V\nK@I = A@I.N", "x + K@I.n"),
    "an attribute of a function": ("def h@I(x): return x + h@I.n\nh@I.n = @V", "h@I(x)"),
    "an attribute of a function, read by name": (
        "def h@I(x): return x + getattr(h@I, ''.join(['n']))\nh@I.n = @V",
        "h@I(x)",
    ),
    "an attribute of a remembered function": (
        "@functools.cache\ndef h@I(x): return x + h@I.n\nh@I.n = @V",
        "h@I(x)",
    ),
    "an attribute of a function from elsewhere": ("@edlib.plain\ndef h@I(x): return x + h@I.n\nh@I.n = @V", "h@I(x)"),
    "an attribute of a partial": (
        "h@I = functools.partial(operator.add, 1)\nh@I.n = @V",
        "h@I(x) + h@I.n",
    ),
    "a patched function of a library": ("def n@I(x): return x + @V\nedlib.plus = n@I", "edlib.plus(x)"),
    "a patched method of a library": (
        "def n@I(self, x): return x + @V\nedlib.Box.f = n@I",
        "edlib.Box().f(x)",
    ),
    "a patched helper of a library": ("def n@I(x): return x + @V\nedlib.inner._own = n@I", "scaled(x)"),
    "a patched built-in": ("def n@I(x): return x + @V\nbuiltins.edited@I = n@I", "edited@I(x)"),
    "globals": ("C@I = @V", "x + globals()['C@I']"),
    "getattr of a module": ("C@I = @V", "x + getattr(sys.modules[__name__], 'C@I')"),
    "getattr of an imported module": ("C@I = @V", "x + getattr(importlib.import_module(__name__), 'C@I')"),
    "import by a name": ("C@I = @V", "x + __import__(__name__, fromlist=['a']).C@I"),
    "eval": ("C@I = @V", "x + eval('C@I')"),
    "subclasses": (
        "class B@I:\n    pass\nclass A@I(B@I):\n    n = @V",
        "x + B@I.__subclasses__()[0].n",
    ),
    "the globals of a function": ("C@I = @V\ndef h@I(x): return x", "x + h@I.__globals__['C@I']"),
    "a registry that a decorator fills": (
        "R@I = {}\ndef reg@I(f):\n    R@I[f.__name__] = f\n    return f\n@reg@I\ndef a@I(x): return x + @V",
        "R@I['a@I'](x)",
    ),
    "code put in place": (
        "def h@I(x): return x\ndef n@I(x): return x + @V\nh@I.__code__ = n@I.__code__",
        "h@I(x)",
    ),
    "defaults put in place": ("def h@I(x, k=0): return x + k\nh@I.__defaults__ = (@V,)", "h@I(x)"),
    "a generator": ("def g@I(x):\n    yield x\n    yield @V", "sum(g@I(x))"),
    "a context manager": (
        "@contextlib.contextmanager\ndef c@I(x):\n    yield x + @V\ndef h@I(x):\n    with c@I(x) as y:\n        return y",
        "h@I(x)",
    ),
    "match": ("def h@I(x):\n    match x:\n        case int(n): return n + @V", "h@I(x)"),
    "a conditional definition": ("if @V > 4:\n    def h@I(x): return x + 1\nelse:\n    def h@I(x): return x", "h@I(x)"),
    "a name in an f-string": ("C@I = @V", "x + len(f'{0:0{C@I}d}')"),
    "a global that a function sets": ("C@I = @V\ndef h@I(x):\n    global C@I\n    return x + C@I", "h@I(x)"),
    "an import inside": ("C@I = @V", "(lambda x: x + here@I(x))(x)"),
    "total_ordering": (
        (
            "@functools.total_ordering\nclass A@I:\n    def __init__(self, n): self.n = n\n"
            "    def __eq__(self, o): return self.n == o\n    def __lt__(self, o): return self.n < o * @V"
        ),
        "x + (A@I(x * 5) >= x)",
    ),
    "a class in a function": (
        "def m@I(n):\n    class A:\n        def f(self): return n\n    return A\nA@I = m@I(@V)",
        "x + A@I().f()",
    ),
    "recursion": ("def h@I(x, k=3): return x + @V if not k else h@I(x, k - 1)", "h@I(x)"),
    "slots": ("class A@I:\n    __slots__ = ('n',)\n    def __init__(self): self.n = @V", "x + A@I().n"),
    "a descriptor": (
        "class D@I:\n    def __get__(self, a, b): return @V\nclass A@I:\n    n = D@I()",
        "x + A@I().n",
    ),
    "an attribute of a method": ("class A@I:\n    def f(self, x): return x + A@I.f.n\nA@I.f.n = @V", "A@I().f(x)"),
    "defaults of a method put in place": (
        "class A@I:\n    def f(self, x, k=0): return x + k\nA@I.f.__defaults__ = (@V,)",
        "A@I().f(x)",
    ),
    "code of a method put in place": (
        "class A@I:\n    def f(self, x): return x\ndef n@I(self, x): return x + @V\nA@I.f.__code__ = n@I.__code__",
        "A@I().f(x)",
    ),
    "a cached property of a class in a function": (
        (
            "def m@I(n):\n    class A:\n        @functools.cached_property\n        def f(self): return n\n"
            "    return A\nA@I = m@I(@V)"
        ),
        "x + A@I().f",
    ),
    "a descriptor set afterwards": (
        (
            "class D@I:\n    def __init__(self, n): self.n = n\n    def __get__(self, a, b): return self.n\n"
            "class A@I:\n    n = D@I(0)\nA@I.n = D@I(@V)"
        ),
        "x + A@I.n",
    ),
    "the state of a descriptor": (
        "class D@I:\n    def __get__(self, a, b): return self.n\nclass A@I:\n    n = D@I()\nvars(A@I)['n'].n = @V",
        "x + A@I.n",
    ),
    "an annotation that is read": ("def h@I(x: '@V'): return x", "x + int(h@I.__annotations__['x'])"),
    "a hint that is read": (
        "def h@I(x: typing.Literal[@V]): return x",
        "x + typing.get_args(typing.get_type_hints(h@I)['x'])[0]",
    ),
    "a docstring that is read": ("def h@I(x):\n    '@V'\n    return x", "x + int(h@I.__doc__)"),
    "a tuple of class attributes": ("class A@I:\n    m, n = 1, @V", "x + A@I.n"),
    "a list of a class that grows": ("class A@I:\n    n = []\nA@I.n += [0] * @V", "x + len(A@I.n)"),
    "a module's own getattr": ("D@I = @V\ndef __getattr__(name): return D@I", "x + __getattr__('n')"),
    "a class as a decorator of methods": (
        (
            "class D@I:\n    def __init__(self, f): self.f = f\n    def __get__(self, a, b): return functools.partial(self, a)\n"
            "    def __call__(self, a, x): return self.f(a, x) + @V\nclass A@I:\n    @D@I\n    def f(self, x): return x"
        ),
        "A@I().f(x)",
    ),
    "a method of a base set afterwards": (
        "class B@I:\n    def f(self, x): return x\nclass A@I(B@I):\n    pass\ndef n@I(self, x): return x + @V\nB@I.f = n@I",
        "A@I().f(x)",
    ),
    "super": (
        "class B@I:\n    def f(self, x): return x + @V\nclass A@I(B@I):\n    def f(self, x): return super().f(x)",
        "A@I().f(x)",
    ),
    "a private field that is no literal": (
        "K@I = @V\nclass A@I:\n    __n = K@I\n    def f(self): return self.__n",
        "x + A@I().f()",
    ),
    "a namespace": ("C@I = types.MappingProxyType({'n': @V})", "x + C@I['n']"),
}
NEUTRAL = {
    "a comment": lambda text: text + "\n# more\n",
    "an unused function": lambda text: text + "\ndef unused(): return 1\n",
    "blank lines": lambda text: "\n\n" + text,
    "an unused constant": lambda text: text + "\nUNUSED = object()\n",
}
DREW: Counter[str] = Counter()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an installed library, ``edlib``."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "edlib").mkdir()
    (folder / "edlib" / "__init__.py").write_text(
        "import functools\ndef adding(n):\n    def deco(f):\n        @functools.wraps(f)\n"
        "        def g(x): return f(x) + n\n        return g\n    return deco\n"
        "def plain(f):\n    @functools.wraps(f)\n    def g(x): return f(x)\n    return g\n"
        "def plus(x): return x\nclass Box:\n    def f(self, x): return x\n"
    )
    (folder / "edlib" / "inner.py").write_text("def _own(x): return x\ndef scaled(x): return _own(x)\n")
    (folder / "edlib-1.0.dist-info").mkdir()
    (folder / "edlib-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: edlib\nVersion: 1.0\n")
    before, quiet = list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    yield folder
    sys.path[:], sys.dont_write_bytecode = before, quiet
    forget()


def forget() -> None:
    import builtins

    for name in [name for name in sys.modules if name.split(".")[0] in ("edited", "edlib")]:
        del sys.modules[name]
    for name in [name for name in vars(builtins) if name.startswith("edited")]:
        delattr(builtins, name)


def written(features: list[tuple[str, int, bool, int]]) -> tuple[str, str]:
    """The text of the package's two modules: each feature with its number, whether it lies in the helper, and layers above."""
    own, other, uses = [], [], []
    for at, (name, number, apart, layers) in enumerate(features):
        code, use = (each.replace("@I", str(at)).replace("@V", str(number)) for each in FEATURES[name])
        if name == "an import inside":
            code += f"\ndef here{at}(x):\n    from . import {'helpers' if apart else 'main'} as m\n    return m.C{at}"
        text = f"{code}\ndef use{at}_0(x):\n    return {use}\n"
        text += "".join(f"def use{at}_{k + 1}(x):\n    return use{at}_{k}(x)\n" for k in range(layers))
        (other if apart else own).append(text)
        uses.append(f"{'helpers.' if apart else ''}use{at}_{layers}(x)")
    body = "\n".join(own) + f"\ndef f(x):\n    return ({', '.join(uses)},)\n"
    return HEAD + "from . import helpers\n" + body, HEAD + "\n".join(other)


def imported(folder: Path, main: str, helpers: str) -> ModuleType:
    package = folder / "edited"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text(main)
    (package / "helpers.py").write_text(helpers)
    forget()
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("edited.main")
    finally:
        sys.path.remove(str(folder))


def seen(main: ModuleType) -> tuple[Any, str | None]:
    """What the function gives, and its fingerprint; None where its values may not be kept."""
    try:
        print_ = None if blind_spots(main.f) else code_fingerprint(main.f)
    except PlanError:
        print_ = None
    return [main.f(x) for x in (0, 1, 5)], print_


drawn_features = st.lists(
    st.tuples(st.sampled_from(sorted(FEATURES)), st.integers(1, 9), st.booleans(), st.integers(0, 2)),
    min_size=1,
    max_size=4,
)


@few(200, 1_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(features=drawn_features, data=st.data())
def test_an_edit_that_changes_a_value_moves_the_fingerprint_or_is_refused(
    shelf: Path, tmp_path_factory: pytest.TempPathFactory, features: list[Any], data: st.DataObject
) -> None:
    at = data.draw(st.integers(-1, len(features) - 1))
    if at < 0:
        kind = data.draw(st.sampled_from(sorted(NEUTRAL)))
        after = tuple(NEUTRAL[kind](text) for text in written(features))
    else:
        kind, number, apart, layers = features[at]
        other = data.draw(st.integers(1, 9).filter(lambda n: n != number))
        after = written([*features[:at], (kind, other, apart, layers), *features[at + 1 :]])
    folder = tmp_path_factory.mktemp("edit")
    was, old = seen(imported(folder / "before", *written(features)))
    now, new = seen(imported(folder / "after", *after))

    DREW[kind if old is not None else f"{kind}, refused"] += 1
    if was != now:
        assert old is None or new is None or old != new, kind
    elif at < 0:
        assert old == new, kind


@pytest.mark.parametrize("kind", sorted(FEATURES))
def test_each_kind_of_edit_alone(shelf: Path, tmp_path: Path, kind: str) -> None:
    prints = []
    for folder, number in (("a", 3), ("b", 3), ("c", 6)):
        prints.append(seen(imported(tmp_path / folder, *written([(kind, number, True, 1)]))))

    assert prints[0] == prints[1]
    assert prints[0][0] != prints[2][0]
    assert prints[0][1] is None or prints[0][1] != prints[2][1]
    assert (prints[0][1] is None) == (kind in REFUSED)


REFUSED = {
    "a docstring that is read",
    "a hint that is read",
    "an annotation that is read",
    "eval",
    "getattr of a module",
    "getattr of an imported module",
    "globals",
    "import by a name",
    "subclasses",
    "the globals of a function",
}

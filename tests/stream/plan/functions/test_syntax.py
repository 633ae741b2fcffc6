"""What the source of code says does not depend on how it is written down, and names what it takes from outside."""

import ast
import dis
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.plan.functions.syntax import assigned, class_tree, dump, free_names, function_tree, local_imports

Load = Callable[[str], types.ModuleType]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Write a module into a file of its own, and run it."""
    folder, numbers = tmp_path_factory.mktemp("syntax"), itertools.count()

    def write(text: str) -> types.ModuleType:
        module = types.ModuleType(f"syntax_{next(numbers)}")
        module.__file__ = str(folder / f"{module.__name__}.py")
        Path(module.__file__).write_text(text)
        sys.modules[module.__name__] = module
        exec(compile(text, module.__file__, "exec"), vars(module))
        return module

    yield write
    for name in [name for name in sys.modules if name.startswith("syntax_")]:
        del sys.modules[name]


def form(thing: Any) -> Any:
    tree = class_tree(thing) if isinstance(thing, type) else function_tree(thing)
    assert tree is not None
    return dump(tree)


PLAIN = ["def f(a, b=2, *, c=0):", "    x = a + b", "    if x:", "        return [x * c for c in a]", "    return c"]
SPELLED = {
    PLAIN[0]: "def f(a: int, b: 'int' = 2, *, c: float = 0x0) -> list:",
    PLAIN[1]: "    x: int = (a + b)",
    PLAIN[3]: "        pass; return [(x * c) for c in a]",
}


@given(
    spelled=st.sets(st.sampled_from([PLAIN[0], PLAIN[1], PLAIN[3]])),
    comments=st.lists(st.sampled_from(["", "  # said", "\n", "\n    # said\n"]), min_size=5, max_size=5),
    above=st.integers(0, 3),
    documented=st.booleans(),
)
def test_spelling_comments_and_annotations_leave_no_trace(
    spelled: set[str], comments: list[str], above: int, documented: bool, load: Load
) -> None:
    lines = [
        (SPELLED[line] if line in spelled else line) + comment for line, comment in zip(PLAIN, comments, strict=True)
    ]
    lines.insert(1, '    """Say what it does."""' * documented)

    assert form(load("\n" * above + "\n".join(lines)).f) == form(load("\n".join(PLAIN)).f)


@pytest.mark.parametrize(("old", "new"), [("a + b", "b + a"), ("b=2", "b=3"), ("if x:", "if not x:"), ("c=0", "c=0.0")])
def test_every_word_that_runs_counts(old: str, new: str, load: Load) -> None:
    text = "\n".join(PLAIN)

    assert form(load(text.replace(old, new)).f) != form(load(text).f)


BODIES = [
    "return one(two.three.four, x)",
    "return [one for one in two if one > three]",
    "global one; one = two; return one",
    "y = two; return lambda z: (y, z, three, x)",
    "return f'{one:{two}} {x!r}' + three",
    "from os import path as one; return one.join(two)",
    "def inner(two): return one + two\n    return inner(three)",
    "class Inner(one): four = two\n    return Inner.four",
    "try: return two\n    except one as e: return e",
    "return (y := two) + y + three[one]",
]


def reads(code: types.CodeType) -> set[str]:
    """Names that bytecode, and the code inside it, takes from the module or from Python itself."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inside = (reads(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return found.union(*inside) - {"__name__", "__module__", "__qualname__"}


@given(bodies=st.lists(st.sampled_from(BODIES), min_size=1, max_size=3, unique=True))
def test_names_from_outside_are_those_that_the_bytecode_loads(bodies: list[str], load: Load) -> None:
    functions = "\n".join(f"def f{i}(x):\n    {body}" for i, body in enumerate(bodies))
    module = load(functions)
    for i, body in enumerate(bodies):
        function = getattr(module, f"f{i}")
        tree = function_tree(function)
        assert tree is not None
        assert set(free_names(tree, [])) == reads(function.__code__), body


def test_the_attributes_behind_a_name_are_told(load: Load) -> None:
    tree = function_tree(
        load(
            "def keep(f): return f\n\n@keep\ndef f(x: keep = keep) -> keep:\n    y: keep = x.d\n    return a.b.c(y) + a.b + a"
        ).f
    )
    assert tree is not None

    assert free_names(tree, ["more"]) == {"a": [(), ("b",), ("b", "c")], "more": [()]}


def test_imports_inside_are_led_back_to_their_modules() -> None:
    text = "def f():\n import a.b, c.d as e\n from . import g\n from ..h import i as j\n from k import l"
    tree = ast.parse(text).body[0]
    assert isinstance(tree, ast.FunctionDef)

    assert local_imports(tree, "top.mid") == {
        "a": ("a", ()),
        "e": ("c.d", ()),
        "g": ("top.mid", ("g",)),
        "j": ("top.h", ("i",)),
        "l": ("k", ("l",)),
    }


def test_lambdas_of_one_line_are_told_apart_and_the_same_lambda_twice_is_not(load: Load) -> None:
    module = load("one, two = lambda x: x + 1, lambda x: x + 2\nsame = [lambda: 0 for _ in 'ab']")

    assert form(module.one) != form(module.two)
    assert form(module.same[0]) == form(module.same[1])


def test_the_last_class_of_a_name_counts_and_its_fields_are_known(load: Load) -> None:
    text = "class A:\n    x = 1\nclass A:\n    '''Doc.'''\n    y: int = 2\n    z: 'str'\n    def m(self) -> int: return 3\n"
    module = load(text)
    tree = class_tree(module.A)
    assert tree is not None

    assert assigned(tree) == {"y", "z"}
    assert form(module.A) == form(load("class A:\n    y: float = 2\n    z: int\n    def m(self): return 3\n").A)
    assert form(module.A) != form(load("class A:\n    y: float = 2\n    def m(self): return 3\n").A)


def test_code_that_no_file_holds_has_no_form(load: Load) -> None:
    module = load("def f(): return 1\nclass A: pass\n")
    made = type("B", (), {"__module__": module.__name__})
    assert (class_tree(int), class_tree(made)) == (None, None)
    assert inspect.getsource(module.f)
    Path(str(module.__file__)).write_text("def f(:\n")

    assert (function_tree(module.f), class_tree(module.A)) == (None, None)
    space: dict[str, Any] = {}
    exec("def g(): return 1", space)
    assert function_tree(space["g"]) is None

import functools
import importlib
import json
import operator
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream
from spiral_stream.errors import PlanError
from spiral_stream.plan.functions.code import code_fingerprint, stable_name

IMAGES = '''
import functools
import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from . import helpers
from .helpers import Size, scale as resize

RATE = 3
NAMES = {"cat": 0, "dog": 1}
KNOWN = {"a", "b", "c"}
MEAN = np.array([1.0, 2.0], dtype=np.float32)
PATTERN = re.compile("[a-z]+")
FOLDER = PurePosixPath("images")


def crop(image, side=224, *, pad=0):
    """Cut out the middle."""
    # the middle
    middle = resize(image) * RATE + math.floor(1.5)
    return [helpers.shift(x) for x in middle if x in KNOWN], NAMES, MEAN, PATTERN, FOLDER, Size(side)


def unrelated():
    return 1


def make(factor):
    def apply(x):
        return x * factor

    return apply


double, triple = make(2), make(3)
shorter, longer = lambda x: x[:1], lambda x: x[:2]


@functools.cache
def remembered(x):
    return resize(x)


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def late(x):
    from shop.extra import widen

    return widen(x)


@dataclass(frozen=True)
class Blur:
    radius: int = 2
    KERNEL = (1, 2, 1)

    def apply(self, x):
        return resize(x) + self.radius
'''
HELPERS = """
from dataclasses import dataclass

OFFSET = 5


@dataclass(frozen=True)
class Size:
    side: int


def scale(x):
    return x


def shift(x):
    return x + OFFSET
"""
FILES = {"__init__": "", "images": IMAGES, "helpers": HELPERS, "extra": "def widen(x):\n    return x\n"}
Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write the package `shop` into a new folder, with one text replaced, and import ``shop.images``."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folders = iter(range(1_000))

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
            del sys.modules[name]

    def write(room: str = "images", old: str = "", new: str = "") -> ModuleType:
        folder = tmp_path / f"{next(folders)}"
        (folder / "shop").mkdir(parents=True)
        for name, text in FILES.items():
            assert name != room or old in text
            changed = text.replace(old, new, 1) if name == room and old else text
            (folder / "shop" / f"{name}.py").write_text(changed)
        forget()
        importlib.invalidate_caches()
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module("shop.images")

    yield write
    forget()


def identity(x: Any) -> Any:
    return x


# Laws

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5)
)
constants = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.frozensets(st.integers(0, 9), max_size=4),
    ),
    max_leaves=6,
)


def of(value: Any) -> str:
    return code_fingerprint(functools.partial(identity, value))


def told(value: Any) -> Any:
    """What must be told apart, by another route: types and content."""
    if isinstance(value, dict):
        return ["dict", [[told(k), told(v)] for k, v in value.items()]]
    if isinstance(value, frozenset):
        return ["frozenset", sorted(value)]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [told(item) for item in value]]
    return [type(value).__name__, repr(value)]


@given(one=constants, other=constants)
def test_constants_share_a_fingerprint_exactly_if_types_and_content_agree(one: Any, other: Any) -> None:
    assert (of(one) == of(other)) == (told(one) == told(other))


@given(value=constants)
def test_a_copy_of_a_constant_has_its_fingerprint(value: Any) -> None:
    copied = eval(repr(value), {})

    assert of(copied) == of(value)


@given(items=st.lists(st.text(max_size=4), unique=True, max_size=6), data=st.data())
def test_a_set_has_one_fingerprint_in_any_order(items: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(items))

    assert of(set(items)) == of(set(shuffled))


@given(
    shape=st.sampled_from([(4,), (2, 2), (1, 4)]),
    dtype=st.sampled_from(["<f4", "<f8", "<i4"]),
    last=st.integers(0, 3),
)
def test_an_array_counts_by_dtype_shape_and_content(shape: tuple[int, ...], dtype: str, last: int) -> None:
    array = np.array([1, 2, 3, last], dtype).reshape(shape)
    reference = np.array([1, 2, 3, 0], "<f4")

    assert (of(array) == of(reference)) == ((shape, dtype, last) == ((4,), "<f4", 0))
    assert of(np.asfortranarray(array)) == of(array)


# What moves a fingerprint, and what does not

UNMOVED = {
    "a comment": ("# the middle", "# the very middle\n    # of it"),
    "a docstring": ('"""Cut out the middle."""', '"""Cut the middle out."""'),
    "no docstring": ('    """Cut out the middle."""\n', ""),
    "formatting": ("crop(image, side=224, *, pad=0)", "crop(\n    image,\n    side = 224,\n    *, pad = 0,\n)"),
    "annotations": (
        "crop(image, side=224, *, pad=0)",
        "crop(image: 'bytes', side: int = 224, *, pad: int = 0) -> list",
    ),
    "an annotated local": ("middle = resize", "middle: int = resize"),
    "a declared local": ("    # the middle", "    middle: int"),
    "line numbers": ("RATE = 3", "\n\n\nRATE = 3"),
    "quotes": ('"cat": 0', "'cat': 0"),
    "a constant spelled otherwise": ("RATE = 3", "RATE = 1 + 2"),
    "the order of globals": ('RATE = 3\nNAMES = {"cat": 0, "dog": 1}', 'NAMES = {"cat": 0, "dog": 1}\nRATE = 3'),
    "the order of a set": ('{"a", "b", "c"}', '{"c", "a", "b"}'),
    "a function not in use": ("return 1", "return 2"),
    "a global not in use": ("RATE = 3", "LOCK = __import__('threading').Lock()\nRATE = 3"),
    "a pass": ("    # the middle", "    pass"),
}
MOVED = {
    "the body": ("* RATE +", "* RATE -"),
    "the name of a local": ("for x in middle if x in KNOWN", "for y in middle if y in KNOWN"),
    "a default": ("side=224", "side=256"),
    "a keyword default": ("pad=0", "pad=1"),
    "a constant": ("RATE = 3", "RATE = 4"),
    "a constant's type": ("RATE = 3", "RATE = 3.0"),
    "a dict": ('"dog": 1', '"dog": 2'),
    "a dict's order": ('{"cat": 0, "dog": 1}', '{"dog": 1, "cat": 0}'),
    "a set": ('{"a", "b", "c"}', '{"a", "b", "d"}'),
    "an array": ("[1.0, 2.0]", "[1.0, 2.5]"),
    "an array's dtype": ("np.float32", "np.float64"),
    "a pattern": ("[a-z]+", "[a-z]*"),
    "a path": ('PurePosixPath("images")', 'PurePosixPath("other")'),
    "another helper of that name": ("scale as resize", "shift as resize"),
    "a function elsewhere": ("import math\n", "import math\nimport cmath as math\n"),
}


@pytest.mark.parametrize("change", UNMOVED)
def test_does_not_move(load: Load, change: str) -> None:
    before = code_fingerprint(load().crop)

    assert code_fingerprint(load("images", *UNMOVED[change]).crop) == before


@pytest.mark.parametrize("change", MOVED)
def test_moves_with(load: Load, change: str) -> None:
    before = code_fingerprint(load().crop)

    assert code_fingerprint(load("images", *MOVED[change]).crop) != before


KINDS = {
    "an enum": "import enum\n\n\nclass Kind(enum.Enum):\n    A = 1\n    B = 2\n\n\nRATE = Kind.A|Kind.B",
    "an enum's class": "import enum\n\n\nclass Kind(enum.Enum):\n    A = 1\n    B = 2|3\n\n\nRATE = Kind.A",
    "a frozen value": "RATE = Size(1|2)",
    "a named tuple": "import collections\n\nRATE = collections.namedtuple('Pair', 'a b')(1, 2|3)",
    "a typed named tuple": "import typing\n\n\nclass RATE(typing.NamedTuple):\n    a: int = 1|2",
    "a generic class": (
        "import typing\n\nT = typing.TypeVar('T')\n\n\nclass RATE(typing.Generic[T]):\n    def f(self): return 1|2"
    ),
    "a property": "class RATE:\n    @property\n    def f(self): return 1|2",
    "a class in a function": "def new(n):\n    class C:\n        f = lambda self: n\n    return C\n\n\nRATE = new(1|2)",
    "a type": "RATE = list[int|str]",
    "a dtype": "RATE = np.dtype('<f4|<f8')",
    "a structured dtype": "RATE = np.dtype([('x', '<f4|<f8')])",
    "an array of objects": "RATE = np.array(['a|b', None], dtype=object)",
    "a logger": "import logging\n\nRATE = logging.getLogger('a|b')",
    "a bound method of a text": "RATE = 'x|y'.join",
    "a decorator from elsewhere": ("import contextlib\n\n\n@contextlib.contextmanager\ndef RATE():\n    yield 1|2"),
    "a decorator of its own": (
        "def by(n):\n    def deco(f):\n        def g(x): return f(x) * n\n        return g\n    return deco\n\n\n"
        "@by(1|2)\ndef RATE(x): return x"
    ),
    "a name in an f-string": "WIDTH = 1|2\n\n\ndef RATE(x): return f'{x:>{WIDTH}} {chr(10)}'",
    "a name in a nested function": (
        "WIDTH = 1|2\n\n\ndef RATE(x):\n    def g(): return [WIDTH for _ in x]\n    return g"
    ),
    "a counter": ("def new(n):\n    def f():\n        nonlocal n\n        n += 1\n    return f\n\n\nRATE = new(1|2)"),
    "a version of the package": "__version__ = '1|2'\n\n\ndef RATE(): return __version__",
    "a large number": "RATE = 10**5000 + 1|2",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_constant_and_helper_counts(load: Load, kind: str) -> None:
    first = re.sub(r"\|[\w.<]+", "", KINDS[kind])
    second = re.sub(r"[\w.<]*\|", "", KINDS[kind])
    before = code_fingerprint(load("images", "RATE = 3", first).crop)

    assert code_fingerprint(load("images", "RATE = 3", first).crop) == before
    assert code_fingerprint(load("images", "RATE = 3", second).crop) != before


HELPED = {
    "a helper imported by name": ("return x\n", "return x + 1\n"),
    "a helper read from its module": ("return x + OFFSET", "return x - OFFSET"),
    "a constant of a helper": ("OFFSET = 5", "OFFSET = 6"),
    "a class in use": ("side: int", "side: int = 3"),
}


@pytest.mark.parametrize("change", HELPED)
def test_moves_with_the_package(load: Load, change: str) -> None:
    before = code_fingerprint(load().crop)

    assert code_fingerprint(load("helpers", *HELPED[change]).crop) != before


def test_a_helper_imported_inside_the_function_counts(load: Load) -> None:
    before = code_fingerprint(load().late)

    assert code_fingerprint(load("extra", "return x", "return x + x").late) != before


def test_functions_that_call_each_other_are_read_once_and_count_both(load: Load) -> None:
    shop = load()
    before = code_fingerprint(shop.even), code_fingerprint(shop.odd)
    shop = load("images", "n != 0 and", "n > 0 and")

    assert before[0] != before[1]
    assert code_fingerprint(shop.even) != before[0]
    assert code_fingerprint(shop.odd) != before[1]


def test_closure_values_count(load: Load) -> None:
    shop = load()

    assert code_fingerprint(shop.double) == code_fingerprint(shop.make(2))
    assert code_fingerprint(shop.double) != code_fingerprint(shop.triple)


def test_partial_arguments_count(load: Load) -> None:
    crop = load().crop
    prints = [functools.partial(crop, side=n) for n in (1, 1, 2)] + [functools.partial(crop, None, 1), crop]

    assert len({code_fingerprint(each) for each in prints}) == len(prints) - 1


def test_lambdas_on_one_line_are_told_apart(load: Load) -> None:
    shop = load()
    other = load("images", "longer = lambda x: x[:1], lambda x: x[:2]", "longer = lambda x: x[:1], lambda x: x[:3]")

    assert code_fingerprint(shop.shorter) != code_fingerprint(shop.longer)
    assert code_fingerprint(shop.shorter) == code_fingerprint(other.shorter)
    assert code_fingerprint(shop.longer) != code_fingerprint(other.longer)


def test_a_remembered_function_counts_by_what_it_wraps(load: Load) -> None:
    before = code_fingerprint(load().remembered)

    assert code_fingerprint(load("helpers", *HELPED["a helper imported by name"]).remembered) != before
    assert code_fingerprint(load("images", *MOVED["a constant"]).remembered) == before


@pytest.mark.parametrize(
    ("room", "old", "new"),
    [
        ("images", "self.radius\n", "self.radius * 2\n"),
        ("images", "radius: int = 2", "radius: int = 3"),
        ("images", "KERNEL = (1, 2, 1)", "KERNEL = (1, 4, 1)"),
        ("images", "frozen=True)\nclass Blur", "frozen=True, order=True)\nclass Blur"),
        ("images", "class Blur:", "class Blur(Size):"),
        ("helpers", "return x\n", "return x + 1\n"),
    ],
)
def test_a_class_counts_by_body_attributes_bases_and_helpers(load: Load, room: str, old: str, new: str) -> None:
    before = code_fingerprint(load().Blur)

    assert code_fingerprint(load(room, old, new).Blur) != before


def test_a_class_does_not_move_with_comments_docstrings_and_annotations(load: Load) -> None:
    before = code_fingerprint(load().Blur)
    changed = 'class Blur:\n    """Smooth."""\n\n    # pixels\n    radius: "np.uint8" = 2'

    assert code_fingerprint(load("images", "class Blur:\n    radius: int = 2", changed).Blur) == before


def test_a_method_counts_with_its_frozen_self(load: Load) -> None:
    shop = load()
    prints = [code_fingerprint(shop.Blur(radius).apply) for radius in (1, 1, 2)]

    assert prints[0] == prints[1] != prints[2]


def test_a_base_class_in_the_package_counts(load: Load) -> None:
    base = "class Blur:", "class Blur(helpers.Size):"
    before = code_fingerprint(load("images", *base).Blur)
    shop = load("images", *base)
    shop.helpers.Size = None  # the base is what it was, whatever its name leads to now

    assert code_fingerprint(shop.Blur) != before


def test_an_explicit_version_overrides_everything(load: Load) -> None:
    shop, changed = load(), load("images", *MOVED["the body"])
    shop.crop.__spiral_version__ = changed.crop.__spiral_version__ = "1"
    first = code_fingerprint(shop.crop)

    assert code_fingerprint(changed.crop) == first
    changed.crop.__spiral_version__ = "2"
    assert code_fingerprint(changed.crop) != first
    assert code_fingerprint(load().crop) != first


def test_an_explicit_version_of_a_helper_stands_for_it(load: Load) -> None:
    shop = load()
    shop.helpers.shift.__spiral_version__ = "1"
    before = code_fingerprint(shop.crop)
    shop.helpers.OFFSET = 77

    assert code_fingerprint(shop.crop) == before
    shop.helpers.shift.__spiral_version__ = "2"
    assert code_fingerprint(shop.crop) != before


def test_a_version_of_a_method_keeps_its_fields(load: Load) -> None:
    shop = load()
    shop.Blur.apply.__spiral_version__ = "1"

    assert code_fingerprint(shop.Blur(1).apply) != code_fingerprint(shop.Blur(2).apply)


# Other packages


def test_another_package_enters_by_name_and_version(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = load()
    before = code_fingerprint(shop.crop)
    monkeypatch.setattr("spiral_stream.plan.functions.code.installed", lambda package: (f"{package}==0",))
    shop.MEAN = np.add  # in use, and now of another package

    assert code_fingerprint(shop.crop) != before
    zero = code_fingerprint(shop.crop)
    monkeypatch.setattr("spiral_stream.plan.functions.code.installed", lambda package: (f"{package}==1",))
    assert code_fingerprint(shop.crop) != zero


def test_code_of_other_packages_is_told_apart() -> None:
    things = [np.sqrt, np.add, np.mean, np.float32, json.loads, json.dumps, len, str.lower, str.upper, operator.add]

    assert len({code_fingerprint(thing) for thing in things}) == len(things)
    assert re.fullmatch("[0-9a-f]{32}", code_fingerprint(len))


# Determinism


def test_the_hash_seed_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name, text in FILES.items():
        extra = "\nFUNCTIONS = {crop, even, make, Blur}\n\n\ndef every(x):\n    return [f(x) for f in FUNCTIONS]\n"
        (tmp_path / "shop" / f"{name}.py").write_text(text + (extra if name == "images" else ""))
    program = (
        "from shop import images; from spiral_stream.plan.functions.code import code_fingerprint as f;"
        "print(f(images.crop), f(images.Blur), f(images.every))"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(spiral_stream.__file__).parents[1])])
    outputs = set()
    for seed in ("1", "2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        outputs.add(run.stdout)

    assert len(outputs) == 1


def test_the_encoding_is_pinned(load: Load) -> None:
    """A change here makes every cache of user code stale: raise ``_FORMAT`` on purpose, then these."""
    shop = load()

    assert code_fingerprint(shop.even) == "76661ca3e241266c4ba2668e11171c44"
    assert code_fingerprint(shop.double) == "a91d00ceff2ff274f764715a8a9c9159"


# Errors

REFUSED = {
    "a lock": ("RATE = 3", "import threading\nRATE = threading.Lock()", "name 'RATE' is _thread.lock"),
    "an open file": ("RATE = 3", "RATE = open(__file__)\nRATE.close()", "name 'RATE' is _io.TextIOWrapper"),
    "an object": ("RATE = 3", "RATE = object()", "name 'RATE' is builtins.object"),
    "a lock in a list": ("RATE = 3", "import threading\nRATE = [threading.Lock()]", "name 'RATE' is _thread.lock"),
    "a module as a value": ("* RATE +", "* id(helpers) +", "name 'helpers' is module 'shop.helpers' as a whole"),
    "a default": ("pad=0", "pad=object()", "default 'pad' is builtins.object"),
    "a value within itself": (
        "RATE = 3",
        "RATE = []\nRATE.append(RATE)",
        "name 'RATE' is a value that contains itself",
    ),
    "lambdas in a set": ("RATE = 3", "RATE = {lambda: 1, lambda: 2}", "name 'RATE' is a set with shop.images:<lambda>"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_without_content_is_refused(load: Load, kind: str) -> None:
    old, new, found = REFUSED[kind]
    shop = load("images", old, new)
    way_out = re.escape(
        'Pass it as an argument, or set an explicit version (__spiral_version__ = "1") on shop.images.crop'
    )

    with pytest.raises(PlanError, match=rf"shop\.images\.crop: {re.escape(found)}.*{way_out}"):
        code_fingerprint(shop.crop)
    shop.crop.__spiral_version__ = "1"
    assert code_fingerprint(shop.crop)


def test_a_closure_over_a_lock_is_refused_by_name(load: Load) -> None:
    with pytest.raises(
        PlanError, match=r"make\.<locals>\.apply: closure variable 'factor' is _thread\.lock.*Pass it as"
    ):
        code_fingerprint(load().make(threading.Lock()))


def test_a_method_of_a_mutable_object_is_refused(load: Load) -> None:
    shop = load("images", "@dataclass(frozen=True)\nclass Blur", "@dataclass\nclass Blur")

    with pytest.raises(PlanError, match=r"Blur\.apply: self is shop\.images\.Blur.*set an explicit version"):
        code_fingerprint(shop.Blur().apply)
    shop.Blur.apply.__spiral_version__ = "1"
    assert code_fingerprint(shop.Blur().apply)


def test_code_without_source_is_refused(load: Load) -> None:
    scope: dict[str, Any] = {"__name__": "shop.images"}
    exec("def f(x):\n    return x\n", scope)
    load()

    with pytest.raises(PlanError, match=r"shop\.images\.f: its source cannot be read.*Define it in a module's file"):
        code_fingerprint(scope["f"])


def test_source_that_moved_under_a_running_process_is_refused(load: Load) -> None:
    shop = load()
    Path(shop.__file__ or "").write_text("# one more line\n" + IMAGES)

    with pytest.raises(PlanError, match=r"does not hold its definition.*restart the process"):
        code_fingerprint(shop.crop)


def test_a_version_must_be_a_string(load: Load) -> None:
    crop = load().crop
    crop.__spiral_version__ = 2

    with pytest.raises(PlanError, match='__spiral_version__ is 2; it must be a string such as "1"'):
        code_fingerprint(crop)


# Names


def test_a_stable_name_is_module_and_qualified_name(load: Load) -> None:
    shop = load()

    assert stable_name(shop.crop) == "shop.images:crop"
    assert stable_name(shop.Blur) == "shop.images:Blur"
    assert stable_name(shop.Blur.apply) == "shop.images:Blur.apply"
    assert stable_name(np.sqrt) == "numpy:sqrt"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("shorter", "is a lambda"), ("double", "is local to a function")],
)
def test_a_name_that_leads_nowhere_is_refused(load: Load, name: str, reason: str) -> None:
    with pytest.raises(PlanError, match=rf"{reason}.*Define it with `def` or `class` at the top level"):
        stable_name(getattr(load(), name))


def test_a_name_that_leads_elsewhere_is_refused(load: Load) -> None:
    shop = load()
    crop, shop.crop = shop.crop, shop.even

    with pytest.raises(PlanError, match=r"leads to something else.*do not rebind the name"):
        stable_name(crop)
    with pytest.raises(PlanError, match="leads to something else"):
        stable_name(shop.Blur().apply)


def test_a_partial_has_no_stable_name(load: Load) -> None:
    with pytest.raises(PlanError, match=r"no module and name of its own.*Define it with `def`"):
        stable_name(functools.partial(load().crop, side=1))


def test_names_of_the_running_script_are_refused_unless_asked_for(tmp_path: Path) -> None:
    program = tmp_path / "script.py"
    program.write_text(
        "from spiral_stream.errors import PlanError\n"
        "from spiral_stream.plan.functions.code import code_fingerprint, stable_name\n"
        "from beside import helper\n"
        "def f(x):\n    return helper(x)\n"
        "try:\n    stable_name(f)\nexcept PlanError as error:\n    print(error)\n"
        "print(stable_name(f, allow_main=True), code_fingerprint(f))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(spiral_stream.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    outputs = []
    for body in ("x", "x + 1"):  # the script's neighbour is the user's code too
        (tmp_path / "beside.py").write_text(f"def helper(x):\n    return {body}\n")
        run = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=True)
        outputs.append(run.stdout.splitlines())

    assert re.search("script being run.*Define it with `def`", outputs[0][0])
    assert outputs[0][1].split()[0] == "__main__:f"
    assert outputs[0][1] != outputs[1][1]

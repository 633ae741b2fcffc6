"""Whatever is given for an argument: it works, or one of our errors names it. Drawn over every public callable."""

import inspect
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.arguments import FLAG, check, door, fits, integer, is_number, one_of, text
from tests.fixtures.wrong_values import WRONG, Call, World

# What still comes raw: "callable argument". The list can only shrink.
RAW: frozenset[str] = frozenset(
    {"PreparedStream.verify report"}
)  # a callable of other arguments: its own TypeError passes
OURS = str(Path(sp.__file__).parent)
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
APART = ("close", "materialize", "verify", "register", "report_relation", "draw_", "Catalog.sql", "index_videos")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, before = tmp_path_factory.mktemp("door"), Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_CACHE", str(folder / "prepared"))
        patch.setenv("SPIRAL_CATALOG", str(folder / "default"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        os.chdir(folder)
        yield World(folder)
        os.chdir(before)


def outcome(call: Call, argument: str, value: str) -> str | None:
    """How a call with a wrong value fails, if it is neither accepted nor refused in our words; or a warning of no caller."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", sp.SpiralWarning)
            call.does(**{**call.arguments, argument: WRONG[value]()})
        for each in said:
            if each.filename.startswith(OURS):
                return f"{call.name} {argument}={value}: a warning names {each.filename}: {each.message!s:.200}"
    except (sp.SpiralError, sp.SpiralWarning) as error:
        # whoever reaches the interpreter's limit makes finalizers fail that happen to run there: they own locks and memory
        if recursed(error):
            return f"{call.name} {argument}={value}: recursion without a limit of its own"
        return None
    except call.allowed as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        worded = last.filename.startswith(OURS) and (last.line or "").startswith("raise")
        return None if worded else f"{call.name} {argument}={value}: {error!r:.200}"
    except Exception as error:  # noqa: BLE001  which one is the question
        return f"{call.name} {argument}={value}: {type(error).__name__}: {error!s:.200}"
    return None


def recursed(error: BaseException | None) -> bool:
    """Whether the interpreter's recursion limit lies behind an error."""
    while error is not None:
        if isinstance(error, RecursionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def drawn(call: Call, argument: str) -> Iterator[str]:
    """All values under the thorough profile (18,216 calls); else every eighth, beginning where the argument's name says."""
    step = 1 if THOROUGH else 24 if any(each in call.name for each in APART) else 8
    start = sum(map(ord, call.name + argument)) % step
    yield from list(WRONG)[start::step]


# All calls take 60 CPU s; on two cores that others use, too, the longest family took 320 s.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ["_sources", "_rows", "_samples", "_fields", "_transforms", "_streams", "_catalogs"])
def test_a_wrong_argument_is_accepted_or_refused_by_name(world: World, family: str) -> None:
    raw: dict[str, list[str]] = {}
    for call in getattr(world, family)():
        for argument in call.arguments:
            for value in drawn(call, argument):
                found = outcome(call, argument, value)
                if found is not None:
                    raw.setdefault(f"{call.name} {argument}", []).append(found)

    assert {name: found for name, found in raw.items() if name not in RAW} == {}


def test_the_law_has_every_public_callable(world: World) -> None:
    calls = world.calls()
    text = " ".join(call.name for call in calls)
    values = {
        "CacheStatus",
        "PreparedData",
        "Progress",
        "Report",
        "Picture",
        "SourceFacts",
        "Relation",
        "Source",
    }  # made by us, never by a caller
    plain = {"DropPartial", "KeepPartial", "PadPartial", "Grayscale", "Original", "RowIdentity", "Sequential"}
    for name in sp.__all__:
        each = getattr(sp, name)
        if (
            not callable(each)
            or name in values | plain
            or (inspect.isclass(each) and issubclass(each, Exception | Warning))
        ):
            continue
        assert re.search(rf"\b{name}\b", text), name


WORDED = [
    "raise ValueError('f: words. The way out')",
    "raise KeyError('words')",
    "raise TypeError('words') from None",
    "try:\n        len(5)\n    except TypeError as error:\n        raise ValueError('words') from error",
    "error = ValueError('words')\n    def inner():\n        raise error\n    inner()",
    "try:\n        raise ValueError('words')\n    finally:\n        [].clear()",
    "class Made:\n        def __init__(self):\n            raise ValueError('words')\n    Made()",
]
RAW_CODE = [
    "len(5)",
    "1 / 0",
    "[][5]",
    "{}['x']",
    "None.x",
    "int('x')",
    "None + 1",
    "f = lambda: f()\n    f()",
    "open('nowhere/at/all')",
    "raise_ = [].index(3)",
    "try:\n        len(5)\n    except TypeError:\n        raise",
    "try:\n        len(5)\n    except TypeError as error:\n        raise error",
    "try:\n        len(5)\n    finally:\n        [].clear()",
    "class Odd:\n        def __bool__(self):\n            raise TypeError('no truth')\n    bool(Odd())",
    "import numpy as np\n    np.zeros(2).reshape(3)",
    "import pyarrow as pa\n    pa.array([1, 'x'])",
]


def made(code: str, module: str) -> Callable[..., object]:
    """A function behind a door whose body is some code, in a module of a name."""
    space: dict[str, Any] = {"__name__": module}
    exec(f"def f(a: int = 1, b: str = 'x') -> None:\n    {code}", space)
    function: Callable[..., object] = door(sp.errors.PlanError)(space["f"])
    return function


@pytest.mark.parametrize("code", WORDED)
def test_an_error_that_a_room_words_passes_as_it_is(code: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError), match="words"):
        made(code, "spiral_stream.room")(a="not whole")


@pytest.mark.parametrize("code", RAW_CODE)
def test_a_raw_error_becomes_one_that_names_the_argument(code: str) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"f: a='not whole' is a str\. Give a whole number"):
        made(code, "spiral_stream.room")(a="not whole")


@pytest.mark.parametrize("code", WORDED)
@pytest.mark.parametrize("module", ["__main__", "spiral_streams", "numpy"])
def test_words_of_others_are_raw(code: str, module: str) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"f: a='not whole' is a str\. Give a whole number"):
        made(code, module)(a="not whole")


@pytest.mark.parametrize("code", RAW_CODE)
def test_an_error_that_no_argument_explains_passes_as_it_is(code: str) -> None:
    raw = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, OSError)
    with pytest.raises(raw, match=r"^(?!f: )"):
        made(code, "spiral_stream.room")()


def test_more_samples_than_there_are_rows_are_all_rows(world: World) -> None:
    assert len(sp.report.report_relation(world.catalog, "rows", samples=10**30, pictures=10**30).samples) == 24


def test_a_text_for_panels_or_marks_is_refused_before_anything_is_drawn() -> None:
    for given in ({"panels": "x" * 5_000}, {"panels": {"p": {"c": [(0.0, 1.0)]}}, "marks": "x" * 5_000}):
        with pytest.raises(sp.errors.PlanError, match=r"draw_curves: (panels|marks)=.* is a str\. Give a"):
            sp.report.draw_curves("n", "t", across="a", **given)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (np.float32, "float32"),
        (np.dtype("float16"), "float16"),
        (pa.float32(), "float32"),
        (pa.float16(), "float16"),
        ("float64", "float64"),
    ],
)
def test_a_dtype_may_be_one_of_numpy_or_arrow_and_the_plan_holds_its_name(given: object, name: str) -> None:
    assert sp.Pad("x", dtype=given) == sp.Pad("x", dtype=name)
    assert sp.Stack("x", dtype=given).dtype == name


def test_a_dtype_may_be_one_of_torch() -> None:
    torch = pytest.importorskip("torch")

    assert sp.Stack("x", dtype=torch.float16) == sp.Stack("x", dtype="float16")
    assert sp.Stack("x", dtype=torch.bfloat16) == sp.Stack("x", dtype="bfloat16")
    assert sp.fields.Labels("x", dtype=torch.int32) == sp.fields.Labels("x", dtype="int32")


@pytest.mark.parametrize("given", [dict, object(), np.array([1, 2]), sp.col("x"), pa.string(), None])
def test_what_is_no_dtype_is_refused(given: object) -> None:
    with pytest.raises(sp.errors.PlanError, match="it is one of int64"):
        sp.Pad("x", dtype=given)


@pytest.mark.parametrize(
    ("option", "value", "way_out"),
    [
        ("allow_http", "perhaps", "Give true or false"),
        ("endpoint", "minio:9000", "Give it with its scheme"),
        ("regoin", "eu", "Write region"),
        ("region", None, "Give a text"),
    ],
)
def test_a_wrong_option_of_a_store_is_refused_where_it_is_given(option: str, value: object, way_out: str) -> None:
    with pytest.raises(sp.errors.SourceError, match=rf"use_storage\('wrong'\).*{option}.*{way_out}"):
        sp.use_storage("wrong", "s3://bucket/", **{option: value})


@pytest.mark.parametrize(
    ("value", "hint", "does"),
    [
        (np.int64(3), int, True),
        (True, int, False),
        (3, float, True),
        ([1, 2], tuple[int, int], True),
        ([1, 2, 3], tuple[int, int], False),
        ("text", list[str], False),
        ({"a": 1.0}, dict[str, float], True),
        ({"a": "b"}, dict[str, float], False),
        (None, int | None, True),
        (len, type, False),
    ],
)
def test_what_fits_a_signature(value: object, hint: object, does: bool) -> None:
    assert fits(value, hint) is does


NUMPY = {
    "orders": lambda kind: [
        *(
            sp.GlobalShuffle(seed=kind(3)),
            sp.orders.WindowShuffle(seed=kind(3), window=kind(9)),
            sp.orders.WithReplacement(seed=kind(1)),
        ),
        *(
            sp.HashBucketed(seed=kind(3), bucket_count=kind(8)),
            sp.orders.ExpandedRange(seed=kind(3), expanded_range=kind(20)),
        ),
        *(sp.ShardAwareShuffle(seed=kind(3), shuffle_block_size=kind(16)), sp.orders.WithinShards(seed=kind(2))),
    ],
    "batches": lambda kind: [
        *(sp.batching.Packed(max_tokens=kind(8), window_size=kind(16)), sp.WindowedBucket(kind(16))),
        *(sp.BatchBudget(max_tokens=kind(16)), sp.batching.OneStream(batches=kind(2)), sp.Pad("t", pad_value=kind(0))),
    ],
    "transforms": lambda kind: [
        *(
            sp.transforms.Resize(kind(3)),
            sp.transforms.Resize((kind(3), kind(4))),
            sp.transforms.CenterCrop([kind(3), kind(4)]),
            sp.transforms.RandomCrop(kind(4)),
        ),
    ],
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_numbers_of_numpy_are_numbers(name: str, kind: type) -> None:
    found, wanted = NUMPY[name](kind), NUMPY[name](int)

    assert found == wanted
    assert list(map(repr, found)) == list(map(repr, wanted))  # no value of NumPy is left in a plan


def test_arrays_and_short_floats_are_numbers() -> None:
    assert sp.Normalize(np.array([0.5, 0.25, 0.125]), np.float32([0.5, 0.5, 0.25])) == sp.Normalize(
        (0.5, 0.25, 0.125), (0.5, 0.5, 0.25)
    )
    assert sp.transforms.ColorJitter(np.float32(0.5)) == sp.transforms.ColorJitter(0.5)


def test_a_stream_takes_numbers_of_numpy(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path)
    catalog.register("a", sp.Arrow(pa.table({"id": range(50)})), identity="id")

    def stream(kind: type) -> sp.PreparedStream:
        rows = sp.mix([sp.Stream("a", catalog.table("a"), proportion=kind(1))], epoch_size=kind(40))
        sampled = rows.sample(order=sp.GlobalShuffle(seed=kind(1)))
        plan = sampled.collate(batch_size=kind(4), fields={"id": sp.Stack("id")})
        return plan.to_numpy(prefetch=kind(2), threads=kind(1)).bind(rank=kind(0), world_size=kind(2), epoch=kind(1))

    with stream(np.uint8) as found, stream(int) as wanted:
        assert found.fingerprint == wanted.fingerprint
        assert found.state_dict() == wanted.state_dict()
        found.set_epoch(np.int64(0))
        assert np.array_equal(found.batch(np.int64(1), epoch=np.int64(0))["id"], wanted.batch(1, epoch=0)["id"])


def test_truth_values_and_infinities_are_no_numbers() -> None:
    assert [is_number(each) for each in (1, 0.5, True, float("nan"), float("inf"), "1", None)] == [True, True] + [
        False
    ] * 5


class Made:
    """What is made of arguments."""

    def __init__(self, **given: object) -> None:
        self.__dict__.update({"size": 1, "name": None, "kind": "a", "fast": True} | given)
        rules = {"size": integer(1, 9), "name": text("a name", none=True), "kind": one_of(("a", "b")), "fast": FLAG}
        check(self, "made", **rules)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("size", True, "an integer from 1 to 9"),
        ("size", 10, "an integer from 1 to 9"),
        ("size", None, "an integer from 1 to 9"),
        ("name", "", "a name"),
        ("kind", "c", "one of a, b"),
        ("fast", 1, "True or False"),
    ],
)
def test_a_rule_says_where_what_was_found_and_what_is_right(name: str, value: object, right: str) -> None:
    Made()
    with pytest.raises(sp.errors.PlanError, match=f"^made: {name}={value!r}. Give {right}$"):
        Made(**{name: value})

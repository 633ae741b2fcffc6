"""Whatever is given for an argument: it works, or one of our errors names it. Drawn over every public callable."""

import inspect
import os
import re
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.arguments import fits
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
    """How a call with a wrong value fails, if it is neither accepted nor refused in our words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.does(**{**call.arguments, argument: WRONG[value]()})
    except (sp.SpiralError, sp.SpiralWarning):
        return None
    except call.allowed as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = last.filename.startswith(OURS) and (last.line or "").startswith("raise")
        return None if said else f"{call.name} {argument}={value}: {error!r:.200}"
    except Exception as error:  # noqa: BLE001  which one is the question
        return f"{call.name} {argument}={value}: {type(error).__name__}: {error!s:.200}"
    return None


def drawn(call: Call, argument: str) -> Iterator[str]:
    """All values under the thorough profile; else every fourth, beginning where the argument's name says."""
    step = 1 if THOROUGH else 12 if any(each in call.name for each in APART) else 4
    start = sum(map(ord, call.name + argument)) % step
    yield from list(WRONG)[start::step]


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
    assert sp.Labels("x", dtype=torch.int32) == sp.Labels("x", dtype="int32")


@pytest.mark.parametrize("given", [dict, object(), np.array([1, 2]), sp.col("x"), pa.string(), None])
def test_what_is_no_dtype_is_refused(given: object) -> None:
    with pytest.raises(sp.PlanError, match="it is one of int64"):
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
    with pytest.raises(sp.SourceError, match=rf"use_storage\('wrong'\).*{option}.*{way_out}"):
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

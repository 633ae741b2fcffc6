"""Where code comes from: its module, the names that lead to it, the distribution that supplies it."""

import functools
import json
import math
import operator
import sys
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream
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


class Holder:
    """Something with a method and an inner class."""

    class Inner:
        pass

    def method(self) -> None:
        pass


HERE = Holder.__module__
COMPILED = [np.sqrt, np.float32, np.dtype, len, math.floor, operator.add, str.lower, json.loads]


@given(parts=st.lists(st.text("ab_", min_size=1, max_size=3), min_size=1, max_size=4))
def test_the_top_level_package_is_the_first_part_of_a_name(parts: list[str]) -> None:
    assert top_level(".".join(parts)) == parts[0]


def test_versions_are_found_under_other_names() -> None:
    assert installed("numpy") == (f"numpy=={np.__version__}",)
    assert [each.split("==")[0].lower() for each in installed("PIL")] == ["pillow"]
    assert "+" not in installed("torch")[0]
    assert installed("json") == installed("no_such_package") == ()


def test_our_own_version_is_recorded_as_it_was_when_our_distribution_had_another_name() -> None:
    """Fingerprints of users' functions name it, so saved plans and caches hold across the new name."""
    assert installed("spiral_stream") == (f"spiral=={spiral_stream.__version__}",)


def test_a_wheel_of_ours_is_recorded_under_that_name_for_both_of_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "spiral_stream-1.2.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: spiral-stream\nVersion: 1.2\n")
    (made / "top_level.txt").write_text("spiral_assets_twin")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("spiral_stream.plan.functions.origin.suppliers", metadata.packages_distributions)

    assert installed("spiral_assets_twin") == ("spiral==1.2",)


@pytest.mark.parametrize(("editable", "found"), [(False, ("shop-of-twins==1.2",)), (True, ())])
def test_a_version_has_no_build_tag_and_that_of_an_editable_install_says_nothing(
    editable: bool, found: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"shop_of_twins_{editable}".lower()  # what is found is remembered
    made = tmp_path / "shop_of_twins-1.2.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-of-twins\nVersion: 1.2+cu130\n")
    (made / "top_level.txt").write_text(package)
    (made / "direct_url.json").write_text(json.dumps({"url": "file:///shop", "dir_info": {"editable": editable}}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "spiral_stream.plan.functions.origin.suppliers", metadata.packages_distributions
    )  # none is remembered

    assert installed(package) == found
    assert is_users(package) == editable


@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_package_in_a_folder_without_distributions_is_the_users_and_none_is_read(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, beside = (f"{name}_{len(form)}" for name in ("alone", "beside"))
    for package in (alone, beside):
        made = tmp_path / package / form.format(package)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.touch()
        monkeypatch.syspath_prepend(tmp_path / package)
    (tmp_path / beside / "any-1.0.dist-info").mkdir()
    asked: list[str] = []
    monkeypatch.setattr("spiral_stream.plan.functions.origin.suppliers", lambda: asked.append("all") or {})

    assert installed(alone) == ()
    assert is_users(alone)
    assert not asked
    assert installed(beside) == ()
    assert asked == ["all"]


def test_only_what_no_distribution_supplies_is_the_users() -> None:
    assert is_users("no_such_package")
    assert not any(is_users(name) for name in ("numpy", "json", "PIL", "spiral_stream"))


@pytest.mark.parametrize("thing", COMPILED, ids=lambda each: each.__name__)
def test_a_name_that_is_found_leads_back_to_the_thing(thing: Any) -> None:
    name = found_name(thing)

    assert name is not None
    module = next(each for each in (name.rpartition(".")[0], name.split(".", maxsplit=1)[0]) if each in sys.modules)
    assert lookup(module, name.removeprefix(f"{module}.")) is thing


def test_what_no_name_leads_to_has_none() -> None:
    replaced = type("Inner", (), {"__module__": HERE, "__qualname__": "Holder.Inner"})

    assert [found_name(thing) for thing in (3, np.zeros(2), lambda: 0, functools.partial(len))] == [None] * 4
    assert found_name(Holder.Inner) == f"{HERE}.Holder.Inner" == dotted_name(Holder.Inner)
    assert found_name(replaced) is None


def test_a_lookup_goes_through_attributes_and_ends_at_what_is_missing() -> None:
    assert lookup(HERE, "Holder.Inner") is Holder.Inner
    assert lookup("spiral_stream", "col") is spiral_stream.col
    assert [lookup(HERE, "Holder.Outer.Inner"), lookup("no_such_module", "x")] == [None, None]


def test_the_home_of_code_is_the_module_it_was_written_in(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(json.loads)
    def wrapped(text: str) -> object:
        return json.loads(text)

    for thing in (Holder, Holder.method, Holder().method, wrapped, functools.partial(functools.partial(wrapped), "1")):
        assert home(thing) == HERE
    assert home(json.loads) == "json"
    script = types.FunctionType((lambda: 0).__code__, {"__name__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert home(script) == "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", json.__spec__)  # as `python -m json` has it
    assert home(script) == "json"


@given(values=st.lists(st.integers(), min_size=1, max_size=3))
def test_the_cells_of_a_closure_are_its_variables(values: list[int]) -> None:
    def make(first: int, rest: list[int]) -> Callable[[], object]:
        def inner() -> object:
            return first, rest, late

        if len(values) > 1:
            late = values[-1]
        return inner

    bound = {"late": values[-1]} if len(values) > 1 else {}
    assert cells(make(values[0], values)) == {"first": values[0], "rest": values, **bound}
    assert cells(test_a_lookup_goes_through_attributes_and_ends_at_what_is_missing) == {}

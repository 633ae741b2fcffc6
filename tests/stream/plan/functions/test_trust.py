"""Whose code a saved plan may name: one's own that is imported, and what an allow-list adds; and only as it was saved."""

import importlib
import json
import operator
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spiral_stream as sp
from spiral_stream.plan.functions.trust import Trust
from spiral_stream.plan.saving.canonical import to_json
from tests.fixtures import chains
from tests.fixtures.saved_plans import read_back

SOURCE = """
from dataclasses import dataclass

import pyarrow.compute as pc

from spiral_stream.plan.fields.profiles import Profile

FACTOR = 2


def scaled(n):
    return pc.multiply(n, FACTOR)


class Table:
    @staticmethod
    def plain(n):
        return pc.negate(n)

    @classmethod
    def made(cls, n):
        return pc.negate(n)

    class Inner:
        @staticmethod
        def deep(n):
            return pc.negate(n)


@dataclass(frozen=True)
class Kept(Profile):
    size: int = 1
    changes_pixels = False

    def bytes(self):
        return self.size * 2
"""
Load = Callable[..., ModuleType]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return chains.make_catalog(tmp_path_factory.mktemp("trust"))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write the module ``bakery.maps`` into a new folder, with one text replaced, and import it unless told otherwise."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folders = iter(range(100))

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "bakery"]:
            del sys.modules[name]

    def write(old: str = "", new: str = "", *, imported: bool = True) -> Any:
        folder = tmp_path / f"{next(folders)}" / "bakery"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "maps.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
        forget()
        importlib.invalidate_caches()
        monkeypatch.syspath_prepend(folder.parent)
        return importlib.import_module("bakery.maps") if imported else None

    yield write
    forget()


def stream(catalog: sp.Catalog, function: Any, **options: Any) -> Any:
    sampled = catalog.table("d").sample(order=chains.ORDER)
    sampled = sampled.map(function, columns=["n"], name="m", returns=pa.int64(), **options)
    return sampled.collate(batch_size=4, fields={"m": sp.Stack("m")}).to_numpy()


def first(opened: Any) -> list[int]:
    with opened:
        return [int(each) for each in next(iter(opened))["m"]]


def test_a_function_of_ones_own_opens_while_its_module_is_imported(catalog: sp.Catalog, load: Load) -> None:
    maps = load()
    made = stream(catalog, maps.scaled)
    catalog.save_stream("scaled", made)
    want = first(made)
    assert first(catalog.open_stream("scaled")) == want

    del sys.modules["bakery.maps"]
    with pytest.raises(
        sp.errors.TrustError,
        match=r"map\.function: bakery.maps:scaled is of a module that this process has not imported, and opening a plan "
        r'imports nothing. Import bakery.maps before, or trust it: open_stream\(..., trust=\["bakery.maps"\]\), or '
        r"\$SPIRAL_TRUST=bakery.maps",
    ):
        catalog.open_stream("scaled")
    assert "bakery.maps" not in sys.modules


@pytest.mark.parametrize("given", ["bakery.maps", "bakery", ["bakery.maps"], ("os", "bakery.maps")])
def test_a_trusted_module_is_imported_when_a_plan_names_it(catalog: sp.Catalog, load: Load, given: Any) -> None:
    catalog.save_stream("scaled", stream(catalog, load().scaled))
    load(imported=False)
    catalog.open_stream("scaled", trust=given).close()

    assert "bakery.maps" in sys.modules


@pytest.mark.parametrize("listed", ["bakery.maps", " os, bakery ,", "bakery"])
def test_the_environment_trusts_too(
    catalog: sp.Catalog, load: Load, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    catalog.save_stream("scaled", stream(catalog, load().scaled))
    load(imported=False)
    monkeypatch.setenv("SPIRAL_TRUST", listed)
    catalog.open_stream("scaled").close()

    assert "bakery.maps" in sys.modules


@pytest.mark.parametrize("given", ["bake", "bakery.map", "bakery.maps.more", "maps", []])
def test_other_names_trust_nothing(catalog: sp.Catalog, load: Load, given: Any) -> None:
    catalog.save_stream("scaled", stream(catalog, load().scaled))
    load(imported=False)

    with pytest.raises(sp.errors.TrustError, match=r"Import bakery\.maps before"):
        catalog.open_stream("scaled", trust=given)


@pytest.mark.parametrize("given", [[3], ["a b"], [""], ["a:b"], [None], ["../a"]])
def test_what_is_no_module_cannot_be_trusted(given: Any) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"is no module. Give modules or names of modules, such as trust="):
        Trust(given)


def test_a_function_of_a_library_needs_to_be_trusted_by_name(catalog: sp.Catalog) -> None:
    made = stream(catalog, pc.negate, version="1")
    catalog.save_stream("library", made)
    want = first(made)

    with pytest.raises(
        sp.errors.TrustError,
        match=r"pyarrow.compute:negate is of pyarrow==\S+, and a saved plan may name code of your own only",
    ):
        catalog.open_stream("library")
    assert first(catalog.open_stream("library", trust=pc)) == want
    assert first(catalog.open_stream("library", trust=["pyarrow.compute"])) == want


def test_a_function_of_python_itself_needs_to_be_trusted_by_name(catalog: sp.Catalog) -> None:
    made = stream(catalog, operator.neg, batched=False)
    catalog.save_stream("python", made)

    with pytest.raises(
        sp.errors.TrustError, match=r"_operator:neg is of Python itself or spiral, and a saved plan may name"
    ):
        catalog.open_stream("python")
    assert first(catalog.open_stream("python", trust="_operator")) == first(made)


@pytest.mark.parametrize("qualname", ["Table.plain", "Table.made", "Table.Inner.deep"])
def test_functions_of_classes_are_found(catalog: sp.Catalog, load: Load, qualname: str) -> None:
    function: Any = load()
    for part in qualname.split("."):
        function = getattr(function, part)
    made = stream(catalog, function)
    catalog.save_stream("method", made)

    assert first(catalog.open_stream("method")) == first(made)


# ---- code that changed


def test_a_function_that_changed_is_refused_with_both_fingerprints(catalog: sp.Catalog, load: Load) -> None:
    plan = to_json(stream(catalog, load().scaled).plan)
    catalog.registry.saved.save("scaled", plan)
    saved = plan["source"]["@node"]["source"]["@node"]["function"]["@code"]
    load("FACTOR = 2", "FACTOR = 3  # a helper's value counts")

    with pytest.raises(
        sp.errors.PlanError,
        match=rf"bakery.maps:scaled has changed since the stream was saved: its code was {saved}, here it is [0-9a-f]{{32}} "
        r"\(own functions, .* versions of installed packages\). Restore it, or save the stream again",
    ):
        catalog.open_stream("scaled")
    load("def scaled(n):", "def scaled(n):\n    # a comment changes nothing\n")
    catalog.open_stream("scaled").close()


def test_a_stated_version_stands_for_the_code(catalog: sp.Catalog, load: Load) -> None:
    catalog.save_stream("scaled", stream(catalog, load().scaled, version="7"))
    want = first(catalog.open_stream("scaled"))
    load("FACTOR = 2", "FACTOR = 4")

    assert first(catalog.open_stream("scaled")) == [2 * each for each in want]


def test_a_class_that_changed_is_refused(images: sp.Catalog, load: Load) -> None:
    plan = to_json(images.table("lance").cache(image_ref=load().Kept(3)).node)
    assert read_back(plan, images).profiles[0][1].size == 3  # type: ignore[attr-defined]  # a Cache
    load("self.size * 2", "self.size * 3")

    with pytest.raises(sp.errors.PlanError, match=r"bakery.maps:Kept has changed since the stream was saved"):
        read_back(plan, images)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    made = sp.connect(str(tmp_path_factory.mktemp("tiny") / "catalog"))
    table = pa.table({"sample_id": ["a"], "image_ref": pa.array([b"x"], pa.binary())})
    made.register("lance", sp.Arrow(table), semantic={"image_ref": "image/jpeg-ref"})
    return made


def test_a_plan_of_before_there_were_fingerprints_opens_with_a_warning(catalog: sp.Catalog, load: Load) -> None:
    made = stream(catalog, load().scaled)
    plan = json.loads(json.dumps(to_json(made.plan)))
    del plan["source"]["@node"]["source"]["@node"]["function"]["@code"]
    catalog.registry.saved.save("old", plan)

    with pytest.warns(
        sp.SpiralWarning, match=r"an earlier version saved bakery.maps:scaled without a fingerprint of the code"
    ) as told:
        opened = catalog.open_stream("old")
    assert told[0].filename == __file__
    assert first(opened) == first(made)


def test_a_name_that_was_rebound_is_refused(catalog: sp.Catalog, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = load()
    catalog.save_stream("scaled", stream(catalog, maps.scaled))
    monkeypatch.setattr(maps, "scaled", maps.Table.plain)

    with pytest.raises(
        sp.errors.PlanError,
        match=r"the name bakery.maps:scaled leads to what is defined elsewhere .*Define it in bakery.maps",
    ):
        catalog.open_stream("scaled")


def test_a_module_beside_the_libraries_is_not_ones_own(
    catalog: sp.Catalog, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in site-packages and belongs to no distribution, as some tools leave it there."""
    maps = load()
    catalog.save_stream("scaled", stream(catalog, maps.scaled))
    monkeypatch.setattr(maps, "__file__", "/somewhere/lib/python3.11/site-packages/bakery/maps.py")

    with pytest.raises(sp.errors.TrustError, match="is of no module of your own"):
        catalog.open_stream("scaled")
    catalog.open_stream("scaled", trust=maps).close()

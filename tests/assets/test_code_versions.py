"""The code version of a plan, without importing it: what makes it another, and what does not."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from spiral_assets import code_versions
from spiral_assets.code_versions import code_version_of, library_versions
from spiral_assets.named import Named, SavedPlan
from spiral_assets.plans import images, text

PLANS = '''
"""Plans."""

from {package}.sizes import SIDE
from {package} import forms
import heavy_framework

COLUMN = "photo"
UNUSED = 7


def every_photo(catalog, relation="shop.photos"):
    """Read every photo."""
    return _small(catalog.table(relation).cache(**{{COLUMN: forms.raw()}}))  # in storage order


def _small(rows):
    return rows.resize(SIDE)


def other(catalog):
    return UNUSED
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / f"shop_{tmp_path.name.replace('-', '_')}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "plans.py").write_text(PLANS.format(package=folder.name))
    (folder / "sizes.py").write_text("SIDE = 96\nOTHER = 1\n")
    (folder / "forms.py").write_text("def raw():\n    return 96\n\ndef jpeg():\n    return 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def version(package: Path, **arguments: str) -> str:
    for cached in (code_versions.bound_in, code_versions.file_of):
        cached.cache_clear()
    return code_version_of(Named(f"{package.name}.plans:every_photo", arguments))


def replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(package: Path) -> None:
        text = (package / file).read_text()
        assert old in text
        (package / file).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (replaced("plans.py", "  # in storage order", ""), True),
        (replaced("plans.py", '"""Read every photo."""', '"""Read them all."""'), True),
        (replaced("plans.py", "UNUSED = 7", "UNUSED = 8"), True),
        (replaced("sizes.py", "OTHER = 1", "OTHER = 2"), True),
        (replaced("forms.py", "return 5", "return 6"), True),
        (replaced("plans.py", 'COLUMN = "photo"', 'COLUMN = "picture"'), False),
        (replaced("plans.py", "rows.resize(SIDE)", "rows.resize(2 * SIDE)"), False),
        (replaced("sizes.py", "SIDE = 96", "SIDE = 64"), False),
        (replaced("forms.py", "return 96", "return 64"), False),
    ],
)
def test_what_the_plan_reaches_counts_and_nothing_else(
    package: Path, change: Callable[[Path], None], same: bool
) -> None:
    before = version(package)

    change(package)

    assert (version(package) == before) is same
    assert not [name for name in sys.modules if name.startswith(package.name)], "a plan was imported"


def test_arguments_count_however_they_are_given(package: Path) -> None:
    assert version(package) != version(package, relation="shop.other")
    given = [
        partial(images.cache_plan, relation="a"),
        Named("spiral_assets.plans.images:cache_plan", {"relation": "a"}),
    ]
    assert len({code_version_of(plan) for plan in given}) == 1
    tokens = {code_version_of(partial(text.cache_plan, stream=stream)) for stream in text.RELATIONS}
    assert len(tokens) == 3
    assert code_version_of(SavedPlan("one")) != code_version_of(SavedPlan("two"))


@pytest.mark.parametrize(
    "constant", ["CLIPS_VERSION", "TOKENS_VERSION", "decoder.py VERSION", "video_index.py VERSION", "simplejpeg"]
)
def test_versions_of_the_library_count(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_version_of(images.cache_plan)
    (found,) = [each for each in library_versions() if constant in each]
    assert found[-1].isdigit()
    others = tuple(f"{each}9" if each == found else each for each in library_versions())

    monkeypatch.setattr(code_versions, "library_versions", lambda: others)

    assert code_version_of(images.cache_plan) != before


def test_a_plan_that_is_not_there_is_named(package: Path) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="does not define 'all_photos'"):
        code_version_of(Named(f"{package.name}.plans:all_photos"))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="module 'nowhere' is not found"):
        code_version_of(Named("nowhere:plan"))

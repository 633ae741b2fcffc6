"""Wrong YAML of a whole project: what its components say of each other, and what ``dg`` says of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.core.component_tree import ComponentTreeException

from tests.fixtures.wrong_yaml import WRONG, written

ROOT = Path(__file__).parents[3]


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


PROJECT = """
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "shop"
code_location_target_module = "spiral_assets.project"
"""

IN_A_LOCATION: dict[str, tuple[str, str]] = {
    "a dep that is nearly one": (
        (
            "Relation\n name: shop.photos\n source: {kind: csv, path: x}\n---\n"
            "PlanCache\n name: c\n plan: 'p:many'\n deps: [catalog/shop/photo] %%\n---\nCatalog"
        ),
        "did you mean 'catalog/shop/photos'?",
    ),
    "a stream that nothing saves": (
        "TrainingJob\n name: m\n command: [python, -m, p]\n deps: [streams/none] %%\n---\nCatalog",
        "no component saves 'streams/none'",
    ),
    "a catalog that there is not": (
        "Relation\n name: a\n source: {kind: csv, path: x}\n catalog: lake %%\n---\nCatalog",
        "there is no Catalog called 'lake'",
    ),
}


@pytest.mark.parametrize("name", IN_A_LOCATION)
def test_what_a_location_lacks_is_refused_with_file_and_line(name: str, folder: Path) -> None:
    """A whole project, whose parts Python does not add to."""
    module = "_".join(["shop", *name.split()])  # another module per test, because Python keeps them
    (folder / "pyproject.toml").write_text(PROJECT.replace('"shop"', f'"{module}"'))
    text, message = IN_A_LOCATION[name]
    file, line = written(make(folder / module / "defs" / "all"), text)
    file = file.rename(file.with_name("defs.yaml"))

    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        with pytest.raises(ComponentTreeException) as refused:
            dg.load_from_defs_folder(path_within_project=folder)

    said = str(refused.value.__cause__)
    assert f"{file}:{line}" in said
    assert message in said


def test_deps_of_other_locations_are_not_refused(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace('"shop"', '"shop_other"'))
    said = "PlanCache\n name: c\n plan: 'p:many'\n deps: [catalog/shop/photos]\n---\nCatalog"
    file, _ = written(make(folder / "shop_other" / "defs" / "all"), said)
    file.rename(file.with_name("defs.yaml"))

    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        found = dg.load_from_defs_folder(path_within_project=folder)

    assert len(list(found.assets or ())) == 1


@pytest.mark.slow  # starts dg six times
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "by_schema"),
    [("a kind that there is not", True), ("a missing argument of a plan", False), ("one key twice", False)],
)
def test_dg_says_it(name: str, by_schema: bool, folder: Path, plans: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "shop" / "defs" / "all").mkdir(parents=True)
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    said, message = WRONG[name]
    file, line = written(folder / "shop" / "defs" / "all", said)
    file = file.rename(file.with_name("defs.yaml"))
    env = {**os.environ, "PYTHONPATH": f"{folder}:{plans}:{ROOT}", "DAGSTER_HOME": str(folder / "home")}
    for command in (["check", "yaml"], ["check", "defs", "--no-check-yaml"], ["list", "defs", "--json"]):
        done = subprocess.run(
            [Path(sys.executable).with_name("dg"), *command],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        shown = done.stdout + done.stderr
        if command[1] == "yaml":
            assert (done.returncode != 0) == by_schema, shown
            assert not by_schema or f"{file}:{line}" in shown
        else:
            assert done.returncode != 0
            assert f"{file}:{line}" in json.dumps(shown).replace("\\n", " ")
            assert message in shown

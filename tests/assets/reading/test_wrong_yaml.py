"""Wrong YAML is refused when it is read, with file and line: forty by hand, and as many as the schema can give."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pytest
import yaml
from dagster.components.scaffold.scaffold import get_scaffolder
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_assets import components
from spiral_assets.reading import source_fields
from spiral_assets.yaml_definitions import definitions_from
from spiral_stream.sources import serialize

ROOT = Path(__file__).parents[3]
DECODED = "spiral_assets.plans.standard:decoded_images"
PLANS = """
import functools

def plan(catalog, relation, side=32): ...
def keywords(catalog, *, relation): ...
def many(catalog, **more): ...
def nothing(): ...
def check(catalog): ...
def joined(first, second): ...
@functools.lru_cache
def decorated(): ...
from other_plans import imported
"""

# name -> (attributes or documents with %% where the line is that must be named, what the error says)
WRONG: dict[str, tuple[str, str]] = {
    "a kind that there is not": (
        "Relation\n name: a\n source:\n  kind: parket %%\n  path: x",
        "did you mean 'parquet'",
    ),
    "no kind": ("Relation\n name: a\n source: {path: x} %%", "has no kind. Give one"),
    "a field of a source": (
        "Relation\n name: a\n source:\n  kind: parquet\n  pth: x %%\n  path: x",
        "did you mean 'path'",
    ),
    "a field of another kind": (
        "Relation\n name: a\n source:\n  kind: image_folder\n  path: x\n  split: train %%",
        "no field",
    ),
    "no path": ("Relation\n name: a\n source: {kind: csv} %%", "does not say where the rows lie. Give path"),
    "a path that is a number": (
        "Relation\n name: a\n source:\n  kind: csv\n  path: 7 %%",
        "7 is no place. Give the path",
    ),
    "an empty path": ("Relation\n name: a\n source:\n  kind: csv\n  path: '' %%", "is no place"),
    "a source that is a list": ("Relation\n name: a\n source: [parquet] %%", "dict"),
    "a function and a path": (
        "Relation\n name: a\n source:\n  function: 'p:check'\n  path: x %%",
        "no part of a function",
    ),
    "a source function without a module": ("Relation\n name: a\n source:\n  function: check %%", "module:function"),
    "a source function that there is not": (
        "Relation\n name: a\n source:\n  function: 'p:chek' %%",
        "did you mean 'check'",
    ),
    "a semantic type": (
        "Relation\n name: a\n source: {kind: csv, path: x}\n semantic:\n  b: image/jpg %%",
        "image/jpeg-ref",
    ),
    "a name with a space": ("Relation\n name: a b %%\n source: {kind: csv, path: x}", "letters, digits"),
    "a field of a relation": ("Relation\n name: a\n labls: [b] %%\n source: {kind: csv, path: x}", "labls"),
    "a limit": ("Relation\n name: a\n source: {kind: csv, path: x}\n limits:\n  skw: 1 %%", "skw"),
    "a limit that is a text": ("Relation\n name: a\n source: {kind: csv, path: x}\n limits:\n  skew: much %%", "much"),
    "text for seconds": ("Relation\n name: a\n watch_s: often %%\n source: {kind: csv, path: x}", "often"),
    "an owner": ("Relation %%\n name: a\n owners: [data]\n source: {kind: csv, path: x}", "team:"),
    "a check twice": (
        (
            "Relation\n name: a\n source: {kind: csv, path: x}\n checks:\n - {name: c, function: 'p:check'}\n"
            " - {name: c, function: 'p:check'} %%"
        ),
        "two checks are called 'c'",
    ),
    "a check that takes two": (
        "Relation\n name: a\n source: {kind: csv, path: x}\n checks:\n - name: c\n   function: 'p:joined' %%",
        "needs the argument 'second'",
    ),
    "no name": ("Relation @@\n source: {kind: csv, path: x}", "name"),
    "an argument of a plan": (
        "PlanCache\n name: a\n plan:\n  function: 'p:plan'\n  arguments:\n   relatoin: b %%\n   relation: b",
        "no argument 'relatoin'; did you mean 'relation'",
    ),
    "a missing argument of a plan": (
        "PlanCache\n name: a\n plan: 'p:plan' %%",
        "needs the argument 'relation'. Give it",
    ),
    "a missing keyword of a plan": (
        "PlanCache\n name: a\n plan:\n  function: 'p:keywords' %%",
        "needs the argument 'relation'",
    ),
    "an argument that Spiral gives": (
        "PlanCache\n name: a\n plan:\n  function: 'p:plan'\n  arguments:\n   relation: b\n   catalog: c %%",
        "gets 'catalog' from Spiral",
    ),
    "a plan that takes nothing": ("PlanCache\n name: a\n plan: 'p:nothing' %%", "takes 0 values, and gets 1"),
    "a plan that there is not": (
        "PlanCache\n name: a\n plan: 'p:paln' %%",
        "does not define 'paln'; did you mean 'plan'",
    ),
    "a module that there is not": (
        "PlanCache\n name: a\n plan: 'no_such:plan' %%",
        "'no_such' is not found. Correct the name",
    ),
    "a plan without a colon": ("PlanCache\n name: a\n plan: p.plan %%", "is not of the form module:function"),
    "an imported plan": ("PlanCache\n name: a\n plan: 'p:imported' %%", "needs the argument 'relation'"),
    "neither function nor stream": ("PlanCache\n name: a\n plan: {} %%", "give either function"),
    "a stream that nothing saves": (
        "PlanCache\n name: a\n plan:\n  stream: b %%\n---\nCatalog\n path: none",
        "saved by no",
    ),
    "an executor": ("PlanCache\n name: a\n plan: 'p:many'\n executor: celery %%", "celery"),
    "no streams": ("TrainingStream\n name: a\n streams: [] %%", "Give the stream to train from"),
    "a stream without a plan": ("TrainingStream\n name: a\n streams:\n - name: b %%", "plan"),
    "a stream's plan": ("TrainingStream\n name: a\n streams:\n - name: b\n   plan: 'p:plan' %%", "needs the argument"),
    "too many index groups": (
        "VideoIndex %%\n name: a\n relation: b\n column: c\n index: d\n groups: 100",
        "Give 1 to 99",
    ),
    "a metric of an index": ("EmbeddingIndex\n relation: a\n metric: angle %%", "cosine"),
    "a share of more than one": ("EmbeddingIndex\n relation: a\n least_recall: 90 %%", "Give a number from 0 to 1"),
    "an index's plan": ("EmbeddingIndex\n relation: a\n plan: 'p:nothing' %%", "takes 0 values, and gets 1"),
    "what LanceDB may do": ("Catalog\n lancedb: delete %%", "read"),
    "a schedule": ("TrainingJob %%\n name: a\n command: [python, x]\n schedule: nightly", "nightly"),
    "processes that torchrun cannot start": (
        "TrainingJob %%\n name: a\n command: [bash, x]\n processes: 2",
        "torchrun",
    ),
    "a measure without a function": ("Measure\n key: a\n function: 'p:non' %%", "does not define 'non'"),
    "an alert that takes nothing": ("Upkeep\n on_failure: 'p:nothing' %%", "takes 0 values, and gets 1"),
    "a tokenizer's function": ("Tokenizer\n name: a\n source:\n  function: 'p:non' %%", "does not define 'non'"),
    "a folder that is not there": ("RelationCatalog\n folder: not/there %%", "is no folder here. Correct the path"),
    "an unset variable of a folder": ("RelationCatalog\n folder: $SPIRAL_NOT_SET %%", "$SPIRAL_NOT_SET is not set"),
    "one key twice": (
        "Relation\n name: a.b\n source: {kind: csv, path: x}\n---\nRelation %%\n name: a.b\n source: {kind: csv, path: y}",
        "'catalog/a/b' is defined twice",
    ),
    "a circle": (
        (
            "Relation %%\n name: a\n source: {kind: csv, path: x}\n deps: [caches/b]\n---\n"
            "PlanCache\n name: b\n plan: 'p:many'\n deps: [catalog/a]"
        ),
        "a circle of deps",
    ),
    "fewer steps than none": (
        "RelationCatalog\n folder: .\n steps: -1 %%",
        "greater than or equal to 0",
    ),
    "a kind of values that is not learned": (
        "Relation\n name: a\n source: {kind: csv, path: x}\n limits:\n  learned:\n   of: [rwos] %%",
        "Input should be 'rows'",
    ),
    "learned limits that are never learned": (
        "Relation\n name: a\n source: {kind: csv, path: x}\n limits:\n  learned:\n   observe: 30 %%",
        "Give less than last",
    ),
    "learned limits without statistics": (
        "Relation\n name: a\n source: {kind: csv, path: x}\n statistics: false\n limits:\n  learned: {} %%",
        "Leave out statistics: false",
    ),
    "a type that there is not": ("Relatoin %%\n name: a", "Give a component"),
    "brackets that stay open": ("Relation\n name: [a %%", "this is no YAML"),
}


def written(folder: Path, said: str) -> tuple[Path, int | None]:
    """Write documents, and return the line that is marked: with %%, or, after the type, with @@ for that of the attributes."""
    documents = []
    for document in said.split("---\n"):
        kind, _, attributes = document.partition("\n")
        mark = " %%" if kind.endswith(" %%") else ""
        text = f"type: spiral_assets.components.{kind.partition(' ')[0]}{mark}\n"
        mark = " %%" if kind.endswith(" @@") else ""
        documents.append(f"{text}attributes:{mark}\n{attributes}" if attributes.strip() else text)
    marked = "\n---\n".join(each.rstrip("\n") for each in documents)
    lines = [at for at, line in enumerate(marked.splitlines(), 1) if line.endswith("%%")]
    file = folder / "shop.yaml"
    file.write_text(marked.replace(" %%", "") + "\n")
    return file, lines[0] if lines else None


@pytest.fixture(scope="module", autouse=True)
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Modules with plans, which nobody may import."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "p.py").write_text(PLANS)
    (folder / "other_plans.py").write_text("def imported(catalog, relation): ...\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        yield folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a location that is loaded as `dg` loads it."""
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    monkeypatch.chdir(tmp_path)
    for each in ("SPIRAL_NOT_SET", "SPIRAL_CATALOG", "DAGSTER_HOME"):
        monkeypatch.delenv(each, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_with_file_and_line(name: str, folder: Path) -> None:
    said, message = WRONG[name]
    file, line = written(folder, said)

    with pytest.raises(dg.DagsterInvalidDefinitionError) as refused:
        definitions_from(file)

    assert message in str(refused.value)
    assert re.search(rf"{file}:{line}\b", str(refused.value)) or name == "brackets that stay open", refused.value
    assert {"p", "other_plans"}.isdisjoint(sys.modules)


def test_forty_are_wrong_by_hand() -> None:
    assert len(WRONG) >= 40


def test_what_can_be_called_is_not_refused(folder: Path) -> None:
    plans = ["many", "decorated", "imported"]
    said = "".join(
        f"---\nPlanCache\n name: c{at}\n plan: {{function: 'p:{plan}', arguments: {{relation: a}}}}\n"
        for at, plan in enumerate(plans)
    )
    file, _ = written(folder, said.removeprefix("---\n") + "---\nUpkeep\n on_failure: 'builtins:print'")

    assert len(list(definitions_from(file).assets or ())) == 3
    assert {"p", "other_plans"}.isdisjoint(sys.modules)


def test_a_stream_that_is_saved_here_or_in_the_catalog_may_be_opened(folder: Path) -> None:
    import pyarrow as pa

    catalog = spiral.connect(str(folder / "catalog"))
    catalog.register("rows", spiral.Arrow(pa.table({"id": [1, 2]})), identity="id")
    plan = catalog.table("rows").sample(order=spiral.Sequential())
    catalog.save_stream("by-hand", plan.collate(batch_size=1, fields={"id": spiral.Stack("id")}).to_numpy())
    said = (
        f"Catalog\n path: {folder}/catalog\n---\nPlanCache\n name: a\n plan: {{stream: by-hand}}\n---\n"
        "PlanCache\n name: b\n plan: {stream: here}\n---\n"
        "TrainingStream\n name: s\n streams: [{name: here, plan: 'p:many'}]"
    )
    file, _ = written(folder, said)

    assert len(list(definitions_from(file).assets or ())) == 3


SCHEMAS = {name: getattr(components, name).get_model_cls().model_json_schema() for name in components.__all__}
VALUES = st.one_of(
    st.integers(2, 5),  # 0 and 1 are booleans too
    st.text("ab:/{}", min_size=1, max_size=5).filter(lambda text: "{{" not in text),
    st.lists(st.integers(0, 3), min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["a", "kind"]), st.integers(0, 3), min_size=1, max_size=2),
)


def scaffolded(name: str, folder: Path) -> dict[str, Any]:
    """The attributes that ``dg scaffold defs`` writes."""
    scaffolder = get_scaffolder(getattr(components, name))
    assert isinstance(scaffolder, dg.Scaffolder)
    typename = f"spiral_assets.components.{name}"
    scaffolder.scaffold(dg.ScaffoldRequest(typename, folder, "yaml", ROOT, None, append=False))
    (folder / "defs.yaml").replace(folder / "example.yaml")
    found: dict[str, Any] = yaml.safe_load((folder / "example.yaml").read_text())["attributes"]
    return found


@settings(max_examples=60)
@given(data=st.data())
def test_what_the_schema_refuses_is_refused_with_file_and_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A field that there is not, or a value that its field cannot have."""
    folder = tmp_path_factory.mktemp("drawn")
    name = data.draw(st.sampled_from(components.__all__), label="component")
    field = data.draw(st.sampled_from(sorted(SCHEMAS[name]["properties"])), label="field")
    attributes = scaffolded(name, folder)
    if data.draw(st.booleans(), label="misspelt"):
        attributes[field[:-1] + "_"] = attributes.pop(field, 1)
        wrong = field[:-1] + "_"
    else:
        attributes[field], wrong = data.draw(VALUES, label="value"), field
    valid = jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid(attributes)
    text = yaml.safe_dump({"type": f"spiral_assets.components.{name}", "attributes": attributes}, sort_keys=False)
    file = folder / "shop.yaml"
    file.write_text(text)
    fields = [at for at, each in enumerate(text.splitlines(), 1) if re.match(r"  [a-z]", each)]
    (first,) = [at for at in fields if text.splitlines()[at - 1].startswith(f"  {wrong}:")]
    last = next((at for at in fields if at > first), len(text.splitlines()) + 1)

    if not valid:
        with pytest.raises(dg.DagsterInvalidDefinitionError) as refused:
            definitions_from(file)
        found = {int(each) for each in re.findall(rf"{re.escape(str(file))}:(\d+)", str(refused.value))}
        assert found & set(range(first, last)), refused.value


def test_the_fields_of_sources_are_those_of_the_library() -> None:
    import dataclasses

    assert {kind: {f.name for f in dataclasses.fields(each)} for kind, each in serialize.library_kinds().items()} == {
        kind: set(fields) for kind, fields in source_fields.FIELDS.items()
    }


PROJECT = """
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "shop"
code_location_target_module = "spiral_assets.project"
"""


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

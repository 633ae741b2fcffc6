"""Wrong YAML is refused when it is read, with file and line: a hundred by hand, and as many as the schema can give."""

import re
import sys
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
from tests.fixtures.wrong_yaml import WRONG, written

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_with_file_and_line(name: str, folder: Path) -> None:
    said, message = WRONG[name]
    file, line = written(folder, said)

    with pytest.raises(dg.DagsterInvalidDefinitionError) as refused:
        definitions_from(file)

    said = str(refused.value)
    assert message in said
    assert name == "brackets that stay open" or line is None or re.search(rf"{file}:{line}\b", said), said
    assert not re.search(r"Traceback|pydantic|object at 0x|Error\b|input_type", said), said
    assert {"p", "other_plans"}.isdisjoint(sys.modules)


def test_a_hundred_are_wrong_by_hand() -> None:
    assert len(WRONG) >= 100


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


def test_the_values_of_sources_are_those_of_the_library() -> None:
    import dataclasses

    kinds = {"true or false": bool, "a whole number": int, "a text": str}
    for name, library in serialize.library_kinds().items():
        for field in dataclasses.fields(library):
            said = source_fields.VALUES.get(field.name, ())
            words = str(field.type)
            if "Any" not in words and said:
                assert {kind for each, kind in kinds.items() if each in said} == {
                    kind for kind in kinds.values() if re.search(rf"\b{kind.__name__}\b(?!, )(?!\])", words)
                }, f"{name}.{field.name}: {words}"


def test_the_columns_of_sources_are_those_of_the_library(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    Image.new("RGB", (8, 8)).save(make(folder / "classes" / "a") / "a.jpg")
    make(folder / "texts").joinpath("a.txt").write_text("a")
    np.arange(10, dtype=np.uint16).tofile(folder / "tokens.bin")
    (folder / "rows.csv").write_text("1,2\n")
    catalog = spiral.connect(str(folder / "catalog"))
    sources: list[dict[str, Any]] = [
        {"kind": "image_folder", "path": "classes"},
        {"kind": "image_folder", "path": "classes", "origin": True},
        {"kind": "text_files", "path": "texts"},
        {"kind": "tokens", "path": "tokens.bin", "dtype": "uint16", "length": 5},
        {"kind": "csv", "path": "rows.csv", "column_names": ["id", "b"]},
    ]
    for at, source in enumerate(sources):
        catalog.register(f"r{at}", spiral.sources.declared_source(source), identity=spiral.RowIdentity())
        found = source_fields.known_columns(source)
        assert found is not None
        assert set(catalog.table(f"r{at}").columns) - {"__row_id__"} == set(found) - {"__row_id__"}, source
    assert source_fields.known_columns({"kind": "parquet", "path": "x"}) is None


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_number_may_be_a_template(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKERS", "3")
    said = "PlanCache\n name: c\n plan: 'p:many'\n workers: \"{{ env.WORKERS | int }}\""
    file, _ = written(folder, said)

    assert len(list(definitions_from(file).assets or ())) == 1

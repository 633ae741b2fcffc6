"""Components: what YAML gives, that `dg` finds them, and that loading a thousand of them is light."""

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from dagster.components.core.package_entry import discover_entry_point_package_objects
from dagster.components.scaffold.scaffold import get_scaffolder

import spiral_stream as spiral
from spiral_assets import components
from spiral_assets.resources import standard_resources
from spiral_assets.yaml_definitions import definitions_from
from spiral_stream.report import ColumnSkew

# Dagster resolves YAML by a deprecated function of pydantic, and warns of betas of its own.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
]
ROOT = Path(__file__).parents[3]
EIGHT_LINES = """
type: spiral_assets.components.Relation
attributes:
  name: shop.photos
  source: {kind: parquet, path: $SHOP/photos}
  identity: sample_id
  labels: [label]
  limits: {skew: 0.9}
  description: Product photos.
"""


def loaded(text: str) -> dg.Definitions:
    """Definitions of some YAML documents, as `dg` resolves them."""
    made = []
    for document in yaml.safe_load_all(text):
        kind = getattr(components, document["type"].rpartition(".")[2])
        made.append(dg.build_defs_for_component(kind.resolve_from_dict(document["attributes"])))
    return dg.Definitions.merge(*made, dg.Definitions(resources=standard_resources(), executor=dg.in_process_executor))


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_statistics has them; they take most of the time of statistics."""
    monkeypatch.setattr(ColumnSkew, "pictures", lambda *_: [])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Parquet files; the environment names it."""
    monkeypatch.setenv("SHOP", str(tmp_path))
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "catalog"))
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "caches"))
    monkeypatch.setenv("SPIRAL_DATA_ROOT", str(tmp_path / "data"))
    (tmp_path / "photos").mkdir()
    for part in range(2):
        rows = {"sample_id": [f"{part}-{row}" for row in range(50)], "label": [row % 5 for row in range(50)]}
        pq.write_table(pa.table(rows), tmp_path / "photos" / f"part-{part}.parquet")
    return tmp_path


def registered(shop: Path) -> spiral.Catalog:
    """The catalog, with what `EIGHT_LINES` registers."""
    catalog = spiral.connect(str(shop / "catalog"))
    catalog.register("shop.photos", spiral.Parquet(str(shop / "photos")), identity="sample_id")
    return catalog


def run(definitions: dg.Definitions, instance: dg.DagsterInstance, *keys: str) -> dg.ExecuteInProcessResult:
    selection = dg.AssetSelection.assets(*(dg.AssetKey(key.split("/")) for key in keys)) if keys else "*"
    job = dg.define_asset_job("all_of_it", selection)
    config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    whole = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
    return whole.resolve_job_def("all_of_it").execute_in_process(
        instance=instance, run_config=config, raise_on_error=False
    )


def test_eight_lines_register_check_and_measure_a_relation(shop: Path, instance: dg.DagsterInstance) -> None:
    result = run(loaded(EIGHT_LINES), instance)

    assert len(EIGHT_LINES.strip().splitlines()) == 8
    assert result.success
    assert spiral.connect(str(shop / "catalog")).entry("shop.photos").manifest().total == 100
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert checks == {"identity_is_unique": True, "labels_are_mixed": True}
    node = loaded(EIGHT_LINES).resolve_asset_graph().get(dg.AssetKey(["catalog", "shop", "photos"]))
    assert node.metadata["dagster/uri"] == "$SHOP/photos"
    assert node.kinds == {"parquet"}


CHECKED = """
type: spiral_assets.components.Relation
attributes:
  name: shop.photos
  source: {kind: parquet, path: $SHOP/photos}
  semantic: {image_ref: image/jpeg-ref}
  columns: {sample_id: string}
  labels: [label]
  origins: [camera]
  limits: {references: 4, row_change: 0.5, schema_change: true, missing: 0.1, refused: 0.01}
---
type: spiral_assets.components.PlanCache
attributes: {name: photos, plan: "spiral_assets.plans.images:cache_plan"}
---
type: spiral_assets.components.TrainingStream
attributes:
  name: photos
  streams: [{name: train, plan: "spiral_assets.plans.images:training"}]
---
type: spiral_assets.components.TrainingJob
attributes: {name: photos, command: [python, train.py], processes: 2, checks: {beats_chance: Better than chance.}}
"""


def test_components_have_every_check_there_is_and_warn_or_block() -> None:
    graph = loaded(CHECKED).resolve_asset_graph()
    found = {key.name: graph.get_check_spec(key).blocking for key in graph.asset_check_keys}

    assert {name for name, blocks in found.items() if blocks} == {
        "cache_is_complete",
        "identity_is_unique",
        "references_resolve",
        "schema_is_as_declared",
    }
    assert {name for name, blocks in found.items() if not blocks} == {
        "beats_chance",
        "column_schema_change",
        "explains_without_a_warning",
        "few_rows_were_refused",
        "few_values_are_missing",
        "labels_are_mixed",
        "no_camera_has_most",
        "row_count_is_near_the_last",
    }


@pytest.mark.parametrize("executor", ["threads", "processes", "ray"])
def test_a_cache_is_built_where_its_yaml_says(
    executor: str, shop: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiral_assets.assets import cache

    asked = {}

    def build(*_: object, **options: object) -> dg.MaterializeResult[None]:
        asked.update(options)
        return dg.MaterializeResult()

    monkeypatch.setattr(cache, "build", build)
    catalog = registered(shop)
    plan = catalog.table("shop.photos").sample(order=spiral.Sequential())
    catalog.save_stream("saved", plan.collate(batch_size=10, fields={"label": spiral.Stack("label")}).to_numpy())
    text = f"type: x.PlanCache\nattributes: {{name: p, plan: {{stream: saved}}, executor: {executor}, workers: 3}}"

    run(loaded(text), instance, "caches/p")

    assert asked == {"executor": executor, "workers": 3}
    with pytest.raises(Exception, match="celery"):
        loaded(text.replace(executor, "celery"))


def test_options_of_a_folder_are_fields_of_a_relation(shop: Path) -> None:
    component = components.RelationCatalog.resolve_from_dict(
        {"folder": "$SHOP", "options": {"limits": {"row_change": 0.2}, "statistics": False}}
    )

    made = component.definitions({"photos": {"kind": "parquet", "path": "$SHOP/photos"}})
    graph = dg.Definitions.merge(made, dg.Definitions(resources=standard_resources())).resolve_asset_graph()

    assert {key.name for key in graph.asset_check_keys} == {"identity_is_unique", "row_count_is_near_the_last"}
    wrong = components.RelationCatalog.resolve_from_dict({"folder": "$SHOP", "options": {"limts": {}}})
    with pytest.raises(Exception, match="limts"):
        wrong.definitions({"photos": {"kind": "parquet", "path": "$SHOP/photos"}})


def test_a_variable_that_is_not_set_fails_the_run_and_is_named(
    shop: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = loaded(EIGHT_LINES)
    monkeypatch.delenv("SHOP")

    result = run(definitions, instance)

    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "$SHOP is not set" in str(failed.event_specific_data)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("type: x.Relation\nattributes: {name: a, source: {path: /x}}", "has no kind"),
        ("type: x.PlanCache\nattributes: {name: a, plan: {}}", "give either function"),
        ("type: x.PlanCache\nattributes: {name: a, plan: shop}", "is not of the form module:function"),
        ("type: x.PlanCache\nattributes: {name: a, plan: 'no_such_module:f'}", "module 'no_such_module' is not found"),
        ("type: x.PlanCache\nattributes: {name: a, plan: 'spiral_assets.plans.text:f'}", "does not define 'f'"),
        ("type: x.Relation\nattributes: {name: a, source: {function: 'a:b', path: x}}", "is no part of a function"),
        ("type: x.VideoIndex\nattributes: {name: a, relation: b, column: c, index: d, groups: 100}", "Give 1 to 99"),
    ],
)
def test_a_wrong_definition_says_what_to_write(document: str, said: str) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
        loaded(document)


def test_a_wrong_source_says_which_kinds_and_fields_there_are() -> None:
    with pytest.raises(spiral.errors.SourceError, match=r"knows .*image_folder"):
        spiral.sources.declared_source({"kind": "parkay", "path": "x"})
    with pytest.raises(spiral.errors.SourceError, match="'pth' is none of its fields; it has path"):
        spiral.sources.declared_source({"kind": "parquet", "pth": "x"})
    with pytest.raises(
        spiral.errors.SourceError,
        match=r"source parquet: path is missing; it has path, .* Say where the rows lie, path: ",
    ):
        spiral.sources.declared_source({"kind": "parquet"})
    assert spiral.sources.declared_source({"kind": "lance", "path": "/x"}) == spiral.Lance("/x")
    assert spiral.sources.declared_source({"kind": "parquet", "path": "/x", "base": "/y"}) == spiral.Parquet(
        "/x", base="/y"
    )


def test_a_saved_stream_is_a_plan(shop: Path, instance: dg.DagsterInstance) -> None:
    catalog = registered(shop)
    plan = catalog.table("shop.photos").sample(order=spiral.Sequential())
    stream = plan.collate(batch_size=10, fields={"label": spiral.Stack("label")}).to_numpy()
    catalog.save_stream("saved", stream)
    cache = loaded("type: x.PlanCache\nattributes: {name: photos, plan: {stream: saved}}")

    result = run(cache, instance, "caches/photos")

    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "the plan has nothing to cache" in str(failed.event_specific_data)


def test_everything_in_a_folder_becomes_relations_and_one_sensor(shop: Path, instance: dg.DagsterInstance) -> None:
    import lance

    (shop / "classes" / "owl").mkdir(parents=True)
    (shop / "classes" / "owl" / "1.jpg").write_bytes(b"jpeg")
    lance.write_dataset(pa.table({"sample_id": ["a"]}), str(shop / "more.lance"))
    pq.write_table(pa.table({"sample_id": ["b"]}), shop / "one.parquet")
    component = components.RelationCatalog.resolve_from_dict(
        {"folder": "$SHOP", "prefix": "shop", "watch_s": 60, "options": {"statistics": False}, "exclude": ["shop.o*"]}
    )
    state = shop / "state" / "found.json"
    component.write_state_to_path(state)
    assert json.loads(state.read_text()) == {
        "shop.classes": {"kind": "image_folder", "path": "$SHOP/classes"},
        "shop.more": {"kind": "lance", "path": "$SHOP/more.lance"},
        "shop.one": {"kind": "parquet", "path": "$SHOP/one.parquet"},
        "shop.photos": {"kind": "parquet", "path": "$SHOP/photos"},
    }

    found = component.definitions(json.loads(state.read_text()))

    resources = dg.Definitions(resources=standard_resources(), executor=dg.in_process_executor)
    found = dg.Definitions.merge(found, resources)
    keys = {key.to_user_string() for key in found.resolve_asset_graph().get_all_asset_keys()}
    assert keys == {"catalog/shop/classes", "catalog/shop/more", "catalog/shop/photos"}
    assert run(found, instance, "catalog/shop/more").success
    assert spiral.connect(str(shop / "catalog")).tables() == ["shop.more"]
    assert [sensor.name for sensor in found.get_repository_def().sensor_defs] == ["watch_shop"]


def test_what_the_catalog_has_is_shown_and_takes_its_present_data(shop: Path, instance: dg.DagsterInstance) -> None:
    catalog = spiral.connect(str(shop / "catalog"))
    catalog.register("by.hand", spiral.Parquet(str(shop / "photos")))
    component = components.RelationCatalog.resolve_from_dict({})
    state = shop / "state.json"
    component.write_state_to_path(state)
    found = component.definitions(json.loads(state.read_text()))
    resources = dg.Definitions(resources=standard_resources(), executor=dg.in_process_executor)
    pq.write_table(pa.table({"sample_id": ["new"], "label": [1]}), shop / "photos" / "part-9.parquet")

    result = run(dg.Definitions.merge(found, resources), instance, "catalog/by/hand")

    assert result.success
    assert catalog.entry("by.hand").manifest().total == 101
    graph = dg.Definitions.merge(found, resources).resolve_asset_graph()
    node = graph.get(dg.AssetKey(["catalog", "by", "hand"]))
    assert node.metadata["dagster/uri"] == str(shop / "photos")


def test_a_relation_that_is_declared_is_not_shown_twice(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster.components.testing import create_defs_folder_sandbox

    catalog = spiral.connect(str(shop / "catalog"))
    for name in ("shop.photos", "by.hand"):
        catalog.register(name, spiral.Parquet(str(shop / "photos")))
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")  # in which the state is refreshed when definitions are loaded
    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path / "shop").mkdir(parents=True)
        documents = EIGHT_LINES + "---\ntype: spiral_assets.components.RelationCatalog\nattributes: {}\n"
        (sandbox.defs_folder_path / "shop" / "defs.yaml").write_text(documents)
        with sandbox.build_all_defs() as made:
            found = dg.Definitions.merge(made, dg.Definitions(resources=standard_resources()))
            keys = {key.to_user_string() for key in found.resolve_asset_graph().get_all_asset_keys()}

    assert keys == {"catalog/shop/photos", "stats/shop/photos/shard_stats", "catalog/by/hand"}


def test_what_the_catalog_has_is_kept_in_the_home_of_dagster(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster.components.testing import create_defs_folder_sandbox

    spiral.connect(str(shop / "catalog")).register("by.hand", spiral.Parquet(str(shop / "photos")))
    home = shop / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path / "shop").mkdir(parents=True)
        (sandbox.defs_folder_path / "shop" / "defs.yaml").write_text("type: spiral_assets.components.RelationCatalog\n")

        def keys() -> set[str]:
            with sandbox.build_all_defs() as made:
                found = dg.Definitions.merge(made, dg.Definitions(resources=standard_resources()))
                return {key.to_user_string() for key in found.resolve_asset_graph().get_all_asset_keys()}

        assert keys() == set()  # nobody looked yet
        assert not home.exists()
        monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
        assert keys() == {"catalog/by/hand"}
        monkeypatch.delenv("DAGSTER_IS_DEV_CLI")
        assert keys() == {"catalog/by/hand"}  # as a run loads them: from the last look
        assert not list(sandbox.project_root.rglob(".local_defs_state"))
        assert [path.suffix for path in (home / "defs_state").iterdir()] == [".json"]


def test_what_ci_has_found_is_in_the_image_until_somebody_looks_again(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI has no home of Dagster; where the image runs, there is one, which is empty at first."""
    from dagster.components.testing import create_defs_folder_sandbox

    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path / "shop").mkdir(parents=True)
        text = "type: spiral_assets.components.RelationCatalog\nattributes: {folder: $SHOP}\n"
        (sandbox.defs_folder_path / "shop" / "defs.yaml").write_text(text)

        def keys() -> set[str]:
            with sandbox.build_all_defs() as made:
                found = dg.Definitions.merge(made, dg.Definitions(resources=standard_resources()))
                keys = {key.to_user_string() for key in found.resolve_asset_graph().get_all_asset_keys()}
                return {key for key in keys if key.startswith("catalog/")}

        def looked() -> None:
            with sandbox.load_component_and_build_defs(sandbox.defs_folder_path / "shop") as (component, _):
                assert isinstance(component, components.RelationCatalog)
                asyncio.run(component.refresh_state(sandbox.project_root))

        with pytest.warns(spiral.SpiralWarning, match="Run: dg utils refresh-defs-state"):
            looked()
        monkeypatch.setenv("DAGSTER_HOME", str(shop / "home"))
        assert keys() == {"catalog/photos"}
        pq.write_table(pa.table({"sample_id": ["b"]}), shop / "one.parquet")
        assert keys() == {"catalog/photos"}
        looked()
        assert keys() == {"catalog/photos", "catalog/one"}
        assert (shop / "home" / "defs_state").is_dir()


def test_a_folder_that_nobody_looked_into_is_told(shop: Path) -> None:
    from dagster.components.testing import create_defs_folder_sandbox

    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path / "shop").mkdir(parents=True)
        text = "type: spiral_assets.components.RelationCatalog\nattributes: {folder: $SHOP}\n"
        (sandbox.defs_folder_path / "shop" / "defs.yaml").write_text(text)
        with (
            pytest.warns(spiral.SpiralWarning, match="Run: dg utils refresh-defs-state"),
            sandbox.build_all_defs() as made,
        ):
            assert not made.assets


@pytest.mark.parametrize("is_dev", [False, True])
@pytest.mark.parametrize("has_home", [False, True])
def test_a_file_outside_a_project_has_what_its_folder_has(
    is_dev: bool, has_home: bool, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command refreshes its state: the first load looks, and a development server looks again."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    if has_home:
        monkeypatch.setenv("DAGSTER_HOME", str(shop / "home"))
    file = shop / "project" / "all.yaml"
    file.parent.mkdir()
    file.write_text(
        "type: spiral_assets.components.RelationCatalog\nattributes: {folder: $SHOP, options: {statistics: false}}\n"
        "---\ntype: spiral_assets.components.Catalog\n"
    )

    def keys() -> set[str]:
        found = definitions_from(file).resolve_asset_graph().get_all_asset_keys()
        return {key.to_user_string() for key in found}

    if is_dev:
        monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    assert keys() == {"catalog/photos"}
    pq.write_table(pa.table({"sample_id": ["b"]}), shop / "one.parquet")
    assert keys() == ({"catalog/photos", "catalog/one"} if is_dev else {"catalog/photos"})
    state = shop / "home" / "defs_state" if has_home else file.parent / ".local_defs_state"
    assert [each.suffix for each in state.iterdir() if each.name != ".gitignore"] == [".json"]


def test_a_file_outside_a_project_has_what_the_catalog_has(shop: Path) -> None:
    for name in ("shop.photos", "by.hand"):
        spiral.connect(str(shop / "catalog")).register(name, spiral.Parquet(str(shop / "photos")))
    file = shop / "all.yaml"
    file.write_text(
        EIGHT_LINES
        + "---\ntype: spiral_assets.components.RelationCatalog\n---\ntype: spiral_assets.components.Catalog\n"
    )

    keys = {key.to_user_string() for key in definitions_from(file).resolve_asset_graph().get_all_asset_keys()}

    assert keys == {"catalog/shop/photos", "stats/shop/photos/shard_stats", "catalog/by/hand"}


COUNTED = """
import resource, sys
import dagster as dg
import dagster.components
import yaml
before = resource.getrusage(resource.RUSAGE_SELF)
from spiral_assets import components
context = dg.ComponentTree.for_test().load_context
attributes = {"source": {"kind": "parquet", "path": "$X"}, "labels": ["label"], "semantic": {"a": "image/jpeg-ref"}}
made = [components.Relation(name=f"shop.r{n}", **attributes).build_defs(context) for n in range(300)]
from spiral_assets.resources import standard_resources
from spiral_assets.yaml_definitions import definitions_from
whole = dg.Definitions.merge(dg.Definitions(resources=standard_resources()), *made)
graph = whole.get_repository_def().asset_graph
after = resource.getrusage(resource.RUSAGE_SELF)
heavy = {"torch", "lance", "av", "pyarrow", "numpy", "duckdb", "spiral_stream", "PIL"}
print(len(graph.get_all_asset_keys()), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.slow  # test_definitions shows by day that loading imports nothing heavy
def test_hundreds_of_relations_load_light(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNTED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    counted, heavy = done.stdout.strip().splitlines()
    assert int(counted.split()[0]) == 600
    assert float(counted.split()[1]) < 6, counted  # CPU s; 1 on an idle core
    assert heavy == "[]"


def test_dg_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment whose metadata says what pyproject.toml does."""
    metadata = tmp_path / "spiral_stream-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spiral-stream\nVersion: 9.9\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = "dagster_dg_cli.registry_modules"
    entries = "\n".join(f"{name} = {module}" for name, module in project["entry-points"][group].items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entries}\n")
    monkeypatch.syspath_prepend(tmp_path)

    listed = [key.to_typename() for key in discover_entry_point_package_objects()]

    found = {name for name in listed if name.startswith("spiral_assets.")}
    assert found == {f"spiral_assets.components.{name}" for name in components.__all__}


@pytest.mark.parametrize("name", components.__all__)
def test_what_is_scaffolded_can_be_loaded(name: str, tmp_path: Path) -> None:
    kind = getattr(components, name)
    typename = f"spiral_assets.components.{name}"
    scaffolder = get_scaffolder(kind)
    assert isinstance(scaffolder, dg.Scaffolder)

    scaffolder.scaffold(dg.ScaffoldRequest(typename, tmp_path, "yaml", ROOT, None, append=False))

    written = yaml.safe_load((tmp_path / "defs.yaml").read_text())
    assert written["type"] == typename
    assert written["attributes"]
    assert isinstance(kind.resolve_from_dict(written["attributes"]), kind)
    if name not in ("Catalog", "RelationCatalog"):  # resources, and definitions that are those of a state
        loaded(yaml.safe_dump(written)).get_repository_def()

"""What a component lets its users change: translation, steps, options of single relations, subclasses, and which catalog."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import spiral_stream as spiral
from spiral_assets import components
from spiral_assets.assets import AssetProps
from spiral_assets.components import PlanCache, Relation, RelationCatalog
from spiral_assets.resources import CatalogResource, standard_resources
from spiral_assets.yaml_definitions import definitions_from

pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster resolves YAML by it
RELATION = """
type: spiral_assets.components.Relation
attributes:
  name: shop.photos
  source: {kind: parquet, path: $SHOP/photos}
  labels: [label]
  watch_s: 60
"""
PLAN = '"spiral_assets.plans.standard:labels_of"'
CATALOG = "\ntype: spiral_assets.components.Catalog\n"
KEY = dg.AssetKey(["catalog", "shop", "photos"])
STATS = dg.AssetKey(["stats", "shop", "photos", "shard_stats"])


class Marked(Relation):
    """A relation whose subclass says who pays."""

    def get_asset_spec(self, props: AssetProps) -> dg.AssetSpec:
        return super().get_asset_spec(props).merge_attributes(tags={"paid_by": str(props.about["namespace"])})

    def execute(
        self, context: dg.AssetExecutionContext, catalog: CatalogResource, props: AssetProps
    ) -> Iterator[dg.MaterializeResult[None]]:
        context.add_asset_metadata({"checked_by": "marked"})
        yield from super().execute(context, catalog, props)


class MarkedCatalog(RelationCatalog):
    """The same of all relations in a folder."""

    def get_asset_spec(self, props: AssetProps) -> dg.AssetSpec:
        return super().get_asset_spec(props).merge_attributes(tags={"paid_by": str(props.about["namespace"])})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOP", str(tmp_path))
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "catalog"))
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "caches"))
    monkeypatch.setenv("SPIRAL_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for name in ("photos", "texts", "old"):
        (tmp_path / name).mkdir()
        rows = {"sample_id": [f"{name}-{row}" for row in range(20)], "label": [row % 5 for row in range(20)]}
        pq.write_table(pa.table(rows), tmp_path / name / "part-0.parquet")
    return tmp_path


def loaded(folder: Path, *documents: str) -> dg.Definitions:
    file = folder / "project" / "shop.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text("---".join(documents))
    return definitions_from(file)


def specs(definitions: dg.Definitions) -> dict[dg.AssetKey, dg.AssetSpec]:
    return {spec.key: spec for spec in definitions.resolve_all_asset_specs()}


def ran(definitions: dg.Definitions, instance: dg.DagsterInstance, *keys: str) -> dg.ExecuteInProcessResult:
    job = dg.define_asset_job("part", dg.AssetSelection.assets(*(dg.AssetKey(key.split("/")) for key in keys)))
    config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    whole = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job], executor=dg.in_process_executor))
    return whole.resolve_job_def("part").execute_in_process(instance=instance, run_config=config)


TRANSLATED = """  translation:
    key: "lake/{{ relation.namespace }}/{{ relation.name.split('.')[-1] }}"
    group_name: "{{ relation.namespace }}"
    tags: {labels: "{{ relation.labels | join('-') }}", tier: gold}
    kinds: [parquet, s3]
    owners: ["team:{{ relation.namespace }}"]
    description: "{{ spec.description }} Of {{ relation.kind }}."
    metadata: {path: "{{ relation.path }}"}
    deps: [raw/photos]
    automation_condition: "{{ dg.AutomationCondition.eager() }}"
"""


def test_a_translation_changes_everything_of_a_relation_and_its_statistics_go_with_it(
    shop: Path, instance: dg.DagsterInstance
) -> None:
    definitions = loaded(shop, RELATION + TRANSLATED, CATALOG)
    found = specs(definitions)
    relation = found[dg.AssetKey(["lake", "shop", "photos"])]
    statistics = found[dg.AssetKey([*relation.key.path, "shard_stats"])]

    assert relation.group_name == statistics.group_name == "shop"
    assert (relation.tags["labels"], relation.tags["tier"]) == ("label", "gold")
    assert statistics.tags["tier"] == "gold"
    assert (relation.kinds, statistics.kinds) == ({"parquet", "s3"}, {"arrow"})
    assert relation.owners == statistics.owners == ["team:shop"]
    assert relation.description == "The relation shop.photos, as its source is now. Of parquet."
    assert relation.metadata["path"] == "$SHOP/photos"
    assert [dep.asset_key.path for dep in relation.deps] == [["raw", "photos"]]
    assert [dep.asset_key for dep in statistics.deps] == [relation.key]
    assert relation.automation_condition == dg.AutomationCondition.eager()
    assert ran(definitions, instance, "lake/shop/photos", "lake/shop/photos/shard_stats").success
    (sensor,) = definitions.sensors or ()
    resources = standard_resources(str(shop / "catalog"))
    context = dg.build_sensor_context(instance, definitions=definitions, resources=resources)
    assert "no source changed" in str(
        sensor.evaluate_tick(context).skip_message
    )  # it knows the relation by its new key


def test_the_sensor_and_the_jobs_find_assets_in_other_groups() -> None:
    text = """
type: spiral_assets.components.PlanCache
attributes:
  name: photos
  plan: spiral_assets.plans.images:cache_plan
  domain: shop
  translation: {group_name: mine}
---
type: spiral_assets.components.TrainingJob
attributes: {name: cnn, domain: shop, command: [python, train.py], translation: {group_name: mine}}
---
type: spiral_assets.components.Upkeep
---
type: spiral_assets.components.Catalog
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        definitions = loaded(Path(folder), text)
    graph = definitions.resolve_asset_graph()
    (sensor,) = [each for each in definitions.sensors or () if each.name == "rebuild_what_changed"]
    prepared = definitions.resolve_job_def("prepare_shop").asset_layer.executable_asset_keys

    assert sensor.asset_selection.resolve(graph) == {dg.AssetKey(["caches", "photos"])}
    assert prepared == {dg.AssetKey(["caches", "photos"])}


def test_a_template_that_names_what_there_is_not_is_refused_with_its_line(shop: Path) -> None:
    with pytest.raises(
        dg.DagsterInvalidDefinitionError, match=r"shop\.yaml:\d+[\s\S]*there is no 'nmae'; there is name"
    ):
        loaded(shop, RELATION + '  translation: {group_name: "x_{{ relation.nmae }}"}\n')


@pytest.mark.parametrize(
    ("component", "variable"),
    [
        ("Relation\n  name: a.b\n  source: {kind: csv, path: x}", "relation"),
        ("PlanCache\n  name: a\n  plan: spiral_assets.plans.images:cache_plan", "cache"),
        ("TrainingStream\n  name: a\n  streams: [{name: b, plan: spiral_assets.plans.images:training}]", "stream"),
        ("TrainingJob\n  name: a\n  command: [python, x]", "model"),
        ("Tokenizer\n  name: a\n  source: x", "tokenizer"),
        ("Measure\n  key: a\n  function: spiral_assets.plans.text_facts:token_lengths", "measure"),
        ("VideoIndex\n  name: a\n  relation: b\n  column: c\n  index: d", "index"),
        ("EmbeddingIndex\n  relation: a", "vectors"),
    ],
)
def test_each_component_has_a_translation_a_step_and_a_catalog(component: str, variable: str, tmp_path: Path) -> None:
    kind, _, attributes = component.partition("\n")
    text = f"""
type: spiral_assets.components.{kind}
attributes:
{attributes}
  translation: {{tags: {{of: "{{{{ {variable}.name }}}}"}}, key_prefix: mine}}
  op: {{name: my_step, tags: {{cpu: "4"}}, pool: heavy, retry_policy: {{max_retries: 3, delay: 2, backoff: exponential}}}}
  catalog: lake
---
type: spiral_assets.components.Catalog
attributes: {{name: lake, path: lake, root: .}}
"""
    definitions = loaded(tmp_path, text)
    first, *others = [each for each in definitions.assets or () if isinstance(each, dg.AssetsDefinition)]

    for each in (first, *others):
        (spec,) = each.specs
        assert spec.key.path[0] == "mine"
        assert spec.tags["of"] in ("a", "a.b")
        assert each.op.pool == "heavy"
        assert each.op.retry_policy == dg.RetryPolicy(3, 2, dg.Backoff.EXPONENTIAL)
        assert each.op.tags["cpu"] == "4"
        assert "lake" in each.required_resource_keys
        assert "catalog" not in each.required_resource_keys
    assert first.op.name == "my_step"
    assert len({each.op.name for each in (first, *others)}) == 1 + len(others)
    definitions.get_repository_def()


def test_a_subclass_changes_assets_and_what_their_steps_do(shop: Path, instance: dg.DagsterInstance) -> None:
    definitions = loaded(
        shop,
        RELATION.replace("spiral_assets.components.Relation", f"{__name__}.Marked")
        + '  translation: {tags: {seen: "{{ spec.tags.paid_by }}"}}\n',
        CATALOG,
    )
    found = specs(definitions)

    assert found[KEY].tags["paid_by"] == found[STATS].tags["paid_by"] == "shop"
    assert found[KEY].tags["seen"] == "shop"  # translation comes after get_asset_spec
    result = ran(definitions, instance, "catalog/shop/photos")
    (made,) = result.asset_materializations_for_node("catalog__shop__photos")
    assert made.metadata["checked_by"].value == "marked"
    assert made.metadata["dagster/row_count"].value == 20


MANY = """
type: spiral_assets.components.RelationCatalog
attributes:
  folder: $SHOP
  prefix: shop
  select: ["shop.*"]
  exclude: ["shop.ol*"]
  options: {statistics: false}
  relations:
    shop.photos: {labels: [label], statistics: true, translation: {tags: {mine: "{{ relation.name }}"}}}
    "shop.t*": {description: Texts., limits: {row_change: 0.2}}
  translation: {tags: {of: "{{ relation.namespace }}"}}
"""


def test_relations_of_a_folder_have_options_of_their_own(shop: Path) -> None:
    definitions = loaded(shop, MANY, CATALOG)
    found = specs(definitions)

    assert {key.to_user_string() for key in found} == {
        "catalog/shop/photos",
        STATS.to_user_string(),
        "catalog/shop/texts",
    }
    assert all(spec.tags["of"] == "shop" for spec in found.values())
    assert found[KEY].tags["mine"] == "shop.photos"
    assert found[dg.AssetKey(["catalog", "shop", "texts"])].description == "Texts."
    checks = {(key.asset_key.path[-1], key.name) for key in definitions.resolve_asset_graph().asset_check_keys}
    assert ("texts", "row_count_is_near_the_last") in checks
    assert ("shard_stats", "labels_are_mixed") in checks


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("shop.photos: {labels", "shop.photso: {labels", r"did you mean 'shop.photos'"),
        ("labels: [label], ", "labls: [label], ", r"shop\.yaml:10: relations.shop.photos.labls"),
        ("statistics: true", "source: {kind: csv}", r"shop\.yaml:10: .*the folder says it. Leave it out"),
        ("select:", "op: {name: one}\n  select:", r"many relations cannot share the name of a step"),
    ],
)
def test_wrong_options_of_relations_are_refused(before: str, after: str, said: str, shop: Path) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
        loaded(shop, MANY.replace(before, after), CATALOG)


def test_relations_of_a_catalog_may_be_measured_and_checked(shop: Path, instance: dg.DagsterInstance) -> None:
    for name in ("by.hand", "by.other"):
        spiral.connect(str(shop / "catalog")).register(name, spiral.Parquet(str(shop / "photos")), identity="sample_id")
    text = """
type: spiral_assets.components.RelationCatalog
attributes:
  relations: {by.hand: {labels: [label], description: Ours.}}
"""
    definitions = loaded(shop, text, CATALOG)
    found = specs(definitions)

    assert {key.to_user_string() for key in found} == {
        "catalog/by/hand",
        "catalog/by/other",
        "stats/by/hand/shard_stats",
    }
    assert found[dg.AssetKey(["catalog", "by", "hand"])].description == "Ours."
    assert ran(definitions, instance, "catalog/by/hand", "stats/by/hand/shard_stats").success
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"the relation is registered already\. Leave it out"):
        loaded(shop, text.replace("labels: [label]", "identity: label"), CATALOG)


def test_a_subclass_of_a_catalog_of_relations_changes_all_of_them(shop: Path) -> None:
    text = MANY.replace("spiral_assets.components.RelationCatalog", f"{__name__}.MarkedCatalog")

    assert {spec.tags["paid_by"] for spec in specs(loaded(shop, text, CATALOG)).values()} == {"shop"}


TWO = """
type: spiral_assets.components.Catalog
attributes: {path: $SHOP/one, root: $SHOP}
---
type: spiral_assets.components.Catalog
attributes: {name: lake, path: $SHOP/two, root: $SHOP}
---
type: spiral_assets.components.Upkeep
---
type: spiral_assets.components.Upkeep
attributes: {catalog: lake}
---
type: spiral_assets.components.Relation
attributes: {name: a, source: {kind: parquet, path: $SHOP/photos}, labels: [label], watch_s: 60, limits: {missing: 0.1}}
---
type: spiral_assets.components.Relation
attributes:
  {name: b, source: {kind: parquet, path: $SHOP/texts}, labels: [label], catalog: lake, watch_s: 60, limits: {missing: 0.1}}
---
type: spiral_assets.components.RelationCatalog
attributes: {catalog: lake}
"""


def test_two_catalogs_live_in_one_location(shop: Path, instance: dg.DagsterInstance) -> None:
    spiral.connect(str(shop / "two")).register("there", spiral.Parquet(str(shop / "old")), identity="sample_id")
    definitions = loaded(shop, TWO.replace("$SHOP", str(shop)))
    keys = {key.to_user_string() for key in specs(definitions)}

    assert keys == {"catalog/a", "catalog/b", "stats/a/shard_stats", "stats/b/shard_stats", "catalog/there"}
    assert ran(definitions, instance, *keys).success
    assert spiral.connect(str(shop / "one")).tables() == ["a"]
    assert spiral.connect(str(shop / "two")).tables() == ["b", "there"]
    graph = definitions.resolve_asset_graph()
    sensors = {each.name: each for each in definitions.sensors or ()}
    assert sensors["rebuild_what_changed"].asset_selection.resolve(graph) == {
        dg.AssetKey(["stats", "a", "shard_stats"])
    }
    assert sensors["rebuild_what_changed_lake"].asset_selection.resolve(graph) == {
        dg.AssetKey(["stats", "b", "shard_stats"])
    }
    resources = standard_resources(str(shop / "two"), name="lake")
    context = dg.build_sensor_context(instance, definitions=definitions, resources=resources)
    assert "no source changed" in str(sensors["watch_b"].evaluate_tick(context).skip_message)
    jobs = {each.name for each in definitions.jobs or ()}
    assert jobs == {"remove_dead_caches", "remove_dead_caches_lake"}
    for name in jobs:
        assert definitions.resolve_job_def(name).execute_in_process(instance=instance).success


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            TWO.replace("name: lake, ", ""),
            r"resource 'catalog' is defined twice, here and at .*yaml:2. Give the second Catalog",
        ),
        (TWO.replace("{catalog: lake}", "{}", 1), r"job 'remove_dead_caches' is defined twice, here and at"),
    ],
)
def test_two_catalogs_of_one_name_are_refused(text: str, said: str, shop: Path) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
        loaded(shop, text.replace("$SHOP", str(shop)))


def test_a_catalog_that_there_is_not_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster.components.testing import create_defs_folder_sandbox

    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path / "shop").mkdir(parents=True)
        text = TWO.replace("catalog: lake, watch_s", "catalog: lkae, watch_s")
        (sandbox.defs_folder_path / "shop" / "defs.yaml").write_text(text)
        with pytest.raises(Exception) as refused, sandbox.build_all_defs():  # noqa: PT011  Dagster wraps it
            pass

    assert "there is no Catalog called 'lkae'; there is catalog, lake. Correct it" in str(refused.value.__cause__)


def test_a_component_in_python_is_changed_alike() -> None:
    class Small(PlanCache):
        def get_asset_spec(self, props: AssetProps) -> dg.AssetSpec:
            return super().get_asset_spec(props).replace_attributes(group_name="small")

    made = dg.build_defs_for_component(Small(name="a", plan="spiral_assets.plans.images:cache_plan"))

    assert [spec.group_name for each in made.assets or () for spec in each.specs] == ["small"]
    assert standard_resources("x", "y", "lake").keys() == {"lake", "lake_runs", "pipes"}


@pytest.mark.parametrize(
    "kind",
    ["Relation", "PlanCache", "TrainingStream", "TrainingJob", "Tokenizer", "Measure", "VideoIndex", "EmbeddingIndex"],
)
def test_the_step_of_each_subclass_is_its_own(kind: str, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Without what the factory does: a step that a subclass replaces reports what the subclass says."""
    from dagster.components.scaffold.scaffold import get_scaffolder

    base = getattr(components, kind)

    def execute(
        self: object, context: object, catalog: object, props: AssetProps
    ) -> Iterator[dg.MaterializeResult[None]]:
        yield dg.MaterializeResult(metadata={"of": str(props.about["name"])})

    scaffolder = get_scaffolder(base)
    assert isinstance(scaffolder, dg.Scaffolder)
    scaffolder.scaffold(dg.ScaffoldRequest(f"x.{kind}", tmp_path, "yaml", tmp_path, None, append=False))
    attributes = yaml.safe_load((tmp_path / "defs.yaml").read_text())["attributes"]
    changed = type(f"Changed{kind}", (base,), {"execute": execute})
    made = dg.build_defs_for_component(changed.resolve_from_dict(attributes))
    (first, *_) = [each for each in made.assets or () if isinstance(each, dg.AssetsDefinition)]
    resources = standard_resources(str(tmp_path / "catalog"), str(tmp_path))

    partition = "group-00" if kind == "VideoIndex" else None
    result = dg.materialize([first], instance=instance, resources=resources, partition_key=partition)

    (event,) = result.asset_materializations_for_node(first.op.name)
    assert event.metadata["of"].value == attributes.get("name", attributes.get("key", attributes.get("relation")))

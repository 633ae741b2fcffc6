"""Many relations share steps: all is done that was, a run of some does no more, and one that fails hides no other."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_assets.assets import AssetProps
from spiral_assets.components import RelationCatalog
from spiral_assets.resources import CatalogResource, standard_resources
from spiral_assets.yaml_definitions import definitions_from
from tests.assets.conftest import steps

NAMES = ("ants", "bees", "cats", "dogs", "eels")
SHARED = """
type: spiral_assets.components.RelationCatalog
attributes:
  folder: data
  prefix: zoo
  watch_s: 60
  steps: 2
  options: {labels: [label], limits: {row_change: 0.5, learned: {of: [rows]}}}
"""
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


class Zoo:
    """A folder of relations that share steps, and the runs of them."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance, self.more, self.cursor = folder, instance, "", None
        (folder / "data").mkdir()
        for name in NAMES:
            self.write(name)

    def write(self, name: str, rows: int = 12, *, same: bool = False) -> None:
        ids = [0] * rows if same else list(range(rows))
        table = pa.table({"sample_id": ids, "label": [row % 3 for row in range(rows)]})
        pq.write_table(table, self.folder / "data" / f"{name}.parquet")

    def defs(self) -> dg.Definitions:
        (self.folder / "zoo.yaml").write_text(SHARED + self.more)
        resources = standard_resources(str(self.folder / "catalog"), str(self.folder))
        return dg.Definitions.merge(
            definitions_from(self.folder / "zoo.yaml"),
            dg.Definitions(resources=resources, executor=dg.in_process_executor),
        )

    def run(self, selection: dg.AssetSelection) -> dg.ExecuteInProcessResult:
        jobs = [dg.define_asset_job("now", selection)]
        job = dg.Definitions.merge(self.defs(), dg.Definitions(jobs=jobs)).resolve_job_def("now")
        config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        return job.execute_in_process(instance=self.instance, run_config=config, raise_on_error=False)

    def tick(self) -> list[str]:
        """What the automation asks for."""
        found: Any = dg.evaluate_automation_conditions(self.defs(), self.instance, cursor=self.cursor)
        self.cursor = found.cursor
        return sorted(each.key.to_user_string() for each in found.results if found.get_num_requested(each.key))


@pytest.fixture
def zoo(tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Zoo:
    monkeypatch.chdir(tmp_path)
    return Zoo(tmp_path, instance)


def made(run: dg.ExecuteInProcessResult) -> set[str]:
    return {
        str(event.asset_key.to_user_string()) for event in run.get_asset_materialization_events() if event.asset_key
    }


def relation(name: str) -> dg.AssetKey:
    return dg.AssetKey(["catalog", "zoo", name])


EVERYTHING = dg.AssetSelection.all()


def test_two_steps_register_and_two_measure_all_relations_with_all_their_checks(zoo: Zoo) -> None:
    run = zoo.run(EVERYTHING)

    assert run.success
    assert len(steps(run, "STEP_SUCCESS")) == 4
    assert made(run) == {key for name in NAMES for key in (f"catalog/zoo/{name}", f"stats/zoo/{name}/shard_stats")}
    found = [(each.asset_key.path[-1], each.check_name) for each in run.get_asset_check_evaluations() if each.passed]
    assert sorted(name for _, name in found) == sorted(
        5 * ["identity_is_unique", "row_count_is_near_the_last", "labels_are_mixed", "values_are_as_before"]
    )
    catalog = spiral.connect(str(zoo.folder / "catalog"))
    assert catalog.tables() == [f"zoo.{name}" for name in NAMES]
    for name in NAMES:
        event = zoo.instance.get_latest_materialization_event(relation(name))
        assert event is not None
        assert event.asset_materialization is not None
        tags = event.asset_materialization.tags or {}
        assert tags["dagster/data_version"] == catalog.entry(f"zoo.{name}").data_version
    zoo.write("bees", 90)
    counts = {
        each.asset_key.path[-1]: each for each in zoo.run(EVERYTHING).get_asset_check_evaluations() if not each.passed
    }
    assert counts["bees"].description == "90 rows, 12 before"


def test_a_run_of_one_relation_and_one_of_a_check_do_no_more(zoo: Zoo) -> None:
    one = zoo.run(dg.AssetSelection.assets(relation("cats")))
    check = zoo.run(dg.AssetSelection.checks(dg.AssetCheckKey(relation("cats"), "identity_is_unique")))

    assert made(one) == {"catalog/zoo/cats"}
    assert {each.check_name for each in one.get_asset_check_evaluations()} == {
        "identity_is_unique",
        "row_count_is_near_the_last",
    }
    assert made(check) == set()
    assert [each.check_name for each in check.get_asset_check_evaluations()] == ["identity_is_unique"]
    assert spiral.connect(str(zoo.folder / "catalog")).tables() == ["zoo.cats"]


def test_each_check_says_which_materialization_it_is_of(zoo: Zoo) -> None:
    def targets(run: dg.ExecuteInProcessResult) -> dict[tuple[dg.AssetKey, str], tuple[int, str]]:
        found = {}
        for each in run.get_asset_check_evaluations():
            assert each.target_materialization_data is not None
            data = each.target_materialization_data
            found[each.asset_key, each.check_name] = data.storage_id, data.run_id
        return found

    run = zoo.run(EVERYTHING)

    records = {each.asset_entry.asset_key: each.asset_entry for each in zoo.instance.get_asset_records()}
    assert len(targets(run)) == 20
    for (key, _), target in targets(run).items():
        last = records[key].last_materialization_record
        assert last is not None
        assert target == (last.storage_id, run.run_id)
    check = dg.AssetCheckKey(relation("cats"), "identity_is_unique")
    alone = targets(zoo.run(dg.AssetSelection.checks(check)))
    assert alone == {(check.asset_key, check.name): targets(run)[check.asset_key, check.name]}


def test_one_that_cannot_be_read_and_one_that_is_unsound_hide_no_other(zoo: Zoo) -> None:
    assert zoo.run(EVERYTHING).success
    zoo.tick()
    assert zoo.tick() == []
    for name in NAMES:
        zoo.write(name, 14, same=name == "bees")
    (zoo.folder / "data" / "ants.parquet").write_bytes(b"no rows")

    run = zoo.run(EVERYTHING)

    assert not run.success
    assert {f"catalog/zoo/{name}" for name in NAMES[1:]} <= made(run)
    failed = {
        str(event.step_failure_data.error) for event in run.all_events if event.event_type_value == "STEP_FAILURE"
    }
    assert any("catalog/zoo/ants: " in each for each in failed)
    assert any("identity_is_unique" in each for each in failed)
    left = {f"stats/zoo/{name}/shard_stats" for name in NAMES[2:]} - made(run)
    assert left
    assert set(zoo.tick()) == left  # neither ants, which are as they were, nor bees, whose check blocks


def test_a_relation_with_a_pool_has_its_own_step_and_zero_gives_one_to_each(zoo: Zoo) -> None:
    zoo.more = "  relations: {zoo.cats: {op: {pool: slow}}}\n"
    pools = {str(each.node_def.name): each.node_def.pool for each in zoo.defs().assets or ()}  # type: ignore[union-attr]
    zoo.more = "  op: {pool: all}\n"
    shared = {each.node_def.pool for each in zoo.defs().assets or ()}  # type: ignore[union-attr]

    assert {name: pool for name, pool in pools.items() if pool} == {
        "catalog__zoo__cats": "slow",
        "stats__zoo__cats__shard_stats": "slow",
    }
    assert len(pools) == 6
    assert shared == {"all"}
    assert len(list(dg.Definitions.merge(zoo.defs()).assets or ())) == 4


class Counted(RelationCatalog):
    """A component that changes what steps do."""

    def execute(self, context: dg.AssetExecutionContext, catalog: CatalogResource, props: AssetProps) -> Any:
        yield from super().execute(context, catalog, props)


STATE = {f"zoo.{name}": {"kind": "parquet", "path": f"data/{name}.parquet"} for name in NAMES}


def assets(component: RelationCatalog, count: int) -> int:
    found = {f"zoo.{number}": STATE["zoo.ants"] for number in range(count)}
    return len(list(component.definitions(found).assets or ()))


def test_few_relations_and_subclasses_that_execute_have_a_step_each() -> None:
    plain: dict[str, Any] = {"folder": "data", "prefix": "zoo"}

    assert assets(RelationCatalog(**plain), 64) == 128
    assert assets(RelationCatalog(**plain), 65) <= 64
    assert assets(RelationCatalog(**plain, steps=0), 65) == 130
    assert assets(Counted(**plain), 65) == 130


@given(names=st.sets(st.sampled_from(range(40)), min_size=1), count=st.integers(1, 7))
def test_the_step_of_a_relation_does_not_depend_on_the_others(names: set[int], count: int) -> None:
    def steps_of(found: set[int]) -> dict[dg.AssetKey, str]:
        component = RelationCatalog(folder="data", steps=count, options={"statistics": False})
        made = component.definitions({f"r{number}": STATE["zoo.ants"] for number in found})
        return {key: str(each.node_def.name) for each in made.assets or () for key in each.keys}  # type: ignore[union-attr]

    every = steps_of(set(range(40)))
    assert steps_of(names) == {
        dg.AssetKey(["catalog", f"r{name}"]): every[dg.AssetKey(["catalog", f"r{name}"])] for name in names
    }
    assert len(set(every.values())) <= count

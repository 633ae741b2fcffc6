"""What is requested on a tick: new plans and new data, and never a mere rematerialization."""

from typing import Any

import dagster as dg
import pytest

from spiral_assets import automation
from spiral_assets.relations.partitions import shard_groups
from tests.assets.conftest import loaded

UP, DOWN = dg.AssetKey("relation"), dg.AssetKey("cache")
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


class Location:
    """A relation and a cache of it, whose data, plan and check a test sets."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.cursor = instance, None
        self.data, self.plan, self.sound, self.broken = "data-1", "plan-1", True, False

    def definitions(self) -> dg.Definitions:
        @dg.asset(key=UP)
        def relation() -> dg.MaterializeResult[None]:
            return dg.MaterializeResult(data_version=dg.DataVersion(self.data))

        @dg.asset_check(asset=relation, blocking=True)
        def is_sound() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=self.sound)

        @dg.asset(key=DOWN, deps=[relation], code_version=self.plan, automation_condition=automation.rebuild())
        def cache() -> dg.MaterializeResult[None]:
            if self.broken:
                raise OSError(28, "No space left on device")
            return dg.MaterializeResult(data_version=dg.DataVersion(f"{self.plan}:{self.data}"))

        return dg.Definitions(assets=[relation, cache], asset_checks=[is_sound], executor=dg.in_process_executor)

    def run(self, *keys: dg.AssetKey) -> None:
        whole = dg.Definitions.merge(
            self.definitions(), dg.Definitions(jobs=[dg.define_asset_job("now", dg.AssetSelection.assets(*keys))])
        )
        config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        job = whole.resolve_job_def("now")
        job.execute_in_process(
            instance=self.instance, run_config=config, raise_on_error=False, asset_selection=list(keys)
        )

    def tick(self) -> bool:
        """Whether the cache is requested, and then built."""
        found: Any = dg.evaluate_automation_conditions(self.definitions(), self.instance, cursor=self.cursor)
        self.cursor = found.cursor
        asked = found.get_num_requested(DOWN) > 0
        if asked:
            self.run(DOWN)
        return asked


@pytest.fixture
def location(instance: dg.DagsterInstance) -> Location:
    """A location in which everything is built, and the sensor has looked."""
    made = Location(instance)
    made.run(UP, DOWN)
    made.tick()
    assert not made.tick()
    return made


def test_a_mere_rematerialization_requests_nothing(location: Location) -> None:
    location.run(UP)

    assert not location.tick()


def test_new_data_is_requested_once(location: Location) -> None:
    location.data = "data-2"
    location.run(UP)

    assert location.tick()
    assert not location.tick()


def test_what_one_run_has_built_in_order_is_not_requested_again(location: Location) -> None:
    location.data = "data-2"
    location.run(UP, DOWN)
    assert not location.tick()

    location.data = "data-3"
    location.run(UP, DOWN)
    location.data = "data-4"  # and again, by a run of the relation alone
    location.run(UP)

    assert location.tick()
    assert not location.tick()


def test_what_failed_after_its_dependency_in_one_run_is_requested_once(location: Location) -> None:
    location.data, location.broken = "data-2", True
    location.run(UP, DOWN)

    assert location.tick()  # fails as well
    assert not location.tick()

    location.broken = False
    location.data = "data-3"
    location.run(UP, DOWN)
    assert not location.tick()


def test_a_new_plan_is_requested_once(location: Location) -> None:
    location.plan = "plan-2"

    assert location.tick()
    assert not location.tick()


def test_what_becomes_new_while_a_build_ends_is_requested_once(location: Location) -> None:
    location.run(DOWN)  # a build that began with the old plan
    location.plan = "plan-2"

    assert location.tick()
    assert not location.tick()

    location.run(DOWN)
    location.data = "data-2"
    location.run(UP)

    assert location.tick()
    assert not location.tick()


def test_what_becomes_new_right_after_a_request_is_requested_next(location: Location) -> None:
    location.data = "data-2"
    location.run(UP)
    assert location.tick()

    location.plan = "plan-2"  # before the sensor looks again

    assert location.tick()
    assert not location.tick()


def test_data_that_fails_a_blocking_check_waits_until_it_is_mended(location: Location) -> None:
    location.data, location.sound = "data-2", False
    location.run(UP)
    assert not location.tick()

    location.sound = True
    location.run(UP)

    assert location.tick()


def test_a_check_in_the_step_of_an_asset_leaves_out_no_check_of_the_run(instance: dg.DagsterInstance) -> None:
    """As the check of learned limits is, beside the check that a cache is complete, which blocks."""
    versions = ["data-1"]

    @dg.asset(key=UP)
    def relation() -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(data_version=dg.DataVersion(versions[-1]))

    spec = dg.AssetCheckSpec("inside", asset="statistics", automation_condition=automation.with_its_asset())
    condition = automation.rebuild()

    @dg.asset(deps=[relation], group_name="stats", check_specs=[spec], automation_condition=condition)
    def statistics():  # type: ignore[no-untyped-def]  # Dagster asks for a tuple where checks are inside
        raise NotImplementedError

    @dg.asset(key=DOWN, deps=[relation], group_name="caches", automation_condition=condition)
    def cache() -> None: ...

    checks = [beside(each) for each in (statistics, cache)]
    target = dg.AssetSelection.groups("stats", "caches")
    sensor = dg.AutomationConditionSensorDefinition("looks", target=target, use_user_code_server=True)
    location = dg.Definitions(assets=[relation, statistics, cache], asset_checks=checks, sensors=[sensor])
    cursor, asked = None, []
    for data in ("data-1", "data-1", "data-2", "data-2"):
        if data != versions[-1]:
            versions.append(data)
            dg.materialize([relation], instance=instance)
        context = dg.build_sensor_context(instance, cursor, repository_def=location.get_repository_def())
        found = sensor.evaluate_tick(context)
        cursor = found.cursor
        asked.append(
            [sorted(key.to_user_string() for key in each.asset_check_keys or ()) for each in found.run_requests or ()]
        )

    assert asked == [[], [], [["cache:beside", "statistics:beside", "statistics:inside"]], []]


def beside(asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    """A check in a step of its own."""

    @dg.asset_check(asset=asset, name="beside")
    def check() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    return check


def test_new_data_requests_every_group_of_an_index_once(instance: dg.DagsterInstance) -> None:
    """And the relation of the index, which has no partitions, after it."""
    versions = ["data-1"]

    @dg.asset(key=UP)
    def relation() -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(data_version=dg.DataVersion(versions[-1]))

    @dg.asset(
        key=DOWN,
        deps=[relation],
        partitions_def=shard_groups(4),
        backfill_policy=dg.BackfillPolicy.single_run(),
        automation_condition=automation.rebuild(),
    )
    def index() -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(data_version=dg.DataVersion(f"index of {versions[-1]}"))

    location = dg.Definitions(assets=[relation, index], executor=dg.in_process_executor)
    dg.materialize([relation], instance=instance)
    for key in shard_groups(4).get_partition_keys():
        dg.materialize([relation, index], instance=instance, partition_key=key, selection=[index])
    cursor = None
    asked = []
    for data in ("data-1", "data-1", "data-2", "data-2"):
        if data != versions[-1]:
            versions.append(data)
            dg.materialize([relation], instance=instance)
        found: Any = dg.evaluate_automation_conditions(location, instance, cursor=cursor)
        cursor = found.cursor
        asked.append(found.get_num_requested(DOWN))

    assert asked == [0, 0, 4, 0]


def test_every_cache_index_statistic_and_stream_has_the_condition_and_the_sensor_is_on() -> None:
    location = loaded()
    graph = location.resolve_asset_graph()
    with_condition = {
        key.to_user_string() for key in graph.materializable_asset_keys if graph.get(key).automation_condition
    }
    automated = {
        key.to_user_string()
        for key in graph.materializable_asset_keys
        if graph.get(key).group_name in automation.AUTOMATED
    }
    (sensor,) = location.get_repository_def().sensor_defs

    assert with_condition == automated
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    assert isinstance(sensor, dg.AutomationConditionSensorDefinition)


def test_freshness_warns_before_it_fails() -> None:
    policy: Any = automation.freshness(8)

    assert policy.fail_window.to_timedelta().total_seconds() == 8 * 3600
    assert policy.warn_window.to_timedelta().total_seconds() == 6 * 3600
    assert automation.freshness(None) is None

"""Caches that nobody uses are removed by a scheduled job, and failed runs are told."""

from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
import simplejpeg

import spiral_stream as spiral
from spiral_assets.resources import CatalogResource
from spiral_assets.upkeep import failure_sensor, retention_job, upkeep

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> spiral.Catalog:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "caches"))
    made = spiral.connect(str(tmp_path / "catalog"))
    jpeg = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8), 90, "RGB", "420")
    rows = pa.table({"sample_id": ["a", "b"], "photo": pa.array([jpeg, jpeg], pa.large_binary())})
    made.register("photos", spiral.Arrow(rows), semantic={"photo": "image/jpeg-ref"})
    for side in (8, 12):
        cached = made.table("photos").cache(photo=spiral.Raw(shorter_side=side))
        field = spiral.Stack("photo", decode="jpeg", transforms=[spiral.transforms.Resize((8, 8))])
        plan = cached.sample(order=spiral.Sequential()).collate(batch_size=1, fields={"image": field})
        with plan.to_numpy() as stream:
            stream.materialize()
            if side == 8:
                made.save_stream("kept", stream)
    return made


def test_what_a_saved_stream_names_stays_and_the_rest_goes(
    catalog: spiral.Catalog, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    before = catalog.caches()
    whole = dg.Definitions.merge(
        retention_job(older_than_days=0),
        dg.Definitions(resources={"catalog": CatalogResource(uri=str(tmp_path / "catalog"))}),
    )
    named = {each.name for each in before if each.used_by}
    assert [len(each.used_by) for each in before if each.kind == "cache"].count(0) == 1

    result = whole.resolve_job_def("remove_dead_caches").execute_in_process(instance=instance, run_config=QUIET)

    assert result.success
    after = catalog.caches()
    assert named <= {each.name for each in after}
    assert [bool(each.used_by) for each in after if each.kind == "cache"] == [True]
    (event,) = [event for event in result.all_events if event.is_successful_output]
    told = {name: value.value for name, value in event.step_output_data.metadata.items()}
    assert told["removed_bytes"] == sum(each.bytes for each in before) - sum(each.bytes for each in after)
    with catalog.open_stream("kept") as stream:
        assert len(list(stream)) == 2


def test_the_removal_has_a_schedule_that_is_on() -> None:
    whole = upkeep(retention=retention_job(), alert=print)
    repository = dg.Definitions.merge(
        whole, dg.Definitions(resources={"catalog": CatalogResource(uri="catalog")})
    ).get_repository_def()
    (schedule,) = repository.schedule_defs

    assert (schedule.job_name, schedule.default_status) == ("remove_dead_caches", dg.DefaultScheduleStatus.RUNNING)
    assert {sensor.name for sensor in repository.sensor_defs} == {"rebuild_what_changed", "tell_failures"}


def test_a_failed_run_is_told_with_its_error(instance: dg.DagsterInstance) -> None:
    @dg.op
    def breaks() -> None:
        msg = "the disk is full"
        raise RuntimeError(msg)

    @dg.job
    def nightly() -> None:
        breaks()

    told: list[dict[str, Any]] = []
    result = nightly.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
    context = dg.build_run_status_sensor_context(
        sensor_name="tell_failures",
        dagster_instance=instance,
        dagster_run=result.dagster_run,
        dagster_event=result.get_run_failure_event(),
    ).for_run_failure()

    failure_sensor(told.append)(context)

    (alert,) = told
    assert (alert["run_id"], alert["job"]) == (result.run_id, "nightly")
    assert "breaks" in alert["error"]

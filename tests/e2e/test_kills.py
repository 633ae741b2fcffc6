"""What `kill -9` in mid-build costs, and what two builds at once do: each row is stored once, and nothing is built twice."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as spiral
from spiral_assets.plans.standard import decoded_images
from tests.fixtures.building import CACHE, ROWS, SHARD_ROWS, SHARDS, SIDE, Instance, Place
from tests.fixtures.dev_server import BIN

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_200)]
ROW_BYTES = SIDE * (SIDE * 3 // 2) * 3  # of a cached image, which is half as wide again as it is high
START = "mutation($s: ScheduleSelector!) { startSchedule(scheduleSelector: $s) { __typename } }"
RELOAD = 'mutation { reloadRepositoryLocation(repositoryLocationName: "shop") { __typename } }'
LOGS = """
query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events {
  __typename ... on MessageEvent { message } } } } }
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place")


def need_one_copy(place: Place, caches: int = 1) -> None:
    """Every row is stored once, and no byte is dead."""
    found = place.caches()
    assert len(found) == caches
    assert place.finished() == SHARDS * caches
    for each in found:
        assert each.dead_bytes == 0, each
        assert ROWS * ROW_BYTES <= each.live_bytes < 1.2 * ROWS * ROW_BYTES, each


def worker(instance: Instance, run: str) -> int:
    """The process of a run."""
    events = instance.server.ask(LOGS, run=run)["logsForRun"]["events"]
    found = re.search(r"Started process for run \(pid: (\d+)\)", " ".join(each.get("message", "") for each in events))
    assert found, events
    return int(found[1])


@pytest.mark.parametrize("executor", ["in_process", "multiprocess"])
def test_a_killed_run_worker_is_started_again_and_builds_the_rest(
    place: Place, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Dagster's multiprocess executor the step outlives its run, and writes together with the retry."""
    monkeypatch.setenv("EXECUTOR", executor)
    with place.serving() as instance:
        killed = instance.server.launch(CACHE)
        instance.half_built()
        os.kill(worker(instance, killed), signal.SIGKILL)
        done = instance.built()
        asked = {each["runId"]: each["status"] for each in instance.server.requested(CACHE)}

    assert len(asked) == 2
    assert asked.pop(killed) == "FAILURE"
    assert set(asked.values()) == {"SUCCESS"}
    retry = next(each for each in done if each["run"] in asked)
    if executor == "in_process":
        assert retry["rows_built"] <= ROWS - 2 * SHARD_ROWS
    need_one_copy(place)


def test_processes_that_build_end_with_a_killed_run_worker(tmp_path: Path) -> None:
    place = Place(tmp_path / "place", "processes")
    with place.serving() as instance:
        killed = instance.server.launch(CACHE)
        instance.half_built()
        os.kill(worker(instance, killed), signal.SIGKILL)
        (done,) = instance.built()

    assert done["run"] != killed
    assert done["rows_built"] <= ROWS - 2 * SHARD_ROWS
    need_one_copy(place)


def test_a_killed_daemon_costs_the_build_nothing(place: Place) -> None:
    """The run goes on without it, and the one that is started next asks for nothing again."""
    with place.serving() as instance:
        run = instance.server.launch(CACHE)
        instance.half_built(1)
        os.kill(instance.daemon.pid, signal.SIGKILL)
        instance.daemon.wait()
        (done,) = instance.built()
        instance.start_daemon()
        again = instance.server.launch(CACHE)  # which the new daemon takes from the queue
        instance.server.wait_for("a second report", lambda: len(instance.server.materializations(CACHE)) == 2)
        asked = [each["runId"] for each in instance.server.requested(CACHE)]

    assert (done["run"], done["rows_built"]) == (run, ROWS)
    assert asked == [again, run]
    need_one_copy(place)


def test_builds_by_button_command_backfill_and_schedule_build_each_row_once(place: Place) -> None:
    with place.serving() as instance:
        server = instance.server
        server.launch(CACHE)
        params = {"assetSelection": [{"path": CACHE.split("/")}], "allPartitions": True}
        backfill = "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename } }"
        assert server.ask(backfill, p=params)["launchPartitionBackfill"]["__typename"] == "LaunchBackfillSuccess"
        named = {"repositoryLocationName": "shop", "repositoryName": "__repository__", "scheduleName": "once_schedule"}
        assert server.ask(START, s=named)["startSchedule"]["__typename"] == "ScheduleStateResult"
        command = [BIN / "dagster", "asset", "materialize", "-f", "location.py", "--select", 'key:"caches/photos"']
        done = subprocess.run(
            command, cwd=place.folder, env=place.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        server.wait_for("four reports", lambda: len(server.materializations(CACHE)) >= 4)
        reports = server.materializations(CACHE)
        tags = [{tag["key"]: tag["value"] for tag in each["tags"]} for each in server.runs()]

    assert sum(each["rows_built"] for each in reports) == ROWS
    assert len({each["data_version"] for each in reports}) == 1
    assert any("dagster/backfill" in each for each in tags)
    assert any(each.get("dagster/schedule_name") == "once_schedule" for each in tags)
    need_one_copy(place)


def test_a_changed_shard_a_changed_plan_a_touch_and_a_rematerialization(tmp_path: Path) -> None:
    """The sensor requests the first two, once each; a run builds the shard, or everything; nothing is stored twice."""
    place = Place(tmp_path / "place", rebuilding=True)
    with place.serving() as instance:
        server = instance.server
        server.launch(CACHE)  # the sensor may have asked for the first build, too
        instance.built()
        wait_for_ticks(instance)
        first = server.materializations(CACHE)
        asked = len(server.requested(CACHE))
        assert sum(each["rows_built"] for each in first) == ROWS

        for file in (place.folder / "rows").iterdir():
            file.touch()
        server.launch("catalog/photos")
        server.rest()
        wait_for_ticks(instance)
        assert len(server.requested(CACHE)) == asked
        need_one_copy(place)

        place.write(0, "other")
        server.launch("catalog/photos")
        shard = next_reports(instance, len(first))
        assert len(server.requested(CACHE)) == asked + 1
        need_one_shard_more(place)

        place.say(side=SIDE // 2)
        assert server.ask(RELOAD)["reloadRepositoryLocation"]["__typename"] == "WorkspaceLocationEntry"
        whole = next_reports(instance, len(first) + 1)
        assert len(server.requested(CACHE)) == asked + 2

    assert [each["rows_built"] for each in shard] == [SHARD_ROWS]
    assert sum(each["rows_built"] for each in whole) == ROWS
    assert len({each["data_version"] for each in (first[0], shard[0], whole[0])}) == 3
    new, old = sorted(place.caches(), key=lambda each: each.live_bytes)
    assert new.dead_bytes == 0
    assert new.live_bytes < old.live_bytes / 3
    spiral.connect(str(place.folder / "catalog")).caches(remove_dead=True, older_than=timedelta(0))
    assert sum(each.bytes for each in place.caches()) <= old.live_bytes


def next_reports(instance: Instance, before: int) -> list[dict[str, Any]]:
    """What the next run reports of the cache, or the next runs."""
    instance.server.wait_for("a rebuilt cache", lambda: len(instance.server.materializations(CACHE)) > before, 480)
    instance.server.rest()
    reports = instance.server.materializations(CACHE)
    return reports[: len(reports) - before]


def ticked(instance: Instance) -> int:
    """How many times the rebuilding sensor has looked."""
    query = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor {
      sensorState { ticks(limit: 100) { tickId status } } } } }"""
    named = {"repositoryLocationName": "shop", "repositoryName": "__repository__", "sensorName": "rebuild_what_changed"}
    ticks = instance.server.ask(query, s=named)["sensorOrError"]["sensorState"]["ticks"]
    return len([each for each in ticks if each["status"] != "STARTED"])


def wait_for_ticks(instance: Instance, more: int = 2) -> None:
    """Wait until the sensor has looked twice again: the second look began after the call."""
    before = ticked(instance)
    instance.server.wait_for("two looks", lambda: ticked(instance) >= before + more)
    instance.server.rest()


def need_one_shard_more(place: Place) -> None:
    """The changed shard is stored anew; of the old one nothing or that shard is left until it is removed."""
    (found,) = place.caches()
    shard = SHARD_ROWS * ROW_BYTES
    assert found.bytes < (SHARDS + 1) * shard * 1.2


def ray_workers() -> Iterator[int]:
    """Processes that run a task of Ray, which are called so."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            called = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if called.startswith(b"ray::") and b"IDLE" not in called:
            yield int(folder.name)


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")  # Ray forks
def test_a_killed_ray_worker_costs_its_shard_and_no_row_is_stored_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", place.environment["PYTHONPATH"])
    catalog = spiral.connect(str(place.folder / "catalog"))
    source = spiral.Parquet(str(place.folder / "rows"), base=str(place.folder))
    catalog.register("photos", source, semantic={"image_ref": "image/jpeg-ref"})
    killed = list[int]()

    def kill(done: spiral.results.Progress) -> None:
        workers = [] if killed or done.shards < 1 else list(ray_workers())
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    with decoded_images(catalog, "photos", cached_side=SIDE).to_numpy() as stream:
        with suppress(spiral.errors.CacheError):  # on a busy machine, Ray may give up the whole node
            stream.materialize(kill, executor="ray", workers=2)
        finished = place.finished()
        rest = stream.materialize(executor="ray", workers=2)

    assert killed
    assert finished >= 1
    assert rest.rows == ROWS - finished * SHARD_ROWS
    need_one_copy(place)

"""A sensor asks for what is not registered, all of it in one run; a touch changes nothing that is built on a relation."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._core.test_utils import create_run_for_test
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_assets.assets import relation_assets
from spiral_assets.resources import CatalogResource
from spiral_assets.watching import Watched, watch_sensor
from tests.assets.conftest import emptied


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        (tmp_path / "data" / name).mkdir(parents=True)
        write(tmp_path / "data" / name, 0)
    return tmp_path / "data"


def write(folder: Path, part: int, rows: int = 4) -> None:
    table = pa.table({"sample_id": [f"{part}-{row}" for row in range(rows)]})
    pq.write_table(table, folder / f"part-{part}.parquet")


def touch(path: Path) -> None:
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 5_000_000_000))


@contextmanager
def later(seconds: float) -> Iterator[None]:
    """Move the clock on."""
    now = time.time
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: now() + seconds)
        yield


class Watcher:
    """The sensor over the folder's relations, tick by tick."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.instance, self.cursor, self.told = instance, None, ""
        self.keys: list[str] = []
        self.sources = {path.name: {"kind": "parquet", "path": str(path)} for path in sorted(folder.iterdir())}
        self.catalog = CatalogResource(uri=str(folder.parent / "catalog"))
        watched = [Watched(f"shop.{name}", source) for name, source in self.sources.items()]
        self.sensor = watch_sensor("shop", watched, every_s=60)

    def reset(self) -> None:
        """Forget the cursor, as its page in the UI offers."""
        self.cursor = None

    def tick(self) -> list[list[str]]:
        """The relations of each run that is requested."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"catalog": self.catalog}
        )
        found = self.sensor(context)
        assert isinstance(found, dg.SensorResult)
        self.cursor = found.cursor
        self.told = str(found.skip_reason)
        runs = found.run_requests or ()
        self.keys += [str(run.run_key) for run in runs]
        return [sorted(key.path[-1] for key in run.asset_selection or ()) for run in runs]

    def registered(self, name: str) -> str:
        """Run the asset of a relation as a requested run does; return its data version, as told and in the catalog."""
        key = dg.AssetKey(["catalog", "shop", name])
        assets = relation_assets(f"shop.{name}", self.sources[name], statistics=False)
        given = dg.Definitions(
            resources={"catalog": self.catalog},
            executor=dg.in_process_executor,
            jobs=[dg.define_asset_job("now", selection=dg.AssetSelection.assets(key).without_checks())],
        )
        config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        job = dg.Definitions.merge(assets, given).resolve_job_def("now")
        assert job.execute_in_process(instance=self.instance, run_config=config).success
        event = self.instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        version = (event.asset_materialization.tags or {})["dagster/data_version"]
        entry = spiral.connect(self.catalog.uri).entry(f"shop.{name}")
        assert version == entry.data_version
        return version


def test_everything_that_changed_is_asked_for_in_one_run_and_once(folder: Path, instance: dg.DagsterInstance) -> None:
    watcher = Watcher(folder, instance)

    assert watcher.tick() == [["one", "three", "two"]]
    assert watcher.tick() == []
    write(folder / "one", 1)
    (folder / "two" / "part-0.parquet").unlink()
    write(folder / "two", 5)
    assert watcher.tick() == [["one", "two"]]
    assert watcher.tick() == []


def test_ten_thousand_shards_are_one_request(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    big = tmp_path / "data" / "big"
    big.mkdir(parents=True)
    for part in range(10_000):
        (big / f"part-{part}.parquet").touch()
    watcher = Watcher(tmp_path / "data", instance)

    assert watcher.tick() == [["big"]]
    for part in range(0, 10_000, 7):
        touch(big / f"part-{part}.parquet")
    assert watcher.tick() == [["big"]]


def test_a_touched_file_is_looked_at_and_its_relation_keeps_its_data_version(
    folder: Path, instance: dg.DagsterInstance
) -> None:
    watcher = Watcher(folder, instance)
    watcher.tick()
    first = watcher.registered("one")
    touch(folder / "one" / "part-0.parquet")
    assert ["one"] in watcher.tick()
    assert watcher.registered("one") == first
    assert watcher.tick() == []
    write(folder / "one", 0, rows=5)
    assert watcher.tick() == [["one"]]
    assert watcher.registered("one") != first


def test_files_that_come_back_as_they_were_are_registered_again(folder: Path, instance: dg.DagsterInstance) -> None:
    """``mv`` away and back, ``rsync -t``, a restored backup: the third state of the files is the first."""
    shutil.rmtree(folder / "two")
    shutil.rmtree(folder / "three")
    watcher, part = Watcher(folder, instance), folder / "one" / "part-0.parquet"
    backup = folder.parent / "backup.parquet"
    shutil.copy2(part, backup)

    versions = []
    for rows in (4, 9, 4, 9, 4):
        if rows == 9:
            write(folder / "one", 0, rows)
            os.utime(part, ns=(10**18, 10**18))
        elif versions:
            shutil.copy2(backup, part)
        assert watcher.tick() == [["one"]]
        versions.append(watcher.registered("one"))
        assert watcher.tick() == []

    assert len(set(watcher.keys)) == 5  # Dagster takes a run key once, for ever
    assert versions == [versions[0], versions[1], versions[0], versions[1], versions[0]]


@settings(max_examples=12)
@given(
    walk=st.lists(
        st.sampled_from(["write", "back", "touch", "add", "remove", "register", "elsewhere", "ask", "reset", "away"]),
        max_size=9,
    )
)
def test_whatever_happened_the_sensor_asks_until_what_is_there_is_registered(walk: list[str]) -> None:
    """Files that change, go and come back; runs that fail; registrations by others; a cursor that somebody resets."""
    with TemporaryDirectory() as made:
        folder = Path(made) / "data"
        (folder / "one").mkdir(parents=True)
        first, other = folder / "one" / "part-0.parquet", folder / "one" / "part-1.parquet"
        write(folder / "one", 0)
        times = (first.stat().st_atime_ns, first.stat().st_mtime_ns)
        watcher = Watcher(folder, emptied())
        elsewhere = spiral.connect(watcher.catalog.uri)

        def away() -> None:
            (folder / "one").rename(folder / "gone")
            with pytest.raises(dg.Failure, match="no file at"):
                watcher.tick()
            (folder / "gone").rename(folder / "one")

        steps = {
            "write": lambda: write(folder / "one", 0, rows=7),
            "back": lambda: (write(folder / "one", 0), os.utime(first, ns=times)),
            "touch": lambda: touch(first),
            "add": lambda: write(folder / "one", 1),
            "remove": lambda: other.unlink(missing_ok=True),
            "register": lambda: watcher.registered("one"),
            "elsewhere": lambda: elsewhere.register("shop.one", spiral.Parquet(folder / "one"), replace=True),
            "ask": watcher.tick,  # and its run fails, or never begins
            "reset": watcher.reset,
            "away": away,
        }
        for step in walk:
            steps[step]()
        with later(2 * 3_600):
            if watcher.tick():
                watcher.registered("one")
        with later(4 * 3_600):
            assert watcher.tick() == []
        assert elsewhere.table("shop.one").to_arrow().num_rows == pq.read_table(folder / "one").num_rows


def test_a_run_that_failed_is_asked_for_again_after_growing_times(folder: Path, instance: dg.DagsterInstance) -> None:
    watcher = Watcher(folder, instance)
    asked, seconds = [], 0
    while seconds < 11_100:
        with later(seconds):
            if watcher.tick():
                asked.append(seconds)
        seconds += 60

    assert asked[:7] == [0, 60, 180, 420, 900, 1_860, 3_780]
    assert {after - before for before, after in pairwise(asked[6:])} == {3_600}
    assert "waiting to ask again for shop.one, shop.three, shop.two" in watcher.told


def test_a_run_that_goes_on_is_not_asked_for_again(folder: Path, instance: dg.DagsterInstance) -> None:
    watcher = Watcher(folder, instance)
    watcher.tick()
    tags = {"dagster/run_key": watcher.keys[0]}
    run = create_run_for_test(instance, job_name="now", tags=tags, status=dg.DagsterRunStatus.STARTED)

    with later(7_200):
        assert watcher.tick() == []
        instance.report_run_failed(run)
        assert watcher.tick() == [["one", "three", "two"]]


def test_a_source_that_is_away_for_one_look_hides_no_other(folder: Path, instance: dg.DagsterInstance) -> None:
    watcher = Watcher(folder, instance)
    watcher.tick()
    for name in ("one", "two", "three"):
        watcher.registered(name)
    assert watcher.tick() == []

    (folder / "one").rename(folder.parent / "away")
    write(folder / "two", 1)
    assert watcher.tick() == [["two"]]
    watcher.registered("two")
    assert watcher.tick() == []
    assert "could not look at shop.one" in watcher.told
    (folder.parent / "away").rename(folder / "one")
    assert watcher.tick() == []  # it is what is registered


def test_a_relation_that_another_program_registered_is_registered_again(
    folder: Path, instance: dg.DagsterInstance
) -> None:
    watcher = Watcher(folder, instance)
    watcher.tick()
    for name in ("one", "two", "three"):
        watcher.registered(name)
    assert watcher.tick() == []
    part, backup = folder / "one" / "part-0.parquet", folder.parent / "backup.parquet"
    shutil.copy2(part, backup)
    write(folder / "one", 0, rows=9)
    catalog = spiral.connect(watcher.catalog.uri)
    catalog.refresh("shop.one")
    shutil.copy2(backup, part)  # what this Dagster registered last, and the catalog has no more

    assert watcher.tick() == [["one"]]
    watcher.registered("one")
    assert catalog.table("shop.one").to_arrow().num_rows == 4


def test_the_assets_of_a_watched_relation_have_the_sensor(folder: Path) -> None:
    found = relation_assets("shop.one", {"kind": "parquet", "path": str(folder / "one")}, watch_s=30)

    (sensor,) = found.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert (sensor.name, sensor.minimum_interval_seconds) == ("watch_shop_one", 30)
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING

"""A sensor asks for what changed, all of it in one run; a touch changes nothing that is built on a relation."""

import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as spiral
from spiral_assets.assets import relation_assets
from spiral_assets.resources import CatalogResource
from spiral_assets.watching import Watched, watch_sensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        (tmp_path / "data" / name).mkdir(parents=True)
        write(tmp_path / "data" / name, 0)
    return tmp_path / "data"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def write(folder: Path, part: int, rows: int = 4) -> None:
    table = pa.table({"sample_id": [f"{part}-{row}" for row in range(rows)]})
    pq.write_table(table, folder / f"part-{part}.parquet")


def touch(path: Path) -> None:
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 5_000_000_000))


class Watcher:
    """The sensor over the folder's relations, tick by tick."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.instance, self.cursor = instance, None
        self.sources = {path.name: {"kind": "parquet", "path": str(path)} for path in sorted(folder.iterdir())}
        self.catalog = CatalogResource(uri=str(folder.parent / "catalog"))
        self.sensor = watch_sensor("shop", [Watched(*each) for each in self.sources.items()], every_s=60)

    def tick(self) -> list[list[str]]:
        """The relations of each run that is requested."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"catalog": self.catalog}
        )
        found = self.sensor(context)
        assert isinstance(found, dg.SensorResult)
        self.cursor = found.cursor
        runs = found.run_requests or ()
        return [sorted(key.path[-1] for key in run.asset_selection or ()) for run in runs]


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
    assets = relation_assets("shop.one", watcher.sources["one"], statistics=False)
    whole = dg.Definitions.merge(
        assets, dg.Definitions(resources={"catalog": watcher.catalog}, executor=dg.in_process_executor)
    )
    key = dg.AssetKey(["catalog", "shop", "one"])
    catalog = spiral.connect(watcher.catalog.uri)

    def registered() -> str:
        config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        job = dg.Definitions.merge(whole, dg.Definitions(jobs=[dg.define_asset_job("now")])).resolve_job_def("now")
        assert job.execute_in_process(instance=instance, run_config=config).success
        event = instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        version = (event.asset_materialization.tags or {})["dagster/data_version"]
        assert version == catalog.entry("shop.one").data_version
        assert catalog.table("shop.one").to_arrow().num_rows == catalog.entry("shop.one").manifest().total
        return version

    first = registered()
    touch(folder / "one" / "part-0.parquet")
    assert watcher.tick() == [["one"]]
    assert registered() == first
    write(folder / "one", 0, rows=5)
    assert registered() != first


def test_the_assets_of_a_watched_relation_have_the_sensor(folder: Path) -> None:
    found = relation_assets("shop.one", {"kind": "parquet", "path": str(folder / "one")}, watch_s=30)

    (sensor,) = found.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert (sensor.name, sensor.minimum_interval_seconds) == ("watch_shop_one", 30)
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING

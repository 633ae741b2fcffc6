"""The code location over a folder: one of its own for a test that changes it, and one that is prepared for all that only look."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pytest

from spiral_assets.corpora import images
from spiral_assets.corpora.drawing import Painter
from spiral_assets.corpora.images import DrawnImages, write_image_relation
from spiral_assets.definitions import defs
from spiral_assets.facts.folded import ROWS
from spiral_stream.report import ColumnSkew
from tests.fixtures.folded_pages import everything, faults

IMAGES = 60
SHARDS = 3
WHOLE = 220  # images of the prepared location: three batches an epoch
TRAIN = "catalog/vision/imagenet_train"
LABELS = "catalog/vision/imagenet_labels"
CACHE = "caches/imagenet_decoded"
STATS = "stats/vision/imagenet_train/shard_stats"
STREAMS = "streams/images"
CHARACTERS = 120_000  # of text a relation
VIDEOS = 9  # five segments each; the fourth and the eighth are held out
VIDEO_SHARDS = 3


PICTURES = ColumnSkew.pictures
loaded = cache(defs)  # a load of the code location takes half a CPU second


painter = cache(Painter)
one_instance = cache(dg.DagsterInstance.ephemeral)  # to make one takes 60 CPU ms, to empty one 2


def copied(to: Path, name: str, record: str, write: Callable[[Path], object]) -> None:
    """Copy a corpus into a place: it is written once for all tests of this process.

    Args:
        to: folder of the corpus in the place.
        name: of the folder that is kept, next to the places.
        record: file of the corpus that names its folder.
        write: writes the corpus into a folder.
    """
    kept = to.parents[2] / name
    if not kept.exists():
        write(kept)
    if not to.exists():
        shutil.copytree(kept, to)
        (to / record).write_text((to / record).read_text().replace(str(kept), str(to)))


def drawn(place: "Place", count: int = IMAGES) -> lance.LanceDataset:
    """The drawn relation, before it is registered."""

    def write(root: Path) -> DrawnImages:
        return write_image_relation(root, count, shards=SHARDS, workers=0, progress=False)

    root = place.root / "data" / "images"
    copied(root, f"images-{count}", "drawn.json", write)
    return lance.dataset(write(root).train_uri)


class Place:
    """The code location over a folder of its own; the demo's data may lie elsewhere."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, data: Path | None = None) -> None:
        self.root, self.data, self.instance = root, data or root / "data", instance
        self.definitions = loaded()

    @contextmanager
    def named(self, *, pictures: bool = False) -> Iterator["Place"]:
        """Name it in the environment, as long.

        The pictures of a column's skew take most of the time of its statistics, and few tests look at them.
        """
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SPIRAL_CATALOG", str(self.root / "catalog"))
            patched.setenv("SPIRAL_CACHE", str(self.root / "caches"))
            patched.setenv("SPIRAL_DATA_ROOT", str(self.data))
            patched.setattr(ColumnSkew, "pictures", PICTURES if pictures else lambda *_: [])
            yield self

    def run(
        self,
        *keys: str,
        job: str = "images",
        checks: Sequence[tuple[str, str]] | None = None,
        ops: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        partitions: Mapping[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize these keys (``catalog/vision/imagenet_train``), or run these checks alone; of some ``partitions``."""
        config = {"loggers": {"console": {"config": {"log_level": "WARNING"}}}, "ops": dict(ops or {})}
        if checks is not None:
            wanted = dg.AssetSelection.checks(*(dg.AssetCheckKey(dg.AssetKey(a.split("/")), n) for a, n in checks))
        else:
            wanted = dg.AssetSelection.assets(*(dg.AssetKey(key.split("/")) for key in keys))
        one = dg.define_asset_job("part", wanted)
        whole = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[one]))
        chosen = whole.resolve_job_def("part" if keys or checks is not None else job)
        result = chosen.execute_in_process(
            instance=self.instance, run_config=config, run_id=run_id, raise_on_error=False, **(partitions or {})
        )
        need_pages(result)
        return result


def need_pages(result: dg.ExecuteInProcessResult) -> None:
    """Whatever was materialized has a page on which all is seen, and so has each check."""
    wrong = [
        f"{event.asset_key.to_user_string()}: {fault}"
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
        for fault in faults(event.materialization.metadata)
    ]
    wrong += [
        f"{each.check_name}: {name} has {len(value.records)} rows"
        for each in result.get_asset_check_evaluations()
        for name, value in each.metadata.items()
        if isinstance(value, dg.TableMetadataValue) and len(value.records) > ROWS
    ]
    assert not wrong, "\n".join(wrong)


def metadata(result: dg.ExecuteInProcessResult, key: str) -> dict[str, Any]:
    """What a run reported of an asset, as plain values."""
    found = [
        event.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(key.split("/"))
    ]
    assert len(found) == 1, f"{key}: {len(found)} materializations"
    return everything(found[0].metadata)


def data_version(place: Place, key: str) -> str:
    """The data version of an asset's latest materialization."""
    event = place.instance.get_latest_materialization_event(dg.AssetKey(key.split("/")))
    assert event is not None
    assert event.asset_materialization is not None
    tags = event.asset_materialization.tags or {}
    return str(tags["dagster/data_version"])


def evaluations(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """What a run's checks found, by name."""
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def steps(result: dg.ExecuteInProcessResult, kind: str) -> set[str]:
    """Steps that ended so: ``STEP_SUCCESS``, ``STEP_FAILURE``, ``STEP_SKIPPED``."""
    return {str(event.step_key) for event in result.all_events if event.event_type_value == kind}


def built_on(place: Place, key: dg.AssetKey) -> set[str]:
    """The assets that are built on one, as their steps are called."""
    found = dg.AssetSelection.assets(key).downstream().resolve(place.definitions.resolve_asset_graph())
    return {each.to_python_identifier() for each in found - {key}}


def emptied() -> dg.DagsterInstance:
    """The instance of this process, in which nothing happened yet."""
    one_instance().wipe()
    return one_instance()


@pytest.fixture
def instance() -> dg.DagsterInstance:
    return emptied()


@pytest.fixture
def place(tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Place]:
    with Place(tmp_path, instance).named() as made:
        yield made


@pytest.fixture(scope="session")
def whole_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, dg.ExecuteInProcessResult]]:
    """Images of which everything but the training is there, and the run that made it; once for all tests of this process."""
    with dg.DagsterInstance.ephemeral() as instance:
        place = Place(tmp_path_factory.mktemp("whole"), instance)
        with place.named(pictures=True):
            drawn(place, WHOLE)
            result = place.run(job="prepare_images")
        yield place, result


@pytest.fixture
def prepared_images(
    whole_images: tuple[Place, dg.ExecuteInProcessResult],
) -> Iterator[tuple[Place, dg.ExecuteInProcessResult]]:
    """Prepared images, for tests that only look, or do again what is done."""
    with whole_images[0].named():
        yield whole_images


@pytest.fixture(autouse=True, scope="module")
def _one_painter() -> Iterator[None]:
    """Images of one seed are drawn by one painter: its noise takes 0.2 CPU s, and it draws the same whatever it drew before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(images, "Painter", painter)
        yield

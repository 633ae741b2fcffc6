"""A location of its own for each test: an empty catalog, a few drawn images, some text, an instance that is forgotten."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from spiral_assets.definitions import defs
from spiral_stream.report import ColumnSkew

IMAGES = 60
SHARDS = 3
CHARACTERS = 120_000  # of text a relation
VIDEOS = 9  # five segments each; the fourth and the eighth are held out
VIDEO_SHARDS = 3


loaded = cache(defs)  # a load of the code location takes half a CPU second


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


class Place:
    """The code location over a folder of its own."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data = root, data
        self.instance = dg.DagsterInstance.ephemeral()
        self.definitions = loaded()

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
        return chosen.execute_in_process(
            instance=self.instance, run_config=config, run_id=run_id, raise_on_error=False, **(partitions or {})
        )


def metadata(result: dg.ExecuteInProcessResult, key: str) -> dict[str, Any]:
    """What a run reported of an asset, as plain values."""
    found = [
        event.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(key.split("/"))
    ]
    assert len(found) == 1, f"{key}: {len(found)} materializations"
    return {name: value.value for name, value in found[0].metadata.items()}


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


@contextmanager
def placed(root: Path, data: Path | None = None, *, pictures: bool = False) -> Iterator[Place]:
    """The code location over a folder, which its environment names as long; the demo's data may lie elsewhere.

    The pictures of a column's skew take most of the time of its statistics, and few tests look at them.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPIRAL_CATALOG", str(root / "catalog"))
        patched.setenv("SPIRAL_CACHE", str(root / "caches"))
        patched.setenv("SPIRAL_DATA_ROOT", str(data or root / "data"))
        if not pictures:
            patched.setattr(ColumnSkew, "pictures", lambda *_: [])
        made = Place(root, data or root / "data")
        yield made
        made.instance.dispose()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with placed(tmp_path) as made:
        yield made

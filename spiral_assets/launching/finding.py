"""A sensor that finds jobs which nobody follows: it asks for a run that attaches, and ends those whose run is cancelled.

Dagster takes note of a worker that died where its launcher can tell. Where the code location died with it, a run stays as started
for ever, no retry is asked for, and a cancel reaches nobody. The lock of the step that reports tells whether a job is followed.
"""

import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import dagster as dg

from spiral_assets.conventions import RESOURCE, renamed
from spiral_assets.launching.launcher import FarJob, UnreachableError
from spiral_assets.launching.messages import REPORTING
from spiral_assets.launching.records import JobRecord, JobRecords, every_records, launcher_in
from spiral_assets.resources import RunsResource

EVERY_S: Final = 30
FOLLOWS: Final = "spiral/follows"  # tag of a run that was asked for to follow a job
_ROOT: Final = "dagster/root_run_id"  # Dagster's tag of a run that is a retry
_AGAIN_S: Final = 600.0  # until a run that was asked for and never came is asked for again
_CANCELLED: Final = (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.CANCELING)
_COMING: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def following_sensor(
    name: str, asset: dg.AssetsDefinition, *, catalog: str = RESOURCE, running: bool = True
) -> dg.SensorDefinition:
    """Return the sensor ``follow_<name>``, which finds the asset's jobs that nobody follows.

    Args:
        name: of the sensor.
        asset: whose jobs they are.
        catalog: key of the resource that is its catalog, which names the folder of runs.
        running: whether it is on until somebody turns it off.

    Examples:
        >>> from spiral_assets.assets import training_asset
        >>> from spiral_assets.launching.finding import following_sensor
        >>> asset = training_asset("cnn", "shop", {}, deps=[], description="Classes.", launcher={"kind": "local"})
        >>> following_sensor("cnn", asset).name
        'follow_cnn'
    """
    (key,) = asset.keys

    @dg.sensor(
        name=f"follow_{name}",
        asset_selection=[key],
        minimum_interval_seconds=EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Attach a run to jobs that nobody follows; end those whose run is cancelled.",
    )
    @renamed(catalog)
    def follow(context: dg.SensorEvaluationContext, runs: RunsResource) -> Iterator[dg.RunRequest]:
        before, left = set((context.cursor or "").split()), list[str]()
        for records, record in _open_jobs(Path(runs.root), key):
            left.append(record.name)
            if record.name in before:  # nobody followed it at the last look, either
                request = _handled(context, key, records, record)
                if request is not None:
                    yield request
        context.update_cursor(" ".join(left))

    return follow


def _open_jobs(root: Path, asset: dg.AssetKey) -> Iterator[tuple[JobRecords, JobRecord]]:
    """Yield the jobs of an asset whose end nobody reported, and which no step follows.

    Args:
        root: folder of the resource ``runs``.
        asset: key of the asset.
    """
    for records in every_records(root, asset.path):
        record = records.last()
        if record is not None and not record.end and not _is_followed(records.folder_of(record)):
            yield records, record


def _handled(
    context: dg.SensorEvaluationContext, key: dg.AssetKey, records: JobRecords, record: JobRecord
) -> dg.RunRequest | None:
    """Cancel a job whose run is cancelled; return the request of a run that follows another one."""
    run = context.instance.get_run_by_id(record.last_run)
    if run is None:
        said = "job %s: its run %s was deleted. Launch the asset to follow the job"
        context.log.warning(said, record.name, record.last_run)
        return None
    if run.status in _CANCELLED:
        launcher, job = launcher_in(record), FarJob(record.name, records.folder_of(record))
        try:
            job_id = launcher.attach(job)
            if job_id is not None:
                launcher.cancel(job, job_id)
        except UnreachableError as error:
            context.log.warning(str(error))
            return None
        records.ended(record, "cancelled")
        context.log.info(f"job {record.name} is ended, since its run {run.run_id} is cancelled")  # noqa: G004
        return None
    if _another_comes(context.instance, record, run.root_run_id or run.run_id):
        return None
    return dg.RunRequest(
        run_key=f"{record.name} after {record.last_run} {int(time.time() // _AGAIN_S)}",
        run_config=run.run_config,
        partition_key=run.tags.get("dagster/partition"),
        asset_selection=[key],
        tags={FOLLOWS: record.name},
    )


def _another_comes(instance: dg.DagsterInstance, record: JobRecord, root: str) -> bool:
    """Whether a run is under way that will follow a job: a retry of Dagster's, or one that was asked for here."""
    for tag, value in ((_ROOT, root), (FOLLOWS, record.name)):
        found = instance.get_runs(dg.RunsFilter(tags={tag: value}, statuses=_COMING))
        if any(each.run_id != record.last_run for each in found):
            return True
    return False


def _is_followed(folder: Path) -> bool:
    lock = folder / REPORTING
    if not lock.exists():
        return False
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

"""What a step does with a job elsewhere: submit it or attach to it, follow it to its end, and cancel it with its run.

A step may end at any time: its worker is killed, the code location is deployed, the machine goes. The job goes on, and the next
step for the same asset, partition and config follows it. Only somebody who cancels the run ends the job, or its own deadline.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

import dagster as dg

from spiral_assets.launching.launcher import FarJob, JobReport, JobState, Launcher, RefusedError, UnreachableError
from spiral_assets.launching.messages import JobMessages
from spiral_assets.launching.records import JobRecord, JobRecords, launcher_in
from spiral_assets.launching.waiting import Waited

PATIENCE_S: Final = 900.0  # with a system of jobs that does not answer; a head that is started anew takes minutes
CANCEL_S: Final = 20.0  # from a cancellation to the end of the job, or to an error
LAST_S: Final = 600.0  # for what an ended job said that was not reported yet
_STATUS_S: Final = 2.0  # between two looks at the run
_WAITING_S: Final = 600.0  # between two lines about a job that waits
_RETRY_S: Final = 2.0
_CANCELLED: Final = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
_ENDED: Final = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS)

T = TypeVar("T")


@final
@dataclass(frozen=True)
class LaunchedJob:
    """The job that a step follows.

    Attributes:
        records: of the asset, partition and config.
        record: of the job.
        launcher: of the job, which may be another one than YAML has by now.
    """

    records: JobRecords
    record: JobRecord
    launcher: Launcher

    @property
    def results(self) -> Path:
        """The folder of its results, such as checkpoints: that of the run which submitted it."""
        return Path(self.record.results)

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.records.folder_of(self.record)

    @property
    def facts(self) -> Mapping[str, str]:
        """What the asset's page says of it."""
        return {"job": f"{self.launcher.kind}: {self.record.name}"}


def claimed(
    context: dg.AssetExecutionContext, launcher: Launcher, root: Path, digest: str, results: Path
) -> LaunchedJob:
    """Return the job to follow. One that failed while nobody followed it is not followed: the new one has its results.

    Args:
        context: of the step.
        launcher: of a new job.
        root: a folder that this process and the job see under the same path.
        digest: of the config.
        results: folder of a new job's results.

    Raises:
        Failure: the system of jobs does not answer.
    """
    partition = context.partition_key if context.has_partition_key else None
    records = JobRecords(root, context.asset_key.path, partition, digest)
    run = str(context.run.root_run_id or context.run.run_id)
    while True:
        record = records.claim(run, context.run.run_id, launcher, str(results))
        stored = launcher_in(record)
        found = LaunchedJob(records, record, stored)
        if record.job_id is None:
            return found
        job, job_id = FarJob(record.name, found.folder), record.job_id
        seen = _patiently(context, lambda: stored.state(job, job_id))  # noqa: B023  called at once
        if seen.state not in {JobState.FAILED, JobState.LOST, JobState.CANCELLED}:
            context.log.info(f"attached to {stored.kind} job {record.name}, which is {seen.state}")  # noqa: G004  Dagster's own logger
            return found
        context.log.warning(
            "%s job %s ended as %s while no run followed it: %s. A new one is submitted, in the same folder of results",
            *(stored.kind, record.name, seen.state, seen.message),
        )
        records.ended(record, str(seen.state), seen=False)


def follow(
    context: dg.AssetExecutionContext,
    launched: LaunchedJob,
    command: Sequence[str],
    env: Mapping[str, str],
) -> dg.PipesClientCompletedInvocation:
    """Submit the job if nobody did, and follow it to its end.

    Args:
        context: of the step.
        launched: from `claimed`.
        command: of the job.
        env: variables of the job.

    Raises:
        Failure: the job did not end well, or its system does not answer. A retry is useful where the failure allows one.
    """
    record, launcher, records = launched.record, launched.launcher, launched.records
    messages = JobMessages(launched.folder, context)
    with dg.open_pipes_session(context, dg.PipesEnvContextInjector(), messages) as session:
        job = FarJob(record.name, launched.folder, command, {**env, **session.get_bootstrap_env_vars()})
        with _ended_if_cancelled(context, launched, job):
            if record.job_id is None:
                record = _patiently(context, lambda: records.submitted(record, launcher, job))
                context.log.info(f"{launcher.kind} job {record.name} is submitted; its files lie in {launched.folder}")  # noqa: G004
            seen = _followed(context, launched, job, str(record.job_id), messages)
        messages.take(LAST_S)
        records.ended(record, str(seen.state))
    if seen.state is JobState.SUCCEEDED:
        return dg.PipesClientCompletedInvocation(session)
    again = seen.state is not JobState.CANCELLED
    way = "A retry goes on with its results" if again else "Launch the asset again to begin a new one"
    msg = f"{launcher.kind} job {record.name} ended as {seen.state}: {seen.message}. Its files lie in {launched.folder}. {way}"
    raise dg.Failure(msg, allow_retries=again)


def _followed(
    context: dg.AssetExecutionContext, launched: LaunchedJob, job: FarJob, job_id: str, messages: JobMessages
) -> JobReport:
    """Return how a job ended."""
    launcher, deadline_h = launched.launcher, launched.launcher.deadline_h
    waiting, waited = _Waiting(context, job.name), Waited()
    while True:
        messages.take()
        seen = _patiently(context, lambda: launcher.state(job, job_id))
        if seen.state.is_over:
            return seen
        waiting.say(seen)
        if deadline_h is not None and time.time() - launched.record.opened_at > deadline_h * 3600:
            _cancel(context, launcher, job, job_id)
            return JobReport(JobState.CANCELLED, f"it ran past its deadline of {deadline_h:g} h (launcher: deadline_h)")
        if waited.is_due(_STATUS_S):
            _need_run(context, job)
        time.sleep(launcher.POLL_S)


@contextmanager
def _ended_if_cancelled(context: dg.AssetExecutionContext, launched: LaunchedJob, job: FarJob) -> Iterator[None]:
    """End the job if the run is cancelled meanwhile; leave it alone if the step ends for any other reason.

    Raises:
        Failure: the run is cancelled.
    """
    try:
        yield
    except BaseException as error:
        if _status(context) in _CANCELLED:
            context.log.info(f"the run is cancelled: {launched.launcher.kind} job {job.name} is ended")  # noqa: G004
            job_id = launched.records.job_id(launched.record) or launched.launcher.attach(job)
            if job_id is None:
                time.sleep(_RETRY_S)  # a submission that was interrupted may still be on its way
                job_id = launched.launcher.attach(job)
            seen = JobReport(JobState.CANCELLED) if job_id is None else _cancel(context, launched.launcher, job, job_id)
            launched.records.ended(launched.record, str(seen.state))
            msg = f"the run is cancelled, and {launched.launcher.kind} job {job.name} with it: it is {seen.state}"
            raise dg.Failure(msg, allow_retries=False) from error  # Dagster retries a step that was interrupted, too
        if not isinstance(error, Exception):
            context.log.warning(
                f"this step ends, and {launched.launcher.kind} job {job.name} goes on. Launch the asset with the same config to "  # noqa: G004
                "attach to it, and cancel that run to end it"
            )
        raise


def _cancel(context: dg.AssetExecutionContext, launcher: Launcher, job: FarJob, job_id: str) -> JobReport:
    """Cancel a job, and wait for its end.

    Raises:
        Failure: it has not ended in time.
    """
    _patiently(context, lambda: launcher.cancel(job, job_id), CANCEL_S)
    waited = Waited()
    while not (seen := _patiently(context, lambda: launcher.state(job, job_id), CANCEL_S)).state.is_over:
        if waited.seconds() > CANCEL_S:
            msg = f"{launcher.kind} job {job.name} was cancelled, and goes on after {CANCEL_S:g} s. End it by hand: {job_id}"
            raise dg.Failure(msg, allow_retries=False)
        time.sleep(0.2)
    return seen


def _need_run(context: dg.AssetExecutionContext, job: FarJob) -> None:
    """End a step whose run has ended: Dagster took its worker for dead, or somebody marked it as ended.

    Raises:
        Failure: it has ended; the job goes on, unless the run is cancelled.
    """
    status = _status(context)
    if status in _CANCELLED:
        msg = f"the run is cancelled, and with it job {job.name}"
        raise dg.Failure(msg, allow_retries=False)
    if status in _ENDED:
        msg = f"this run has ended as {status.value} while it followed job {job.name}, which goes on. Its retry attaches to it"
        raise dg.Failure(msg, allow_retries=False)


def _status(context: dg.AssetExecutionContext) -> dg.DagsterRunStatus | None:
    """Return the status of the run; None if the instance's storage does not say it just now."""
    try:
        run = context.instance.get_run_by_id(context.run.run_id)
    except Exception as error:  # noqa: BLE001  each storage raises its own; a job of days outlives a restart of a database
        context.log.warning(f"the status of the run cannot be read just now: {error}")  # noqa: G004
        return None
    return None if run is None else run.status


def _patiently(context: dg.AssetExecutionContext, ask: Callable[[], T], within_s: float = PATIENCE_S) -> T:
    """Ask a system of jobs again while it does not answer.

    Raises:
        Failure: it does not answer in time, or it refuses a job.
    """
    waited, said = Waited(), False
    while True:
        try:
            return ask()
        except UnreachableError as error:
            if waited.seconds() >= within_s:
                msg = f"{error}. It was asked for {within_s:g} s; a job that runs goes on, and a retry attaches to it"
                raise dg.Failure(msg) from error
            if not said:
                context.log.warning(f"{error}. Asking again for {within_s:g} s")  # noqa: G004
                said = True
            time.sleep(_RETRY_S)
        except RefusedError as error:
            raise dg.Failure(str(error), allow_retries=False) from error


@final
class _Waiting:
    """Says what a job waits for, when that changes and every ten minutes."""

    def __init__(self, context: dg.AssetExecutionContext, name: str) -> None:
        self._context, self._name = context, name
        self._last = JobReport(JobState.PENDING)
        self._waited = Waited()

    def say(self, seen: JobReport) -> None:
        """Say it."""
        waits = self._waited.is_due(_WAITING_S) and seen.state is JobState.PENDING
        if seen != self._last or waits:
            self._context.log.info(f"job {self._name} is {seen.state}. {seen.message}".rstrip(". "))
            self._last = seen

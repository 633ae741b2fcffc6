"""Batch jobs of Slurm, by its own commands: sbatch, squeue, sacct, scancel. With a host, they run there through ssh.

This was not run on a cluster (docs/howto/launchers.md).
"""

import shlex
import subprocess
from collections.abc import Sequence
from time import sleep
from typing import ClassVar, Final, Literal, final

from pydantic import Field

from spiral_assets.launching.files import tail
from spiral_assets.launching.launcher import (
    FarJob,
    JobReport,
    JobState,
    Launcher,
    RefusedError,
    UnreachableError,
)
from spiral_assets.launching.waiting import Waited

_ANSWER_S: Final = 60.0  # of one command
_ENDED: Final = {
    "COMPLETED": JobState.SUCCEEDED,
    "CANCELLED": JobState.CANCELLED,
    "BOOT_FAIL": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "PREEMPTED": JobState.FAILED,
    "REVOKED": JobState.FAILED,
    "TIMEOUT": JobState.FAILED,
}
_WAITING: Final = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_SSH_FAILED: Final = 255


@final
class SlurmLauncher(Launcher):
    """Submits batch jobs.

    Examples:
        >>> from spiral_assets.launching.slurm import SlurmLauncher
        >>> SlurmLauncher(partition="gpu", time="2-00:00:00", options=["--gpus-per-node=8"]).partition
        'gpu'
    """

    POLL_S: ClassVar[float] = 10.0

    kind: Literal["slurm"] = "slurm"
    host: str | None = Field(default=None, description="Where Slurm's commands run, through ssh; null for here.")
    partition: str | None = Field(default=None, description="Of the cluster.")
    account: str | None = Field(default=None, description="That pays.")
    time: str | None = Field(default=None, description="Limit, as sbatch takes it.", examples=["2-00:00:00"])
    options: list[str] = Field(default_factory=list, description="More of sbatch.", examples=[["--gpus-per-node=8"]])
    setup: list[str] = Field(
        default_factory=list, description="Lines of shell before the command.", examples=[["module load cuda"]]
    )
    python: str = Field(default="python", description="The interpreter on the nodes.")
    grace_s: float = Field(default=5.0, ge=0, le=3600, description="Seconds from an interrupt to a kill.")

    @property
    def interpreter(self) -> str:
        """The interpreter on the nodes."""
        return self.python

    def submit(self, job: FarJob) -> str:
        """Give sbatch a script. Slurm takes a name twice, so the record's lock keeps two submissions apart."""
        named = [("partition", self.partition), ("account", self.account), ("time", self.time)]
        options = [f"--{name}={value}" for name, value in named if value is not None]
        command = ["sbatch", "--parsable", f"--job-name={job.name}", f"--output={job.folder / 'output.log'}"]
        answered, said, wrong = self._answer(
            [*command, "--open-mode=append", *options, *self.options], self.script(job)
        )
        if answered:
            msg = f"job {job.name}: sbatch refused it: {wrong.strip()}. Correct launcher: partition, account, time, options"
            raise RefusedError(msg)
        return said.strip().partition(";")[0]

    def attach(self, job: FarJob) -> str | None:
        """Return the id of the job of this name, from the queue or from the accounts."""
        queue = self._lines(["squeue", "--noheader", "--format=%i", f"--name={job.name}"])
        accounts = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID", f"--name={job.name}"]
        found = queue or self._lines([*accounts, "--starttime=now-30days"])
        return found[-1] if found else None

    def state(self, job: FarJob, job_id: str) -> JobReport:
        """Return what the queue says, and for a job that left it, what the accounts say."""
        lines = self._lines(["squeue", "--noheader", "--format=%T|%r", f"--jobs={job_id}"], missing="Invalid job id")
        if not lines:
            accounts = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode"]
            lines = self._lines([*accounts, f"--jobs={job_id}"])
        if not lines:
            return JobReport(JobState.LOST, f"neither squeue nor sacct knows job {job_id}")
        said, _, more = lines[-1].partition("|")
        name = said.split()[0] if said.split() else ""  # "CANCELLED by 1000"
        if name in _ENDED:
            state = _ENDED[name]
            output = tail(job.folder / "output.log")
            return JobReport(
                state, "" if state is JobState.SUCCEEDED else f"Slurm says {said} {more}. Its output:\n{output}"
            )
        return JobReport(JobState.PENDING, more) if name in _WAITING else JobReport(JobState.RUNNING)

    def cancel(self, job: FarJob, job_id: str) -> None:
        """Interrupt all processes of the job, and kill it after the grace."""
        self._answer(["scancel", "--full", "--signal=INT", job_id])
        waited = Waited()
        while waited.seconds() < self.grace_s and not self.state(job, job_id).state.is_over:
            sleep(1.0)
        self._answer(["scancel", job_id])

    def script(self, job: FarJob) -> str:
        """Return the batch script of a job.

        Args:
            job: what is submitted.
        """
        variables = {**self.env, **job.env}
        exported = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        return "\n".join(["#!/bin/bash", *exported, *self.setup, f"exec {shlex.join(job.command)}", ""])

    def _lines(self, command: Sequence[str], missing: str = "") -> list[str]:
        code, said, wrong = self._answer(command)
        if code and not (missing and missing in wrong):
            why = f"{command[0]} ended with exit code {code}: {wrong.strip()}"
            raise self._unreachable(why)
        return [line.strip() for line in said.splitlines() if line.strip()]

    def _answer(self, command: Sequence[str], text: str = "") -> tuple[int, str, str]:
        far = ["ssh", "-o", "BatchMode=yes", self.host, shlex.join(command)] if self.host else list(command)
        try:
            done = subprocess.run(far, input=text, capture_output=True, text=True, timeout=_ANSWER_S, check=False)  # noqa: S603  Slurm's own
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._unreachable(str(error)) from error
        if self.host and done.returncode == _SSH_FAILED:
            raise self._unreachable(done.stderr.strip())
        return done.returncode, done.stdout, done.stderr

    def _unreachable(self, why: str) -> UnreachableError:
        return UnreachableError(
            f"Slurm does not answer as it should on {self.host or 'this machine'}: {why}. See that squeue and sacct work there, "
            "or give launcher: {host: ...} that ssh reaches without a password"
        )

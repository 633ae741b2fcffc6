"""Jobs of a Ray cluster. The submission id is the job's name, which a cluster takes once: of two submissions one is refused."""

import os
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, final

from pydantic import Field

from spiral_assets import need
from spiral_assets.launching.launcher import (
    FarJob,
    JobReport,
    JobState,
    Launcher,
    RefusedError,
    UnreachableError,
)

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_STATES: Final = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "STOPPED": JobState.CANCELLED,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
}
_LAST_LINES: Final = 20  # of its output, in the message of a failure


@final
class RayLauncher(Launcher):
    """Submits jobs to a Ray cluster, through the address of its dashboard.

    Examples:
        >>> from spiral_assets.launching.ray import RayLauncher
        >>> RayLauncher(address="http://ray-head:8265", num_gpus=8).interpreter
        'python'
    """

    kind: Literal["ray"] = "ray"
    address: str | None = Field(
        default=None,
        description="Of the dashboard; by default $RAY_API_SERVER_ADDRESS, or $RAY_ADDRESS.",
        examples=["http://ray-head:8265"],
    )
    python: str = Field(default="python", description="The interpreter on the nodes.")
    runtime_env: dict[str, Any] = Field(default_factory=dict, description="working_dir, pip and more, as Ray has it.")
    num_cpus: float | None = Field(default=None, ge=0, description="CPUs that the job's command reserves.")
    num_gpus: float | None = Field(default=None, ge=0, description="GPUs that it reserves.")
    memory_bytes: int | None = Field(default=None, gt=0, description="Memory that it reserves.")
    resources: dict[str, float] = Field(default_factory=dict, description="Custom resources that it reserves.")

    @property
    def interpreter(self) -> str:
        """The interpreter on the nodes."""
        return self.python

    def submit(self, job: FarJob) -> str:
        """Submit the command under the job's name."""
        variables = {**self.runtime_env.get("env_vars", {}), **self.env, **job.env}
        client = self._client()
        try:
            return str(
                client.submit_job(
                    entrypoint=shlex.join(job.command),
                    submission_id=job.name,
                    runtime_env={**self.runtime_env, "env_vars": variables},
                    metadata={"spiral_folder": str(job.folder)},
                    entrypoint_num_cpus=self.num_cpus,
                    entrypoint_num_gpus=self.num_gpus,
                    entrypoint_memory=self.memory_bytes,
                    entrypoint_resources=self.resources or None,
                )
            )
        except Exception as error:
            if (
                found := self.attach(job)
            ) is not None:  # it was submitted by somebody else, or before the answer was lost
                return found
            if _is_silence(error):
                raise self._unreachable(error) from error
            msg = (
                f"job {job.name}: Ray refused it: {error}. Correct launcher: runtime_env, num_cpus, num_gpus, resources"
            )
            raise RefusedError(msg) from error

    def attach(self, job: FarJob) -> str | None:
        """Return the job's name, which is its id, if the cluster has it."""
        return None if self._info(job.name) is None else job.name

    def state(self, job: FarJob, job_id: str) -> JobReport:
        """Return what the cluster says."""
        del job
        info = self._info(job_id)
        if info is None:
            return JobReport(JobState.LOST, "the Ray cluster does not know the job: its head was started anew")
        state, message = _STATES[str(getattr(info.status, "value", info.status))], str(info.message or "")
        if state is JobState.FAILED:
            message = f"{message}\n{self._last_lines(job_id)}"
        return JobReport(state, message if state is not JobState.RUNNING else "")

    def cancel(self, job: FarJob, job_id: str) -> None:
        """Stop the job: Ray sends SIGTERM, and SIGKILL after three seconds."""
        del job
        try:
            self._client().stop_job(job_id)
        except Exception as error:
            info = self._info(job_id)
            if info is not None and not _STATES[str(getattr(info.status, "value", info.status))].is_over:
                raise self._unreachable(error) from error

    def _client(self) -> "JobSubmissionClient":
        need("ray", "ray", "launcher: {kind: ray}")
        try:
            return _client_of(self.address, os.environ.get("RAY_API_SERVER_ADDRESS"), os.environ.get("RAY_ADDRESS"))
        except Exception as error:
            raise self._unreachable(error) from error

    def _info(self, job_id: str) -> Any:
        """Return what the cluster knows of a job; None if it does not know it."""
        client = self._client()
        try:
            return client.get_job_info(job_id)
        except Exception as error:
            if "status code 404" in str(error):
                return None
            raise self._unreachable(error) from error

    def _last_lines(self, job_id: str) -> str:
        try:
            return "\n".join(self._client().get_job_logs(job_id).splitlines()[-_LAST_LINES:])
        except Exception as error:  # noqa: BLE001  Ray raises what its connection raises; the failure is reported without lines
            return f"(its output cannot be had: {error})"

    def _unreachable(self, error: Exception) -> UnreachableError:
        where = self.address or "$RAY_API_SERVER_ADDRESS"
        return UnreachableError(
            f"Ray's dashboard at {where} does not answer as it should: {error}. See that `ray status` is well there, and that "
            "launcher: {address: http://...:8265} names its dashboard"
        )


@lru_cache(8)
def _client_of(address: str | None, *_: str | None) -> "JobSubmissionClient":
    """Return the client of an address: to make one takes a request of its own. The variables are where Ray looks for others."""
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(address)


def _is_silence(error: Exception) -> bool:
    """Whether nobody answered, rather than refused."""
    return isinstance(error, OSError | TimeoutError) or "connect" in str(error).lower()

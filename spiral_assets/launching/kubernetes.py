"""Jobs of Kubernetes: one Job of one pod, under the job's name, which a namespace takes once.

This was not run in a cluster (docs/howto/launchers.md).
"""

from importlib import import_module
from typing import Any, ClassVar, Final, Literal, final

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

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_RETENTION_S: Final = 7 * 24 * 3600  # of a Job that ended; a deploy at a weekend still finds it


@final
class KubernetesLauncher(Launcher):
    """Creates Jobs in a cluster: the one in which this process runs, or that of the kubeconfig.

    Examples:
        >>> from spiral_assets.launching.kubernetes import KubernetesLauncher
        >>> KubernetesLauncher(image="registry/shop:1.4", namespace="training").namespace
        'training'
    """

    POLL_S: ClassVar[float] = 3.0

    kind: Literal["kubernetes"] = "kubernetes"
    image: str = Field(description="Image of the pod.", examples=["registry/shop:1.4"])
    namespace: str = Field(default="default", description="Of the Job.")
    python: str = Field(default="python", description="The interpreter in the image.")
    service_account: str | None = Field(default=None, description="Of the pod.")
    resources: dict[str, Any] = Field(
        default_factory=dict, description="requests and limits.", examples=[{"limits": {"nvidia.com/gpu": 8}}]
    )
    volumes: list[dict[str, Any]] = Field(default_factory=list, description="Of the pod: the shared folder.")
    volume_mounts: list[dict[str, Any]] = Field(default_factory=list, description="Of the container.")
    pod_spec: dict[str, Any] = Field(default_factory=dict, description="More fields of the pod's spec: nodeSelector.")
    grace_s: int = Field(default=5, ge=0, le=3600, description="Seconds from an interrupt to a kill.")

    @property
    def interpreter(self) -> str:
        """The interpreter in the image."""
        return self.python

    def submit(self, job: FarJob) -> str:
        """Create the Job."""
        api = self._api()
        try:
            api.create_namespaced_job(self.namespace, self.manifest(job))
        except Exception as error:
            if getattr(error, "status", None) == _CONFLICT:
                return job.name
            if not getattr(error, "status", None):
                raise self._unreachable(error) from error
            msg = (
                f"job {job.name}: Kubernetes refused it: {error}. Correct launcher, or the role of the service account"
            )
            raise RefusedError(msg) from error
        return job.name

    def attach(self, job: FarJob) -> str | None:
        """Return the job's name, which is its id, if the namespace has it."""
        return None if self._read(job.name) is None else job.name

    def state(self, job: FarJob, job_id: str) -> JobReport:
        """Return what the Job's conditions say."""
        del job
        found = self._read(job_id)
        if found is None:
            return JobReport(JobState.LOST, f"namespace {self.namespace} has no Job {job_id}: it was deleted")
        for condition in found.status.conditions or ():
            if condition.status == "True" and condition.type in {"Complete", "Failed"}:
                state = JobState.SUCCEEDED if condition.type == "Complete" else JobState.FAILED
                logs = f"`kubectl logs -n {self.namespace} job/{job_id}` has its output"
                return JobReport(state, "" if state is JobState.SUCCEEDED else f"{condition.message}. {logs}")
        if found.metadata.deletion_timestamp is not None:
            return JobReport(JobState.CANCELLED, "it is being deleted")
        return JobReport(JobState.RUNNING if found.status.active else JobState.PENDING)

    def cancel(self, job: FarJob, job_id: str) -> None:
        """Delete the Job, and its pod after the grace."""
        del job
        try:
            self._api().delete_namespaced_job(job_id, self.namespace, propagation_policy="Foreground")
        except Exception as error:
            if getattr(error, "status", None) != _NOT_FOUND:
                raise self._unreachable(error) from error

    def manifest(self, job: FarJob) -> dict[str, Any]:
        """Return the Job as Kubernetes takes it.

        Args:
            job: what is submitted.
        """
        container = {
            "name": "job",
            "image": self.image,
            "command": list(job.command),
            "env": [{"name": name, "value": value} for name, value in {**self.env, **job.env}.items()],
            "resources": self.resources,
            "volumeMounts": self.volume_mounts,
        }
        pod = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace_s,
            "containers": [container],
            "volumes": self.volumes,
            **({"serviceAccountName": self.service_account} if self.service_account else {}),
            **self.pod_spec,
        }
        labels = {"app.kubernetes.io/managed-by": "spiral", "spiral/job": job.name}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job.name, "labels": labels},
            "spec": {
                "backoffLimit": 0,  # Dagster retries, from the checkpoint
                "ttlSecondsAfterFinished": _RETENTION_S,
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }

    def _api(self) -> Any:
        need("kubernetes", "kubernetes", "launcher: {kind: kubernetes}")
        client, config = import_module("kubernetes.client"), import_module("kubernetes.config")

        try:
            config.load_incluster_config()
        except config.ConfigException:
            try:
                config.load_kube_config()
            except Exception as error:
                raise self._unreachable(error) from error
        return client.BatchV1Api()

    def _read(self, name: str) -> Any:
        api = self._api()
        try:
            return api.read_namespaced_job(name, self.namespace)
        except Exception as error:
            if getattr(error, "status", None) == _NOT_FOUND:
                return None
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"Kubernetes does not answer as it should, for namespace {self.namespace}: {error}. Let the service account get, "
            "create and delete Jobs there, or give a kubeconfig"
        )

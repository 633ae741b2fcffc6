"""What a launcher is: four verbs, by which a job is started where the compute is, and found again by anybody.

A job has a name before it is submitted, and the name is stored first (`spiral_assets.launching.records`). So whoever comes after
a death can always tell which of three things happened: nothing was stored; a name was stored, and `attach` finds the job or does
not; an id was stored.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, final

from pydantic import BaseModel, ConfigDict, Field


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # its system does not know it any more, or its machine is gone

    @property
    def is_over(self) -> bool:
        """Whether it changes no more."""
        return self not in {JobState.PENDING, JobState.RUNNING}


@final
@dataclass(frozen=True)
class JobReport:
    """Where a job stands, and why.

    Attributes:
        state: of the job.
        message: in words: an exit code, what it waits for, the end of its output.
    """

    state: JobState
    message: str = ""


@final
@dataclass(frozen=True)
class FarJob:
    """What is submitted.

    Attributes:
        name: of this job alone, made of lower-case letters, digits and hyphens, at most 63.
        folder: of its files, under the same path here and where it runs.
        command: program and arguments.
        env: variables that it gets beside those of its surroundings.
    """

    name: str
    folder: Path
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class UnreachableError(Exception):
    """A system of jobs does not answer just now. Asking again may help."""


class RefusedError(Exception):
    """A system of jobs does not take a job. The message says what would be right."""


class Launcher(BaseModel, ABC):
    """Starts jobs in one system of jobs. Its fields are those of ``launcher:`` in YAML.

    Each verb asks the system and keeps nothing, so every process with the same fields finds the same jobs.

    Examples:
        >>> from spiral_assets.launching.launcher import FarJob
        >>> from spiral_assets.launching.local import LocalLauncher
        >>> folder = Path("a-job")
        >>> folder.mkdir()
        >>> launcher, job = LocalLauncher(), FarJob("a-job", folder, ["sleep", "600"])
        >>> job_id = launcher.submit(job)
        >>> launcher.attach(job) == job_id, str(launcher.state(job, job_id).state)
        (True, 'running')
        >>> launcher.cancel(job, job_id)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    POLL_S: ClassVar[float] = 2.0  # between two looks at a job

    kind: str
    env: dict[str, str] = Field(default_factory=dict, description="Variables of the job.")
    deadline_h: float | None = Field(default=None, gt=0, description="Hours after which the job is cancelled.")

    @property
    def interpreter(self) -> str:
        """What a command's first word ``python`` stands for, where the job runs."""
        return "python"

    @abstractmethod
    def submit(self, job: FarJob) -> str:
        """Start a job, and return its id.

        Raises:
            RefusedError: the system does not take it.
            UnreachableError: the system does not answer; whether it took the job is not known.
        """

    @abstractmethod
    def attach(self, job: FarJob) -> str | None:
        """Return the id of the job of this name; None if there is none.

        Raises:
            UnreachableError: the system does not answer.
        """

    @abstractmethod
    def state(self, job: FarJob, job_id: str) -> JobReport:
        """Return where a job stands.

        Raises:
            UnreachableError: the system does not answer.
        """

    @abstractmethod
    def cancel(self, job: FarJob, job_id: str) -> None:
        """Ask for the end of a job: it is interrupted first, and killed after some seconds. Returns at once.

        Raises:
            UnreachableError: the system does not answer.
        """

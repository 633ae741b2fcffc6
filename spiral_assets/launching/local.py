"""Jobs on this machine: in a session of their own, so that they outlive the step, the run worker and the code location."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar, Final, Literal, final

from pydantic import Field

from spiral_assets.launching import supervisor
from spiral_assets.launching.files import read_json, tail, write_json
from spiral_assets.launching.launcher import FarJob, JobReport, JobState, Launcher, RefusedError
from spiral_assets.launching.waiting import Waited

START_S: Final = 60.0  # for the first process of a job, on a machine that does much else
SILENT_S: Final = 30.0  # without a beat, a job on a machine that cannot be seen is lost


@final
class LocalLauncher(Launcher):
    """Starts jobs on this machine.

    Examples:
        >>> from spiral_assets.launching.local import LocalLauncher
        >>> LocalLauncher(env={"OMP_NUM_THREADS": "4"}).kind
        'local'
    """

    POLL_S: ClassVar[float] = 0.5

    kind: Literal["local"] = "local"
    grace_s: float = Field(default=5.0, ge=0, le=3600, description="Seconds from an interrupt to a kill.")

    @property
    def interpreter(self) -> str:
        """The interpreter of the run."""
        return sys.executable

    def submit(self, job: FarJob) -> str:
        """Start a supervisor, which starts the command; it outlives this process."""
        write_json(job.folder / "job.json", {"command": list(job.command)})
        command = [sys.executable, "-P", supervisor.__file__, str(job.folder), str(self.grace_s)]
        env = {**os.environ, **_paths(), **self.env, **job.env}
        with (job.folder / "supervisor.log").open("ab") as log:
            done = subprocess.run(  # noqa: S603  of this package
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=START_S, check=False
            )
        waited = Waited()
        while done.returncode == 0 and waited.seconds() < START_S:
            if (job_id := self.attach(job)) is not None:
                return job_id
            time.sleep(0.02)
        msg = (
            f"job {job.name}: its first process did not start within {START_S:g} s. {job.folder / 'supervisor.log'} says why: "
            f"{tail(job.folder / 'supervisor.log', 5)}"
        )
        raise RefusedError(msg)

    def attach(self, job: FarJob) -> str | None:
        """Return what tells the job's process from all others: its id, when it started, and the machine."""
        found = read_json(job.folder / "process.json")
        return None if found is None else json.dumps(found, sort_keys=True)

    def state(self, job: FarJob, job_id: str) -> JobReport:
        """Return how it ended, as the supervisor wrote it; or whether its process lives."""
        process = json.loads(job_id)
        here = process["machine"] == supervisor.machine()
        alive = supervisor.started_at(process["pid"]) == process["started"] if here else _beats(job.folder)
        ended = read_json(job.folder / "ended.json")  # after the look at the process, which writes it at its end
        if ended is None:
            if alive:
                return JobReport(JobState.RUNNING)
            lost = "its process is gone and left no exit code: it was killed with everything it started, or the machine was"
            return JobReport(JobState.LOST, lost)
        if ended["cancelled"]:
            return JobReport(JobState.CANCELLED, "it was cancelled")
        if ended["code"] == 0:
            return JobReport(JobState.SUCCEEDED)
        return JobReport(JobState.FAILED, f"{_how(ended)}. The end of {job.folder / 'output.log'}:\n{_output(job)}")

    def cancel(self, job: FarJob, job_id: str) -> None:
        """Leave word for the supervisor. Nobody signals an id, which another process may have by now."""
        del job_id
        (job.folder / "cancel").touch()


def _paths() -> dict[str, str]:
    """Return the folders from which this process imports, beside those of its interpreter: a plan is found there."""
    inside = (sys.prefix, sys.base_prefix)
    found = [each for each in sys.path if each and Path(each).is_dir() and not each.startswith(inside)]
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys([*given, *found]))}


def _beats(folder: Path) -> bool:
    """Whether a job beats on a machine whose processes cannot be seen from here. Clocks need not agree: a change counts."""
    beat, mark = folder / "beat", folder / f"beat.{os.uname().nodename}"
    try:
        last = beat.stat().st_mtime_ns
    except FileNotFoundError:
        last = 0
    seen = read_json(mark)
    if seen is None or seen["beat"] != last:
        write_json(mark, {"beat": last, "at": time.time()})
        return True
    return time.time() - float(seen["at"]) < SILENT_S


def _how(ended: dict[str, object]) -> str:
    code = int(str(ended["code"]))
    if ended.get("stopped"):
        return "the machine ended it"
    if "error" in ended:
        return f"it could not be started: {ended['error']}"
    return f"it ended with exit code {code}" if code > 0 else f"it was ended by signal {-code}"


def _output(job: FarJob) -> str:
    return tail(job.folder / "output.log") or "(nothing was printed)"

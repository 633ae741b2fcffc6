"""A job launched from a served code location outlives all processes of Dagster, is found again, and is cancelled from the UI."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.fixtures import far_jobs
from tests.fixtures.building_location import INSTANCE
from tests.fixtures.dev_server import BIN, ENDED, Server, ended, free_port, serving, started
from tests.fixtures.ray_cluster import cluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_800)]
ROOT = Path(__file__).parents[2]
LOG = logging.getLogger(__name__)  # shown by --log-cli-level=INFO
SECONDS = float(os.environ.get("LAUNCHED_S", "20"))  # for which the job trains, at the least
TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"
LOGS = """
query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events {
  __typename ... on MessageEvent { message } } } } }
"""


class Dagster:
    """Code server, webserver and daemon over a folder; each may be killed."""

    def __init__(self, place: Path, launcher: Mapping[str, Any]) -> None:
        self.place, self.log = place, place / "log"
        far_jobs.write_location(place, launcher)
        (place / "home").mkdir()
        (place / "home" / "dagster.yaml").write_text(INSTANCE)
        with dg.DagsterInstance.from_config(
            str(place / "home")
        ) as instance:  # makes its tables before three processes do
            assert instance.run_storage is not None
            assert instance.event_log_storage is not None
            assert instance.schedule_storage is not None
        self.code_port, self.port = free_port(), free_port()
        found = {"host": "127.0.0.1", "port": self.code_port, "location_name": "line"}
        (place / "workspace.yaml").write_text(f"load_from: [{{grpc_server: {found}}}]\n")
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.env = {
            **os.environ,
            "DAGSTER_HOME": str(place / "home"),
            "PYTHONPATH": path,
            "DAGSTER_DISABLE_TELEMETRY": "1",
        }
        self.code: subprocess.Popen[bytes]
        self.daemon: subprocess.Popen[bytes]
        self.server: Server

    @contextmanager
    def running(self) -> Iterator["Dagster"]:
        web = [
            sys.executable,
            "-m",
            "dagster_webserver",
            "-w",
            "workspace.yaml",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
        ]
        with ExitStack() as stack:
            self.start_code()
            stack.callback(lambda: ended(self.code))
            self.start_daemon()
            stack.callback(lambda: ended(self.daemon))
            self.server = stack.enter_context(serving(web, self.place, self.env, self.log, self.port))
            yield self

    def start_code(self) -> None:
        file = ["-f", "location.py", "-d", str(self.place)]
        command = [BIN / "dagster", "code-server", "start", *file, "-h", "127.0.0.1", "-p", str(self.code_port)]
        self.code = started(command, self.place, self.env, self.log)

    def start_daemon(self) -> None:
        self.daemon = started([BIN / "dagster-daemon", "run", "-w", "workspace.yaml"], self.place, self.env, self.log)

    def worker(self, run: str) -> int:
        """The process of a run."""
        events = self.server.ask(LOGS, run=run)["logsForRun"]["events"]
        found = re.search(
            r"Started process for run \(pid: (\d+)\)", " ".join(each.get("message", "") for each in events)
        )
        return int(found[1]) if found else 0

    def kill_all(self, run: str) -> None:
        """Kill the worker of a run, the code location with all that it started in its session, and the daemon."""
        with suppress(ProcessLookupError):
            os.kill(self.worker(run), signal.SIGKILL)
        for process in (self.code, self.daemon):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(
    params=[
        "local",
        pytest.param("ray", marks=pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")),
    ]
)
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if request.param == "local":
        yield {"kind": "local", "grace_s": 2}
        return
    with cluster(tmp_path) as address:
        yield {"kind": "ray", "address": address, "python": sys.executable, "env": {"PYTHONPATH": str(ROOT)}}


@pytest.fixture
def dagster(tmp_path: Path, launcher: dict[str, Any]) -> Iterator[Dagster]:
    (tmp_path / "place").mkdir()
    with Dagster(tmp_path / "place", launcher).running() as running:
        yield running
    far_jobs.let_go(tmp_path / "place")


def test_a_job_survives_the_worker_the_code_location_and_the_daemon_and_a_sensor_finds_it(
    dagster: Dagster, record_property: Any
) -> None:
    server, place = dagster.server, dagster.place
    first = server.launch(far_jobs.KEY)
    (job,) = server.wait_for("a job", lambda: far_jobs.starts(place))
    begun = time.monotonic()
    server.wait_for("half of it", lambda: time.monotonic() - begun > SECONDS / 2, SECONDS)
    dagster.kill_all(first)
    assert alive(job)
    dagster.start_code()
    dagster.start_daemon()
    second = server.wait_for(
        "a run that follows", lambda: next((e["runId"] for e in server.runs() if e["runId"] != first), None)
    )
    server.wait_for("steps that it reports", lambda: logged(dagster, second), 300)
    server.wait_for("the rest", lambda: time.monotonic() - begun > SECONDS, 2 * SECONDS)
    far_jobs.let_go(place)
    server.wait_for("its end", lambda: status(dagster, second) in ENDED)

    assert status(dagster, second) == "SUCCESS", server.log.read_text()[-4_000:]
    assert far_jobs.starts(place) == [job]
    steps = logged(dagster, first) + logged(dagster, second)
    assert steps == sorted(set(steps))
    with dg.DagsterInstance.from_config(str(place / "home")) as instance:
        made = instance.fetch_materializations(dg.AssetKey(far_jobs.KEY.split("/")), limit=10).records
    assert [each.run_id for each in made] == [second]
    parts = len(logged(dagster, first)), len(logged(dagster, second)), steps[-1] + 1 - len(steps)
    LOG.info("%.0f s; lines in the first run, in the second, in neither: %s", time.monotonic() - begun, parts)


def status(dagster: Dagster, run: str) -> str:
    return next(str(each["status"]) for each in dagster.server.runs() if each["runId"] == run)


def logged(dagster: Dagster, run: str) -> list[int]:
    with dg.DagsterInstance.from_config(str(dagster.place / "home")) as instance:
        return far_jobs.steps_logged(instance, run)


def test_a_cancel_from_the_ui_ends_the_far_process_within_ten_seconds(dagster: Dagster) -> None:
    run = dagster.server.launch(far_jobs.KEY)
    (job,) = dagster.server.wait_for("a job", lambda: far_jobs.starts(dagster.place))
    dagster.server.wait_for("steps that it reports", lambda: logged(dagster, run))
    cancelled = time.monotonic()
    assert dagster.server.ask(TERMINATE, run=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"
    while alive(job):
        assert time.monotonic() - cancelled < 10
        time.sleep(0.05)
    took = time.monotonic() - cancelled
    dagster.server.rest()

    assert [each["status"] for each in dagster.server.runs()] == ["CANCELED"]
    LOG.info("the far process ended %.1f s after the cancel", took)


def test_a_run_whose_processes_are_all_gone_is_cancelled_and_its_job_ends(dagster: Dagster) -> None:
    """Dagster has nobody to interrupt; the sensor ends the job."""
    run = dagster.server.launch(far_jobs.KEY)
    (job,) = dagster.server.wait_for("a job", lambda: far_jobs.starts(dagster.place))
    dagster.kill_all(run)
    policy = "mutation($run: String!) { terminateRun(runId: $run, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename } }"
    dagster.start_code()
    assert dagster.server.ask(policy, run=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"
    dagster.start_daemon()
    dagster.server.wait_for("the end of the job", lambda: not alive(job))

    assert [each["status"] for each in dagster.server.runs()] == ["CANCELED"]

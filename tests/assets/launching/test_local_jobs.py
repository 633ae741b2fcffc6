"""A job on this machine outlives the run that started it, is found again, says each thing once, and ends when it is cancelled."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from spiral_assets.assets import training_asset
from spiral_assets.launching.finding import following_sensor
from spiral_assets.launching.launcher import FarJob, JobState
from spiral_assets.launching.local import LocalLauncher
from spiral_assets.launching.records import JobRecords
from spiral_assets.resources import RunsResource
from tests.fixtures import far_jobs
from tests.fixtures.folded_pages import everything

# Dagster's own Pipes session uses a preview feature and a deprecated name of Dagster's; nothing here can avoid it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
    pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated"),
]
LOCAL = {"kind": "local", "grace_s": 1}
WAIT_S = 120
ROOT = Path(__file__).parents[3]


def wait_for(what: str, true: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    until = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < until, f"{what}: not in {seconds} s"
        time.sleep(0.05)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "home").mkdir()
    yield tmp_path
    far_jobs.let_go(tmp_path)
    for record in (tmp_path / "runs").rglob("record.json"):
        (record.parent / "cancel").touch()
    wait_for("the end of every job", lambda: not any(map(alive, far_jobs.starts(tmp_path))))


@pytest.fixture
def home(place: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(place / "home")) as instance:
        yield instance


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextmanager
def worker(place: Path, launcher: Any = LOCAL) -> Iterator["subprocess.Popen[bytes]"]:
    """A run in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (place / "worker.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.fixtures.far_jobs", str(place), json.dumps(launcher)]
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def trained(place: Path, instance: dg.DagsterInstance, launcher: Any = LOCAL, **more: Any) -> dg.ExecuteInProcessResult:
    run_config = more.pop("run_config", None)
    asset = far_jobs.model(place, launcher, **more)
    return dg.materialize(
        [asset], instance=instance, resources=far_jobs.resources(place), run_config=run_config, raise_on_error=False
    )


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (made,) = result.get_asset_materialization_events()
    return everything(made.materialization.metadata)


def failure(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    return str(failed.step_failure_data.error_display_string)


def half_way(place: Path, steps: int = 5) -> None:
    wait_for(
        "some steps",
        lambda: (
            any(len(f.read_bytes().splitlines()) > steps for f in place.rglob("messages.position"))
            or any(int(f.read_text()) > 90 * steps for f in place.rglob("messages.position"))
        ),
    )


def test_a_killed_run_leaves_its_job_and_the_next_run_follows_it_and_repeats_nothing(
    place: Path, home: dg.DagsterInstance
) -> None:
    with worker(place) as process:
        half_way(place)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (job,) = far_jobs.starts(place)
    assert alive(job)
    (killed,) = home.get_runs()

    threading.Timer(1.5, far_jobs.let_go, [place]).start()
    result = trained(place, home)

    assert result.success
    assert far_jobs.starts(place) == [job]
    steps = metadata(result)["steps"]
    logged = far_jobs.steps_logged(home, killed.run_id, result.run_id)
    assert len(set(logged)) == len(logged)
    assert logged == sorted(logged)
    assert (
        steps - len(logged) <= 1
    )  # a kill between storing the position and the line itself leaves one line unreported
    assert len(far_jobs.steps_logged(home, result.run_id)) >= 5
    assert metadata(result)["job"].startswith("local: spiral-models-line-")


def test_of_two_runs_at_once_one_submits_and_both_have_the_result(place: Path, home: dg.DagsterInstance) -> None:
    with worker(place) as first, worker(place) as second:
        wait_for("a job", lambda: far_jobs.starts(place))
        wait_for("two runs that follow it", lambda: len(followers(place)) == 2)
        far_jobs.let_go(place)
        assert (first.wait(WAIT_S), second.wait(WAIT_S)) == (0, 0)

    assert len(far_jobs.starts(place)) == 1
    runs = [each.run_id for each in home.get_runs()]
    logged = far_jobs.steps_logged(home, *runs)
    assert len(set(logged)) == len(logged)  # one of them reports a line


def followers(place: Path) -> list[str]:
    (record,) = place.rglob("record.json")
    return list(json.loads(record.read_text())["runs"])


DYING = """
import os, signal, sys
from pathlib import Path
from spiral_assets.launching.local import LocalLauncher
from tests.fixtures import far_jobs
import json, dagster as dg

submit = LocalLauncher.submit

def dying(self, job):
    if sys.argv[2] == "after it started":
        submit(self, job)
    os.kill(os.getpid(), signal.SIGKILL)

LocalLauncher.submit = dying
place = Path(sys.argv[1])
with dg.DagsterInstance.from_config(str(place / "home")) as home:
    launcher = {"kind": "local", "grace_s": 1}
    dg.materialize([far_jobs.model(place, launcher)], instance=home, resources=far_jobs.resources(place))
"""


@pytest.mark.parametrize("when", ["before it started", "after it started"])
def test_a_run_that_is_killed_while_it_submits_leaves_a_job_or_none_and_the_next_run_can_tell(
    place: Path, home: dg.DagsterInstance, when: str
) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DYING, str(place), when]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (record,) = place.rglob("record.json")
    assert json.loads(record.read_text())["job_id"] is None
    if when == "after it started":
        wait_for("the job", lambda: far_jobs.starts(place))
    before = far_jobs.starts(place)

    far_jobs.let_go(place)
    result = trained(place, home)

    assert result.success, failure(result)
    assert len(far_jobs.starts(place)) == 1
    assert before == (far_jobs.starts(place) if when == "after it started" else [])


def test_a_process_that_has_the_id_of_a_job_that_is_gone_is_not_taken_for_it(tmp_path: Path) -> None:
    """The id is that of this very process, and the start another one's."""
    launcher, job = LocalLauncher(grace_s=0), FarJob("a-job", tmp_path, ["sleep", "600"])
    job_id = json.loads(launcher.submit(job))
    assert launcher.state(job, json.dumps(job_id)).state is JobState.RUNNING

    reused = {**job_id, "pid": os.getpid()}
    assert launcher.state(job, json.dumps(reused)).state is JobState.LOST
    launcher.cancel(job, json.dumps(reused))
    wait_for("its end", lambda: launcher.state(job, json.dumps(job_id)).state is JobState.CANCELLED)
    assert alive(os.getpid())


def test_a_job_whose_first_process_is_killed_ends_with_it_and_is_lost(tmp_path: Path) -> None:
    launcher = LocalLauncher()
    job = FarJob(
        "a-job", tmp_path, [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    )
    job_id = launcher.submit(job)
    trains = int(
        wait_for("its process", lambda: (tmp_path / "output.log").exists() and (tmp_path / "output.log").read_text())
    )
    os.kill(json.loads(job_id)["pid"], signal.SIGKILL)

    wait_for("its end", lambda: not alive(trains))
    report = launcher.state(job, job_id)
    assert (report.state, "left no exit code" in report.message) == (JobState.LOST, True)


def test_a_job_on_a_machine_that_cannot_be_seen_runs_while_it_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, job = LocalLauncher(grace_s=0), FarJob("a-job", tmp_path, ["sleep", "600"])
    job_id = launcher.submit(job)
    wait_for("a beat", (tmp_path / "beat").exists)
    elsewhere = json.dumps({**json.loads(job_id), "machine": "another one", "pid": 1})

    def looks(silent_s: float) -> JobState:
        monkeypatch.setattr("spiral_assets.launching.local.SILENT_S", silent_s)
        return launcher.state(job, elsewhere).state

    for _ in range(3):
        wait_for("another beat", lambda: looks(0.0) is JobState.RUNNING)  # one since the look before
        assert looks(3_600.0) is JobState.RUNNING
    os.kill(json.loads(job_id)["pid"], signal.SIGKILL)
    looks(0.0)  # the last beat may be new
    assert looks(3_600.0) is JobState.RUNNING
    assert looks(0.0) is JobState.LOST


CANCELLING = """
import sys, threading, time
from pathlib import Path
import dagster as dg
from tests.fixtures import far_jobs

place, how = Path(sys.argv[1]), sys.argv[2]
launcher = {"kind": "local", "grace_s": 1}

def cancel(home):
    while not (place / "child").exists():
        time.sleep(0.05)
    (run,) = home.get_runs()
    home.report_run_canceling(run)  # as Dagster's launchers do before they interrupt a worker
    (place / "cancelled").write_text(str(time.time()))
    if how == "interrupted":
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)

with dg.DagsterInstance.from_config(str(place / "home")) as home:
    threading.Thread(target=cancel, args=(home,), daemon=True).start()
    done = dg.materialize(
        [far_jobs.model(place, launcher, retries=2, stubborn=True, pause=0.0002 if how == 'not interrupted' else 0.1)],
        instance=home, resources=far_jobs.resources(place), raise_on_error=False,
    )
    print(done.success)
"""


@pytest.mark.parametrize("how", ["interrupted", "not interrupted"])
def test_a_cancelled_run_ends_its_job_and_all_that_it_started_within_ten_seconds(
    place: Path, home: dg.DagsterInstance, how: str
) -> None:
    """The job ignores SIGINT and SIGTERM, and its child is in a session of its own.

    A run is not interrupted where its worker cannot be reached. That job says more than Dagster's storage takes.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CANCELLING, str(place), how]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cancelled_at = float(wait_for("a cancel", lambda: read(place / "cancelled")))
    (job,), child = far_jobs.starts(place), int((place / "child").read_text())
    wait_for("the end of both", lambda: not alive(job) and not alive(child), 30)
    took = time.time() - cancelled_at
    said, wrong = process.communicate(timeout=WAIT_S)

    assert took < 10
    assert said.strip() != b"True", wrong
    assert len(far_jobs.starts(place)) == 1  # no retry
    (record,) = place.rglob("record.json")
    assert json.loads(record.read_text())["end"] == "cancelled"


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_an_interrupt_that_is_no_cancel_leaves_the_job(place: Path, home: dg.DagsterInstance) -> None:
    """As at a shutdown of the machine of the code location, or Ctrl-C of `dagster asset materialize`."""
    with worker(place) as process:
        half_way(place)
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
    (job,) = far_jobs.starts(place)
    assert alive(job)
    (run,) = home.get_runs()
    said = [each.user_message for each in home.all_logs(run.run_id)]
    assert any("goes on. Launch the asset with the same config to attach to it" in each for each in said)

    far_jobs.let_go(place)
    assert trained(place, home).success
    assert far_jobs.starts(place) == [job]


def test_a_job_that_fails_is_retried_with_its_results(place: Path, home: dg.DagsterInstance) -> None:
    far_jobs.let_go(place)
    result = trained(place, home, retries=1, fails=True)

    assert result.success
    assert len(far_jobs.starts(place)) == 2
    assert len(set(far_jobs.results(place))) == 1
    said = " ".join(each.message for each in result.all_events if each.event_type_value == "STEP_UP_FOR_RETRY")
    assert said


def test_a_job_that_failed_while_nobody_followed_it_is_not_taken_for_the_new_runs_failure(
    place: Path, home: dg.DagsterInstance
) -> None:
    """The killed run asked for the same config as the new one, so the new job goes on with its results."""
    with worker(place) as process:
        half_way(place)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (job,) = far_jobs.starts(place)
    os.kill(job, signal.SIGKILL)
    wait_for("its end", lambda: [*place.rglob("ended.json")])

    far_jobs.let_go(place)
    result = trained(place, home)

    assert result.success
    assert len(far_jobs.starts(place)) == 2
    assert len(set(far_jobs.results(place))) == 1
    (warning,) = [
        each.user_message for each in home.all_logs(result.run_id) if "while no run followed it" in each.user_message
    ]
    assert re.search(r"ended as failed .*it was ended by signal 9", warning, re.DOTALL)


def test_the_sensor_asks_for_a_run_of_a_job_that_nobody_follows_and_ends_one_whose_run_is_cancelled(
    place: Path, home: dg.DagsterInstance
) -> None:
    sensor = following_sensor("line", far_jobs.model(place, LOCAL))

    def look(cursor: str | None) -> tuple[list[dg.RunRequest], str | None]:
        resources = {"runs": RunsResource(root=str(place / "runs"))}
        context = dg.build_sensor_context(instance=home, cursor=cursor, resources=resources)
        return list(sensor(context)), context.cursor

    with worker(place) as process:
        half_way(place)
        assert look(None) == ([], "")  # it is followed
        process.send_signal(signal.SIGKILL)
        process.wait()
    none, cursor = look(None)
    assert none == []
    assert cursor
    ((request,), cursor) = look(cursor)
    assert request.asset_selection == [dg.AssetKey(["models", "line"])]

    (run,) = home.get_runs()
    assert run.status is dg.DagsterRunStatus.STARTED  # nobody told Dagster
    home.report_run_canceled(run)
    assert look(cursor)[0] == []
    (job,) = far_jobs.starts(place)
    wait_for("its end", lambda: not alive(job))
    assert look(cursor) == ([], "")


def test_a_run_after_one_that_ended_well_trains_anew_in_a_folder_of_its_own(
    place: Path, home: dg.DagsterInstance
) -> None:
    far_jobs.let_go(place)
    assert trained(place, home).success
    assert trained(place, home).success

    assert len(far_jobs.starts(place)) == 2
    assert len(set(far_jobs.results(place))) == 2


def test_a_run_of_another_config_has_a_job_of_its_own(place: Path, home: dg.DagsterInstance) -> None:
    with worker(place):
        wait_for("a job", lambda: far_jobs.starts(place))
        far_jobs.let_go(place)
        assert trained(place, home, steps=7).success

    assert len(far_jobs.starts(place)) == 2


def test_a_job_past_its_deadline_is_cancelled_and_says_so(place: Path, home: dg.DagsterInstance) -> None:
    result = trained(place, home, {**LOCAL, "deadline_h": 1 / 3600}, retries=2)

    assert re.search(r"ran past its deadline of 0.000277778 h.*Launch the asset again", failure(result), re.DOTALL)
    assert len(far_jobs.starts(place)) <= 1


def test_a_command_that_is_not_there_is_said(place: Path, home: dg.DagsterInstance) -> None:
    asset = training_asset(
        "line", "points", {}, deps=[], description="", command=["no-such-program"], retries=0, launcher=LOCAL
    )
    result = dg.materialize([asset], instance=home, resources=far_jobs.resources(place), raise_on_error=False)

    assert "it could not be started: " in failure(result)
    assert "no-such-program" in failure(result)


def test_a_run_chooses_its_launcher_in_its_config(place: Path, home: dg.DagsterInstance) -> None:
    far_jobs.let_go(place)
    chosen = {"ops": {"models__line": {"config": {"launcher": {"kind": "local", "grace_s": 3}}}}}
    result = trained(place, home, None, run_config=chosen)
    assert metadata(result)["job"].startswith("local: ")
    (record,) = place.rglob("record.json")
    assert json.loads(record.read_text())["launcher"]["grace_s"] == 3

    wrong = {"ops": {"models__line": {"config": {"launcher": {"kind": "local", "grace": 3}}}}}
    assert "launcher.grace: 'grace' is no field of it; did you mean 'grace_s'?" in failure(
        trained(place, home, None, run_config=wrong)
    )


def test_a_config_that_has_a_launcher_of_its_own_gives_it_to_the_command(place: Path, home: dg.DagsterInstance) -> None:
    """As configs could before Spiral had launchers."""
    far_jobs.let_go(place)
    far_jobs.model(place, None)  # writes the script
    fields = {"launcher": "mine", "place": str(place), "stubborn": False, "fails": False, "pause": 0.1}
    command = ["python", str(place / "train.py")]
    asset = training_asset("line", "points", fields, deps=[], description="", command=command, retries=0, record=False)
    result = dg.materialize([asset], instance=home, resources=far_jobs.resources(place), raise_on_error=False)

    assert result.success
    assert "job" not in metadata(result)
    assert len(far_jobs.starts(place)) == 1
    assert not [*place.rglob("record.json")]


def test_a_lock_that_somebody_holds_is_said_and_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr("spiral_assets.launching.records.SUBMITTING_S", 0.2)
    records = JobRecords(tmp_path, ["models", "line"], None, "d")
    records.claim("run", "run", LocalLauncher(), "results")
    with (records.folder / "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"held this lock for 0\.2 s.*launch this one again"):
            records.claim("run", "run", LocalLauncher(), "results")

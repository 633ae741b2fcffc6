"""Ray: a name is taken once, what is not there is lost, what does not answer is asked again, and a cancel ends a job."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spiral_assets.launching.launcher import FarJob, JobState, RefusedError, UnreachableError
from spiral_assets.launching.ray import RayLauncher
from tests.fixtures.ray_cluster import cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]
WAIT_S = 120


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayLauncher]:
    with cluster(tmp_path_factory.mktemp("ray")) as address:
        found = RayLauncher(address=address, python=sys.executable, num_cpus=0)
        wait_for("its dashboard", lambda: answers(found))
        yield found


def answers(launcher: RayLauncher) -> bool:
    try:
        return launcher.attach(FarJob("no-such-job", Path())) is None
    except UnreachableError:
        return False


def wait_for(what: str, true: Callable[[], Any]) -> Any:
    until = time.monotonic() + WAIT_S
    while not (found := true()):
        assert time.monotonic() < until, f"{what}: not in {WAIT_S} s"
        time.sleep(0.2)
    return found


def test_a_name_is_taken_once_also_by_two_who_submit_it_at_once(launcher: RayLauncher, tmp_path: Path) -> None:
    text = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"
    job = FarJob("a-job", tmp_path, [sys.executable, "-c", text, str(tmp_path / "starts")])
    ids: list[str] = []
    both = [threading.Thread(target=lambda: ids.append(launcher.submit(job))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert ids == [job.name, job.name]
    wait_for("its process", (tmp_path / "starts").exists)
    assert launcher.attach(job) == job.name
    assert launcher.state(job, job.name).state is JobState.RUNNING
    cancelled = time.monotonic()
    launcher.cancel(job, job.name)
    wait_for("its end", lambda: launcher.state(job, job.name).state is JobState.CANCELLED)
    (pid,) = map(int, (tmp_path / "starts").read_text().split())
    wait_for("the end of its process", lambda: not Path(f"/proc/{pid}").exists())
    assert time.monotonic() - cancelled < 10
    launcher.cancel(job, job.name)  # once more is no error


def test_a_job_that_fails_says_how_with_its_last_lines(launcher: RayLauncher, tmp_path: Path) -> None:
    job = FarJob("fails", tmp_path, [sys.executable, "-c", "print('the last line'); raise SystemExit(3)"])
    launcher.submit(job)
    report = wait_for("its end", lambda: (seen := launcher.state(job, job.name)).state.is_over and seen)

    assert report.state is JobState.FAILED
    assert "exit code 3" in report.message
    assert "the last line" in report.message


def test_what_the_job_gets_is_what_it_was_given(launcher: RayLauncher, tmp_path: Path) -> None:
    text = "import os, sys; open(sys.argv[1], 'w').write(os.environ['A'] + '|' + os.environ['B'] + '|' + sys.argv[2])"
    more = launcher.model_copy(update={"env": {"B": "of the launcher"}})
    job = FarJob(
        "given", tmp_path, [sys.executable, "-c", text, str(tmp_path / "out"), "it's $HOME"], {"A": "two words"}
    )
    more.submit(job)
    wait_for("its end", lambda: more.state(job, job.name).state is JobState.SUCCEEDED)

    assert (tmp_path / "out").read_text() == "two words|of the launcher|it's $HOME"


def test_a_job_that_the_cluster_does_not_know_is_lost(launcher: RayLauncher, tmp_path: Path) -> None:
    assert launcher.state(FarJob("nobody", tmp_path), "nobody").state is JobState.LOST


def test_a_job_that_is_refused_says_what_to_correct(launcher: RayLauncher, tmp_path: Path) -> None:
    wrong = launcher.model_copy(update={"runtime_env": {"working_dir": "no-such-scheme://code.zip"}})

    with pytest.raises(RefusedError, match=r"Ray refused it: .*Correct launcher: runtime_env"):
        wrong.submit(FarJob("refused", tmp_path, ["true"]))


def test_a_dashboard_that_does_not_answer_is_told_apart_and_the_way_out_is_said(tmp_path: Path) -> None:
    job = FarJob("a-job", tmp_path, ["true"])
    says = r"does not answer as it should: .*`ray status`.*names its dashboard"

    with socket.socket() as taken:  # by somebody who does not listen, so nobody else can while this asks
        taken.bind(("127.0.0.1", 0))
        nobody = RayLauncher(address=f"http://127.0.0.1:{taken.getsockname()[1]}")
        for ask in (lambda: nobody.attach(job), lambda: nobody.state(job, "x"), lambda: nobody.submit(job)):
            with pytest.raises(UnreachableError, match=says):
                ask()

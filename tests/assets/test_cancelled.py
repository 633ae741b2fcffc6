"""A run that is cancelled, whenever that is, ends its training process; a process that fails is said to have failed, and how."""

import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from spiral_assets.assets.training import training_asset
from spiral_assets.resources import CatalogResource, RunsResource

# In a background job of a shell SIGINT is ignored, and Dagster treats SIGTERM as SIGINT.
CANCELLED = """
import os, signal, subprocess, sys, threading, time
import dagster as dg
from spiral_assets.assets.training import training_asset
from spiral_assets.resources import CatalogResource, RunsResource

assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
Popen = subprocess.Popen

def cancel(folder):
    while not (os.path.exists(folder + "/pid") and open(folder + "/pid").read()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)  # as Dagster does in the process of a run that is cancelled

def succeeds(folder, when):
    ignores = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" if when == "it ignores it" else ""
    trains = f"{ignores}\\nimport os, time; open({folder!r} + '/pid', 'w').write(str(os.getpid())); time.sleep(600)"
    model = training_asset("model", "photos", {}, deps=[], description="", command=["python", "-c", trains], retries=0)

    class CancelledAsItStarts(Popen):
        def __init__(self, command, *more, **how):
            super().__init__(command, *more, **how)
            if trains in command:
                open(folder + "/pid", "w").write(str(self.pid))
                os.kill(os.getpid(), signal.SIGINT)

    subprocess.Popen = CancelledAsItStarts if when == "as it starts" else Popen
    if when != "as it starts":
        threading.Thread(target=cancel, args=(folder,), daemon=True).start()
    resources = {
        "catalog": CatalogResource(uri=folder + "/catalog"),
        "runs": RunsResource(root=folder + "/runs"),
        "pipes": dg.PipesSubprocessClient(termination_timeout_seconds=0.5 if when == "it ignores it" else 200),
    }
    with dg.DagsterInstance.ephemeral() as instance:
        return dg.materialize([model], resources=resources, instance=instance, raise_on_error=False).success

for when in sys.argv[2:]:
    folder = sys.argv[1] + "/" + when
    os.mkdir(folder)
    print(when, succeeds(folder, when), sep=": ")
"""
WHEN = ("as it starts", "while it runs", "it ignores it")


def test_a_cancelled_run_ends_its_training_process_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """The last process ignores that it is interrupted. One process runs all three, since it takes 2 CPU s to start."""
    done = subprocess.run(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", CANCELLED, str(tmp_path), *WHEN],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip

    assert done.stdout.splitlines() == [f"{when}: False" for when in WHEN], done.stderr
    for when in WHEN:
        assert not Path(f"/proc/{int((tmp_path / when / 'pid').read_text())}").exists(), when


@pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`")
@pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated")
@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("raise SystemExit(3)", r"ended with exit code 3\. The log of this step"),
        ("import os; os.kill(os.getpid(), 9)", r"ended with Killed \(signal 9\)\. The log of this step"),
    ],
)
def test_a_training_process_that_fails_is_said_to_have_failed_and_how(
    tmp_path: Path, instance: dg.DagsterInstance, program: str, how: str
) -> None:
    model = training_asset(
        "model", "photos", {"steps": 1}, deps=[], description="", command=["python", "-c", program], retries=0
    )
    resources = {
        "catalog": CatalogResource(uri=str(tmp_path / "catalog")),
        "runs": RunsResource(root=str(tmp_path / "runs")),
        "pipes": dg.PipesSubprocessClient(),
    }

    result = dg.materialize([model], resources=resources, instance=instance, raise_on_error=False)

    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert re.search(how, failed.step_failure_data.error_display_string)

"""A run that is cancelled, whenever that is, ends its training process."""

import subprocess
import sys
from pathlib import Path

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
        "pipes": dg.PipesSubprocessClient(termination_timeout_seconds=0.5 if when == "it ignores it" else 20),
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
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip

    assert done.stdout.splitlines() == [f"{when}: False" for when in WHEN], done.stderr
    for when in WHEN:
        assert not Path(f"/proc/{int((tmp_path / when / 'pid').read_text())}").exists(), when

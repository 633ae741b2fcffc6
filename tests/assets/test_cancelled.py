"""A run that is cancelled, whenever that is, ends its training process."""

import subprocess
import sys
from pathlib import Path

import pytest

# In a background job of a shell SIGINT is ignored, and Dagster treats SIGTERM as SIGINT.
CANCELLED = """
import os, signal, subprocess, sys, threading, time
import dagster as dg
from spiral_assets.assets.training import training_asset
from spiral_assets.resources import CatalogResource, RunsResource

assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
folder, when = sys.argv[1:]
ignores = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" if when == "it ignores it" else ""
trains = f"{ignores}\\nimport os, time; open({folder!r} + '/pid', 'w').write(str(os.getpid())); time.sleep(600)"
model = training_asset("model", "photos", {}, deps=[], description="", command=["python", "-c", trains], retries=0)

def cancel():
    while not (os.path.exists(folder + "/pid") and open(folder + "/pid").read()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)  # as Dagster does in the process of a run that is cancelled

class CancelledAsItStarts(subprocess.Popen):
    def __init__(self, command, *more, **how):
        super().__init__(command, *more, **how)
        if trains in command:
            open(folder + "/pid", "w").write(str(self.pid))
            os.kill(os.getpid(), signal.SIGINT)

if when == "as it starts":
    subprocess.Popen = CancelledAsItStarts
else:
    threading.Thread(target=cancel, daemon=True).start()
resources = {
    "catalog": CatalogResource(uri=folder + "/catalog"),
    "runs": RunsResource(root=folder + "/runs"),
    "pipes": dg.PipesSubprocessClient(termination_timeout_seconds=0.5 if when == "it ignores it" else 20),
}
with dg.DagsterInstance.ephemeral() as instance:
    print(dg.materialize([model], resources=resources, instance=instance, raise_on_error=False).success)
"""


@pytest.mark.parametrize("when", ["as it starts", "while it runs", "it ignores it"])
def test_a_cancelled_run_ends_its_training_process_where_ctrl_c_is_ignored(tmp_path: Path, when: str) -> None:
    """The last process ignores that it is interrupted."""
    done = subprocess.run(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", CANCELLED, str(tmp_path), when],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip

    assert done.stdout.split() == ["False"], done.stderr
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()

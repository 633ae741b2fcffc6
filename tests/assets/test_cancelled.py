"""A run that a shell's background job started can be cancelled, and its training process ends with it."""

import subprocess
import sys
from pathlib import Path

# In a background job of a shell SIGINT is ignored, and Dagster treats SIGTERM as SIGINT.
CANCELLED = """
import os, signal, sys, threading, time
import dagster as dg
from spiral_assets.assets.training import training_asset
from spiral_assets.resources import CatalogResource, RunsResource

assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
place = sys.argv[1]
trains = f"import os, time; open({place!r} + '/pid', 'w').write(str(os.getpid())); time.sleep(600)"
model = training_asset("model", "photos", {}, deps=[], description="", command=["python", "-c", trains], retries=0)

def cancel():
    while not (os.path.exists(place + "/pid") and open(place + "/pid").read()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)  # as Dagster does in the process of a run that is cancelled

threading.Thread(target=cancel, daemon=True).start()
resources = {
    "catalog": CatalogResource(uri=place + "/catalog"),
    "runs": RunsResource(root=place + "/runs"),
    "pipes": dg.PipesSubprocessClient(),
}
with dg.DagsterInstance.ephemeral() as instance:
    print(dg.materialize([model], resources=resources, instance=instance, raise_on_error=False).success)
"""


def test_a_cancelled_run_ends_its_training_process_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", CANCELLED, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip

    assert done.stdout.split() == ["False"], done.stderr
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()

"""What a process of a law does: build or read one kind, and be killed at a step.

    python -m tests.stream.keeping.laws.program '{"kind": ..., "mode": "build", "ground": {...}, "kill": {...}}'

prints what came of it as JSON. Steps are counted where everybody can see them: changes of files by the interpreter's audit
hook, and changes of the store by the proxy before it. Nothing private is patched.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
import urllib.request
import warnings
from datetime import timedelta
from typing import Any

import spiral_stream as sp
from tests.fixtures import sharing
from tests.fixtures.file_changes import changes_below
from tests.stream.keeping.laws.ground import Ground, settings
from tests.stream.keeping.laws.kinds import KINDS, ROWS, SHARDS, KeptKind


class Steps:
    """Counts changes of files below a folder, and ends the process before the n-th."""

    def __init__(self, folder: str, last: int) -> None:
        self._folder, self._last, self._lock = folder, last, threading.Lock()
        self.taken = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if changes_below(self._folder, event, args):
            with self._lock:
                self.taken += 1
                if self.taken == self._last:
                    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_request(endpoint: str, at: int, after: bool) -> None:
    """Let the proxy end this process at its n-th change of the store: before it is done, or when it is."""
    said = json.dumps({"kill": os.getpid(), "kill_at": at, "kill_after": after}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/-/faults", said, headers)):
        pass


def main(asked: dict[str, Any]) -> dict[str, Any]:
    ground, kind, kill = Ground.of(asked["ground"]), KINDS[asked["kind"]], asked.get("kill", {})
    os.fsync = os.fstat  # type: ignore[assignment]  # nobody cuts the power
    sharing.in_small_pieces(ROWS // SHARDS, asked.get("dead_s", 30.0))
    steps = Steps(str(ground.home), kill.get("file", 0))
    found: dict[str, Any] = {}
    with settings(ground), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", sp.SpiralWarning)
        if "request" in kill:
            kill_at_request(ground.endpoint, kill["request"], kill["after"])
        if "time_s" in kill:
            signal.setitimer(signal.ITIMER_REAL, kill["time_s"])  # its signal ends the process
        sys.addaudithook(steps)
        time.sleep(max(0.0, asked.get("go", 0.0) - time.time()))
        try:
            for mode in asked["modes"]:
                found[mode] = done(ground, kind, mode)
        except sp.errors.SpiralError as error:
            found["error"], found["class"] = str(error), type(error).__name__
        except Exception:  # noqa: BLE001
            found["raw"] = traceback.format_exc()
    texts = [str(each.message) for each in said if issubclass(each.category, sp.SpiralWarning)]
    return {**found, "warnings": texts, "steps": steps.taken}


def done(ground: Ground, kind: KeptKind, mode: str) -> Any:
    """What one step gives."""
    if mode == "tidy":
        return tidy(ground)
    if mode.startswith("refresh "):  # as an error says it
        ground.kept_catalog().refresh(mode.removeprefix("refresh "))
        return None
    return getattr(kind, mode)(ground)


def tidy(ground: Ground) -> None:
    """Whatever is documented to remove what killed processes left: drafts now, what lies on a store after an hour."""
    for catalog in (ground.catalog(), ground.kept_catalog()):
        catalog.caches(remove_dead=True)
    if ground.endpoint:
        now = time.time
        for later_s in (0, 4_000):
            time.time = lambda later_s=later_s: now() + later_s
            ground.catalog().caches(remove_dead=True, older_than=timedelta(hours=1))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")

"""The killer waits for its moment, kills once, and can be stopped."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

from spiral_assets.demo.killer import AFTER, Killer

STEPS = 10
LINE = {"steps": STEPS, "epoch": 0, "batch": 0}


def enter(ledger: Path, step: int, pid: int) -> None:
    with ledger.open("a") as file:
        file.write(json.dumps({**LINE, "step": step, "pid": pid}) + "\n")


def test_the_writer_of_the_ledger_is_killed_past_the_middle_of_its_run(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    said: list[str] = []
    killer = Killer(ledger, said.append)
    watching = threading.Thread(target=killer.watch, daemon=True)
    watching.start()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        enter(ledger, int(AFTER * STEPS), process.pid)
        watching.join(0.2)
        assert process.poll() is None
        enter(ledger, int(AFTER * STEPS) + 1, process.pid)
        watching.join(60)
        assert process.wait(60) == -signal.SIGKILL

    assert killer.killed is not None
    assert killer.killed["step"] == AFTER * STEPS + 1
    assert [f"SIGKILL to process {process.pid}" in text for text in said] == [True]


def test_half_a_line_at_the_end_is_not_read_and_a_stopped_killer_kills_nobody(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(json.dumps({**LINE, "step": 0, "pid": 0})[:-3])
    killer = Killer(ledger)
    watching = threading.Thread(target=killer.watch, daemon=True)
    watching.start()
    watching.join(0.1)
    killer.stop()
    watching.join(60)

    assert not watching.is_alive()
    assert killer.killed is None

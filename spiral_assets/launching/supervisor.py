"""The first process of a job on this machine: it leaves the session of whoever started it, and outlives it.

    python -P supervisor.py FOLDER GRACE_S

`job.json` in the folder names the command. It writes there:

    process.json    who it is: written once, by the first supervisor of a folder; any other one ends at once
    beat            touched every two seconds, for those who cannot see this machine's processes
    output.log      what the command prints
    ended.json      exit code of the command, and whether it was cancelled

A file `cancel` there ends the job: the command is interrupted, and after the grace it is killed with everything it started.
If this process is killed, so is the command. It uses the standard library alone and imports nothing of the package.
"""

import ctypes
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOOK_S = 0.25
BEAT_S = 2.0
REAP_S, REAP_LOOK_S = 5.0, 0.02
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # of prctl


def started_at(pid: int) -> int | None:
    """Return when a process started, in ticks since the machine did; None if it is gone. A reused id has another time."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


def machine() -> str:
    """Return what tells machines apart, and containers of one machine, in which process ids mean something else."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{os.uname().nodename} {boot} {Path('/proc/self/ns/pid').readlink()}"


def _write(path: Path, value: Any) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def _is_first(folder: Path) -> bool:
    """Say who supervises the folder. Of two at once, one is the first."""
    draft = folder / f".process.{os.getpid()}"
    draft.write_text(json.dumps({"pid": os.getpid(), "started": started_at(os.getpid()), "machine": machine()}))
    try:
        os.link(draft, folder / "process.json")
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _started(folder: Path) -> "subprocess.Popen[bytes]":
    libc = ctypes.CDLL(None)
    supervisor = os.getpid()
    libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)  # what the command started stays below this process when the command ends

    def prepare() -> None:
        libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)  # a shell's background jobs ignore SIGINT, and this would be inherited
        if os.getppid() != supervisor:
            os._exit(1)

    command = json.loads((folder / "job.json").read_text())["command"]
    with (folder / "output.log").open("ab") as out:
        return subprocess.Popen(  # noqa: S603  the asset names it
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509  no thread runs here
        )


def _below(pid: int) -> list[int]:
    """Return the processes below one, also those that lost the process between."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return [each for each in found if each != pid and started_at(each) is not None]


def _kill_all_below() -> None:
    for _ in range(int(REAP_S / REAP_LOOK_S)):
        left = _below(os.getpid())
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(REAP_LOOK_S)


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """Wait for the end of a process. Return its exit code; None if it goes on."""
    try:
        handle = os.pidfd_open(process.pid)
    except (OSError, AttributeError):  # an old kernel, or macOS
        time.sleep(min(seconds, LOOK_S))
        return process.poll()
    try:
        select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    return process.poll()


def supervise(folder: Path, grace_s: float) -> None:
    """Run the command of a folder until it ends or is cancelled."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))  # the machine shuts down
    try:
        process = _started(folder)
    except OSError as error:
        _write(folder / "ended.json", {"code": 127, "cancelled": False, "error": str(error)})
        return
    cancel, looks = folder / "cancel", 0
    while (code := _wait(process, LOOK_S)) is None and not stopped and not cancel.exists():
        if looks % int(BEAT_S / LOOK_S) == 0:
            (folder / "beat").touch()
        looks += 1
    cancelled = code is None and not stopped
    if code is None:
        process.send_signal(signal.SIGINT)
        for _ in range(math.ceil(grace_s / LOOK_S)):  # looks, not a clock: a machine that stood still gives it its time
            code = _wait(process, LOOK_S)
            if code is not None:
                break
    _kill_all_below()
    code = process.wait() if code is None else code
    _write(folder / "ended.json", {"code": code, "cancelled": cancelled, "stopped": bool(stopped)})


def main() -> None:
    """Leave the session of the parent, and supervise."""
    folder, grace_s = Path(sys.argv[1]), float(sys.argv[2])
    if os.fork():
        os._exit(0)  # whoever started this need not reap what outlives it
    os.setsid()
    if _is_first(folder):
        supervise(folder, grace_s)


if __name__ == "__main__":
    main()

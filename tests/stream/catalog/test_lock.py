"""A lock has one holder at a time, tells who it is, and goes with its holder."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spiral_stream.catalog import lock
from spiral_stream.errors import CatalogError


def test_a_second_holder_waits_and_then_names_the_first_with_the_way_out(tmp_path: Path) -> None:
    holder = rf"process {os.getpid()} on {socket.gethostname()} \(.+\) since \d{{4}}-\d\d-\d\dT.*Z"
    way_out = r"Wait for it and try again, or end that process if it hangs \(the lock goes with it; file .*/lock\)"
    with (
        lock.locked(tmp_path / "lock", "first"),
        pytest.raises(CatalogError, match=rf"^second: locked for 0\.05 s by {holder}\. {way_out}"),
        lock.locked(tmp_path / "lock", "second", deadline_s=0.05),
    ):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_free_after_the_block_however_that_ends(fails: bool, tmp_path: Path) -> None:
    for _ in range(2):
        if fails:
            with pytest.raises(ZeroDivisionError), lock.locked(tmp_path / "lock", "it", deadline_s=0.0):
                1 / 0  # noqa: B018
        else:
            with lock.locked(tmp_path / "lock", "it", deadline_s=0.0):
                assert (tmp_path / "lock").read_text().count("process") == 1  # the last holder's name only


HOLD = """
import sys
from pathlib import Path
from spiral_stream.catalog.lock import locked

with locked(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_goes_with_a_holder_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(CatalogError, match=f"by process {holder.pid} on "),
            lock.locked(tmp_path / "lock", "us", 0.0),
        ):
            pass
        holder.kill()
    with lock.locked(tmp_path / "lock", "us", 0.0):
        assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()


def test_a_file_system_without_locks_lets_everybody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_handle: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with lock.locked(tmp_path / "lock", "one"), lock.locked(tmp_path / "lock", "two", 0.0):
        pass


def test_a_lock_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), lock.locked(tmp_path / "none" / "lock", "it"):
        pass


def test_a_lock_is_given_back_though_a_child_has_its_descriptor(tmp_path: Path) -> None:
    with lock.locked(tmp_path / "lock", "it"):
        for handle in Path("/dev/fd").iterdir():  # as where a library forks
            if os.path.realpath(handle) == str(tmp_path / "lock"):
                os.set_inheritable(int(handle.name), True)
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        with lock.locked(tmp_path / "lock", "it", deadline_s=0.5):
            pass
    finally:
        child.kill()
        child.wait()

"""Leases: one owner at a time, free again when it gives them back or ends, however it ends."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.keeping.leases import Claims
from tests.fixtures import warm

HOLD = """
import signal, sys, pathlib
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a runner may have it ignored
from spiral_stream.keeping.leases import Claims
claims = Claims(pathlib.Path(sys.argv[1]))
print(*(int(claims.take(int(key))) for key in sys.argv[2:]), flush=True)
sys.stdin.read()
"""


def holder(folder: Path, *keys: int) -> subprocess.Popen[str]:
    """A process that takes leases and keeps them until its input ends."""
    return warm.Popen(
        [sys.executable, "-c", HOLD, str(folder), *map(str, keys)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.sampled_from([0, 1, 2**47, 2**64 - 1])), max_size=20))
def test_a_lease_has_one_owner(steps: list[tuple[int, bool, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        both = [Claims(Path(folder)), Claims(Path(folder))]
        owner: dict[int, int] = {}
        for who, takes, key in steps:
            if takes:
                assert both[who].take(key) == (owner.get(key, who) == who)
                owner.setdefault(key, who)
            else:
                both[who].give_back(key)
                if owner.get(key) == who:
                    del owner[key]
        both[0].close()
        assert all(both[1].take(key) for key in (0, 1, 2**47, 2**64 - 1))
        both[1].close()
        both[1].close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_leases_of_a_dead_process_are_free_at_once(tmp_path: Path, how: signal.Signals) -> None:
    with holder(tmp_path, 7, 2**63) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "1 1\n"
        own = Claims(tmp_path)
        assert not own.take(7)
        assert own.take(8)
        os.kill(other.pid, signal.SIGSTOP)
        assert not own.take(2**63)  # stopped is not dead
        os.kill(other.pid, how)
        os.kill(other.pid, signal.SIGCONT)
        other.wait()
        assert own.take(7)
        assert own.take(2**63)
        own.close()


def test_where_there_are_no_locks_everybody_gets_every_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Claims(tmp_path), Claims(tmp_path)
    monkeypatch.delattr("fcntl.F_OFD_SETLK")

    assert one.take(1)
    assert other.take(1)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Claims(tmp_path / "nowhere")

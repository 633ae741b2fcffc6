"""Shares by name: in one process, in several, and after their ends."""

import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spiral_stream.errors import CacheError
from spiral_stream.keeping.in_use import Reading, reading, unread
from tests.fixtures.open_files import open_below

ROOT = Path(__file__).parents[3]
LEFT = """
import os, sys
from pathlib import Path
from spiral_stream.keeping.in_use import reading
os.kept = reading(Path(sys.argv[1]), "a")
"""
OTHER = """
import sys
from pathlib import Path
from spiral_stream.keeping.in_use import reading
held = reading(Path(sys.argv[1]), "a")
print("held", flush=True)
sys.stdin.readline()
"""
FORKED = """
import os, sys
from pathlib import Path
from spiral_stream.keeping.in_use import reading, unread
root = Path(sys.argv[1])
held = reading(root, "a")
child = os.fork()
if not child:
    held.release()
    own = reading(root, "a")
    own.release()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with unread(root, "a") as alone:
    assert not alone
held.release()
with unread(root, "a") as alone:
    assert alone
"""


def is_alone(root: Path, name: str) -> bool:
    with unread(root, name) as alone:
        return alone


def test_nobody_is_alone_with_what_is_shared_and_other_names_are_free(tmp_path: Path) -> None:
    held = reading(tmp_path, "a")

    assert not is_alone(tmp_path, "a")
    assert is_alone(tmp_path, "b")
    held.release()
    held.release()
    assert is_alone(tmp_path, "a")


def test_the_last_of_several_shares_gives_it_back(tmp_path: Path) -> None:
    first, second = reading(tmp_path, "a"), reading(tmp_path, "a")
    first.release()
    assert not is_alone(tmp_path, "a")
    del second
    gc.collect()
    assert is_alone(tmp_path, "a")


def test_a_thousand_shares_take_one_descriptor_and_give_it_back(tmp_path: Path) -> None:
    held = [reading(tmp_path, f"name {k}") for k in range(1000)]

    assert len(open_below(tmp_path)) == 1
    assert not any(is_alone(tmp_path, f"name {k}") for k in range(0, 1000, 100))
    held.clear()
    gc.collect()
    assert open_below(tmp_path) == []


def test_a_share_of_another_process_ends_when_it_is_killed(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)], stdin=pipe, stdout=pipe, text=True, cwd=ROOT
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert not is_alone(tmp_path, "a")
        other.send_signal(signal.SIGKILL)
        other.wait()

    assert is_alone(tmp_path, "a")


def test_a_share_that_outlives_all_modules_ends_without_a_word(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEFT, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, timeout=300, check=True, capture_output=True, text=True)

    assert done.stderr == ""


def test_a_forked_child_does_not_give_back_what_its_parent_shares(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], cwd=ROOT, timeout=300, check=False)

    assert done.returncode == 0


def test_whoever_wants_to_share_waits_for_the_remover_and_not_for_ever(tmp_path: Path) -> None:
    with unread(tmp_path, "a") as alone:
        assert alone
        with pytest.raises(CacheError, match="removes files"):
            reading(tmp_path, "a", deadline_s=0.05)
    assert isinstance(reading(tmp_path, "a", deadline_s=0.05), Reading)


def test_where_nothing_can_be_written_nobody_is_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    held = reading(tmp_path / "file" / "in it", "a")

    assert not is_alone(tmp_path / "file" / "in it", "a")
    held.release()

"""Many share a folder, one has it alone, and a lock ends with its holder."""

import errno
import fcntl
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spiral_stream.catalog.lock import locked
from spiral_stream.errors import CacheError, SpiralError, SpiralWarning
from spiral_stream.integrity import locks
from spiral_stream.integrity.locks import alone, lock, share
from spiral_stream.keeping.in_use import reading, unread


def test_many_share_and_nobody_is_alone_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "readers"
    one, two = share(file), share(file)
    assert one is not None
    assert two is not None
    with alone(file) as free:
        assert not free
    one.release()
    one.release()  # again does nothing
    with alone(file) as free:
        assert not free
    two.release()
    with alone(file) as free:
        assert free
        assert lock(file, alone=False) is None


def test_a_lock_ends_with_the_last_reference_to_it(tmp_path: Path) -> None:
    held = share(tmp_path / "readers")
    assert held is not None
    del held
    gc.collect()

    with alone(tmp_path / "readers") as free:
        assert free


def test_who_waits_too_long_is_told_what_to_end(tmp_path: Path) -> None:
    file = tmp_path / "writers"
    with alone(file), pytest.raises(CacheError, match="End it"):
        share(file, deadline_s=0.0)


def test_a_lock_file_that_cannot_be_made_locks_nobody_out(tmp_path: Path) -> None:
    assert share(tmp_path / "missing" / "readers") is None
    with alone(tmp_path / "missing" / "readers") as free:
        assert not free


@contextmanager
def _child_that_only_lives() -> Iterator[None]:
    """A forked process with a copy of each descriptor, as a worker of a DataLoader is."""
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        (alone, lambda file: share(file, deadline_s=0.0)),
        (lambda file: unread(file.parent, "name"), lambda file: reading(file.parent, "name", 0.0)),
    ],
)
def test_a_lock_ends_with_its_holder_although_a_child_was_forked_meanwhile(
    tmp_path: Path,
    taken: Callable[[Path], AbstractContextManager[bool]],
    wanted: Callable[[Path], object],
) -> None:
    with ExitStack() as until_the_end:
        with taken(tmp_path / "readers") as free:
            assert free
            until_the_end.enter_context(_child_that_only_lives())
        assert wanted(tmp_path / "readers") is not None


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_child_that_closes_its_copy_leaves_its_parents_lock_alone(tmp_path: Path) -> None:
    file = tmp_path / "writers"
    file.touch()
    held = lock(file, alone=True)
    assert held is not None
    child = os.fork()
    if not child:
        held.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert lock(file, alone=False) is None
    held.release()
    assert lock(file, alone=False) is not None


def refused(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the kernel answer every lock like this."""

    def flock(_handle: int, how: int) -> None:
        if how != fcntl.LOCK_UN:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EIO])
def test_a_lock_that_is_refused_is_blamed_on_nobody(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch, number)
    for takes in (
        lambda: locks.share(tmp_path / "readers"),
        lambda: locked(tmp_path / "lock", "catalog c").__enter__(),
    ):
        with pytest.raises(
            SpiralError, match=f"the file system refuses a lock: {os.strerror(number)}. Allow locks there"
        ):
            takes()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOLCK, errno.ENOTSUP])
def test_where_there_are_no_locks_nobody_waits(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch, number)
    assert locks.share(tmp_path / "readers") is None
    with locked(tmp_path / "lock", "catalog c"):
        assert (tmp_path / "lock").exists()
    locks.enter(tmp_path / "folder").release()


@example(looks=[False, True, False], refusals=1)
@given(looks=st.lists(st.booleans(), max_size=6), refusals=st.integers(0, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_folder_that_others_make_and_remove_all_the_time_is_entered(
    looks: list[bool], refusals: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, stat, mkdir, there = tmp_path_factory.mktemp("left") / "folder", os.stat, os.mkdir, iter(looks)
    refused = iter(range(refusals))

    def looked(path: Any, **options: Any) -> os.stat_result:
        """Found or not, as another process just made or removed it."""
        if os.fspath(path) != str(folder):
            return stat(path, **options)
        if next(there, True):
            return stat(folder.parent, **options)
        raise FileNotFoundError(errno.ENOENT, "gone", str(folder))

    def made(path: Any, *args: Any) -> None:
        if os.fspath(path) == str(folder) and next(refused, None) is not None:
            raise FileExistsError(errno.EEXIST, "there", str(folder))
        mkdir(path, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", looked)
        patch.setattr(os, "mkdir", made)
        patch.setattr(locks.Held, "is_at", lambda *_: True)
        locks.enter(folder).release()


def test_what_is_no_folder_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        locks.enter(tmp_path / "file")


def test_a_wait_ends_begins_again_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()
    monkeypatch.setattr("spiral_stream.threads.monotonic", lambda: now[0])
    monkeypatch.setattr(locks.time, "sleep", slept.append)
    wait = locks.Wait(80.0, (1.0, 3.0), lambda waited_s: f"waited {waited_s:g} s", 50.0)
    assert [wait.pause() for _ in range(4)] == [True] * 4
    assert all(low <= s <= 3 * low for low, s in zip((0.5, 1.0, 1.5, 1.5), slept, strict=True))
    for _ in range(9):
        now[0] += 5.0
        assert wait.pause()
    now[0] += 5.0
    with pytest.warns(SpiralWarning, match=r"^waited 50 s$"):
        assert wait.pause()
    for _ in range(5):
        now[0] += 5.0
        assert wait.pause()
    assert not wait.over
    now[0] += 5.0
    assert wait.over
    assert not wait.pause()
    assert len(slept) == 19  # who is late does not sleep
    wait.again()
    assert wait.pause()


@pytest.mark.filterwarnings("error")
def test_while_the_machine_stands_still_nobody_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("spiral_stream.threads.monotonic", lambda: now[0])
    monkeypatch.setattr(locks.time, "sleep", lambda _: None)
    wait = locks.Wait(60.0, tell=lambda waited_s: f"waited {waited_s:g} s", tell_after_s=10.0)
    for _ in range(9):
        now[0] += 3_600.0
        assert wait.pause()
    assert not wait.over
    now[0] += 3_600.0
    assert wait.over


def test_who_waits_for_a_lock_says_so_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TELL_AFTER_S", 0.05)
    monkeypatch.setattr(locks, "DEADLINE_S", 0.3)
    refused(monkeypatch, errno.EAGAIN)
    waits = {
        "share": lambda: locks.share(tmp_path / "readers", 0.3),
        "locked": lambda: locked(tmp_path / "lock", "catalog c", 0.3).__enter__(),
        "enter": lambda: locks.enter(tmp_path / "folder"),
    }
    for name, wait in waits.items():
        with (
            pytest.warns(SpiralWarning, match=r"is locked by a(nother)? process.*, for .* s; waiting up to 0.3 s"),
            pytest.raises((SpiralError, TimeoutError), match=r"0\.3 s"),
        ):
            wait()
        assert name

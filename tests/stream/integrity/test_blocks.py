"""Mapped files: blocks are verified at their first touch, and a file that shrinks is told, not died of."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import DamageError
from spiral_stream.integrity import blocks
from spiral_stream.integrity.blocks import BLOCK, SHIFT, Mapped, moment, need_sound, sound, sums_of, verify_rows

PAGE = os.sysconf("SC_PAGESIZE")


def mapped(path: Path, data: bytes, *, sums: bool = True) -> Mapped:
    path.write_bytes(data)
    made = Mapped(str(path))
    if sums:
        made.expect(sums_of(made), SHIFT)
    return made


def damage(path: Path, found: str) -> DamageError:
    return DamageError(f"{path}: {found}")


def verify(file: Mapped, starts: list[int], sizes: list[int]) -> None:
    addresses = np.array(starts, dtype=np.uint64) + np.uint64(file.address)
    verify_rows(addresses, np.array(sizes, dtype=np.int64), damage)


@given(
    size=st.integers(1, 5 * BLOCK),
    rows=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2 * BLOCK)), max_size=8),
    at=st.floats(0, 1, exclude_max=True),
)
def test_rows_are_refused_when_and_only_when_a_block_of_theirs_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, size: int, rows: list[tuple[float, int]], at: float
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "file"
    file = mapped(path, np.random.default_rng(size).bytes(size))
    starts = [int(start * (size - 1)) for start, _ in rows]
    sizes = [min(each, size - start) for start, (_, each) in zip(starts, rows, strict=True)]
    with path.open("r+b") as out:
        out.seek(int(at * size))
        byte = out.read(1)
        out.seek(int(at * size))
        out.write(bytes([byte[0] ^ 1]))
    bad = int(at * size) >> SHIFT
    touched = {
        block
        for start, each in zip(starts, sizes, strict=True)
        if each
        for block in range(start >> SHIFT, ((start + each - 1) >> SHIFT) + 1)
    }

    if bad in touched:
        with pytest.raises(DamageError, match=rf"bytes {bad * BLOCK:,} to .* were written with"):
            verify(file, starts, sizes)
    else:
        verify(file, starts, sizes)
        assert file.left == -(-size // BLOCK) - len(touched)


def test_what_was_verified_once_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mapped(tmp_path / "file", bytes(3 * BLOCK))
    seen: list[int] = []
    whole = blocks.verify_block
    monkeypatch.setattr(blocks, "verify_block", lambda file, block: seen.append(block) or whole(file, block))
    verify(file, [0, 10, BLOCK - 1], [5, 5, 2])
    verify(file, [0, BLOCK, 7], [BLOCK, 1, 1])
    verify(file, [0], [3 * BLOCK])

    assert seen == [0, 1, 2]
    assert file.left == 0


def test_one_size_may_stand_for_all_rows(tmp_path: Path) -> None:
    file = mapped(tmp_path / "file", bytes(3 * BLOCK))
    verify(file, [0, BLOCK - 1, 2 * BLOCK], [2])

    assert file.left == 0
    with pytest.raises(ValueError, match="one size, or as many as addresses"):
        verify(file, [0, 1, 2], [2, 2])


def test_addresses_of_ordinary_memory_are_passed_over() -> None:
    memory = np.arange(10)
    verify_rows(np.array([memory.ctypes.data], dtype=np.uint64), np.array([80]), damage)


def test_sums_that_do_not_fit_a_file_are_refused(tmp_path: Path) -> None:
    file = mapped(tmp_path / "file", bytes(BLOCK + 1), sums=False)
    with pytest.raises(ValueError, match="1 sums for 65537 bytes"):
        file.expect(np.zeros(1, dtype=np.uint64), SHIFT)


@pytest.mark.parametrize("left", [0, 1, PAGE - 1, PAGE, 5 * PAGE + 17, 39 * PAGE + 1, 40 * PAGE - 1])
def test_a_file_that_shrinks_reads_as_zeros_and_is_named(tmp_path: Path, left: int) -> None:
    file = mapped(tmp_path / "file", b"\7" * (40 * PAGE))
    begun = moment()
    verify(file, [0], [40 * PAGE])
    view = np.frombuffer(file, np.uint8)
    need_sound(begun)
    os.truncate(tmp_path / "file", left)

    assert int(np.count_nonzero(view)) == left
    with pytest.raises(DamageError, match=r"file could not be read: it became shorter.*stream\.materialize\(\)"):
        need_sound(begun)
    with pytest.raises(DamageError, match="became shorter"), sound(begun):
        raise ZeroDivisionError  # made of zeros
    del view, file
    need_sound()


def test_only_the_zeros_at_a_files_end_may_go_unseen(tmp_path: Path) -> None:
    file = mapped(tmp_path / "file", b"\7" * 100 + bytes(50), sums=False)
    os.truncate(tmp_path / "file", 120)
    need_sound()
    assert bytes(memoryview(file)) == b"\7" * 100 + bytes(50)
    os.truncate(tmp_path / "file", 99)
    with pytest.raises(DamageError, match="became shorter"):
        need_sound()


def test_a_forked_child_and_other_threads_are_guarded_too(tmp_path: Path) -> None:
    code = f"""
import os, threading
import numpy as np
from spiral_stream.integrity.blocks import Mapped, need_sound
from spiral_stream.errors import DamageError

file = Mapped({str(tmp_path / "file")!r})
view = np.frombuffer(file, np.uint8)
if os.fork() == 0:
    os.truncate({str(tmp_path / "file")!r}, 5000)
    threads = [threading.Thread(target=view.sum) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    try:
        need_sound()
    except DamageError:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    (tmp_path / "file").write_bytes(b"\7" * (1 << 20))
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "7\n"
    assert "Bus error" not in done.stderr


def test_a_bus_error_of_somebody_else_ends_the_process_as_before(tmp_path: Path) -> None:
    code = f"""
import mmap, os
from spiral_stream.integrity.blocks import Mapped
ours = Mapped({str(tmp_path / "ours")!r})
with open({str(tmp_path / "theirs")!r}, "r+b") as file:
    theirs = mmap.mmap(file.fileno(), 0)
os.truncate({str(tmp_path / "theirs")!r}, 0)
theirs[0]
"""
    for options in ([], ["-X", "faulthandler"]):
        for name in ("ours", "theirs"):
            (tmp_path / name).write_bytes(b"\7" * 9000)
        done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGBUS
        assert ("Bus error" in done.stderr) is bool(options)

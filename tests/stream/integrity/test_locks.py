"""Many share a folder, one has it alone, and a lock ends with its holder."""

import gc
from pathlib import Path

import pytest

from spiral_stream.errors import CacheError
from spiral_stream.integrity.locks import alone, lock, share


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

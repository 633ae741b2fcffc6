"""Files of other libraries, compared with what was written."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spiral_stream.errors import DamageError
from spiral_stream.integrity.folders import files_of, need_written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"rows of a table")
    (tmp_path / "manifest").write_bytes(b"what lies where")
    return tmp_path


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "its digest is": _flip,
    "it has 3 bytes, and was written with 15": lambda path: os.truncate(path, 3),
    "it is missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("found", list(DAMAGE))
@pytest.mark.parametrize("name", ["data/a", "manifest"])
@pytest.mark.parametrize("known", [False, True])
def test_a_file_that_is_not_as_it_was_written_is_found(folder: Path, name: str, found: str, known: bool) -> None:
    written = files_of(folder)
    assert sorted(written) == ["data/a", "manifest"]
    if known:
        need_written(folder, written)
    DAMAGE[found](folder / name)
    with pytest.raises(DamageError, match=f"{name} is damaged: {found}"):
        need_written(folder, written)


def test_digests_are_compared_once_in_a_process_and_again_when_asked(folder: Path) -> None:
    written = files_of(folder)
    need_written(folder, written)
    times = (folder / "manifest").stat()
    _flip(folder / "manifest")
    os.utime(folder / "manifest", ns=(times.st_atime_ns, times.st_mtime_ns))  # as a disk decays

    need_written(folder, written)
    with pytest.raises(DamageError, match="its digest is"):
        need_written(folder, written, again=True)

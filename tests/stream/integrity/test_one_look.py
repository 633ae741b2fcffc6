"""A file that another process removes has no size, whenever it goes."""

import shutil
import threading
from pathlib import Path

import pytest

from spiral_stream.integrity.one_look import files_below, look, size_of, written_at


def test_what_is_not_there_has_no_size_and_no_time(tmp_path: Path) -> None:
    assert (look(tmp_path / "none"), size_of(tmp_path / "none"), written_at(tmp_path / "none")) == (None, 0, 0.0)


def test_what_is_there_has_both(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(17))

    assert size_of(tmp_path / "file") == 17
    assert written_at(tmp_path / "file") == (tmp_path / "file").stat().st_mtime


def test_a_file_that_comes_and_goes_is_there_or_is_not(tmp_path: Path) -> None:
    file, over = tmp_path / "file", threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            file.write_bytes(bytes(5))
            file.unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert {size_of(file) for _ in range(3_000)} <= {0, 5}
    finally:
        over.set()
        other.join()


def test_what_the_system_refuses_is_no_file_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(NotADirectoryError):
        look(tmp_path / "file" / "in it")
    with pytest.raises(NotADirectoryError):
        list(files_below(tmp_path / "file"))


def test_folders_that_go_while_they_are_listed_hold_no_files(tmp_path: Path) -> None:
    files = {tmp_path / name / "in it" / "file" for name in "abc"}
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    assert set(files_below(tmp_path)) == files

    found = []
    for path in files_below(tmp_path):
        found.append(path)
        for other in files - {path}:
            shutil.rmtree(other.parents[1])
    assert len(found) == 1
    assert list(files_below(tmp_path / "none")) == []

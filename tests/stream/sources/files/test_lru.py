"""Files that were used last are held, and no other."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.errors import SourceError
from spiral_stream.sources import Known
from spiral_stream.sources.files.lru import HeldFiles


@dataclass(frozen=True)
class Held:
    path: str
    size_bytes: int
    mtime_ns: int
    content_key: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for unit in range(5):
        (tmp_path / str(unit)).write_text("x" * unit)
    return tmp_path


def held(folder: Path, most: int | None, keys: str = "01234", *, bad: int = -1) -> tuple[HeldFiles[Held], list[int]]:
    reads: list[int] = []

    def read(unit: int) -> Held:
        reads.append(unit)
        facts = (folder / str(unit)).stat()
        return Held(str(folder / str(unit)), facts.st_size, facts.st_mtime_ns, str(unit))

    def check(unit: int, file: Held) -> None:
        if unit == bad:
            msg = f"{file.path} is odd"
            raise SourceError(msg)

    known = Known(pa.array(list("01234")), np.ones(5, np.uint64), pa.array(list(keys)))
    return HeldFiles("Odd file", read, most, known, check), reads


def test_the_files_that_were_used_last_are_read_once(folder: Path) -> None:
    files, reads = held(folder, 2)
    for unit in (0, 1, 0, 2, 0, 1):
        assert files.file(unit).content_key == str(unit)
    assert reads == [0, 1, 2, 1]
    files.clear()
    files.file(0)
    assert reads[-1] == 0


def test_all_are_held_without_a_limit_and_threads_may_ask(folder: Path) -> None:
    files, reads = held(folder, None)
    with ThreadPoolExecutor(4) as pool:
        assert [each.content_key for each in pool.map(files.file, [0, 1, 2, 3, 4] * 20)] == list("01234") * 20
    assert set(reads) == set(range(5))


def test_a_file_that_is_not_what_is_known_or_does_not_go_with_the_others_is_refused(folder: Path) -> None:
    files, _ = held(folder, 2, "0x234", bad=3)
    with pytest.raises(SourceError, match=r"Odd file .*/1 changed since registration.*refresh"):
        files.file(1)
    with pytest.raises(SourceError, match="is odd"):
        files.file(3)
    files.file(2)
    os.utime(folder / "2", ns=(1, 1))
    with pytest.raises(SourceError, match="changed while it is being read"):
        files.need_unchanged([str(folder / "2")])

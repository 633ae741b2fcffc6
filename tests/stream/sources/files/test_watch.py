"""A file that is exchanged or edited while it is read is an error; one that is not is looked at once in a while."""

import os
from pathlib import Path

import pytest

from spiral_stream.errors import SourceError
from spiral_stream.sources.files import watch
from spiral_stream.sources.files.watch import Watch, facts_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def watched(path: Path) -> Watch:
    return Watch({str(path): facts_of(path.stat())})


def test_an_edited_file_is_refused_with_the_way_out(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"four")
    seen = watched(path)
    seen.need_unchanged([str(path)])
    path.write_bytes(b"seven b")
    seen.need_unchanged([str(path)])  # it was looked at just now
    clock[0] += watch.EVERY_S

    with pytest.raises(SourceError, match=r"it had 4 bytes, now 7\. Restore the file, or take the data as it is now"):
        seen.need_unchanged([str(path)])


def test_another_time_of_change_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"four")
    seen = watched(path)
    os.utime(path, ns=(1, 1))

    with pytest.raises(SourceError, match="and another time"):
        seen.need_unchanged([str(path)])


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"four")
    seen = watched(path)
    path.unlink()

    with pytest.raises(SourceError, match="No such file or directory, while it is being read"):
        seen.need_unchanged([str(path)])

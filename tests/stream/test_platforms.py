"""What only Linux has is optional: each test takes one such thing away."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spiral_stream.errors import SourceError
from spiral_stream.relational import sql_process
from spiral_stream.sources import pins
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.resolve import resolve
from spiral_stream.threads import available_cores


def test_cores_are_those_that_the_process_may_use() -> None:
    assert available_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("counted", "cores"), [(6, 6), (None, 1)])
def test_where_no_affinity_is_known_all_cores_of_the_machine_count(
    monkeypatch: pytest.MonkeyPatch, counted: int | None, cores: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: counted)

    assert available_cores() == cores


def test_a_process_whose_size_is_not_known_gets_no_memory_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_to: list[object] = []
    monkeypatch.setattr(sql_process.resource, "setrlimit", lambda *limit: set_to.append(limit))
    monkeypatch.setattr(sql_process, "HELD", tmp_path / "proc" / "statm")

    sql_process.limit_memory(1 << 20)

    assert set_to == []


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """No link says which file is open."""

    readlink = os.readlink

    def outside_proc(path: str, **options: int) -> str:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path, **options)

    monkeypatch.setattr(os, "readlink", outside_proc)


@pytest.mark.usefixtures("no_proc")
def test_references_are_confined_without_proc(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "inside.bin").write_bytes(b"inside")
    (tmp_path / "outside.bin").write_bytes(b"outside")
    (base / "link.bin").symlink_to(tmp_path / "outside.bin")
    reach = Reach(str(base), confined=True)

    assert bytes(resolve(pa.array(["inside.bin"]), reach)[0]) == b"inside"
    for reference in ("../outside.bin", "link.bin"):
        with pytest.raises(SourceError, match="lies outside"):
            resolve(pa.array([reference]), reach)


@pytest.fixture
def forgotten() -> Iterator[None]:
    pins.keeps_inodes.cache_clear()
    yield
    pins.keeps_inodes.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_inodes_are_not_compared_where_no_table_of_mounts_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pins, "Path", lambda _: tmp_path / "mountinfo")

    assert not pins.keeps_inodes(tmp_path.stat().st_dev)

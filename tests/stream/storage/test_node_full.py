"""A disk or a process that may write no more."""

import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spiral_stream.errors import CacheError, SpiralWarning
from spiral_stream.sources import read_kept
from spiral_stream.storage.node_cache.cache import NodeCache
from spiral_stream.storage.node_cache.file import BLOCK
from tests.fixtures.range_server import drawn


def asked(number: int, size: int) -> int:
    """Read a file, and return how often it was asked for."""
    data, asked = drawn(number, size), []

    def download(at: int, length: int) -> bytes:
        asked.append(at)
        return data[at : at + length]

    assert read_kept(f"s3://b/{number}", "v", size, download) == [data]
    return len(asked)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a disk")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_makes_room_from_what_is_not_held_and_is_named_otherwise(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(small_disk))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", str(1 << 40))
    for number in range(6):
        assert [asked(number, 6 * BLOCK) for _ in range(2)] == [1, 0]
    with pytest.warns(SpiralWarning, match=r"node cache .*No space left"):
        assert [asked(9, 20 * BLOCK) for _ in range(2)] == [1, 1]
    assert [asked(10, 6 * BLOCK) for _ in range(2)] == [1, 0]


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no such limit here")
def test_a_limit_on_file_sizes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * BLOCK, hard))
    try:
        with pytest.warns(SpiralWarning, match="File too large"):
            assert [asked(1, 5 * BLOCK) for _ in range(2)] == [1, 1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [asked(1, 5 * BLOCK) for _ in range(2)] == [1, 0]


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(CacheError, match=r"cannot be made .*Set \$SPIRAL_NODE_CACHE to a folder on a local disk"):
        NodeCache(tmp_path / "file")
    with pytest.raises(CacheError, match="Give a local folder"):
        NodeCache("s3://bucket/node")
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", "3GB")
    with pytest.raises(CacheError, match="'3GB': it would have to be a number of bytes"):
        NodeCache(tmp_path)
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", "77")
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "n"))
    cache = NodeCache()
    assert (cache.limit_bytes, cache.folder) == (77, tmp_path / "n")
    assert [path.name for path in (tmp_path / "n").iterdir()] == ["files"]

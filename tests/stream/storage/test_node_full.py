"""A disk or a process that may write no more."""

import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spiral_stream.errors import CacheError
from spiral_stream.storage.node_cache import NodeCache
from spiral_stream.storage.node_files import BLOCK, NodeKey
from tests.fixtures.range_server import drawn


def opened(cache: NodeCache, number: int, size: int) -> bool:
    data = drawn(number, size)
    with cache.open(NodeKey(f"s3://b/{number}", "v", size), lambda at, length: data[at : at + length]) as held:
        return held.view() == data


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a disk")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_makes_room_from_what_is_not_held_and_is_named_otherwise(small_disk: Path) -> None:
    with NodeCache(small_disk, 1 << 40) as cache:
        for number in range(6):
            assert opened(cache, number, 6 * BLOCK)
        with pytest.raises(CacheError, match=r"s3://b/9: .*No space left.*set \$SPIRAL_NODE_CACHE to another disk"):
            opened(cache, 9, 20 * BLOCK)
        assert opened(cache, 10, 6 * BLOCK)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no such limit here")
def test_a_limit_on_file_sizes_is_named(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with NodeCache(tmp_path) as cache:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * BLOCK, hard))
        try:
            with pytest.raises(CacheError, match=r"File too large\). Set \$SPIRAL_NODE_CACHE"):
                opened(cache, 1, 5 * BLOCK)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert opened(cache, 1, 5 * BLOCK)


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
    with NodeCache() as cache:
        assert (cache.limit_bytes, cache.folder) == (77, tmp_path / "n")
        assert [path.name for path in (tmp_path / "n").iterdir()] == ["files"]

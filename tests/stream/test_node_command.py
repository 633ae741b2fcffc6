import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spiral_stream.cli import app
from spiral_stream.storage.node_cache import NodeCache
from spiral_stream.storage.node_files import NodeKey


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", "1000000")
    with NodeCache() as cache:
        for name in ("old", "new"):
            uri = f"https://me:pass@host/{name}?sig=secret"
            cache.open(NodeKey(uri, "etag-1", 70_000), lambda _, length: bytes(length)).release()
    for path in (tmp_path / "files").rglob("*.*"):
        if b"/old" in path.with_suffix(".sums").read_bytes():
            os.utime(path, (0, 0))
    return tmp_path


def said(*words: str) -> str:
    done = CliRunner().invoke(app, ["node-cache", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_it_lists_what_lies_here_without_secrets(folder: Path) -> None:
    with NodeCache() as cache, cache.open(NodeKey("s3://b/held", "2", 5), lambda _, length: bytes(length)):
        text = said()
        found = {each["uri"]: each for each in json.loads(said("--json"))}

    assert set(found) == {"s3://b/held", "https://host/new", "https://host/old"}
    assert [name for name, each in found.items() if each["held"]] == ["s3://b/held"]
    assert found["https://host/new"]["there"] == 70_000
    assert "secret" not in text
    assert "pass" not in text
    assert "days ago" in text
    assert "3 files, " in text
    assert " bytes of 1,000,000, 8,192 held" in text
    assert folder.is_dir()


def test_it_removes_what_is_old_and_then_all_that_nobody_holds(folder: Path) -> None:
    assert "1 files removed" in said("--remove-older", "2")
    assert [each["uri"] for each in json.loads(said("--json"))] == ["https://host/new"]
    with NodeCache() as cache, cache.open(NodeKey("s3://b/held", "2", 5), lambda _, length: bytes(length)):
        assert "1 files removed" in said("--clear")
        assert [each["uri"] for each in json.loads(said("--json"))] == ["s3://b/held"]
    assert len(list((folder / "files").rglob("*.*"))) == 2

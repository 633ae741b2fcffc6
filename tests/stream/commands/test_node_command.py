import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spiral_stream.commands.cli import app
from spiral_stream.sources import read_kept
from spiral_stream.storage.node_cache.cache import NodeCache
from tests.fixtures.node_processes import key_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", "1000000")
    for name in ("old", "new"):
        read_kept(f"https://me:pass@host/{name}?sig=secret", "etag-1", 70_000, lambda _, length: bytes(length))
    for path in (tmp_path / "files").rglob("*.*"):
        if b"/old" in path.with_suffix(".sums").read_bytes():
            os.utime(path, (0, 0))
    return tmp_path


@contextmanager
def held() -> Iterator[None]:
    """Hold a file as a read does."""
    read_kept("s3://b/held", "2", 5, lambda _, length: bytes(length))
    file = NodeCache().file_of(key_of("s3://b/held", "2", 5))
    yield
    file.release()


def said(*words: str) -> str:
    done = CliRunner().invoke(app, ["node-cache", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_it_lists_what_lies_here_without_secrets(folder: Path) -> None:
    with held():
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
    with held():
        assert "1 files removed" in said("--clear")
        assert [each["uri"] for each in json.loads(said("--json"))] == ["s3://b/held"]
    assert len(list((folder / "files").rglob("*.*"))) == 2


def test_to_look_at_a_folder_makes_nothing_there(tmp_path: Path) -> None:
    assert said("--folder", str(tmp_path)) == f"No node cache lies in {tmp_path}: nothing was kept there\n"
    assert said("--clear", "--json", "--folder", str(tmp_path / "none")) == "[]\n"
    assert not list(tmp_path.iterdir())

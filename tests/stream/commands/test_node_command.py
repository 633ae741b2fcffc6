import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spiral_stream.commands.cli import app
from spiral_stream.sources import read_kept


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPIRAL_NODE_CACHE_BYTES", "1000000")
    for name in ("old", "new"):
        read_kept(f"https://me:pass@host/{name}?sig=secret", "etag-1", 70_000, lambda _, length: bytes(length))
    for path in (tmp_path / "files").rglob("*.*"):
        if b"/old" in path.read_bytes():
            os.utime(path, (0, 0))
    return tmp_path


def said(*words: str) -> str:
    done = CliRunner().invoke(app, ["node-cache", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_it_lists_what_lies_here_without_secrets(folder: Path) -> None:
    text = said()
    found = {each["uri"]: each for each in json.loads(said("--json"))}

    assert set(found) == {"https://host/new", "https://host/old"}
    assert found["https://host/new"]["there"] == 70_000
    assert "secret" not in text
    assert "pass" not in text
    assert "days ago" in text
    assert "2 files, " in text
    assert " bytes of 1,000,000" in text
    assert folder.is_dir()


def test_it_removes_what_is_old_and_then_all(folder: Path) -> None:
    assert "1 files removed" in said("--remove-older", "2")
    assert [each["uri"] for each in json.loads(said("--json"))] == ["https://host/new"]
    assert "1 files removed" in said("--clear")
    assert not list((folder / "files").rglob("*.*"))


def test_to_look_at_a_folder_makes_nothing_there(tmp_path: Path) -> None:
    assert said("--folder", str(tmp_path)) == f"No node cache lies in {tmp_path}: nothing was kept there\n"
    assert said("--clear", "--json", "--folder", str(tmp_path / "none")) == "[]\n"
    assert not list(tmp_path.iterdir())

"""The command ``spiral copy``."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spiral_stream.commands.cli import app
from spiral_stream.errors import CacheError
from tests.fixtures.two_machines import Team


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    folder = tmp_path_factory.mktemp("team")  # another one, if tests of other modules come between
    return Team(folder, f"memory://{folder.name}/prepared")


def test_the_command_says_what_it_copied_and_what_was_there(team: Team, tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["copy", str(team.local), str(tmp_path / "copy")])
    assert done.exit_code == 0, done.output
    assert "15 parts copied" in done.output
    [cache] = (team.local / "caches").iterdir()
    again = runner.invoke(app, ["copy", str(team.local), str(tmp_path / "copy"), "--only", cache.name])
    assert "0 parts copied, 0 bytes; 12 were there" in again.output


def test_a_folder_where_nothing_was_prepared_is_refused(team: Team, tmp_path: Path) -> None:
    (catalog := tmp_path / "catalog").mkdir()
    for way_out in ("Correct the folder", f"Give {catalog / 'prepared'}"):
        done = CliRunner().invoke(app, ["copy", str(catalog), str(tmp_path / "copy")])
        assert isinstance(done.exception, CacheError)
        assert str(done.exception).endswith(way_out)
        shutil.copytree(team.local, catalog / "prepared", dirs_exist_ok=True)
    assert not (tmp_path / "copy").exists()


def test_a_damaged_part_is_named_and_ends_in_exit_code_one(team: Team, tmp_path: Path) -> None:
    runner = CliRunner()
    runner.invoke(app, ["copy", str(team.local), str(tmp_path / "one")])
    piece = next((tmp_path / "one").rglob("*.piece"))
    piece.write_bytes(bytes(len(piece.read_bytes())))
    done = runner.invoke(app, ["copy", str(tmp_path / "one"), str(tmp_path / "two")])
    assert done.exit_code == 1
    assert "14 parts copied" in done.output
    assert "1 damaged and not copied" in done.output
    assert f"{piece.name} is damaged" in done.output


def test_nothing_is_copied_to_or_from_a_store_whose_format_is_not_known(tmp_path: Path) -> None:
    team = Team(tmp_path, f"memory://{tmp_path.name}/prepared")
    team.run("first", build=True)
    team.say("format.json", {"format": 2})
    before = team.held()
    for places in ((str(team.local), team.uri), (team.uri, str(tmp_path / "elsewhere"))):
        done = CliRunner().invoke(app, ["copy", *places])
        assert isinstance(done.exception, CacheError)
        assert "this one knows format 1" in str(done.exception)
    assert team.held() == before

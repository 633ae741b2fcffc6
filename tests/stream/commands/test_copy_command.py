"""The command ``spiral copy``."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from spiral_stream.commands.cli import app
from tests.fixtures.two_machines import Team


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    return Team(tmp_path_factory.mktemp("team"), "memory://command/prepared")


def test_the_command_says_what_it_copied_and_what_was_there(team: Team, tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["copy", str(team.local), str(tmp_path / "copy")])
    assert done.exit_code == 0, done.output
    assert "15 parts copied" in done.output
    [cache] = (team.local / "caches").iterdir()
    again = runner.invoke(app, ["copy", str(team.local), str(tmp_path / "copy"), "--only", cache.name])
    assert "0 parts copied, 0 bytes; 12 were there" in again.output


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

"""What a machine keeps of shared prepared data: within a limit, and never less than it uses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spiral_stream.cache import working_folder as working
from spiral_stream.cache.working_folder import held_here, keep_limit, make_room
from spiral_stream.commands.cli import app
from spiral_stream.errors import CacheError
from spiral_stream.keeping.share import STORED, share_of
from tests.fixtures import sharing
from tests.fixtures.two_machines import Team

ROWS = 148  # that pass the filter


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Team:
    """A store on which one machine built a cache."""
    folder = tmp_path_factory.mktemp("team")  # another one, if tests of other modules come between
    team = Team(folder, f"memory://{folder.name}/prepared")
    assert team.run("maker", build=True) == (team.batches, ROWS)
    return team


@pytest.fixture
def team(built: Team, monkeypatch: pytest.MonkeyPatch) -> Team:
    monkeypatch.setattr(working, "EVERY_S", 0.0)
    return built


@pytest.fixture
def machine(team: Team, tmp_path: Path) -> str:
    """One that has read everything."""
    assert team.run(tmp_path.name) == (team.batches, ROWS)
    return tmp_path.name


def copies(root: Path) -> list[Path]:
    """Files of parts."""
    return sorted(path for end in ("*.blob", "*.piece", "*.lance") for path in root.rglob(end) if path.is_file())


def taken_by(root: Path) -> int:
    """Bytes on the disk of all files below a folder."""
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())


def test_copies_go_and_come_again_and_the_store_keeps_everything(team: Team, machine: str) -> None:
    objects = team.objects()
    for name in ("maker", machine):
        root = team.share(name).root
        had, fetched = copies(root), team.share(name).counters.fetched
        files, size = make_room(root)
        assert (copies(root), len(had) >= 24) == ([], True)
        assert (files >= len(had), size > 0) == (True, True)
        assert make_room(root) == (0, 0)
        assert team.run(name) == (team.batches, ROWS)
        assert team.share(name).counters.fetched - fetched == files
        assert copies(root) == had
    assert team.objects() == objects


def test_a_stream_that_is_opened_goes_back_below_the_limit(
    team: Team, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = team.share(machine).root
    taken = taken_by(root)
    monkeypatch.setenv("SPIRAL_CACHE_BYTES", str(taken + 1))
    keep_limit(root)
    assert taken_by(root) == taken
    monkeypatch.setenv("SPIRAL_CACHE_BYTES", str(taken * 3 // 4))
    keep_limit(root)
    assert taken // 2 < taken_by(root) <= taken * 3 // 4
    monkeypatch.setenv("SPIRAL_CACHE_BYTES", "1")
    assert team.run(machine) == (team.batches, ROWS)  # it goes above the limit while it is open
    assert taken_by(root) > taken // 2
    with team.on(team.uri, machine), sharing.stream(team.folder) as opened:
        assert opened.caches()[0].built == ROWS
        assert not list(root.rglob("*.blob"))
    monkeypatch.setenv("SPIRAL_CACHE_BYTES", "1 GB")
    with pytest.raises(CacheError, match=r"\$SPIRAL_CACHE_BYTES='1 GB': it would have to be a number of bytes"):
        keep_limit(root)


def test_a_process_looks_once_in_a_while(team: Team, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = team.share(machine).root
    monkeypatch.setattr(working, "EVERY_S", 60.0)
    keep_limit(root)
    monkeypatch.setenv("SPIRAL_CACHE_BYTES", "1")
    before = copies(root)
    keep_limit(root)
    assert copies(root) == before


def test_what_a_process_reads_stays_until_it_is_closed(team: Team, machine: str) -> None:
    root = team.share(machine).root
    with team.on(team.uri, machine), sharing.stream(team.folder) as opened:
        each = iter(opened)
        next(each)
        had = [path for path in copies(root) if path.suffix != ".piece"]
        make_room(root)
        assert [path for path in copies(root) if path.suffix != ".piece"] == had
        assert 1 + sum(1 for _ in each) == ROWS // 8
    make_room(root)
    assert not list(root.rglob("*.blob"))


def test_what_the_store_does_not_have_stays(team: Team, machine: str) -> None:
    root = team.share(machine).root
    marks = list(root.rglob(f"{STORED}/*"))
    for path in marks:  # as if the maker had been killed before it put them
        path.unlink()
    assert len(marks) >= 12
    assert make_room(root) == (0, 0)
    assert team.run(machine) == (team.batches, ROWS)


def test_a_part_of_which_a_killed_process_removed_some_files_comes_again(team: Team, machine: str) -> None:
    root = team.share(machine).root
    for at, end in enumerate(["*.blob", "*.lance", "sums/*", "*.piece", "*.sums"]):
        some = sorted(path for path in root.rglob(end) if path.is_file())
        assert len(some) >= 3
        for path in some[at % 3 :: 3]:
            path.unlink()
    assert team.run(machine) == (team.batches, ROWS)


def test_a_folder_that_is_not_shared_has_no_limit(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE_BYTES", "1")
    before = copies(team.local)
    assert share_of(team.local) is None
    keep_limit(team.local)
    assert copies(team.local) == before


def test_the_command_shows_working_folders_and_clears_them(
    team: Team, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = team.share(machine).root
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(team.folder / machine / "node"))
    monkeypatch.setenv("SPIRAL_CACHE_BYTES", "100000000")

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, ["node-cache", *words])
        assert done.exit_code == 0, done.output
        return done.output

    taken = {each.path: each for each in held_here(team.folder / machine / "node")}[root].bytes
    assert f"{taken:,} bytes of 100,000,000 of prepared data of {team.uri}, in {root}" in said()
    assert copies(root)
    assert "0 files removed" in said("--remove-older", "1")
    assert copies(root)
    assert "files removed" in said("--clear")
    assert copies(root) == []
    assert json.loads(said("--json")) == []
    assert team.run(machine) == (team.batches, ROWS)

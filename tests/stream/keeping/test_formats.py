"""Two versions of Spiral on one store: who does not know the format of what lies there says so, and touches nothing."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream.errors import CacheError
from tests.fixtures import sharing
from tests.fixtures.two_machines import Team

LATER = {"format": 2, "written by": "a later version"}


@pytest.fixture
def team(tmp_path: Path) -> Team:
    made = Team(tmp_path, f"memory://{tmp_path.name}/prepared")
    made.run("first", build=True)
    return made


@contextmanager
def untouched(team: Team) -> Iterator[None]:
    """As a machine that has nothing yet, which changes nothing on the store."""
    before = team.held()
    with team.on(team.uri, "second"):
        yield
    assert team.held() == before


def read(team: Team) -> object:
    with sharing.stream(team.folder) as opened:
        return sharing.batches(opened)


def build(team: Team) -> object:
    with sharing.stream(team.folder) as opened:
        return opened.materialize(lambda _: None)


def verify(team: Team) -> object:
    with sharing.stream(team.folder) as opened:
        return opened.verify()


@pytest.mark.parametrize("deed", [read, build, verify])
def test_who_does_not_know_the_format_of_a_store_touches_nothing_there(
    team: Team, deed: Callable[[Team], object]
) -> None:
    team.say("format.json", LATER)

    said = r"format\.json says .* format 2; this one knows format 1.* Upgrade Spiral here"
    with untouched(team), pytest.raises(CacheError, match=said):
        deed(team)


def test_what_is_dead_stays_on_a_store_of_an_unknown_format(team: Team) -> None:
    team.say("format.json", LATER)

    said = r"dead parts stay on .*this one knows format 1"
    with untouched(team), pytest.warns(sp.SpiralWarning, match=said):
        sp.connect(str(team.folder / "catalog")).caches(remove_dead=True, older_than=timedelta(0))


def test_a_format_that_cannot_be_read_is_refused(team: Team) -> None:
    [name] = team.objects(end="/format.json")
    team.alter(name, lambda data: data.replace(b"1}", b"2}"))

    said = r"format\.json is damaged.*Delete that object if all"
    with untouched(team), pytest.raises(CacheError, match=said):
        read(team)


def test_the_format_is_put_before_anything_else(team: Team) -> None:
    first, *others = team.held()  # in the order in which they were put
    assert first.endswith("/format.json")
    assert others
    assert json.loads(team.held()[first])["format"] == 1


def test_what_a_version_before_formats_left_is_read_and_gets_one_with_the_next_part(team: Team) -> None:
    [name] = team.objects(end="/format.json")
    team.alter(name, lambda _: None)

    assert team.run("second") == team.run("first")
    team.alter(team.objects("/caches/", "cache.json")[0], lambda _: None)
    for each in team.objects("/records/"):
        team.alter(each, lambda _: None)
    assert team.run("third", build=True)[0] == team.batches
    assert team.objects(end="/format.json") == [name]

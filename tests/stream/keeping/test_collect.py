"""What no catalog needs goes from a store: after a grace, however often whoever removes it is killed, and nothing else does."""

import os
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest

import spiral_stream as sp
from spiral_stream.keeping.share import Share
from spiral_stream.storage.open import store_of
from tests.fixtures import sharing
from tests.fixtures.two_machines import Team

NOW, WEEK = timedelta(0), timedelta(days=7)
MIDDLE = f"img-{sharing.ROWS // 2:08d}"
NOT_PARTS = ("/catalogs/", "/used/", "/dead/", "/loose/", "leases.json", "derivation.json", "cache.json")


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """A team whose store has the parts of twelve shards; then six of them go from the relation."""
    made = Team(tmp_path, f"memory://{tmp_path.name}/prepared")
    made.run("first", build=True)
    lance.dataset(str(tmp_path / "images.lance")).delete(f"sample_id < '{MIDDLE}'")
    registered(made)
    with made.on(str(tmp_path / "alone")), sharing.stream(tmp_path) as opened:
        opened.materialize(lambda _: None)
        made.batches = sharing.batches(opened)
    return made


def registered(team: Team) -> None:
    catalog = sp.connect(str(team.folder / "catalog"))
    source = sp.Lance(str(team.folder / "images.lance"))
    catalog.register("images", source, identity="sample_id", semantic={"image_ref": "image/jpeg-ref"}, replace=True)


def on_store(team: Team, older_than: timedelta = NOW, machine: str = "first") -> list[Any]:
    """What is done on the store by a machine that removes what is dead."""
    with team.on(team.uri, machine):
        found = sp.connect(str(team.folder / "catalog")).caches(remove_dead=True, older_than=older_than)
    return [each for each in found if each.about == f"on {team.uri}"]


def parts(team: Team) -> list[str]:
    return [name for name in team.objects() if not any(each in name for each in NOT_PARTS)]


def test_parts_of_shards_that_are_gone_are_marked_and_then_removed(team: Team) -> None:
    before = parts(team)
    assert on_store(team, WEEK) == []  # somebody opened them today
    for name in team.objects("/used/"):
        team.alter(name, lambda _: None)
    [cache] = [each for each in on_store(team, WEEK) if each.kind == "cache"]
    assert (cache.removed_bytes, cache.dead_bytes > 0, cache.live_bytes > 0) == (0, True, True)
    assert cache.note.startswith("6 parts are marked there, and removed from ")
    assert parts(team) == before
    assert {each.dead_bytes > 0 for each in on_store(team, WEEK)} == {True}  # not older than a week yet
    assert parts(team) == before
    [cache] = [each for each in on_store(team) if each.kind == "cache"]
    assert cache.note == f"6 parts are removed from {team.uri}"
    assert (cache.removed_bytes > 0, cache.dead_bytes) == (True, 0)
    assert (
        len(before) - len(parts(team)) == 6 * 4
    )  # three files and a record; pieces of other shards lie with what went
    assert team.objects("/dead/") == []
    assert on_store(team) == []
    again = parts(team)
    for machine in ("first", "second"):
        assert team.run(machine)[0] == team.batches
    assert parts(team) == again  # nothing was made anew


def test_a_part_that_is_needed_again_loses_its_mark(team: Team) -> None:
    for name in team.objects("/used/"):
        team.alter(name, lambda _: None)
    on_store(team, WEEK)
    assert team.objects("/dead/")
    dataset = lance.dataset(str(team.folder / "images.lance"))
    dataset.checkout_version(1).restore()
    registered(team)
    assert on_store(team) == []
    assert team.objects("/dead/") == []
    before = parts(team)
    team.run("third", build=True)
    assert parts(team) == before


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_whoever_is_killed_while_he_removes_leaves_what_the_next_one_finishes(
    team: Team, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, rounds = Share.remove, 0
    left = len(parts(team))
    while True:
        calls = iter(range(step * rounds + 1))

        def dies(share: Share, path: Path, calls: Any = calls) -> None:
            if next(calls, None) is None:
                raise KeyboardInterrupt
            remove(share, path)

        with monkeypatch.context() as patched:
            patched.setattr(Share, "remove", dies)
            try:
                on_store(team)
                break
            except KeyboardInterrupt:
                rounds += 1
        assert len(parts(team)) <= left
        left = len(parts(team))
        if rounds % 4 == 0:
            assert team.run(f"machine {rounds}")[0] == team.batches
    assert rounds >= (8 if step == 1 else 3)
    assert on_store(team) == []
    assert team.objects("/dead/") == []
    assert team.run("last")[0] == team.batches


def test_files_that_no_record_names_go_after_an_hour_unless_a_record_comes(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_store(team)
    sound = parts(team)
    records = [name for name in sound if "/records/" in name or "/ledger/" in name]
    store, _ = store_of(team.uri)
    away = {name: bytes(store.get(name).data or b"") for name in (records[0], records[-1])}
    for name in away:  # as if a machine had been killed before it put them
        store.delete(name)
    [one, other] = on_store(team)
    assert [each.note.split(", and")[0] for each in (one, other)] == [
        "3 files without a record are marked there",
        "2 files without a record are marked there",
    ]
    store.put(records[0], away[records[0]])  # its machine came back
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3_700)
    [gone] = on_store(team)
    assert gone.note == f"{'2' if one.kind == 'cache' else '3'} files without a record are removed from {team.uri}"
    assert team.objects("/loose/") == []
    assert len(sound) - len(parts(team)) == 1 + int(gone.note[0])  # its record is what was lost
    assert on_store(team) == []
    assert team.run("another", build=True)[0] == team.batches


def test_nothing_is_removed_while_a_catalog_cannot_be_read_here(team: Team) -> None:
    before = parts(team)
    store, _ = store_of(team.uri)
    [name] = team.objects("/catalogs/")
    with team.on(team.uri, "elsewhere"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
        team.run("elsewhere")
    assert len(team.objects("/catalogs/")) == 2
    with pytest.warns(
        sp.SpiralWarning, match=r"nothing is removed from memory://.*: catalog .* lies on machine another"
    ):
        assert on_store(team) == []
    assert parts(team) == before
    for other in set(team.objects("/catalogs/")) - {name}:
        store.delete(other)
    assert on_store(team)


def test_who_may_not_delete_there_is_told_and_removes_what_is_here(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    before = parts(team)
    store, _ = store_of(team.uri)

    def denied(*_: object, **__: object) -> None:
        msg = "may not be deleted"
        raise sp.errors.SourceError(msg)

    monkeypatch.setattr(store, "delete", denied)
    with pytest.warns(sp.SpiralWarning, match=r"^caches: dead parts stay on memory://.*: may not be deleted"):
        assert on_store(team) == []
    assert parts(team) == before

"""Copies of prepared data: between folders and stores, verified, and only what is missing."""

from itertools import pairwise
from pathlib import Path

import pytest

from spiral_stream.cache.copying import copy_prepared
from spiral_stream.errors import CacheError, SpiralWarning
from spiral_stream.storage.open import store_of
from tests.fixtures import sharing
from tests.fixtures.two_machines import Team

PARTS = 15


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    folder = tmp_path_factory.mktemp("team")  # another one, if tests of other modules come between
    return Team(folder, f"memory://{folder.name}/prepared")


def test_a_copy_serves_the_same_batches_wherever_it_lies(team: Team, tmp_path: Path) -> None:
    name = tmp_path.name
    places = [str(team.local), f"memory://{name}/a", f"memory://{name}/b", str(tmp_path / "c"), str(tmp_path / "d")]
    for one, other in pairwise(places):
        done = copy_prepared(one, other)
        assert (done.parts, done.there, done.damaged) == (PARTS, 0, 0)
        again = copy_prepared(one, other)
        assert (again.parts, again.there) == (0, PARTS)
    for place in places[2:]:
        with team.on(place, name), sharing.stream(team.folder) as opened:
            [cache] = opened.caches()
            assert cache.complete
            assert sharing.batches(opened) == team.batches


def test_some_fingerprints_are_copied_alone_and_unknown_ones_are_named(team: Team, tmp_path: Path) -> None:
    [cache] = (team.local / "caches").iterdir()
    seen: list[tuple[int, int]] = []
    done = copy_prepared(str(team.local), str(tmp_path / "some"), [cache.name[:8]], lambda *copied: seen.append(copied))
    assert done.parts == len(seen) == 12
    assert [size for size, _ in seen] == sorted(size for size, _ in seen)
    assert seen[-1] == (done.bytes, done.bytes)
    assert not (tmp_path / "some" / "derived").exists()
    with pytest.raises(CacheError, match=r"has no derivation or cache 000000.*it has"):
        copy_prepared(str(team.local), str(tmp_path / "some"), ["000000"])
    with pytest.raises(CacheError, match=r"nowhere is no folder"):
        copy_prepared(str(tmp_path / "nowhere"), str(tmp_path / "some"))
    with pytest.raises(CacheError, match=r"nothing that was prepared lies in memory://copies/nowhere"):
        copy_prepared("memory://copies/nowhere", str(tmp_path / "some"))


def test_what_is_damaged_is_named_and_not_copied(team: Team, tmp_path: Path) -> None:
    uri = f"memory://{tmp_path.name}/prepared"
    copy_prepared(str(team.local), uri)
    store, key = store_of(uri)
    names = sorted(name for name, _ in store.list(f"{key}/") if name.endswith((".blob", ".piece")))
    for name in (names[0], names[-1]):
        data = bytearray(store.get(name).data or b"")
        data[len(data) // 3] ^= 1
        store.put(name, bytes(data))
    with pytest.warns(SpiralWarning, match=r"copy: .* is damaged: bytes .*It is not copied"):
        done = copy_prepared(uri, str(tmp_path / "copy"))
    assert (done.parts, done.damaged) == (PARTS - 2, 2)

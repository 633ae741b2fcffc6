"""Prepared data that machines share: pieces of derivations and parts of caches, on a store in memory."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream.cache.copying import copy_prepared
from spiral_stream.errors import CacheError, DamageError
from spiral_stream.storage.open import store_of
from tests.fixtures import sharing
from tests.fixtures.two_machines import Team

ROWS = 148  # that pass the filter


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Team:
    return Team(tmp_path_factory.mktemp("team"), "memory://nobody/prepared")


@pytest.fixture
def team(made: Team, tmp_path: Path) -> Team:
    """An empty store, and machines without working folders."""
    made.uri = f"memory://{tmp_path.name}/prepared"
    return made


def test_a_second_machine_reads_what_the_first_one_built_and_builds_nothing(team: Team) -> None:
    assert team.run("first", build=True) == (team.batches, ROWS)
    assert team.run("second") == (team.batches, ROWS)
    first, second = team.share("first").counters, team.share("second").counters
    assert (first.fetched, second.put) == (0, 0)
    assert first.put == second.fetched == len(team.objects("/parts/")) + len(team.objects("data.lance")) + 12
    assert second.fetched_bytes == first.put_bytes
    before = team.share("second").counters.fetched
    assert team.run("second") == (team.batches, ROWS)
    assert team.share("second").counters.fetched == before


def test_only_parts_that_are_read_are_fetched(team: Team) -> None:
    team.run("first", build=True)
    with team.on(team.uri, "second"), sharing.stream(team.folder) as opened:
        assert opened.caches()[0].built == ROWS
        assert team.share("second").counters.fetched_bytes < team.share("first").counters.put_bytes / 20
        relation = sp.connect(str(team.folder / "catalog")).table("images").filter(sp.col("label_id") != 3)
        image = sp.Stack("image_ref", decode="jpeg", transforms=[sp.RandomResizedCrop(16)])
        ordered = relation.cache(image_ref=sp.Raw(shorter_side=20)).sample(order=sp.Sequential())
        with ordered.collate(batch_size=4, fields={"image": image}).to_numpy(prefetch=1) as few:
            next(iter(few))
    fetched = list(team.share("second").root.rglob("*.blob"))
    assert 0 < len(fetched) <= 4
    assert len(team.objects("", ".blob")) == 12


def flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 4
    return bytes(changed)


def halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nothing(_: bytes) -> None:
    """The object is gone."""


ENDS = [".piece", ".sums", "/records/", ".lance", ".blob", "/sums/", "/ledger/"]
QUICK = [(".piece", halved), (".blob", flipped), ("/ledger/", halved)]


@pytest.mark.parametrize(
    ("end", "how"),
    [
        pytest.param(end, how, marks=() if (end, how) in QUICK else pytest.mark.slow)
        for end in ENDS
        for how in (halved, flipped, nothing)
        if how is not nothing or end not in {"/records/", "/ledger/"}  # it was never finished then
    ],
)
def test_an_altered_object_is_named_and_never_served(
    team: Team, end: str, how: Callable[[bytes], bytes | None]
) -> None:
    copy_prepared(str(team.local), team.uri)
    key = team.objects(*(("", end) if end.startswith(".") else (end, "")))[0]
    team.alter(key, how)
    named = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for build in (False, True, False):
            try:
                assert team.run("reader", build=build)[0] == team.batches
            except DamageError as error:
                assert not build
                named.append(str(error))
    named += [str(each.message) for each in said if issubclass(each.category, sp.SpiralWarning)]
    assert any(f"{team.uri.removesuffix('prepared')}{key} is damaged: " in each for each in named)
    assert team.run("another") == (team.batches, ROWS)


def test_damage_on_this_machine_is_mended_by_what_the_store_has(team: Team) -> None:
    copy_prepared(str(team.local), team.uri)
    team.run("reader")
    share = team.share("reader")
    put = len(team.objects())
    for pattern in ("*.blob", "derived/columns/**/*.piece"):  # one after the other: a run names what it meets first
        path = min(share.root.glob(f"**/{pattern}"))
        path.write_bytes(flipped(path.read_bytes()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sp.SpiralWarning)
            with pytest.raises(DamageError):
                team.run("reader")
            assert team.run("reader", build=True) == (team.batches, ROWS)
    assert len(team.objects("/ledger/")) == 12
    assert put <= len(team.objects()) <= put + 2  # the leases of builders


def test_what_was_not_put_is_put_by_the_next_build(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = store_of(team.uri)
    times = iter(range(100))

    def put_file(key: str, path: Path) -> None:
        if next(times) > 9:
            msg = "the store is full"
            raise sp.errors.SourceError(msg)
        store.put(key, path.read_bytes())

    with monkeypatch.context() as patched:
        patched.setattr(store, "put_file", put_file)
        with pytest.raises(CacheError, match=r"^\$SPIRAL_CACHE: the store is full"):
            team.run("first", build=True)
    assert len(team.objects("/ledger/")) < 12
    assert team.run("first", build=True) == (team.batches, ROWS)
    assert len(team.objects("/ledger/")) == 12
    assert team.run("second") == (team.batches, ROWS)


def test_removing_what_is_dead_leaves_what_others_may_need_on_the_store(team: Team) -> None:
    team.run("first", build=True)
    before = team.objects()
    with team.on(team.uri, "first"):
        catalog = sp.connect(str(team.folder / "catalog"))
        found = catalog.caches(remove_dead=True, older_than=timedelta(0))
        gone = [each for each in found if each.removed_bytes and each.kind in {"cache", "columns"}]
        assert {each.note for each in gone} == {f"removed from this machine; {team.uri} keeps it"}
        assert gone
        assert catalog.caches(remove_dead=True, older_than=timedelta(0))  # nothing is left, and nothing is said
    assert team.objects() == before
    assert team.run("first") == (team.batches, ROWS)
    assert team.share("first").counters.fetched > 0


def test_rights_to_list_and_read_are_enough_to_read_what_is_complete(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_prepared(str(team.local), team.uri)
    store, _ = store_of(team.uri)

    def denied(*_: object, **__: object) -> None:
        msg = "may not be written"
        raise sp.errors.SourceError(msg)

    monkeypatch.setattr(store, "put", denied)
    assert team.run("reader") == (team.batches, ROWS)
    assert team.run("reader", build=True) == (team.batches, ROWS)


def test_what_others_made_meanwhile_is_not_put_twice(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = store_of(team.uri)

    def away(*_: object, **__: object) -> None:
        msg = "the store is away"
        raise sp.errors.SourceError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(store, "put_file", away)
        with pytest.raises(CacheError):
            team.run("first", build=True)
    assert list(team.share("first").root.rglob("*.piece"))  # made, and not put
    assert team.run("second", build=True) == (team.batches, ROWS)
    before = team.objects("/records/")
    assert team.run("first", build=True) == (team.batches, ROWS)
    assert team.objects("/records/") == before
    assert len(team.objects("/ledger/")) == 12

"""Every derived file is read and compared; single kinds of damage to a whole stream are in `stream/test_damage`."""

import shutil
from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream.errors import DamageError
from spiral_stream.planner.prepared_data.folder import cache_root
from spiral_stream.planner.prepared_data.verify import (
    DAMAGED,
    SOUND,
    UNVERIFIED,
    relation_caches,
    verify_relation,
    verify_stream,
)
from spiral_stream.results import Verification
from tests.fixtures import streams
from tests.fixtures.derived import files
from tests.fixtures.inner import lower_plan


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog whose stream has a selection, kept columns and a cache of images."""
    folder = tmp_path_factory.mktemp("built")
    catalog = streams.make_catalog(folder)
    with plan(catalog).to_numpy() as stream:
        stream.materialize(lambda _: None)
        assert next(iter(stream))
    return folder


@pytest.fixture
def catalog(built: Path, tmp_path: Path) -> sp.Catalog:
    shutil.copytree(built / "catalog", tmp_path / "catalog")
    return sp.connect(str(tmp_path / "catalog"))


def plan(catalog: sp.Catalog) -> sp.Relation:
    some = catalog.table("lance").filter(sp.col("label_id") == 2)
    return streams.plan(some, profile=sp.Raw(shorter_side=8), transforms=streams.FIXED, epoch=0)


def verified(catalog: sp.Catalog, others: list[tuple[Path, str, object]] | None = None) -> Verification:
    node = plan(catalog).to_numpy().plan
    opened = []

    def lowered() -> object:
        opened.append(lower_plan(node, catalog.registry))
        return opened[-1]

    try:
        return verify_stream(node, catalog.registry, lowered, lambda: others or [])  # type: ignore[arg-type,return-value]
    finally:
        for stages in opened:
            stages.close()


def test_what_was_just_written_is_sound_and_all_of_it_is_read(catalog: sp.Catalog) -> None:
    found = verified(catalog)

    assert {each.state for each in found.files} == {SOUND}
    assert found.damaged == ()
    assert {each.path for each in found.files} >= {
        path
        for path in files(catalog)
        if path.suffix in {".npy", ".arrow", ".json", ".lance"} and path.parent.name != "committed"
    }
    assert found.live_bytes > 0 == found.dead_bytes
    assert all(each.bytes >= each.path.stat().st_size for each in found.files)


@pytest.mark.parametrize("kind", ["selection", "cache"])
def test_a_flipped_bit_is_found_where_it_lies(kind: str, catalog: sp.Catalog) -> None:
    sound = next(
        each for each in verified(catalog).files if each.what.startswith(kind) and each.path.stat().st_size > 64
    )
    data = bytearray(sound.path.read_bytes())
    data[len(data) // 2] ^= 1
    sound.path.write_bytes(data)

    (found,) = verified(catalog).damaged
    assert (found.path, found.what, found.state) == (sound.path, sound.what, DAMAGED)
    assert str(sound.path) in found.found


def test_files_that_the_runtime_keeps_are_checked_as_it_says(catalog: sp.Catalog, tmp_path: Path) -> None:
    def damaged() -> bool:
        msg = "it is not what was written"
        raise DamageError(msg)

    others = [
        (tmp_path / "a", "kept", lambda: True),
        (tmp_path / "b", "kept", lambda: False),
        (tmp_path / "c", "kept", damaged),
    ]
    found = verified(catalog, others)

    states = {each.path.name: (each.state, each.found, each.bytes) for each in found.files if each.what == "kept"}
    assert states == {"a": (SOUND, "", 0), "b": (UNVERIFIED, "", 0), "c": (DAMAGED, "it is not what was written", 0)}


def test_caches_of_a_relation_are_verified_without_a_plan(catalog: sp.Catalog) -> None:
    (store,) = relation_caches("lance", catalog.registry)
    told: list[tuple[int, int]] = []
    found = verify_relation("lance", catalog.registry, lambda *at: told.append(at))

    assert store.folder.parent == cache_root(catalog.registry) / "caches"
    assert {each.state for each in found.files} == {SOUND}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0][0] == 0
    assert told[-1] == (total := sum(each.bytes for each in found.files), total)
    assert verify_relation("parquet", catalog.registry).files == ()
    (store.folder / "cache.json").write_text("{")
    assert relation_caches("lance", catalog.registry) == []  # nobody knows whose it is

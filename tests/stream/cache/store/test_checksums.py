"""Damage to a cache's files: named by whoever reads them, and mended by building the part again."""

import ctypes
import gc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spiral_stream.cache.store.store import CacheStore
from spiral_stream.cache.store.sweep import READERS
from spiral_stream.errors import CacheError, DamageError, SpiralWarning
from spiral_stream.integrity.locks import alone
from tests.fixtures.mutations import COUNTS, mutated_bytes, survives
from tests.stream.cache.store.test_store import SHARD_ROWS, chunk, write


def everything(store: CacheStore) -> dict[str, Any]:
    """All that a reader can see: rows by shard, with what stands beside them."""
    reader = store.open()
    out: dict[str, Any] = {}
    for key in "ab" if reader is not None else "":
        shard = reader.shard(key)
        if shard is None:
            out[key] = None
            continue
        at = shard.find(np.arange(SHARD_ROWS))
        addresses, sizes = shard.locate(at[at >= 0])
        reader.verify(addresses, sizes)
        rows = [ctypes.string_at(int(a), int(n)) for a, n in zip(addresses, sizes, strict=True)]
        beside = {name: values[at[at >= 0]].tolist() for name, values in shard.narrow.items()}
        out[key] = (at.tolist(), rows, beside, [shard.refused(int(each)) for each in at[at >= 0]])
    return out


def made(folder: Path) -> CacheStore:
    store = CacheStore(folder, {"relation": "rows", "column": "image_ref"})
    write(store, "a", list(range(SHARD_ROWS)), {3: "no image", 30: "no image either"})
    write(store, "b", list(range(5, 20)))
    store.commit()
    return store


def read_files(folder: Path) -> list[Path]:
    """Files that a reader opens."""
    names = ("committed/*", "sums/*", "data.lance/data/*.lance", "data.lance/data/*/*.blob")
    newest = min(folder.glob("data.lance/_versions/*.manifest"))
    hint = folder / "data.lance" / "_versions" / "latest_version_hint.json"
    return [newest, hint, *sorted(path for name in names for path in folder.glob(name))]


@pytest.mark.parametrize("count", COUNTS)
def test_no_mutation_of_a_cache_gives_other_rows(count: int, tmp_path: Path) -> None:
    store = made(tmp_path)
    sound, files = everything(store), read_files(tmp_path)
    for seed in range(count):
        path = files[seed % len(files)]
        data = path.read_bytes()
        path.write_bytes(mutated_bytes(data, seed))
        survives(lambda: everything(store), sound, says=f"{path.name}, seed {seed}")
        path.write_bytes(data)

    assert everything(store) == sound


@pytest.mark.parametrize("count", COUNTS)
def test_no_mutation_of_a_ledger_says_that_other_rows_are_stored(count: int, tmp_path: Path) -> None:
    store = made(tmp_path)
    files = store.ledger.files()

    def covered() -> dict[str, list[bool]]:
        return {key: mask.tolist() for key, mask in store.covered().items()}

    sound = covered()
    for seed in range(count):
        path = files[seed % len(files)]
        data = path.read_bytes()
        path.write_bytes(mutated_bytes(data, seed))
        survives(covered, sound, says=f"{path.name}, seed {seed}")
        path.write_bytes(data)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_damaged_is_dropped_with_a_warning_and_only_that_is_built_again(seed: int, tmp_path: Path) -> None:
    store = made(tmp_path)
    sound = everything(store)
    files = [*read_files(tmp_path), *store.ledger.files()]
    path = files[seed % len(files)]
    path.write_bytes(mutated_bytes(path.read_bytes(), 1000 + seed))
    try:
        everything(store)
        store.covered()
    except DamageError as error:
        assert "stream.materialize()" in str(error)  # noqa: PT017  some of the mutations change nothing
        with pytest.warns(SpiralWarning, match=r"It is dropped from the cache|The ledger still says"):
            store.mend()
    covered = store.covered()
    for key, rows in {"a": range(SHARD_ROWS), "b": range(5, 20)}.items():
        left = [row for row in rows if key not in covered or not covered[key][row]]
        assert left in ([], list(rows))
        if left:
            write(store, key, left, {3: "no image", 30: "no image either"} if key == "a" else None)
    store.commit()
    store.sweep()

    assert everything(store) == sound
    assert store.usage().dead_bytes == 0


def test_a_part_that_a_reader_found_damaged_but_is_not_stays(tmp_path: Path) -> None:
    store = made(tmp_path)
    sound = everything(store)
    (entry,) = [each for each in store.ledger.entries() if each.key == "a"]
    store.part(entry).damage(store.part(entry).blob, "a bit of this machine's memory was wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.mend() == []

    assert not store.part(entry).mark.exists()
    assert everything(store) == sound


def test_all_manifests_may_be_lost(tmp_path: Path) -> None:
    store = made(tmp_path)
    sound = everything(store)
    for manifest in tmp_path.glob("data.lance/_versions/*.manifest"):
        manifest.unlink()
    assert store.open() is None
    store.commit()

    assert everything(store) == sound


def test_the_shard_and_the_relation_are_named(tmp_path: Path) -> None:
    store = made(tmp_path)
    for blob in tmp_path.rglob("*.blob"):
        data = bytearray(blob.read_bytes())
        data[0] ^= 1
        blob.write_bytes(data)
    with pytest.raises(DamageError, match=r"cache of rows\.image_ref: .*\.blob is damaged: bytes 0 .*content key a"):
        everything(store)


def test_rows_that_were_written_wrongly_under_another_key_are_refused(tmp_path: Path) -> None:
    store = made(tmp_path)
    sums = sorted((tmp_path / "sums").iterdir())
    one, other = (path.read_bytes() for path in sums)
    sums[0].write_bytes(other)
    sums[1].write_bytes(one)
    with pytest.raises(CacheError, match=r"sums/\w+ is damaged: it is missing, or not what was written"):
        everything(store)


def test_payload_of_no_bytes_has_sums_too(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    offsets, rows = chunk([0, 1], {0: "bad", 1: "bad"})
    store.write("a", SHARD_ROWS, iter([(offsets, rows)]))
    store.commit()
    (part,) = [store.part(entry) for entry in store.ledger.entries()]

    part.verify()
    assert everything(store)["a"][3] == ["bad", "bad"]
    (sums,) = tmp_path.rglob("sums/*")
    sums.write_bytes(sums.read_bytes()[:-1])
    with pytest.raises(DamageError):
        part.verify()


def test_an_error_of_opening_shares_nothing(tmp_path: Path) -> None:
    store = made(tmp_path)
    newest = store.newest()
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    gc.disable()  # on CPython 3.12 and 3.13 the error is in a cycle with the frames that it went through
    try:
        with pytest.raises(DamageError, match=r"stream\.materialize\(\)"):
            store.open()
        with alone(tmp_path / READERS) as no_reader:
            assert no_reader
    finally:
        gc.enable()

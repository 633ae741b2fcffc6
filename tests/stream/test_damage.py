"""Damage to derived files: it is named or mended, and no batch ever differs."""

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.testing import frozen, same
from tests.fixtures import derived, warm
from tests.fixtures.derived import batches, files, flip, flipped, materialize, one_of_each, plan
from tests.fixtures.texts import make_catalog, tokenized

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[False, True], ids=["tokens", "stored lists"])
def stored(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def catalog(tmp_path: Path, stored: bool) -> sp.Catalog:
    made = derived.catalog(tmp_path)
    materialize(made, stored=stored)
    return made


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


def outcome(of: sp.Catalog, stored: bool) -> tuple[list[Any] | None, list[str]]:
    """The batches, or none, and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", sp.SpiralWarning)
        try:
            found = batches(of, stored=stored)
        except sp.errors.DamageError as error:
            return None, [str(error)]
    return found, [str(each.message) for each in caught if issubclass(each.category, sp.SpiralWarning)]


def test_one_flipped_bit_in_any_derived_file_changes_no_batch(
    catalog: sp.Catalog, stored: bool, tmp_path: Path
) -> None:
    sound = batches(catalog, stored=stored)
    prepared, kinds = catalog.root / "prepared", set()
    shutil.copytree(prepared, tmp_path / "sound")
    for path in one_of_each(catalog):
        if stored and "derived" not in path.parts:
            continue  # all others are as those of the other stream
        flip(path)
        found, said = outcome(catalog, stored)
        assert found is None or equal(found, sound), f"{path}: other batches"
        unread = (
            path.parent.name == "ledger" or path.name in {"cache.json", "derivation.json"} or "identities" in path.parts
        )
        unread |= path.suffix in {".piece", ".sums"} and "columns" not in path.parts  # matches of a join, for one
        assert said or unread, f"{path}: silent"
        if found is None:
            assert ("builds it again" if "derived" in path.parts else "stream.materialize()") in said[0], said
            materialize(catalog, stored=stored)
            mended, said = outcome(catalog, stored)
            assert mended is not None, f"{path}: {said}"
            assert equal(mended, sound), path
        kinds.add(path.suffix)
        shutil.rmtree(prepared)
        shutil.copytree(tmp_path / "sound", prepared)

    assert kinds >= (
        {".piece", ".sums", ".arrow"}
        if stored
        else {".json", ".npy", ".arrow", ".index", ".blob", ".lance", ".manifest", ".piece", ".sums"}
    )


@pytest.mark.parametrize("stored", [False], indirect=True)
def test_a_damaged_shard_is_named_and_built_again_alone(catalog: sp.Catalog) -> None:
    sound = batches(catalog)
    blobs = sorted(catalog.root.rglob("*.blob"))
    before = {path: path.stat().st_ino for path in blobs}
    flip(blobs[0], 0.0)
    with pytest.raises(
        sp.errors.DamageError,
        match=r"cache of \w+\.text: .*\.blob is damaged: bytes 0 to .*content key.*stream\.materialize\(\)",
    ):
        batches(catalog)
    message = r"is damaged.*dropped from the cache, and built again"
    with plan(catalog).to_numpy() as stream, pytest.warns(sp.SpiralWarning, match=message):
        done = stream.materialize(lambda _: None)
    after = {path: path.stat().st_ino for path in catalog.root.rglob("*.blob")}

    assert done.shards == 1
    assert blobs[0] not in after  # nor does anything dead stay
    assert {path: after.get(path) for path in blobs[1:]} == {path: before[path] for path in blobs[1:]}
    assert equal(batches(catalog), sound)


@pytest.mark.parametrize("stored", [False], indirect=True)
def test_a_damaged_selection_is_set_aside_with_a_warning_and_what_was_made_of_it_stays(catalog: sp.Catalog) -> None:
    sound = batches(catalog)
    settled = next(iter(sorted(catalog.root.rglob("selection.json"))))
    folder = settled.parent.parent
    made = {path.name: path.stat().st_ino for path in folder.glob("index-*")}
    flip(settled)
    with pytest.warns(sp.SpiralWarning, match=rf"{settled} is damaged: .*set aside as .damaged-.*built again now"):
        again = batches(catalog)

    assert equal(again, sound)
    assert made
    assert {path.name: path.stat().st_ino for path in folder.glob("index-*")} == made
    assert equal(batches(catalog), sound)


def test_verify_reads_everything_and_names_what_is_damaged(catalog: sp.Catalog, stored: bool) -> None:
    batches(catalog, stored=stored)
    with plan(catalog, stored=stored).to_numpy() as stream:
        told: list[tuple[int, int]] = []
        sound = stream.verify(lambda done, total: told.append((done, total)))
    read = {each.path for each in sound.files}
    kept = {path for path in files(catalog) if path.suffix in {".npy", ".arrow", ".json", ".lance", ".index"}}

    assert {each.state for each in sound.files} == {"sound"}
    assert told[-1][0] == told[-1][1]
    assert {path for path in kept if path.parent.name != "committed"} <= read
    for path in [path for path in one_of_each(catalog) if path in read][stored::2]:
        with flipped(path), plan(catalog, stored=stored).to_numpy() as stream:
            assert path in {each.path for each in stream.verify().damaged}, path


READ = """
import sys
import spiral_stream as sp
from tests.stream.test_damage import LARGE, large

catalog = sp.connect(sys.argv[1])
for kind in LARGE:
    with large(catalog, kind).to_numpy(prefetch=1) as stream:
        for batch in stream:  # all of it was read and verified once
            pass
        print("reading", flush=True)
        sys.stdin.readline()
        try:
            for batch in stream:
                pass
            print("nothing", flush=True)
        except sp.errors.DamageError as error:
            print(error, flush=True)
"""
LARGE = {"payload": "*.blob", "index": "rows.npy", "kept columns": "*.piece"}


def large(of: sp.Catalog, kind: str) -> sp.Relation:
    """A stream some of whose derived files are larger than a page, whatever of them is in memory."""
    if kind == "payload":
        sampled = tokenized(of.table("long"), sp.GlobalShuffle(seed=1))
        return sampled.collate(batch_size=20, fields={"tokens": sp.Pad("tokens")})
    order = sp.HashBucketed(seed=1, bucket_count=4, bucket_order=sp.ShuffleBuckets(seed=2))
    rows = of.table("many").sample(identity="name", order=order if kind == "index" else sp.GlobalShuffle(seed=1))
    return rows.collate(batch_size=4000, fields={"name": sp.List("name")})


def test_a_derived_file_that_shrinks_under_a_reader_is_a_named_error_and_no_death(tmp_path: Path) -> None:
    made = make_catalog(tmp_path, {"long": 120}, longest=2000, shortest=500)
    made.register("many", sp.Arrow(pa.table({"name": [f"row {row:060d}" for row in range(20_000)]})), identity="name")
    sound = {kind: read_large(made, kind) for kind in LARGE}
    with warm.Popen(
        [sys.executable, "-c", READ, str(made.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for pattern in LARGE.values():
            assert reader.stdout.readline() == "reading\n"
            found = sorted((made.root / "prepared").rglob(pattern))
            for path in found:
                os.truncate(path, path.stat().st_size // 2)
            print("go on", file=reader.stdin, flush=True)
            said = reader.stdout.readline()
            assert re.search(r"could not be read: it became shorter|is damaged", said)
            assert any(str(path) in said for path in found)
    assert reader.returncode == 0
    with pytest.warns(sp.SpiralWarning, match="is damaged") as said_again:
        again = {kind: read_large(made, kind) for kind in LARGE}
    assert all(equal(again[kind], sound[kind]) for kind in LARGE)
    assert len(said_again) >= 5  # three shards, the index and the column


def read_large(of: sp.Catalog, kind: str) -> list[Any]:
    """Build it, and read it once."""
    with large(of, kind).to_numpy() as stream:
        if kind == "payload":
            stream.materialize(lambda _: None)
        return [frozen(batch) for batch in stream]

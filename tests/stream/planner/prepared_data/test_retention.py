"""What lies in a prepared folder and who uses it; dead things go, and nothing that is in use does."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.catalog import database
from spiral_stream.planner.prepared_data.retention import IN_USE
from spiral_stream.results import PreparedData
from tests.fixtures import derived, streams, warm
from tests.fixtures.texts import documents, make_catalog

ROOT = Path(__file__).parents[4]
NOW = timedelta(0)
READER = """
import sys
import spiral_stream as sp
from tests.stream.planner.prepared_data.test_retention import plan, seen
with plan(sp.connect(sys.argv[1])).to_numpy() as stream:
    passing = iter(stream)
    next(passing)
    print("open", flush=True)
    sys.stdin.readline()
    print(seen(passing), flush=True)
"""


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return streams.make_catalog(tmp_path)


def plan(catalog: sp.Catalog, side: int = 8) -> sp.Relation:
    some = catalog.table("lance").filter(sp.col("label_id") != 2)
    return streams.plan(some, profile=sp.Raw(shorter_side=side), transforms=streams.FIXED, epoch=0)


def seen(batches: Iterator[dict[str, Any]]) -> int:
    return sum(int(batch["image"].astype(np.int64).sum()) for batch in batches)


def build(of: sp.Relation) -> None:
    with of.to_numpy() as stream:
        stream.materialize(lambda _: None)
        stream.batch(0)


def by_kind(found: list[PreparedData]) -> dict[str, list[PreparedData]]:
    return {kind: [each for each in found if each.kind == kind] for kind in {each.kind for each in found}}


def dead(found: list[PreparedData]) -> set[str]:
    return {each.kind for each in found if each.dead_bytes}


@contextmanager
def aged(root: Path, days: float) -> Iterator[None]:
    """Everything was used and written so long ago."""
    then = time.time() - days * 86400
    for path in [root, *root.rglob("*")]:
        os.utime(path, (then, then))
    yield


def test_everything_is_listed_with_its_columns_sizes_and_users(catalog: sp.Catalog) -> None:
    build(plan(catalog))
    catalog.save_stream("train", plan(catalog).to_numpy())
    found = catalog.caches(older_than=NOW)
    kinds = by_kind(found)

    assert set(kinds) == {"cache", "columns", "identities", "survivors", "plan"}
    (cache,) = kinds["cache"]
    assert (cache.relations, cache.columns, cache.about) == (("lance",), ("image_ref",), "Raw(shorter_side=8)")
    assert cache.used_by == ("train",)
    assert cache.bytes == sum(path.stat().st_size for path in cache.path.rglob("*") if path.is_file())
    assert {each.columns for each in kinds["columns"]} == {("sample_id",), ("label_id",)}
    assert {each.used_by for each in kinds["identities"]} == {
        ("train", "lance", "parquet"),
        ("train", "labels", "lance", "parquet"),
    }
    assert kinds["survivors"][0].used_by == kinds["plan"][0].used_by == ("train",)
    assert dead(found) == set()
    assert sum(each.live_bytes for each in found) == sum(each.bytes for each in found) > 0


def test_nothing_goes_without_being_asked_and_what_no_stream_names_goes_once_it_is_old(catalog: sp.Catalog) -> None:
    build(plan(catalog))
    build(plan(catalog, side=9))
    catalog.save_stream("train", plan(catalog).to_numpy())
    root = catalog.root / "prepared"
    before = derived.files(catalog)

    assert dead(catalog.caches(remove_dead=True)) == set()  # it is young
    with aged(root, 8):
        listed = catalog.caches()
    assert dead(listed) == {"cache", "plan"}
    assert derived.files(catalog) == before
    found = catalog.caches(remove_dead=True)
    gone = [each for each in found if each.removed_bytes]
    assert [(each.kind, each.note) for each in gone] == [("cache", "removed"), ("plan", "removed")]
    assert gone[0].about == "Raw(shorter_side=9)"
    assert not any(each.path.exists() for each in gone)
    with catalog.open_stream("train") as stream:
        assert all(cache.complete for cache in stream.caches())
    assert dead(catalog.caches(remove_dead=True, older_than=NOW)) == set()


def test_opening_counts_as_use(catalog: sp.Catalog) -> None:
    build(plan(catalog))
    with aged(catalog.root / "prepared", 30):
        assert dead(catalog.caches()) == {"cache", "survivors", "plan"}
    with plan(catalog).to_numpy() as stream:
        stream.batch(0)
    assert dead(catalog.caches()) == {"plan"}


def test_a_reader_in_another_process_keeps_what_it_reads(catalog: sp.Catalog) -> None:
    build(plan(catalog))
    with plan(catalog).to_numpy() as stream:
        passing = iter(stream)
        next(passing)
        expected = seen(passing)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", READER, str(catalog.root)]
    with warm.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        before = derived.files(catalog)
        found = catalog.caches(remove_dead=True, older_than=NOW)
        assert {each.note for each in found if each.dead_bytes} == {IN_USE}
        assert dead(found) == {"cache", "survivors", "plan"}
        assert derived.files(catalog) == before
        assert int(reader.communicate("go on\n")[0]) == expected
    del stream, passing
    gc.collect()
    assert dead(catalog.caches(remove_dead=True, older_than=NOW)) == set()
    assert {each.kind for each in catalog.caches()} == {"columns", "identities"}
    with plan(catalog).to_numpy() as stream:
        next(passing := iter(stream))
        assert seen(passing) == expected


def test_a_plan_that_cannot_be_read_keeps_everything_of_its_relations(catalog: sp.Catalog) -> None:
    build(plan(catalog))
    catalog.save_stream("train", plan(catalog).to_numpy())
    (catalog.root.parent / "images.lance").rename(catalog.root.parent / "elsewhere")

    found = catalog.caches(remove_dead=True, older_than=NOW)

    assert dead(found) == set()
    assert all("train" in each.used_by for each in found)


def parquet(folder: Path, numbers: range) -> None:
    for path in folder.glob("*.parquet"):
        if int(path.stem[1:]) not in numbers:
            path.unlink()
    for k in numbers:
        if (folder / f"p{k}.parquet").exists():
            continue
        ids = np.arange(100) + 1000 * k
        pq.write_table(pa.table({"sample_id": ids, "n": ids * 2}), folder / f"p{k}.parquet")


def numbers(catalog: sp.Catalog) -> list[int]:
    sampled = catalog.table("t").sample(order=sp.Sequential())
    with sampled.collate(batch_size=50, fields={"n": sp.Stack("n")}).to_numpy() as stream:
        return sorted(int(value) for batch in stream for value in batch["n"])


def test_pieces_of_shards_that_are_gone_go_part_by_part(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    catalog = sp.connect(str(tmp_path / "catalog"))
    parquet(tmp_path / "files", range(3))
    catalog.register("t", sp.Parquet(str(tmp_path / "files" / "p*.parquet")))
    numbers(catalog)
    parquet(tmp_path / "files", range(2, 5))
    catalog.refresh("t")
    numbers(catalog)
    some = by_kind(catalog.caches(remove_dead=True, older_than=NOW))["columns"]
    column = next(each for each in some if each.columns == ("n",))
    assert column.dead_bytes == 2 * 832  # two of three shards in the older part
    assert (column.removed_bytes, column.note) == (
        0,
        "parts with live pieces stay, and so do parts written not long ago",
    )

    parquet(tmp_path / "files", range(4, 6))
    catalog.refresh("t")
    expected = numbers(catalog)
    some = by_kind(catalog.caches(remove_dead=True, older_than=NOW))["columns"]
    column = next(each for each in some if each.columns == ("n",))
    assert column.removed_bytes >= 3 * 832
    assert numbers(catalog) == expected
    assert [column.used_by for column in some] == [("t",), ("t",)]


def test_parts_of_a_cache_go_with_their_shards(tmp_path: Path) -> None:
    table, folder = documents("a", 90), tmp_path / "files"
    folder.mkdir()
    for k in range(3):
        pq.write_table(table.slice(30 * k, 30), folder / f"p{k}.parquet")
    catalog = make_catalog(tmp_path, {})
    catalog.register("a", sp.Parquet(str(folder / "p*.parquet")), shard=None)
    text = catalog.table("a").sample(order=sp.Sequential()).map(sp.Tokenize("text", tokenizer="words") >> "tokens")
    collated = text.collate(batch_size=8, fields={"ids": sp.Pad("tokens", pad_to_multiple_of=8)})
    with collated.to_numpy() as stream:
        stream.materialize(lambda _: None)
        catalog.save_stream("text", stream)
    (folder / "p1.parquet").unlink()
    catalog.refresh("a")
    (cache,) = by_kind(catalog.caches(remove_dead=True))["cache"]
    assert cache.used_by == ("text",)
    assert cache.dead_bytes > 0 == cache.removed_bytes  # it is young
    (after,) = by_kind(catalog.caches(remove_dead=True, older_than=NOW))["cache"]

    assert after.removed_bytes > 0
    (again,) = by_kind(catalog.caches(older_than=NOW))["cache"]
    assert again.dead_bytes == 0 < again.live_bytes
    with catalog.open_stream("text") as stream:
        (status,) = stream.caches()
        assert status.complete
        assert status.rows == 60


def test_formations_and_quarantines_belong_to_their_plan(tmp_path: Path) -> None:
    catalog = derived.catalog(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SpiralWarning)
        derived.materialize(catalog)
        derived.batches(catalog)
        with derived.plan(catalog).to_numpy() as stream:
            fingerprint = stream.fingerprint
    refused = catalog.root / "prepared" / "quarantine" / f"{fingerprint}-0123456789abcdef"
    refused.mkdir(parents=True)
    (refused / "1-2.frames").write_bytes(b"rows")
    catalog.save_stream("formed", derived.plan(catalog).to_numpy())
    kinds = by_kind(catalog.caches(older_than=NOW, remove_dead=True))
    for kind in ("formation", "quarantine", "plan", "selection", "matches"):
        assert {each.used_by for each in kinds[kind]} == {("formed",)}, kind
    assert dead([each for of in kinds.values() for each in of]) == set()

    catalog.drop_stream("formed")
    catalog.caches(older_than=NOW, remove_dead=True)
    assert set(by_kind(catalog.caches())) <= {"columns", "identities"}


def test_drafts_of_the_dead_go_and_those_of_the_living_stay(catalog: sp.Catalog) -> None:
    folder = catalog.root / "prepared" / "selections"
    folder.mkdir(parents=True)
    code = (
        "import sys, time; from pathlib import Path; from spiral_stream.integrity.publish import publish\n"
        "with publish(Path(sys.argv[1])) as draft:\n"
        "    (draft / 'x').write_text('1234'); print('in', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(folder / "made")]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "in\n"
        (alive,) = by_kind(catalog.caches(remove_dead=True))["draft"]
        assert alive.note == IN_USE
        assert alive.path.exists()
        writer.send_signal(signal.SIGKILL)
    (killed,) = by_kind(catalog.caches(remove_dead=True))["draft"]

    assert killed.note == "removed"
    assert not alive.path.exists()


def test_what_was_set_aside_goes_after_the_grace(catalog: sp.Catalog) -> None:
    build(plan(catalog))
    (roster,) = (catalog.root / "prepared" / "derived" / "survivors").glob("*/roster.*")
    roster.rename(roster.with_name(f".damaged-{roster.name}"))

    (aside,) = by_kind(catalog.caches(remove_dead=True))["set aside"]
    assert aside.path.exists()
    (aside,) = by_kind(catalog.caches(remove_dead=True, older_than=NOW))["set aside"]
    assert not aside.path.exists()


def test_catalogs_that_share_a_folder_keep_what_the_others_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "shared"))
    (tmp_path / "one").mkdir()
    one, other = streams.make_catalog(tmp_path / "one"), sp.connect(str(tmp_path / "other"))
    build(plan(one))
    one.save_stream("train", plan(one).to_numpy())

    found = other.caches(remove_dead=True, older_than=NOW)

    assert dead(found) == set()
    assert {each.used_by for each in found if each.kind == "cache"} == {("train",)}


def test_the_facts_are_json_after_one_step(catalog: sp.Catalog) -> None:
    from dataclasses import asdict

    found = catalog.caches()
    assert len(json.loads(json.dumps([asdict(each) for each in found], default=str))) == len(found) > 0


def test_old_versions_of_a_catalogs_tables_go(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def table(*, remove_dead: bool = False) -> list[PreparedData]:
        return [each for each in catalog.caches(remove_dead=remove_dead) if each.kind == "table"]

    assert table() == []  # somebody may read them
    monkeypatch.setattr(database, "READABLE_FOR", NOW)
    (before,) = table()
    (removed,) = table(remove_dead=True)

    assert before.name == "relations.lance"
    assert 0 < before.dead_bytes < before.bytes
    assert removed.removed_bytes > 0
    assert table() == []
    assert "lance" in catalog.tables()

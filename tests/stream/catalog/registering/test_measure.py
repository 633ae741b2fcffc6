"""What registration reads: every shard once, and never again while its rows are the same."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Lance, Parquet
from spiral_stream.catalog.registering.measure import identity_pieces
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.relation.shard_rows import SourceRows
from spiral_stream.derived.build import build
from spiral_stream.derived.index import RosterFile, keys_of
from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.derived.pieces import Pieces
from spiral_stream.derived.work.executors import Processes
from spiral_stream.errors import CatalogError
from spiral_stream.results import Changes
from spiral_stream.semantic import JPEG_REF
from spiral_stream.sources.columnar.parquet import ParquetReader
from spiral_stream.sources.lance.source import LanceReader
from tests.fixtures import warm


@pytest.fixture
def catalog(tmp_path: Path) -> Registry:
    return connect(tmp_path / "catalog")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Column and rows of every batch that a source gives."""
    found: list[tuple[str, int]] = []
    for kind in (LanceReader, ParquetReader):
        scan = kind.scan

        def counted(self: Any, columns: Any, *args: Any, scan: Any = scan) -> Iterator[pa.RecordBatch]:
            for batch in scan(self, columns, *args):
                found.extend((name, len(batch)) for name in columns)
                yield batch

        monkeypatch.setattr(kind, "scan", counted)
    return found


def total(read: list[tuple[str, int]], column: str) -> int:
    return sum(rows for name, rows in read if name == column)


def write(folder: Path, part: str, ids: Any, shard: str = "") -> None:
    folder.mkdir(exist_ok=True)
    columns = {"sample_id": pa.array(ids)} | ({"storage_shard": [shard] * len(ids)} if shard else {})
    pq.write_table(pa.table(columns), folder / f"{part}.parquet")


@pytest.mark.parametrize("shard", ["", "s"])
def test_only_the_shard_that_is_new_or_changed_is_read(
    catalog: Registry, tmp_path: Path, read: list[tuple[str, int]], shard: str
) -> None:
    for k in range(3):
        write(tmp_path / "rows", f"p{k}", range(100 * k, 100 * k + 100), shard and f"{shard}{k}")
    names = [f"{shard}{k}" if shard else f"p{k}.parquet" for k in range(5)]
    first = catalog.register("t", Parquet(str(tmp_path / "rows")))
    assert first.changes is None
    assert (total(read, "sample_id"), total(read, "storage_shard")) == (300, 300 if shard else 0)

    read.clear()
    again = catalog.register("t", Parquet(str(tmp_path / "rows")))
    assert (again, again.changes, str(again.changes)) == (first, Changes(), "none")
    assert catalog.refresh("t").changes == Changes()
    assert read == []

    write(tmp_path / "rows", "p3", range(1000, 1010), shard and "s3")
    assert catalog.refresh("t").changes == Changes(added=(names[3],))
    assert (total(read, "sample_id"), total(read, "storage_shard")) == (10, 10 if shard else 0)

    read.clear()
    write(tmp_path / "rows", "p1", range(2000, 2007), shard and "s1")
    (tmp_path / "rows" / "p0.parquet").unlink()
    write(tmp_path / "rows", "p4", range(3000, 3001), shard and "s4")
    entry = catalog.refresh("t")
    assert entry.changes == Changes(added=(names[4],), changed=(names[1],), removed=(names[0],))
    assert str(entry.changes) == f"1 added ({names[4]}); 1 changed ({names[1]}); 1 removed ({names[0]})"
    assert (total(read, "sample_id"), total(read, "storage_shard")) == (8, 8 if shard else 0)
    assert entry.manifest().total == 7 + 100 + 10 + 1
    assert connect(catalog.root).entry("t") == entry


def test_a_shard_table_is_the_same_whether_units_were_known_or_not(catalog: Registry, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    for k, shards in enumerate(["aab", "bbc", "c"]):
        rows.mkdir(exist_ok=True)
        columns = {"sample_id": [f"{k}{j}" for j in range(len(shards))], "storage_shard": list(shards)}
        pq.write_table(pa.table(columns), rows / f"p{k}.parquet")
    catalog.register("t", Parquet(str(rows)))
    pq.write_table(pa.table({"sample_id": ["x", "y"], "storage_shard": ["b", "a"]}), rows / "p1.parquet")
    refreshed = catalog.refresh("t")
    fresh = connect(tmp_path / "other").register("t", Parquet(str(rows)))

    assert refreshed.manifest_name == fresh.manifest_name
    assert refreshed.data_version == fresh.data_version


def test_a_new_shard_that_repeats_an_identity_of_an_old_one_is_refused(catalog: Registry, tmp_path: Path) -> None:
    write(tmp_path / "rows", "p0", ["a", "b"])
    write(tmp_path / "rows", "p1", ["c", "d"])
    catalog.register("t", Parquet(str(tmp_path / "rows")))
    write(tmp_path / "rows", "p2", ["e", "c", "f"])
    found = r"sample_id = 'c' in shard 'p1.parquet' row 0 and shard 'p2.parquet' row 1; 1 rows repeat an identity"
    with pytest.raises(CatalogError, match=found):
        catalog.refresh("t")
    with pytest.raises(CatalogError, match=found):
        catalog.register("t", Parquet(str(tmp_path / "rows")), replace=True)
    write(tmp_path / "rows", "p2", ["e", "f"])

    assert catalog.refresh("t").identity_unique


def test_two_files_with_the_same_bytes_repeat_identities(catalog: Registry, tmp_path: Path) -> None:

    write(tmp_path / "rows", "p0", ["a", "b"])
    catalog.register("t", Parquet(str(tmp_path / "rows")))
    facts = (tmp_path / "rows" / "p0.parquet").stat()
    write(tmp_path / "rows", "p1", ["a", "b"])
    os.utime(tmp_path / "rows" / "p1.parquet", ns=(facts.st_atime_ns, facts.st_mtime_ns))  # one content key
    with pytest.raises(CatalogError, match=r"sample_id = 'a' in shard 'p0.*' row 0 and shard 'p1.*' row 0; 2 rows"):
        catalog.refresh("t")


def test_identities_that_repeat_are_no_ground_to_believe_that_they_differ(catalog: Registry, tmp_path: Path) -> None:
    write(tmp_path / "rows", "p0", ["a", "a"])
    write(tmp_path / "rows", "p1", ["b", "c"])
    assert not catalog.register("t", Parquet(str(tmp_path / "rows")), unique=False).identity_unique
    assert not catalog.refresh("t").identity_unique
    write(tmp_path / "rows", "p0", ["a", "d"])

    assert catalog.refresh("t").identity_unique


@given(st.lists(st.lists(st.sampled_from("abcdefgh") | st.none(), min_size=1, max_size=4), min_size=1, max_size=4))
def test_registration_finds_what_a_dict_finds(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[Any]]
) -> None:
    folder = tmp_path_factory.mktemp("law")
    for k, ids in enumerate(shards):
        write(folder / "rows", f"p{k}", pa.array(ids, pa.utf8()))
    flat = [(value, k, j) for k, ids in enumerate(shards) for j, value in enumerate(ids)]
    nulls = [place for value, *place in flat if value is None]
    places: dict[Any, list[Any]] = {}
    for value, *place in flat:
        places.setdefault(value, []).append(place)
    repeated = [(at, value) for value, at in places.items() if len(at) > 1]
    message = None
    try:
        catalog = connect(folder / "catalog")
        assert catalog.register("t", Parquet(str(folder / "rows"))).identity_unique
    except CatalogError as error:
        message = str(error)

    if nulls:
        k, j = nulls[0]
        assert message is not None
        assert f"identity 'sample_id' is null in shard 'p{k}.parquet' row {j}. Fill it in" in message
    elif repeated:
        at, value = min(repeated)
        (k, j), (m, n) = at[0], at[-1]
        extra = sum(len(each) - 1 for each, _ in repeated)
        assert message is not None
        assert (
            f"sample_id = {value!r} in shard 'p{k}.parquet' row {j} and shard 'p{m}.parquet' row {n}; {extra} rows"
            in message
        )
    else:
        assert message is None


def test_identities_are_known_by_the_rows_alone_and_not_by_the_files_that_they_name(
    catalog: Registry, tmp_path: Path, read: list[tuple[str, int]]
) -> None:
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8\xff")
    rows = pa.table({"sample_id": [1, 2], "image_ref": [str(tmp_path / "x.jpg")] * 2})
    pq.write_table(rows, tmp_path / "t.parquet")
    entry = catalog.register("t", Parquet(str(tmp_path / "t.parquet")), semantic={"image_ref": JPEG_REF})
    manifest = entry.manifest()
    assert manifest.row_keys.to_pylist() != manifest.content_keys.to_pylist()

    read.clear()
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8\xff\xff")
    assert catalog.refresh("t").changes == Changes(changed=("t.parquet",))
    assert (total(read, "sample_id"), total(read, "image_ref")) == (0, 2)


def test_identities_are_read_again_where_their_folder_was_deleted(
    catalog: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[tuple[str, int]]
) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "one"))
    write(tmp_path / "rows", "p0", range(10))
    catalog.register("t", Parquet(str(tmp_path / "rows")))
    assert (tmp_path / "one" / "derived" / "identities").is_dir()
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "two"))

    assert catalog.refresh("t").identity_unique
    assert total(read, "sample_id") == 20


@pytest.mark.parametrize("place", ["https://host/x", "/proc/nowhere"])
def test_a_folder_that_cannot_keep_identities_stops_no_registration(
    catalog: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", place)
    write(tmp_path / "rows", "p0", ["a", "b"])

    assert catalog.register("t", Parquet(str(tmp_path / "rows"))).identity_unique


def test_progress_counts_the_rows_that_are_read(catalog: Registry, tmp_path: Path) -> None:
    write(tmp_path / "rows", "p0", range(10))
    told: list[tuple[int, int]] = []
    catalog.register("t", Parquet(str(tmp_path / "rows")), report=lambda done, rows: told.append((done, rows)))
    write(tmp_path / "rows", "p1", range(10, 13))
    catalog.refresh("t", lambda done, rows: told.append((done, rows)))

    assert told == [(10, 10), (3, 3)]


def test_processes_make_the_pieces_that_threads_make(tmp_path: Path) -> None:
    table = pa.table({"sample_id": np.arange(500), "name": [f"row {k}" for k in range(500)]})
    lance.write_dataset(table, str(tmp_path / "t.lance"), max_rows_per_file=100)
    source = Lance(str(tmp_path / "t.lance")).pinned()
    derivation = Identities(("sample_id", "name"), (pa.int64(), pa.utf8()))
    with source.open() as reader:
        from spiral_stream.catalog.relation.manifest import build_manifest

        rows = SourceRows(source, build_manifest(reader), reader)
        here = identity_pieces(rows, derivation, tmp_path / "threads")
        [roster] = build(rows, [derivation], tmp_path / "processes", lambda: Processes(2))
        there = Pieces(RosterFile(tmp_path / "processes", derivation), roster, keys_of(rows.manifest.content_keys))
        for k in range(5):
            for slot in derivation.slots:
                assert (here.array(slot, k) == there.array(slot, k)).all()


REGISTER = """
import sys
from spiral_stream.catalog.registry import connect
from spiral_stream.sources.columnar.parquet import Parquet
folder, who = sys.argv[1:]
catalog = connect(f"{folder}/catalog")
for k in range(8):
    print("ready", flush=True)
    sys.stdin.readline()
    catalog.register(f"{who}.{k}", Parquet(f"{folder}/{who}.{k}.parquet"))
"""


def test_two_processes_that_register_other_names_at_once_both_land_eight_times(tmp_path: Path) -> None:
    names = [f"{who}.{k}" for who in ("one", "two") for k in range(8)]
    for first, name in enumerate(names):
        pq.write_table(pa.table({"sample_id": np.arange(100) + first}), tmp_path / f"{name}.parquet")
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [warm.Popen([sys.executable, "-c", REGISTER, str(tmp_path), who], **options) for who in ("one", "two")]
    for _ in range(8):
        assert [each.stdout.readline() for each in both] == ["ready\n"] * 2
        for each in both:
            each.stdin.write("\n")
            each.stdin.flush()
    for each in both:
        each.communicate(timeout=300)

    assert [each.returncode for each in both] == [0, 0]
    assert connect(tmp_path / "catalog").tables() == names

"""Every byte of a relation is read: what differs from what was registered, or from the digests of before, is named."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog import verify as room
from spiral_stream.catalog.verify import verify
from spiral_stream.errors import CatalogError
from spiral_stream.integrity.regular_files import open_file
from spiral_stream.semantic import JPEG_REF
from tests.fixtures.examples import few

FILES = 5


def registered(folder: Path) -> sp.Catalog:
    """Rows in two Parquet files, which name ten images of five files."""
    (folder / "rows").mkdir()
    for at in range(FILES):
        (folder / f"{at}.jpg").write_bytes(bytes([at]) * (at + 1) * 100)
    for part in range(2):
        table = pa.table({"id": range(part * 5, part * 5 + 5), "image": [f"{at}.jpg" for at in range(FILES)]})
        pq.write_table(table, folder / "rows" / f"{part}.parquet")
    catalog = sp.connect(str(folder / "catalog"))
    source = sp.Parquet(f"{folder}/rows/*.parquet", base=str(folder))
    catalog.register("r", source, identity="id", semantic={"image": JPEG_REF})
    return catalog


@few(4, 8)
@given(hit=st.sets(st.integers(0, FILES - 1)))
def test_exactly_the_files_that_were_edited_in_place_differ(
    hit: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("verify")
    entry = registered(folder).entry("r")
    first = verify(entry)
    for at in hit:  # as damage on the disk would: neither size nor time tells
        path = folder / f"{at}.jpg"
        facts, data = path.stat(), bytearray(path.read_bytes())
        data[at * 7] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    second = verify(entry)

    sizes = sum((folder / f"{at}.jpg").stat().st_size for at in range(FILES))
    own = sum(path.stat().st_size for path in (folder / "rows").iterdir())
    assert (first.sound, first.rows, first.files, first.bytes) == (True, 10, FILES + 2, sizes + own)
    assert (first.recorded, first.compared, second.recorded, second.compared) == (FILES + 2, 0, 0, FILES + 2)
    assert {each.file for each in second.differences} == {f"{at}.jpg" for at in hit}
    assert (second.different, second.sound) == (len(hit), not hit)
    assert all('catalog.refresh("r")' in each.found for each in second.differences)


@pytest.mark.parametrize("imported", [False, True])
def test_the_way_out_of_a_changed_file_of_lance_is_no_refresh(imported: bool, tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    source: sp.sources.Source = sp.Arrow(pa.table({"id": range(10)}))
    if imported:
        (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {k}}}\n' for k in range(10)))
        source = sp.sources.Jsonl(str(tmp_path / "a.jsonl"))
    catalog.register("r", source, identity="id")
    assert catalog.verify("r").sound
    files = (path for path in (tmp_path / "catalog").rglob("data/*.lance") if "relations.lance" not in path.parts)
    [path] = files
    facts, data = path.stat(), bytearray(path.read_bytes())
    data[3] ^= 1  # in a page that nobody reads: rows are still what they were
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    assert [
        each.found.rpartition("; or ")[2] for each in catalog.verify("r").differences if each.file.endswith(".lance")
    ] == ['catalog.drop("r"), write its rows again, and register them']


def test_nothing_is_trusted_while_a_file_is_missing_and_only_some_differences_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registered(tmp_path).entry("r")
    for at in range(3):
        (tmp_path / f"{at}.jpg").unlink()
    monkeypatch.setattr(room, "SHOWN", 2)
    found = verify(entry)

    assert (found.different, len(found.differences), found.recorded, found.files) == (3, 2, 0, FILES - 3 + 2)
    assert all("No such file" in each.found and "Restore the file" in each.found for each in found.differences)
    assert list((entry.root / "manifests").glob("*.digests")) == []


def test_digests_that_are_cut_are_refused_with_the_way_out(tmp_path: Path) -> None:
    entry = registered(tmp_path).entry("r")
    verify(entry)
    (path,) = (entry.root / "manifests").glob("*.digests")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CatalogError, match=r"Remove the file, and verify again to record them"):
        verify(entry)
    path.unlink()
    assert verify(entry).recorded == FILES + 2


@given(data=st.binary(max_size=200), block=st.integers(1, 90))
def test_a_digest_is_that_of_the_whole_file_in_any_blocks(
    data: bytes, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "digested"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "BLOCK", block)
        size, low, high = room.digest_of_file(*open_file(str(path)))

    assert size == len(data)
    assert b"".join(part.to_bytes(8, "little", signed=True) for part in (low, high)) == xxhash.xxh3_128(data).digest()

"""A touched file is read again and found to be the same; a file with other bytes is another."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as spiral
from spiral_stream.catalog.registering import same_bytes

JPEG = {"image_ref": "image/jpeg-ref"}


def touch(path: Path) -> None:
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 5_000_000_000))


def copied(path: Path) -> None:
    """Another file of the same bytes takes its place."""
    shutil.copyfile(path, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def edited(path: Path) -> None:
    """As many other bytes, at another time."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    touch(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kind in ("cat", "dog", "owl"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "photos" / kind / f"{number}.jpg").write_bytes(f"{kind} {number}".encode() * 50)
    return tmp_path / "photos"


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    (tmp_path / "rows").mkdir()
    for part in range(3):
        rows = [{"sample_id": f"{part}-{row}", "n": row} for row in range(4)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows" / f"part-{part}.parquet")
    return tmp_path / "rows"


def registered(catalog: spiral.Catalog, source: spiral.sources.Source, **more: dict[str, str]) -> str:
    entry = catalog.register("them", source, replace=True, same_bytes=True, **more)
    assert catalog.table("them").to_arrow().num_rows == entry.manifest().total  # and it can be read
    return entry.data_version


@pytest.mark.parametrize(("change", "same"), [(touch, True), (copied, True), (edited, False)])
def test_images_in_class_folders(folder: Path, tmp_path: Path, change: Callable[[Path], None], same: bool) -> None:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    first = registered(catalog, spiral.ImageFolder(str(folder)), semantic=JPEG)

    change(folder / "dog" / "1.jpg")

    assert (registered(catalog, spiral.ImageFolder(str(folder)), semantic=JPEG) == first) is same
    changes = catalog.refresh("them", same_bytes=True).changes
    assert changes is not None
    assert not changes


@pytest.mark.parametrize(("change", "same"), [(touch, True), (copied, True), (edited, False)])
def test_images_that_parquet_names(folder: Path, tmp_path: Path, change: Callable[[Path], None], same: bool) -> None:
    rows = [{"sample_id": path.name + path.parent.name, "image_ref": str(path)} for path in sorted(folder.glob("*/*"))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    catalog = spiral.connect(str(tmp_path / "catalog"))
    source = spiral.Parquet(str(tmp_path / "rows.parquet"))
    first = registered(catalog, source, semantic=JPEG)

    change(folder / "owl" / "2.jpg")

    assert (registered(catalog, source, semantic=JPEG) == first) is same


def test_only_the_shard_whose_bytes_changed_is_another(parts: Path, tmp_path: Path) -> None:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    registered(catalog, spiral.Parquet(str(parts)))
    touch(parts / "part-0.parquet")
    pq.write_table(pa.table({"sample_id": ["new"], "n": [7]}), parts / "part-1.parquet")

    entry = catalog.refresh("them", same_bytes=True)

    assert entry.changes is not None
    assert (entry.changes.changed, entry.changes.added, entry.changes.removed) == (("part-1.parquet",), (), ())
    assert catalog.table("them").to_arrow().num_rows == 9


def test_a_class_that_moves_the_labels_of_others_changes_them(folder: Path, tmp_path: Path) -> None:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    registered(catalog, spiral.ImageFolder(str(folder)), semantic=JPEG)
    shutil.copytree(folder / "cat", folder / "ant")

    entry = catalog.refresh("them", same_bytes=True)

    assert entry.changes is not None
    assert set(entry.changes.changed) == {"cat", "dog", "owl"}


def test_a_file_is_read_again_only_if_its_size_or_time_is_another(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, read = spiral.connect(str(tmp_path / "catalog")), []
    digest = same_bytes.digest_of_file
    monkeypatch.setattr(same_bytes, "digest_of_file", lambda *file: read.append(file) or digest(*file))
    registered(catalog, spiral.ImageFolder(str(folder)), semantic=JPEG)
    assert len(read) == 9
    registered(catalog, spiral.ImageFolder(str(folder)), semantic=JPEG)
    assert len(read) == 9

    touch(folder / "dog" / "1.jpg")
    registered(catalog, spiral.ImageFolder(str(folder)), semantic=JPEG)
    assert len(read) == 10
    edited(folder / "dog" / "1.jpg")
    registered(catalog, spiral.ImageFolder(str(folder)), semantic=JPEG)
    assert len(read) == 11


def test_what_was_registered_without_digests_is_new_once(folder: Path, tmp_path: Path) -> None:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    first = catalog.register("them", spiral.ImageFolder(str(folder)), semantic=JPEG).data_version
    touch(folder / "dog" / "1.jpg")

    second = catalog.refresh("them", same_bytes=True).data_version
    touch(folder / "dog" / "1.jpg")

    assert second != first
    assert catalog.refresh("them", same_bytes=True).data_version == second


def test_identities_that_are_made_of_a_touched_file_are_new_and_so_is_the_data(parts: Path, tmp_path: Path) -> None:
    catalog = spiral.connect(tmp_path / "catalog")
    made = spiral.RowIdentity()

    def register() -> tuple[str, list[str]]:
        entry = catalog.register("them", spiral.Parquet(str(parts)), identity=made, replace=True, same_bytes=True)
        return entry.data_version, catalog.table("them").to_arrow()["__row_id__"].to_pylist()

    before = register()
    touch(parts / "part-1.parquet")
    after = register()

    assert before[1][:4] == after[1][:4]
    assert before[1] != after[1]
    assert before[0] != after[0]

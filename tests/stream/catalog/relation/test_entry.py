"""What the catalog knows of a relation leads to its shard table and its pins, and says what to do where those are lost."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import CatalogError, SourceError
from spiral_stream.semantic import JPEG_REF


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    (tmp_path / "a.jpg").write_bytes(b"1")
    made = sp.connect(str(tmp_path / "catalog"))
    rows = pa.table({"id": [1, 2], "image": ["a.jpg", "a.jpg"]})
    made.register("plain", sp.Arrow(rows), identity="id")
    made.register("pinned", sp.Arrow(rows, base=str(tmp_path)), identity="id", semantic={"image": JPEG_REF})
    return made


def test_an_entry_is_a_frozen_value_that_opens_nothing(catalog: sp.Catalog, tmp_path: Path) -> None:
    entry = catalog.entry("pinned")
    (tmp_path / "a.jpg").unlink()

    assert (entry.name, entry.identity, entry.identity_unique, entry.shard) == ("pinned", ("id",), True, None)
    assert entry.schema.names == ["id", "image", "storage_shard"]
    assert entry.manifest().total == 2
    assert entry.manifest().data_version == entry.data_version
    with pytest.raises(FrozenInstanceError):
        entry.name = "other"  # type: ignore[misc]


def test_files_are_pinned_where_references_name_them(catalog: sp.Catalog, tmp_path: Path) -> None:
    plain, pinned = catalog.entry("plain"), catalog.entry("pinned")
    was = (tmp_path / "a.jpg").stat()
    facts = was.st_size, was.st_mtime_ns, was.st_ino
    of_plain, of_pinned = (each.pins(each.manifest()) for each in (plain, pinned))

    assert of_plain is not None
    assert of_pinned is not None
    assert of_pinned.fault("a.jpg", *facts) is None
    assert "was not among the files of plain" in str(of_plain.fault("a.jpg", *facts))  # its texts name no files
    assert plain.pins(replace(plain.manifest(), pins="")) is None  # registered before there were pins


@pytest.mark.parametrize("how", ["lost", "cut"])
def test_a_shard_table_that_cannot_be_read_says_how_to_make_it_again(how: str, catalog: sp.Catalog) -> None:
    entry = catalog.entry("plain")
    path = entry.root / "manifests" / entry.manifest_name
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CatalogError, match=r'catalog\.refresh\("plain"\)'):
        entry.manifest()
    assert catalog.refresh("plain").manifest().total == 2


def test_pins_that_are_lost_say_how_to_make_them_again(catalog: sp.Catalog) -> None:
    entry = catalog.entry("pinned")
    (entry.root / "manifests" / f"{entry.manifest().pins}.pins").unlink()
    with pytest.raises(SourceError, match=r'^pinned: pins .*catalog\.refresh\("pinned"\)'):
        entry.pins(entry.manifest())

"""One catalog folder: where it lies, and which names it takes."""

from pathlib import Path

import pyarrow as pa
import pytest

from spiral_stream import Arrow
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.errors import CatalogError


@pytest.fixture
def catalog(tmp_path: Path) -> Registry:
    return connect(tmp_path / "catalog")


def labels(rows: int = 5) -> Arrow:
    return Arrow(pa.table({"label_id": range(rows), "class_name": [f"class {i}" for i in range(rows)]}))


def test_names_are_words_joined_by_dots(catalog: Registry) -> None:
    for name in ("", "a b", "a'b", "../a", ".a"):
        with pytest.raises(CatalogError, match=r"letters, digits and _ \. - only"):
            catalog.register(name, labels(), identity="label_id")


def test_the_default_catalog_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert connect().root == tmp_path / "catalog"
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "other"))
    assert connect().root == tmp_path / "other"


def test_a_catalog_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CatalogError, match=r"Give a folder that can be written, or set \$SPIRAL_CATALOG"):
        connect(tmp_path / "file" / "catalog")
    with pytest.raises(CatalogError, match="cannot lie on a web server"):
        connect("https://host/catalog")
    with pytest.raises(CatalogError, match="a catalog lies in a folder of this machine, or on an object store"):
        connect("ftp://host/catalog")

"""Rows from memory that a catalog keeps: damage to them is never the data as it is now."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

import spiral_stream as spiral

ROWS = pa.table({"id": [0, 1, 2], "text": ["one", "two", "three"]})


def texts(catalog: spiral.Catalog) -> list[str]:
    found: list[str] = catalog.table("rows").project("text").to_arrow()["text"].to_pylist()
    return found


@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_damaged_rows_from_memory_are_refused_until_they_are_given_again(tmp_path: Path, how: str) -> None:
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("rows", spiral.Arrow(ROWS), identity="id")
    [file] = catalog.root.glob("rows-*.lance/data/*")
    data = file.read_bytes()
    if how == "removed":
        file.unlink()
    else:
        file.write_bytes(data[: len(data) // 2] if how == "cut" else data.replace(b"two", b"two"[::-1]))

    for refused in (lambda: texts(catalog), lambda: catalog.refresh("rows")):
        with pytest.raises(spiral.errors.SpiralError, match=r"again with (catalog\.register\(.*)?replace=True"):
            refused()
    catalog.register("rows", spiral.Arrow(ROWS), identity="id", replace=True)

    assert texts(catalog) == ["one", "two", "three"]
    assert not catalog.refresh("rows").changes


def test_a_refresh_of_sound_rows_from_memory_changes_nothing(tmp_path: Path) -> None:
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("rows", spiral.Arrow(ROWS), identity="id")

    assert not catalog.refresh("rows").changes
    assert texts(catalog) == ["one", "two", "three"]


def test_a_catalog_that_was_copied_with_other_times_is_refreshed(tmp_path: Path) -> None:
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("rows", spiral.Arrow(ROWS), identity="id")
    [file] = catalog.root.glob("rows-*.lance/data/*")
    os.utime(file, (1, 1))
    with pytest.raises(spiral.errors.SourceError, match="changed since registration"):
        texts(catalog)

    catalog.refresh("rows")
    assert texts(catalog) == ["one", "two", "three"]

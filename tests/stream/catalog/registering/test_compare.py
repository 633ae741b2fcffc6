"""Registering again what is registered already: the same is no error and reads no rows, another is refused with what differs."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_stream import Arrow, ImageFolder, Lance, Parquet
from spiral_stream.catalog.registering import measure as measuring
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.relation import manifest as manifest_room
from spiral_stream.errors import CatalogError
from spiral_stream.semantic import JPEG_REF
from spiral_stream.sources import Source

ROWS = pa.table({"sample_id": ["a", "b", "c"], "part": ["x", "x", "y"], "image_ref": [b"1", b"2", b"3"]})
DECLARED: dict[str, Any] = {"semantic": {"image_ref": JPEG_REF}, "descriptions": {"part": "which"}, "shard": "part"}


@pytest.fixture
def catalog(tmp_path: Path) -> Registry:
    return connect(tmp_path / "catalog")


def source_of(kind: str, folder: Path, rows: pa.Table = ROWS) -> Source:
    if kind == "arrow":
        return Arrow(rows)
    if kind == "lance":
        lance.write_dataset(rows, str(folder / "t.lance"), mode="overwrite")
        return Lance(str(folder / "t.lance"))
    if kind == "parquet":
        pq.write_table(rows, folder / "t.parquet")
        return Parquet(str(folder / "t.parquet"))
    for name in rows["sample_id"].to_pylist():
        (folder / "images" / "x").mkdir(parents=True, exist_ok=True)
        (folder / "images" / "x" / f"{name}.jpg").write_bytes(b"\xff\xd8\xff")
    return ImageFolder(str(folder / "images"))


@pytest.mark.parametrize("kind", ["arrow", "lance", "parquet", "images"])
def test_the_same_registration_is_no_error_and_reads_no_rows(
    catalog: Registry, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = {} if kind == "images" else DECLARED
    source = source_of(kind, tmp_path)
    first = catalog.register("t", source, **declared)

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(measuring, "duplicate", never)
    monkeypatch.setattr(measuring, "build_manifest", never)
    monkeypatch.setattr(manifest_room, "shard_runs", never)
    again = connect(catalog.root).register("t", source, **declared)

    assert again == first
    assert catalog.tables() == ["t"]


def test_labels_may_be_registered_from_another_working_folder(
    catalog: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = catalog.register("t", Arrow(ROWS))
    monkeypatch.chdir(tmp_path)

    assert catalog.register("t", Arrow(ROWS)) == first  # no column refers to a file
    with pytest.raises(CatalogError, match=r"its columns, or what is declared of them: 'image_ref'"):
        catalog.register("t", Arrow(ROWS), semantic={"image_ref": JPEG_REF})


def test_a_new_version_of_a_dataset_with_the_same_rows_is_the_same(catalog: Registry, tmp_path: Path) -> None:
    source = source_of("lance", tmp_path)
    first = catalog.register("t", source)
    lance.dataset(str(tmp_path / "t.lance")).tags.create("kept", 1)
    lance.dataset(str(tmp_path / "t.lance")).create_scalar_index("sample_id", "BTREE")

    assert catalog.register("t", source) == first


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"shard": None}, "its shard column is part, now None"),
        ({"identity": ["sample_id", "part"]}, "its identity is sample_id, now sample_id, part"),
        ({"semantic": {}}, "its columns, or what is declared of them: 'image_ref'"),
        ({"descriptions": {"part": "other"}}, "its columns, or what is declared of them: 'part'"),
    ],
)
def test_another_registration_of_a_name_is_refused_with_what_differs(
    catalog: Registry, tmp_path: Path, change: dict[str, Any], differs: str
) -> None:
    source = source_of("parquet", tmp_path)
    first = catalog.register("t", source, **DECLARED)
    with pytest.raises(
        CatalogError, match=f"^register 't': the name is taken.*: {differs}.*Pass replace=True, or drop it first$"
    ):
        catalog.register("t", source, **{**DECLARED, **change})

    assert catalog.entry("t") == first


@pytest.mark.parametrize("kind", ["arrow", "lance", "parquet", "images"])
def test_other_rows_are_refused_until_they_replace(catalog: Registry, tmp_path: Path, kind: str) -> None:
    catalog.register("t", source_of(kind, tmp_path))
    other = source_of(kind, tmp_path, pa.concat_tables([ROWS, ROWS.slice(0, 1).set_column(0, "sample_id", [["d"]])]))
    refresh = r"data: '.*'\. Take the data as it is now with catalog\.refresh\(\"t\"\), pass replace=True"
    differs = r"rows differ\. Pass replace=True" if kind == "arrow" else refresh
    with pytest.raises(CatalogError, match=rf"its {differs}, or drop it first$"):
        catalog.register("t", other)

    assert catalog.register("t", other, replace=True).manifest().total == 4


@pytest.mark.parametrize("kind", ["lance", "parquet", "images"])
def test_the_refresh_that_other_rows_are_refused_with_takes_them(catalog: Registry, tmp_path: Path, kind: str) -> None:
    catalog.register("t", source_of(kind, tmp_path))
    other = source_of(kind, tmp_path, pa.concat_tables([ROWS, ROWS.slice(0, 1).set_column(0, "sample_id", [["d"]])]))

    assert catalog.refresh("t").manifest().total == 4
    assert catalog.register("t", other).manifest().total == 4


def test_repeated_identities_that_were_allowed_are_not_allowed_by_registering_again(catalog: Registry) -> None:
    rows = Arrow(pa.table({"sample_id": ["a", "a"]}))
    first = catalog.register("t", rows, unique=False)

    assert catalog.register("t", rows, unique=False) == first
    with pytest.raises(CatalogError, match="identities repeat, which unique=False allowed"):
        catalog.register("t", rows)

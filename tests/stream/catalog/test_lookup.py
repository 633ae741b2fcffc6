"""Rows by their identity: those that a scan finds, from the pieces that registration made."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_stream import Parquet
from spiral_stream.catalog.lookup import lookup
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.semantic import JPEG_REF
from spiral_stream.sources.columnar.parquet import ParquetReader

ROWS = pa.table(
    {
        "sample_id": pa.array([3, 1, 2**63 - 1, -5, 2, 7], pa.int64()),
        "name": ["a", "b", "", "a", "ä", None],
        "data": pa.array([b"", b"\0", b"x", b"y", b"x", b"z"]),
        "storage_shard": list("babacc"),
        "image_ref": ["x.jpg"] * 6,
    }
)


@pytest.fixture
def catalog(tmp_path: Path) -> Registry:
    pq.write_table(ROWS, tmp_path / "t.parquet", row_group_size=2)
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8\xff")
    found = connect(tmp_path / "catalog")
    found.register("t", Parquet(str(tmp_path / "t.parquet")), semantic={"image_ref": JPEG_REF}, shard="storage_shard")
    return found


def scanned(relation: OpenRelation, values: dict[str, Any]) -> list[int]:
    table = relation.fetch(np.arange(6, dtype=np.uint64), list(values))
    return [at for at, row in enumerate(table.to_pylist()) if row == values]


@pytest.mark.parametrize(
    "values",
    [
        *({"sample_id": value} for value in [*ROWS["sample_id"].to_pylist(), 4, 2**70, np.int64(2)]),
        *({"name": value} for value in ["a", "b", "", "ä", "c"]),
        {"data": b"x"},
        {"name": "a", "sample_id": 3},
        {"name": "a", "sample_id": 1},
        {"sample_id": 3, "name": "a"},
    ],
    ids=str,
)
def test_rows_are_those_of_a_scan(catalog: Registry, values: dict[str, Any], tmp_path: Path) -> None:
    with OpenRelation(catalog.entry("t")) as relation:
        found = lookup(relation, values, tmp_path / "kept")
        assert found is not None
        assert found.find(values).tolist() == scanned(relation, values)


@pytest.mark.parametrize("values", [{"sample_id": "3"}, {"sample_id": True}, {"sample_id": 3.0}, {"name": None}])
def test_values_of_another_kind_are_left_to_a_scan(catalog: Registry, values: dict[str, Any], tmp_path: Path) -> None:
    with OpenRelation(catalog.entry("t")) as relation:
        assert lookup(relation, values, tmp_path) is None


def test_nothing_is_read_but_the_row_where_registration_made_the_pieces(
    catalog: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ParquetReader, "scan", never)
    with OpenRelation(catalog.entry("t")) as relation:
        assert relation.manifest.pins
        found = lookup(relation, {"sample_id": 2}, catalog.root / "prepared")
        assert found is not None
        assert found.find({"sample_id": 2}).tolist() == scanned(relation, {"sample_id": 2})


def test_rows_that_share_a_hash_are_told_apart_by_their_values(
    catalog: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hashes = Identities.hashes
    monkeypatch.setattr(Identities, "hashes", lambda self, columns: hashes(self, columns) & np.uint64(1 << 63))
    with OpenRelation(catalog.entry("t")) as relation:
        found = lookup(relation, {"sample_id": 2}, tmp_path / "kept")
        assert found is not None
        for value in [*ROWS["sample_id"].to_pylist(), 4]:
            assert found.find({"sample_id": value}).tolist() == scanned(relation, {"sample_id": value})


def test_a_folder_that_cannot_be_written_leaves_it_to_a_scan(catalog: Registry) -> None:
    with OpenRelation(catalog.entry("t")) as relation:
        assert lookup(relation, {"name": "a"}, Path("/proc/nowhere")) is None

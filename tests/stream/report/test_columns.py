"""What is said of columns is what their rows say, also of NaN, exponents and moments."""

import datetime as dt
import math
from pathlib import Path

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.report import ColumnSummary
from spiral_stream.report.columns import column_summaries, roles_of


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    found = sp.connect(str(tmp_path / "catalog"))
    described = pa.field("score", pa.float64(), metadata={"description": "of the annotator"})
    table = pa.table(
        {
            "sample_id": ["a", "b", "c", "d"],
            "score": pa.array([1.876011932466781e-07, math.nan, 0.9999912345, None]),
            "label": pa.array([3, 3, 3, 1], pa.int32()),
            "at": pa.array([dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)], pa.timestamp("us")),
            "storage_shard": ["x", "x", "y", "y"],
        }
    )
    at = table.schema.get_field_index("score")
    found.register("t", sp.Arrow(table.cast(table.schema.set(at, described))))
    return found


def summaries(catalog: sp.Catalog) -> dict[str, ColumnSummary]:
    entry = catalog.entry("t")
    roles = roles_of(entry, ["label"], [])
    return {each.name: each for each in column_summaries(entry, catalog.measure("t"), roles)}


def test_a_column_of_floats_shows_nan_nulls_and_exponents(catalog: sp.Catalog) -> None:
    cells = summaries(catalog)["score"].cells()

    assert (cells["nulls"], cells["NaN"]) == ("1 (25 %)", "1 (25 %)")
    assert (cells["min"], cells["mean"], cells["max"]) == ("1.876e-07", "0.5", "1")
    assert len(cells["histogram"]) == 20


def test_moments_are_whole_and_texts_name_their_most_frequent(catalog: sp.Catalog) -> None:
    found = summaries(catalog)

    assert (found["at"].least, found["at"].mean) == ("2026-01-01 00:00:00", "2026-01-02 12:00:00")
    assert found["label"].frequent == "3 75 %, 1 25 %"
    assert dict(found["label"].numbers) == {"nulls": 0, "nans": 0, "distinct": 2, "mean": 2.5}


def test_columns_have_roles_and_descriptions(catalog: sp.Catalog) -> None:
    found = summaries(catalog)

    assert {name: each.roles for name, each in found.items() if each.roles} == {
        "sample_id": ("identity",),
        "label": ("label",),
        "storage_shard": ("shard key",),
    }
    assert found["score"].description == "of the annotator"


def test_of_what_nobody_counted_only_the_type_is_known(catalog: sp.Catalog) -> None:
    columns = column_summaries(catalog.entry("t"), None, {})

    assert {each.nulls for each in columns} == {None}
    assert [each.kind for each in columns] == ["string", "double", "int32", "timestamp[us]", "string"]
    assert {name for name, text in columns[1].cells().items() if text} == {"column", "type"}

"""What the page of a relation shows: how to open it before anything long, pictures that the webserver serves."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets import pages
from spiral_assets.facts import reports
from spiral_assets.resources import CatalogResource
from tests.stream.report.test_samples import picture

SHARDS = 70
ROWS = 700
INLINE = 1_000  # characters: longer markdown is hidden behind a button


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> spiral.Catalog:
    """Images of one class per shard, scores with NaN, and more shards than a table has rows."""
    found = spiral.connect(str(tmp_path_factory.mktemp("pages") / "catalog"))
    rng = np.random.default_rng(0)
    score = 10.0 ** rng.uniform(-7, 0, ROWS)
    score[:70] = np.nan
    shard = np.arange(ROWS) * SHARDS // ROWS
    image = [picture("red"), picture("blue"), b"broken"]
    table = pa.table(
        {
            "sample_id": [f"id{k}" for k in range(ROWS)],
            "image_ref": [image[k % 3] for k in range(ROWS)],
            "score": score,
            "label": [f"class {k}" for k in shard],
            "storage_shard": [f"s{k:02d}" for k in shard],
        }
    )
    found.register("my.images", spiral.Arrow(table), semantic={"image_ref": "image/jpeg-ref"})
    found.measure("my.images")
    return found


@pytest.fixture(scope="module")
def shown(
    catalog: spiral.Catalog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, Any], dg.DagsterInstance]]:
    """The metadata of one run, and the instance that has its logs."""

    @dg.asset
    def relation(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        report = spiral.report.report_relation(catalog.open(), "my.images", labels=["label"], origins=())
        return dg.MaterializeResult(
            metadata={
                **pages.relation_page(context, report, {"label": "what is seen"}),
                **pages.statistics_page(context, report),
            }
        )

    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("instance"))) as instance:
        result = dg.materialize(
            [relation], instance=instance, resources={"catalog": CatalogResource(uri=str(catalog.root))}
        )
        (made,) = result.asset_materializations_for_node("relation")
        yield dict(made.metadata), instance


def test_the_snippet_comes_first_and_tables_are_short(shown: tuple[dict[str, Any], dg.DagsterInstance]) -> None:
    found, _ = shown
    tables = [value for value in found.values() if isinstance(value, dg.TableMetadataValue)]

    assert next(iter(found)) == "open_it"
    assert 'table("my.images")' in found["open_it"].value
    assert len(tables) >= 5
    assert all(len(each.records) <= reports.ROWS and len(each.schema.columns) <= 6 for each in tables)


def test_columns_show_nan_exponents_and_roles(shown: tuple[dict[str, Any], dg.DagsterInstance]) -> None:
    found, _ = shown
    counts = {row.data["column"]: row.data for row in found["columns"].records}
    values = {row.data["column"]: row.data for row in found["values"].records}
    roles = {each.name: set(each.tags) for each in found["dagster/column_schema"].schema.columns}

    assert (counts["score"]["nulls"], counts["score"]["NaN"]) == ("0", "70 (10 %)")
    assert re.fullmatch(r"\d\.\d+e-07", str(values["score"]["min"]))
    assert roles["sample_id"] == {"role/identity"}
    assert roles["image_ref"] == {"role/reference"}
    assert roles["label"] == {"role/label"}
    assert {each.description for each in found["dagster/column_schema"].schema.columns} == {None, "what is seen"}
    assert (found["NaN"].value, found["label_effective"].value) == (70, pytest.approx(SHARDS))


def test_pictures_lie_where_the_webserver_reads_logs_and_their_markdown_is_inline(
    shown: tuple[dict[str, Any], dg.DagsterInstance],
) -> None:
    found, instance = shown
    keeper: Any = instance.compute_log_manager

    for key, count in (("contact_sheet", 1), ("label_pictures", 4)):
        text = found[key].value
        paths = re.findall(r"!\[[\w -]+\]\(/logs/([^)]+)\)", text)
        assert len(text) < INLINE
        assert len(paths) == count
        for path in paths:
            *log_key, ending = path.split("/")
            data = Path(keeper.get_captured_local_path(log_key, ending)).read_bytes()
            assert data[:2] == b"\xff\xd8" if ending == "jpg" else b"<svg" in data[:1000]
    assert [row.data["sample"] for row in found["cannot_be_decoded"].records]


def test_all_shards_count_though_few_are_named(shown: tuple[dict[str, Any], dg.DagsterInstance]) -> None:
    found, _ = shown

    assert found["storage_shards"].value == SHARDS
    assert len(found["label_worst_shards"].records) == 10
    page = Path(found["report"].value).read_text()
    assert f"farthest from the whole, of {SHARDS}" in page
    assert "one folder per class" in found["label_skew"].value


def test_where_no_folder_of_logs_is_served_small_pictures_are_part_of_the_metadata(
    instance: dg.DagsterInstance,
) -> None:
    context = dg.build_asset_context(instance=instance)
    text = pages.shown(context, "t", [("small", "png", b"x"), ("large", "svg", b"x" * 100_000)]).value

    assert "data:image/png;base64,eA==" in text
    assert "large: see the report" in text


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"kind": "parquet", "path": "/data/x"}, ("parquet", "/data/x")),
        ({"kind": "lance", "uri": "s3://b/x.lance", "version": 3}, ("lance", "s3://b/x.lance")),
        ({"kind": "imported", "of": {"kind": "jsonl", "path": ["a", "b"]}, "uri": "/kept"}, ("jsonl", "a, b")),
    ],
)
def test_a_definition_says_where_a_relation_lies(source: dict[str, Any], told: tuple[str, str]) -> None:
    kind, uri = told

    assert pages.definition_metadata("my.rows", source) == {
        "dagster/table_name": "my.rows",
        "dagster/storage_kind": kind,
        "dagster/uri": uri,
    }
    assert pages.definition_metadata("my.rows", {}) == {"dagster/table_name": "my.rows"}


def test_pictures_among_metadata_are_shown_and_the_rest_stays(instance: dg.DagsterInstance) -> None:
    bars = spiral.report.draw_bars("files", "Files", [("a", 1), ("b", 2)], across="name", up="files", form="png")
    context = dg.build_asset_context(instance=instance)
    found = pages.with_pictures(context, "stats/x", {"files": bars, "count": 2})

    assert found["count"] == 2
    assert found["files"].value.startswith("![files](data:image/png;base64,")

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
from spiral_assets.facts.folded import folded
from spiral_assets.resources import CatalogResource
from tests.fixtures.folded_pages import everything, faults
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

    def report(catalog: CatalogResource) -> spiral.report.Report:
        return spiral.report.report_relation(catalog.open(), "my.images", labels=["label"], origins=())

    @dg.asset
    def relation(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata=pages.relation_page(context, report(catalog), {"label": "what is seen"}))

    @dg.asset
    def statistics(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata=pages.statistics_page(context, report(catalog)))

    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("instance"))) as instance:
        result = dg.materialize(
            [relation, statistics], instance=instance, resources={"catalog": CatalogResource(uri=str(catalog.root))}
        )
        made = [result.asset_materializations_for_node(name)[0].metadata for name in ("relation", "statistics")]
        wrong = [fault for each in made for fault in faults(each, instance.compute_log_manager)]
        assert not wrong, wrong
        yield {**everything(made[1]), **everything(made[0])}, instance


def test_a_page_says_how_to_open_it_and_folds_its_tables(shown: tuple[dict[str, Any], dg.DagsterInstance]) -> None:
    found, _ = shown
    tables = [value for value in found.values() if isinstance(value, list)]

    assert 'table("my.images")' in found["open_it"]
    assert [row["column"] for row in found["samples"]] == ["sample_id", "image_ref", "score", "label", "storage_shard"]
    assert len(tables) >= 5


def test_columns_show_nan_exponents_and_roles(shown: tuple[dict[str, Any], dg.DagsterInstance]) -> None:
    found, _ = shown
    counts = {row["column"]: row for row in found["columns"]}
    values = {row["column"]: row for row in found["values"]}
    roles = {each.name: set(each.tags) for each in found["dagster/column_schema"].columns}

    assert (counts["score"]["nulls"], counts["score"]["NaN"]) == (0, "70 (10 %)")
    assert 1e-7 <= values["score"]["min"] < 1e-6
    assert roles["sample_id"] == {"role/identity"}
    assert roles["image_ref"] == {"role/reference"}
    assert roles["label"] == {"role/label"}
    assert {each.description for each in found["dagster/column_schema"].columns} == {None, "what is seen"}
    assert (found["NaN"], found["label_effective"]) == (70, pytest.approx(SHARDS))


def test_pictures_lie_where_the_webserver_reads_logs_and_their_markdown_is_inline(
    shown: tuple[dict[str, Any], dg.DagsterInstance],
) -> None:
    found, instance = shown
    keeper: Any = instance.compute_log_manager

    for key, count in (("contact_sheet", 1), ("label_pictures", 4)):
        text = found[key]
        paths = re.findall(r"!\[[\w -]+\]\(/logs/([^)]+)\)", text)
        assert len(text) < INLINE
        assert len(paths) == count
        for path in paths:
            *log_key, ending = path.split("/")
            data = Path(keeper.get_captured_local_path(log_key, ending)).read_bytes()
            assert b"<svg" in data[:1000]
            assert b"#ffffff" not in data  # a white ground would shine on a dark page
    assert len(found["what cannot be decoded"]) == found["cannot_be_decoded"] > 0


def test_all_shards_count_though_few_are_named(shown: tuple[dict[str, Any], dg.DagsterInstance]) -> None:
    found, _ = shown

    assert found["storage_shards"] == SHARDS
    assert len(found["label_worst_shards"]) == 10
    page = Path(found["the whole report"]).read_text()
    assert f"farthest from the whole, of {SHARDS}" in page
    assert "one folder per class" in found["label_skew"]


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
    def bars(name: str, width: int) -> spiral.report.Picture:
        heights = [("a", 1), ("b", 2)]
        return spiral.report.draw_bars(name, "Files", heights, across="name", up="files", form="png", width=width)

    context = dg.build_asset_context(instance=instance)
    metadata = {"small": bars("small", pages.SMALL - 20), "large": bars("large", pages.LARGE), "count": 2}
    found = pages.with_pictures(context, "stats/x", metadata)

    assert found["count"] == 2
    assert found["small"].value.startswith("![small](data:image/png;base64,")
    assert "large" not in found
    assert "![large](data:image/png;base64," in found["details"].value


def test_a_wide_relation_folds_what_has_no_room_and_keeps_what_is_first(instance: dg.DagsterInstance) -> None:
    given: dict[str, Any] = {f"number_{k}": k for k in range(20)}
    given["nested"] = {"a": [{"b": 1}]}
    given["long"] = dg.MetadataValue.table([dg.TableRecord({"at": k, "x|y": "*"}) for k in range(40)])
    given["wide"] = dg.MetadataValue.table([dg.TableRecord({f"column_{k}": k for k in range(12)})])
    given["path"] = dg.MetadataValue.path("/a/folder/of/a/long/name/that/no/page/has/room/for")

    found = folded(given)

    again = dict(dg.AssetMaterialization("page", metadata=found).metadata)
    assert list(faults(again)) == []
    assert [name for name in found if name != "details"] == [f"number_{k}" for k in range(11)]
    told = everything(again)
    assert {name: told[name] for name in given if name.startswith("number")} == {f"number_{k}": k for k in range(20)}
    assert told["nested"] == given["nested"]
    assert [row["x|y"] for row in told["long"]] == ["*"] * 40
    assert told["path"] == given["path"].value
    assert folded(again)["details"].value == found["details"].value  # once more changes nothing
    assert folded({"one": 1}) == {"one": 1}

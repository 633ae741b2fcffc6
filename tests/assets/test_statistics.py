from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

import spiral_stream as spiral
from spiral_assets.plans import images as plans
from spiral_stream.report import ColumnSkew
from tests.assets.conftest import IMAGES, SHARDS, Place, data_version, evaluations, metadata, placed
from tests.assets.test_relations import TRAIN, drawn

STATS = "stats/vision/imagenet_train/shard_stats"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, dg.ExecuteInProcessResult]]:
    with placed(tmp_path_factory.mktemp("statistics"), pictures=True) as made:
        drawn(made)
        yield made, made.run(TRAIN, STATS)


def test_statistics_are_counted_shown_and_kept_for_explain(counted: tuple[Place, dg.ExecuteInProcessResult]) -> None:
    place, result = counted
    facts = metadata(result, STATS)

    assert facts["dagster/row_count"] == IMAGES
    assert facts["storage_shards"] == SHARDS
    for name, value in facts.items():
        if hasattr(value, "records"):
            assert len(value.records) <= 50, name
    page = Path(facts["report"])
    assert page.is_relative_to(place.root / "catalog")
    assert "label_id" in page.read_text()
    assert facts["label_id_pictures"]
    catalog = spiral.connect(str(place.root / "catalog"))
    skew = catalog.skew(plans.RELATION, "label_id")
    assert skew is not None
    numbers = [value for name, value in facts.items() if name.startswith("label_id_") and isinstance(value, float)]
    assert float(f"{max(skew.distance):.4g}") in numbers


def test_skewed_shards_are_a_warning_that_stops_nothing(place: Place) -> None:
    images = drawn(place)
    rows = images.to_table().sort_by("label_id")
    import lance
    import pyarrow as pa

    shards = [f"part-{row // (IMAGES // SHARDS):04d}" for row in range(IMAGES)]
    at = rows.schema.get_field_index("storage_shard")
    lance.write_dataset(rows.set_column(at, "storage_shard", pa.array(shards)), images.uri, mode="overwrite")

    result = place.run(TRAIN, STATS)

    assert result.success
    assert not evaluations(result)["labels_are_mixed"].passed


def test_the_same_data_has_the_same_statistics_version(
    counted: tuple[Place, dg.ExecuteInProcessResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = counted
    first = data_version(place, STATS)
    monkeypatch.setattr(ColumnSkew, "pictures", lambda *_: [])  # the version is of the numbers
    assert place.run(STATS).success

    assert data_version(place, STATS) == first

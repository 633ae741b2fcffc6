from pathlib import Path

import dagster as dg

import spiral_stream as spiral
from spiral_assets.plans import images as plans
from tests.assets.conftest import (
    IMAGES,
    SHARDS,
    STATS,
    TRAIN,
    WHOLE,
    Place,
    data_version,
    drawn,
    evaluations,
    metadata,
)


def test_statistics_are_counted_shown_and_kept_for_explain(
    prepared_images: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, result = prepared_images
    facts = metadata(result, STATS)

    assert facts["dagster/row_count"] == WHOLE
    assert facts["storage_shards"] == SHARDS
    page = Path(facts["the whole report"])
    assert page.is_relative_to(place.root / "catalog")
    assert "label_id" in page.read_text()
    assert facts["label_id_pictures"]
    catalog = spiral.connect(str(place.root / "catalog"))
    skew = catalog.skew(plans.RELATION, "label_id")
    assert skew is not None
    numbers = [
        value for name, value in facts.items() if name.startswith("label_id_") and isinstance(value, int | float)
    ]
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
    prepared_images: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, _ = prepared_images
    first = data_version(place, STATS)

    assert place.run(STATS).success  # without pictures: the version is of the numbers

    assert data_version(place, STATS) == first

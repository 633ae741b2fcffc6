"""Registration, and the checks that stop everything downstream."""

from collections.abc import Callable

import dagster as dg
import lance
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets.plans import images as plans
from tests.assets.conftest import (
    LABELS,
    SHARDS,
    TRAIN,
    WHOLE,
    Place,
    built_on,
    data_version,
    drawn,
    evaluations,
    metadata,
    steps,
)


def test_one_job_registers_the_relations_with_the_seeds_schema_and_all_checks_pass(
    prepared_images: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, result = prepared_images

    assert result.success
    found = evaluations(result)
    assert {"identity_is_unique", "references_resolve", "schema_is_as_declared"} <= set(found)
    assert {name for name, each in found.items() if not each.passed} == set()
    facts = metadata(result, TRAIN)
    assert facts["dagster/row_count"] == WHOLE
    assert facts["storage_shards"] == SHARDS
    columns = {column.name: column for column in facts["dagster/column_schema"].columns}
    assert columns["image_ref"].type == "image/jpeg-ref"
    assert columns["sample_id"].constraints.unique
    catalog = spiral.connect(str(place.root / "catalog"))
    tables = [name for name in catalog.tables() if not name.startswith("runs.")]  # of a training, if it came first
    assert tables == [plans.LABELS, plans.RELATION]
    assert data_version(place, TRAIN) == catalog.entry(plans.RELATION).data_version


def test_registering_the_same_data_again_changes_no_data_version(
    prepared_images: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, _ = prepared_images
    first = data_version(place, TRAIN)

    assert place.run(TRAIN, LABELS).success

    assert data_version(place, TRAIN) == first


def repeat_an_identity(images: lance.LanceDataset) -> None:
    images.insert(images.take([4]))


def damage_an_image(images: lance.LanceDataset) -> None:
    rows = images.to_table().to_pylist()
    rows[7]["image_ref"] = rows[7]["image_ref"][:1_000]
    lance.write_dataset(pa.Table.from_pylist(rows, schema=images.schema), images.uri, mode="overwrite")


def null_a_reference(images: lance.LanceDataset) -> None:
    rows = images.to_table().to_pylist()
    rows[7]["image_ref"] = None
    lance.write_dataset(pa.Table.from_pylist(rows, schema=images.schema), images.uri, mode="overwrite")


def narrow_the_label(images: lance.LanceDataset) -> None:
    images.alter_columns({"path": "label_id", "data_type": pa.int32()})


def drop_the_split(images: lance.LanceDataset) -> None:
    images.drop_columns(["split"])


@pytest.mark.parametrize(
    ("spoil", "failing", "said"),
    [
        (repeat_an_identity, "identity_is_unique", "1 "),
        (damage_an_image, "references_resolve", "1 of 60"),
        (null_a_reference, "references_resolve", "1 of 60"),
        (narrow_the_label, "schema_is_as_declared", "label_id is int32, declared int64"),
        (drop_the_split, "schema_is_as_declared", "split is missing, declared string"),
    ],
)
def test_unsound_data_fails_one_check_that_blocks_what_is_built_on_it(
    place: Place, spoil: Callable[[lance.LanceDataset], None], failing: str, said: str
) -> None:
    spoil(drawn(place))

    result = place.run(TRAIN)

    found = evaluations(result)
    assert {name for name, each in found.items() if not each.passed} == {failing}
    assert found[failing].blocking
    assert found[failing].severity == dg.AssetCheckSeverity.ERROR
    assert said in (found[failing].description or "")
    assert {"caches__imagenet_decoded", "streams__images"} <= built_on(place, found[failing].asset_key)


def test_a_failed_check_stops_the_job(place: Place) -> None:
    repeat_an_identity(drawn(place))

    result = place.run(job="prepare_images")

    assert not result.success
    assert "caches__imagenet_decoded" not in steps(result, "STEP_SUCCESS")
    assert not list((place.root / "caches").glob("caches/*/data.lance"))

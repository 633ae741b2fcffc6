"""The decoded cache: built once, only where data changed, and never half believed."""

import json
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets.plans import images as plans
from tests.assets.conftest import (
    CACHE,
    IMAGES,
    LABELS,
    SHARDS,
    STREAMS,
    TRAIN,
    WHOLE,
    Place,
    data_version,
    drawn,
    evaluations,
    metadata,
)


def change_one_shard(images: lance.LanceDataset) -> None:
    """Exchange the images of two rows of one fragment; the other fragments stay as they are."""
    fragment = images.get_fragments()[1]
    rows = fragment.to_table()
    order = pa.array([1, 0, *range(2, len(rows))])
    images.delete(f"storage_shard = '{rows['storage_shard'][0]}'")
    images.insert(rows.take(order))


def test_the_cache_is_built_whole_and_a_second_build_finds_nothing_to_do(
    prepared_images: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, first = prepared_images
    version = data_version(place, CACHE)
    second = place.run(CACHE)

    built = metadata(first, CACHE)
    assert (built["rows_built"], built["shards_built"], built["rows_refused"]) == (WHOLE, SHARDS, 0)
    again = metadata(second, CACHE)
    assert (again["rows_built"], again["shards_built"]) == (0, 0)
    assert data_version(place, CACHE) == version
    entry = spiral.connect(str(place.root / "catalog")).entry(plans.RELATION)
    fingerprint = spiral.profiles.cache_fingerprint(plans.RELATION, plans.COLUMN, plans.profile())
    assert version == f"{fingerprint}:{entry.data_version}"


def test_a_changed_shard_is_rebuilt_alone(place: Place) -> None:
    images = drawn(place)
    place.run(TRAIN, LABELS, CACHE)
    version = data_version(place, CACHE)
    place.run(STREAMS)  # a saved stream keeps the cache
    before = metadata(place.run(CACHE), CACHE)
    change_one_shard(images)

    result = place.run(TRAIN, CACHE)

    facts = metadata(result, CACHE)
    assert (facts["rows_built"], facts["shards_built"]) == (IMAGES // SHARDS, 1)
    assert data_version(place, CACHE) != version
    assert (before["live_bytes"], before["dead_bytes"]) == (before["dagster/size_bytes"], 0)
    on_disk = sum(file.stat().st_size for file in (place.root / "caches" / "caches").rglob("*") if file.is_file())
    assert facts["dagster/size_bytes"] == facts["live_bytes"] + facts["dead_bytes"] == pytest.approx(on_disk, rel=0.05)
    assert facts["dead_bytes"] == pytest.approx(before["live_bytes"] / SHARDS, rel=0.3)  # of the shard as it was


def test_a_cache_that_lost_a_shard_fails_its_check_until_it_is_built_again(place: Place) -> None:
    drawn(place)
    place.run(TRAIN, LABELS, CACHE)
    complete = [(CACHE, "cache_is_complete")]
    assert evaluations(place.run(checks=complete))["cache_is_complete"].passed

    ledger = sorted(Path(place.root / "caches").glob("caches/*/ledger/*.json"))
    assert len(ledger) == SHARDS
    rows = json.loads(ledger[0].read_text())["rows"]
    ledger[0].unlink()

    found = evaluations(place.run(checks=complete))["cache_is_complete"]
    assert not found.passed
    assert f"{IMAGES - IMAGES // SHARDS} of {IMAGES}" in (found.description or ""), rows

"""Plans without Dagster: which photos a batch has, and what an embedding is."""

from pathlib import Path

import numpy as np
import pytest
from shop import plans

import spiral_stream as spiral

from .conftest import PHOTOS, photo


@pytest.fixture
def catalog(data: Path) -> spiral.Catalog:
    """A catalog with the photos, as the component registers them."""
    made = spiral.connect()
    source = spiral.Parquet(str(data / "photos.parquet"))
    made.register("shop.photos", source, identity="id", semantic={"photo": "image/jpeg-ref"})
    return made


def test_photos_that_look_alike_are_near() -> None:
    seven, eight, twenty = (plans.thumbnail(photo(each)) for each in (7, 8, 20))

    assert seven.shape == (48,)
    assert np.abs(seven - eight).max() < np.abs(seven - twenty).max()


def test_each_photo_is_trained_on_or_held_out(catalog: spiral.Catalog) -> None:
    rows = 0
    for part in ("train", "val"):
        with plans.batches(catalog, part).to_numpy() as stream:
            for batch in stream:
                assert batch["image"].dtype == np.uint8
                rows += len(batch["label"])

    assert rows == PHOTOS


def test_batches_are_the_same_each_time(catalog: spiral.Catalog) -> None:
    with plans.batches(catalog).to_numpy() as first, plans.batches(catalog).to_numpy() as second:
        assert np.array_equal(first.batch(2)["image"], second.batch(2)["image"])

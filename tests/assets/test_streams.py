import dagster as dg
import pytest

import spiral_stream as spiral
from spiral_assets.plans import images as plans
from tests.assets.conftest import LABELS, STREAMS, TRAIN, Place, data_version, drawn, metadata


def test_the_streams_are_saved_explained_and_read_from_the_cache(
    prepared_images: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, result = prepared_images
    facts = metadata(result, STREAMS)

    catalog = spiral.connect(str(place.root / "catalog"))
    assert catalog.streams() == [plans.TRAIN, plans.VALIDATION]
    with catalog.open_stream(plans.TRAIN, device="cpu", epoch=0) as stream:
        assert (facts["fingerprint"], facts["steps_per_epoch"]) == (stream.fingerprint, len(stream))
        batch = next(iter(stream))
        assert tuple(batch["image"].shape) == (plans.BATCH, 3, plans.SIDE, plans.SIDE)
        assert stream.metrics()["cache_hit_rate"] == 1.0
    assert "100% (198/198)" in facts["explain"]
    assert "label_id" in facts["explain"].partition("SKEW")[2].partition("BATCH")[0]
    with catalog.open_stream(plans.VALIDATION, device="cpu", epoch=0) as held_out:
        assert sum(len(batch["label"]) for batch in held_out) == 22


@pytest.mark.filterwarnings("ignore:collate. batch_size is 64:spiral_stream.SpiralWarning")  # more than is left
def test_a_stream_is_as_old_as_its_plan_and_its_data(place: Place) -> None:
    images = drawn(place)
    place.run(TRAIN, LABELS, STREAMS)
    first = data_version(place, STREAMS)

    place.run(STREAMS)
    assert data_version(place, STREAMS) == first

    images.delete("label_id = 3")
    place.run(TRAIN, STREAMS)
    assert data_version(place, STREAMS) != first

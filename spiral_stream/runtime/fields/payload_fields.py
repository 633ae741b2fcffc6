"""The fields of payload of an opened plan, each of its kind. A new kind is named here, and nowhere else in `runtime`."""

from collections.abc import Iterator

from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.stages import ClipStage, ImageStage, PlainStage, SoundStage, Stages
from spiral_stream.runtime.fields.bytes import BytesField
from spiral_stream.runtime.fields.clips import ClipField
from spiral_stream.runtime.fields.image_lists import ImageListField
from spiral_stream.runtime.fields.images import ImageField
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.fields.sounds import SoundField
from spiral_stream.runtime.metrics import Metrics


def payload_fields(stages: Stages, lineage: Lineage, metrics: Metrics) -> dict[str, PayloadField]:
    """Open the fields of payload, by name.

    Args:
        stages: the lowered plan.
        lineage: of its maps.
        metrics: where time and bytes are counted.
    """
    return {each.name: each for each in _opened(stages, lineage, metrics)}


def _opened(stages: Stages, lineage: Lineage, metrics: Metrics) -> Iterator[PayloadField]:
    for stage in stages.fields:
        if isinstance(stage, ImageStage):
            yield ImageField(stage, metrics) if stage.listed is None else ImageListField(stage, metrics)
        elif isinstance(stage, ClipStage):
            yield ClipField(stage, metrics)
        elif isinstance(stage, SoundStage):
            yield SoundField(stage, metrics, lineage)
        elif isinstance(stage, PlainStage) and stage.payloads:
            yield BytesField(stage, metrics, lineage)

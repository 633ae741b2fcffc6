"""The kinds of fields, in the order in which they are asked for a plan's field. A new kind is named here, and nowhere else."""

from typing import Final

from spiral_stream.plan.nodes import Collate, Deliver
from spiral_stream.plan.tree import need
from spiral_stream.planner.field_stages import FieldStage, PlainStage, SequenceStage, StepTotalStage
from spiral_stream.runtime.fields.bytes import BytesStage

_COPIED: Final[tuple[type[FieldStage], ...]] = (
    SequenceStage,
    BytesStage,
    StepTotalStage,
    PlainStage,  # every other field
)


def kinds_of(plan: Deliver) -> tuple[type[FieldStage], ...]:
    """Return the kinds that fields of a plan may be of; rooms of pictures, clips and sounds only if one is decoded."""
    if not any(field.is_decoded for _, field in need(plan, Collate).fields):
        return _COPIED
    from spiral_stream.runtime.fields.clips import ClipStage
    from spiral_stream.runtime.fields.flat_images import FlatImageStage
    from spiral_stream.runtime.fields.geometry import RecordStage
    from spiral_stream.runtime.fields.image_lists import ImageListStage
    from spiral_stream.runtime.fields.images import ImageStage
    from spiral_stream.runtime.fields.patches import PatchStage
    from spiral_stream.runtime.fields.sounds import SoundStage

    return (ClipStage, SoundStage, ImageListStage, ImageStage, PatchStage, RecordStage, FlatImageStage, *_COPIED)

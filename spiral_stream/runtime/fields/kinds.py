"""The kinds of fields, in the order in which they are asked for a plan's field. A new kind is named here, and nowhere else."""

from typing import Final

from spiral_stream.planner.field_stages import FieldStage, PlainStage, SequenceStage, StepTotalStage
from spiral_stream.runtime.fields.bytes import BytesStage
from spiral_stream.runtime.fields.clips import ClipStage
from spiral_stream.runtime.fields.image_lists import ImageListStage
from spiral_stream.runtime.fields.images import ImageStage
from spiral_stream.runtime.fields.patches import PatchStage
from spiral_stream.runtime.fields.sounds import SoundStage

KINDS: Final[tuple[type[FieldStage], ...]] = (
    *(ClipStage, SoundStage, ImageListStage, ImageStage, PatchStage, SequenceStage, BytesStage),
    StepTotalStage,
    PlainStage,  # every other field
)

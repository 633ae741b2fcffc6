"""What a field of a batch is: stacked, padded, listed, cut into segments; the arithmetic that fills it.

Start at: `field` (the interface), then `stack`.
May not know: where values come from.

It is also the public namespace of fields, and of what one of your own derives from: ``spiral.fields.Stack``.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.fields.boxes import Boxes, BoxLabels, KeyPoints
    from spiral_stream.fields.field import Field, FieldSpec
    from spiral_stream.fields.labels import Labels, ShiftedLabels
    from spiral_stream.fields.list import List
    from spiral_stream.fields.pad import Pad, PadMask
    from spiral_stream.fields.patches import Patches, PatchGrid, PatchMask
    from spiral_stream.fields.segments import CuSeqlens, Positions, Segments
    from spiral_stream.fields.stack import Stack

__all__ = [
    "BoxLabels",
    "Boxes",
    "CuSeqlens",
    "Field",
    "FieldSpec",
    "KeyPoints",
    "Labels",
    "List",
    "Pad",
    "PadMask",
    "PatchGrid",
    "PatchMask",
    "Patches",
    "Positions",
    "Segments",
    "ShiftedLabels",
    "Stack",
]

_LATE: Final = {
    "BoxLabels": "spiral_stream.fields.boxes",
    "Boxes": "spiral_stream.fields.boxes",
    "CuSeqlens": "spiral_stream.fields.segments",
    "Field": "spiral_stream.fields.field",
    "FieldSpec": "spiral_stream.fields.field",
    "KeyPoints": "spiral_stream.fields.boxes",
    "Labels": "spiral_stream.fields.labels",
    "List": "spiral_stream.fields.list",
    "Pad": "spiral_stream.fields.pad",
    "PadMask": "spiral_stream.fields.pad",
    "PatchGrid": "spiral_stream.fields.patches",
    "PatchMask": "spiral_stream.fields.patches",
    "Patches": "spiral_stream.fields.patches",
    "Positions": "spiral_stream.fields.segments",
    "Segments": "spiral_stream.fields.segments",
    "ShiftedLabels": "spiral_stream.fields.labels",
    "Stack": "spiral_stream.fields.stack",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)

"""What a field of a batch is: stacked, padded, listed, cut into segments; the arithmetic that fills it.

Start at: `field` (the interface), then `stack`.
May not know: where values come from.

It is also the public namespace of fields, and of what one of your own derives from: ``spiral.fields.Stack``.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.fields.boxes import Boxes as Boxes
    from spiral_stream.fields.boxes import BoxLabels as BoxLabels
    from spiral_stream.fields.boxes import KeyPoints as KeyPoints
    from spiral_stream.fields.crop_records import CropRecord as CropRecord
    from spiral_stream.fields.crop_records import CropTopLeft as CropTopLeft
    from spiral_stream.fields.crop_records import OriginalSize as OriginalSize
    from spiral_stream.fields.field import Field as Field
    from spiral_stream.fields.field import FieldSpec as FieldSpec
    from spiral_stream.fields.flat_images import FlatImages as FlatImages
    from spiral_stream.fields.flat_images import GridPositions as GridPositions
    from spiral_stream.fields.flat_images import ImageExtents as ImageExtents
    from spiral_stream.fields.flat_images import ImageGrids as ImageGrids
    from spiral_stream.fields.flat_images import ImagePlaces as ImagePlaces
    from spiral_stream.fields.image_layouts import FixedLayout as FixedLayout
    from spiral_stream.fields.image_layouts import ImageLayout as ImageLayout
    from spiral_stream.fields.image_layouts import ImageView as ImageView
    from spiral_stream.fields.image_layouts import PatchLayout as PatchLayout
    from spiral_stream.fields.image_layouts import TileLayout as TileLayout
    from spiral_stream.fields.labels import Labels as Labels
    from spiral_stream.fields.labels import ShiftedLabels as ShiftedLabels
    from spiral_stream.fields.list import List as List
    from spiral_stream.fields.pad import Pad as Pad
    from spiral_stream.fields.pad import PadMask as PadMask
    from spiral_stream.fields.patches import Patches as Patches
    from spiral_stream.fields.patches import PatchGrid as PatchGrid
    from spiral_stream.fields.patches import PatchMask as PatchMask
    from spiral_stream.fields.segments import CuSeqlens as CuSeqlens
    from spiral_stream.fields.segments import Positions as Positions
    from spiral_stream.fields.segments import Segments as Segments
    from spiral_stream.fields.stack import Stack as Stack
    from spiral_stream.fields.step_total import StepTotal as StepTotal

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "fields.boxes": ["BoxLabels", "Boxes", "KeyPoints"],
            "fields.crop_records": ["CropRecord", "CropTopLeft", "OriginalSize"],
            "fields.field": ["Field", "FieldSpec"],
            "fields.flat_images": ["FlatImages", "GridPositions", "ImageExtents", "ImageGrids", "ImagePlaces"],
            "fields.image_layouts": ["FixedLayout", "ImageLayout", "ImageView", "PatchLayout", "TileLayout"],
            "fields.labels": ["Labels", "ShiftedLabels"],
            "fields.list": ["List"],
            "fields.pad": ["Pad", "PadMask"],
            "fields.patches": ["PatchGrid", "PatchMask", "Patches"],
            "fields.segments": ["CuSeqlens", "Positions", "Segments"],
            "fields.stack": ["Stack"],
            "fields.step_total": ["StepTotal"],
        },
    )

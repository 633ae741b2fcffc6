"""What a plan must have for boxes, labels, key points and masks: an image to follow, whose geometry is known."""

from collections.abc import Mapping

from spiral_stream.errors import PlanError
from spiral_stream.fields.boxes import Boxes, BoxLabels, Following, KeyPoints
from spiral_stream.fields.field import Field
from spiral_stream.fields.stack import Stack
from spiral_stream.plan import nodes
from spiral_stream.plan.fields.clips import is_clip
from spiral_stream.plan.fields.dtypes import image_parts
from spiral_stream.plan.fields.profiles import Jpeg, Raw
from spiral_stream.plan.tree import profiles
from spiral_stream.semantic import is_list
from spiral_stream.transforms.chain import MaskProgram
from spiral_stream.transforms.geometry import why_not


def check_followed(node: nodes.Node, fields: Mapping[str, Field]) -> None:
    """Refuse fields that follow what they cannot.

    Raises:
        PlanError: says which field, and what it could follow.
    """
    for name, field in fields.items():
        if isinstance(field, BoxLabels):
            boxes = [other for other, each in fields.items() if isinstance(each, Boxes)]
            if field.of not in boxes:
                have = (
                    f"The fields of boxes are: {', '.join(boxes)}" if boxes else 'Add one: Boxes("column", of="image")'
                )
                msg = f"collate: field {name!r}: of={field.of!r} is no field of Boxes. {have}"
                raise PlanError(msg)
        elif isinstance(field, Following):
            _check_geometry(node, name, field, fields)
        elif isinstance(field, Stack) and field.interpolation == "nearest" and _is_lossy(node, field.column):
            way = f"Keep {field.column!r} as Original() or Raw()"
            msg = f"collate: field {name!r}: a cache of Jpeg changes the labels of masks. {way}"
            raise PlanError(msg)


def _check_geometry(node: nodes.Node, name: str, field: Following, fields: Mapping[str, Field]) -> None:
    what = f"collate: field {name!r}: of={field.of!r}"
    image = fields.get(field.of)
    if not isinstance(image, Stack) or image.decode is None or is_clip(image) or image.interpolation == "nearest":
        images = [
            other
            for other, each in fields.items()
            if isinstance(each, Stack) and each.decode and not is_clip(each) and each.interpolation != "nearest"
        ]
        have = f"The fields of images are: {', '.join(images)}" if images else "Add one: Stack(..., decode=...)"
        msg = f"{what} is no field of images in this batch. {have}"
        raise PlanError(msg)
    assert isinstance(field, Boxes | KeyPoints)
    if is_list(node.schema().field(image.column).type):
        msg = f"{what} has a list of images per row, and boxes and points follow one image. Store one image per row"
        raise PlanError(msg)
    _, program = image_parts(image)
    assert not isinstance(program, MaskProgram)
    silent = why_not(program)
    if silent is not None:
        msg = (
            f"{what}: where {silent} moves boxes and points is not known. Take a transform of spiral_stream or one of "
            "torchvision.transforms.v2 that moves them, or leave it out"
        )
        raise PlanError(msg)
    if not field.relative and _shrinks(node, image.column):
        msg = (
            f"{what}: {image.column!r} is cached in a smaller size, and {field.column!r} counts pixels of the original. Store "
            "coordinates as fractions and write relative=True, or keep the size: Original(), Raw()"
        )
        raise PlanError(msg)


def _is_lossy(node: nodes.Node, column: str) -> bool:
    return isinstance(profiles(node).get(column), Jpeg)


def _shrinks(node: nodes.Node, column: str) -> bool:
    """Whether a cache keeps the column in a smaller size."""
    profile = profiles(node).get(column)
    return isinstance(profile, Jpeg | Raw) and profile.shorter_side is not None

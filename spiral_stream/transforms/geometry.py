"""Move boxes and points with an image through a chain of transforms.

A box is moved by every part of the chain, and cut at the border after each, as torchvision's BoundingBoxes are. A part
that rotates or shears makes it the upright box around its four corners. A box that is cut away stays away.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError
from spiral_stream.transforms.chain import ImageChain, Link
from spiral_stream.transforms.image.image import ImageProgram
from spiral_stream.transforms.image.pixel_transform import Matrix, PixelTransform
from spiral_stream.transforms.image.placement import Placement
from spiral_stream.transforms.image.torchvision_step import Torchvision

# N boxes or points; boxes are XYXY

Float64 = NDArray[np.float64]
Size = tuple[int, int]
_CORNERS: Final = np.array([[0, 1], [2, 1], [0, 3], [2, 3]])


def move_boxes(
    program: ImageProgram | ImageChain, boxes: Float64, size: Size, key: np.uint64
) -> tuple[Float64, NDArray[np.int64]]:
    """Move boxes through a chain.

    Args:
        program: the compiled chain of the image.
        boxes: shape [N, 4], in pixels of the decoded image.
        size: height and width of the decoded image.
        key: the sample's random key, of the image's view.

    Returns:
        shape [M, 4]: the boxes of which some area is left; shape [M]: their places among the N.

    Raises:
        DataError: a transform of torchvision fails.
    """
    left = np.arange(len(boxes))
    boxes, is_inside = _clipped(boxes, size)
    left = left[is_inside]
    for part in _parts(program):
        if isinstance(part, Link) and isinstance(part.step, Torchvision):
            boxes, size = part.step.apply_to_points(boxes, size, part.keys(np.array([key]))[0])
        else:
            moved, size = _matrix(part, size, key)
            if moved is not None and len(boxes):
                corners = boxes[:, _CORNERS].reshape(-1, 2) @ moved[:, :2].T + moved[:, 2]
                corners = corners.reshape(-1, 4, 2)
                boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
        boxes, is_inside = _clipped(boxes, size)
        left = left[is_inside]
    return boxes, left


def move_points(
    program: ImageProgram | ImageChain, points: Float64, size: Size, key: np.uint64
) -> tuple[Float64, Size]:
    """Move points through a chain; arguments as of `move_boxes`, ``points`` of shape [N, 2].

    Returns:
        shape [N, 2], which may lie outside; height and width at the end of the chain.

    Raises:
        DataError: a transform of torchvision fails.
    """
    for part in _parts(program):
        if isinstance(part, Link) and isinstance(part.step, Torchvision):
            points, size = part.step.apply_to_points(points, size, part.keys(np.array([key]))[0])
            continue
        moved, size = _matrix(part, size, key)
        if moved is not None:
            points = points @ moved[:, :2].T + moved[:, 2]
    return points, size


def why_not(program: ImageProgram | ImageChain) -> str | None:
    """Return the step of a chain that says nothing about boxes and points; None if every step does."""
    for part in _parts(program):
        if isinstance(part, Link) and not isinstance(part.step, PixelTransform):
            return f"function {part.step.name}"
        if isinstance(part, Link) and isinstance(part.step, PixelTransform) and not part.step.POINTS:
            return f"{part.step.NAME}"
        if isinstance(part, Link) and isinstance(part.step, Torchvision):
            try:
                part.step.apply_to_points(np.array([[1.0, 1.0, 5.0, 5.0]]), (61, 83), np.uint64(0))
            except DataError as error:
                return f"{part.step.title} of torchvision ({error!s:.150})"
    return None


def _parts(program: ImageProgram | ImageChain) -> tuple[ImageProgram | Link, ...]:
    return program.parts if isinstance(program, ImageChain) else (program,)


def _matrix(part: ImageProgram | Link, size: Size, key: np.uint64) -> tuple[Matrix | None, Size]:
    """Return where a part moves points, and the size after it."""
    keys = np.array([key])
    if isinstance(part, Link):
        assert isinstance(part.step, PixelTransform)
        return part.step.matrix(*size, part.keys(keys)[0]), size
    if not part.steps:
        return None, size
    at = part.geometries(np.array([size[0]], np.int32), np.array([size[1]], np.int32), keys)
    return _moved(at), (int(at.window_h[0]), int(at.window_w[0]))


def _moved(at: Placement) -> Matrix:
    x, y = at.resized_w[0] / at.width[0], at.resized_h[0] / at.height[0]
    out = np.array(
        [[x, 0, -at.left[0] * x - at.window_left[0]], [0, y, -at.top[0] * y - at.window_top[0]]], dtype=np.float64
    )
    if at.flip[0]:  # of the window that is kept
        out[0] = -out[0]
        out[0, 2] += at.window_w[0]
    return out


def _clipped(boxes: Float64, size: Size) -> tuple[Float64, NDArray[np.bool_]]:
    limits = np.array([size[1], size[0], size[1], size[0]], np.float64)
    boxes = np.clip(boxes, 0, limits)
    is_inside = np.asarray((boxes[:, 2:] > boxes[:, :2]).all(axis=1))
    return boxes[is_inside], is_inside

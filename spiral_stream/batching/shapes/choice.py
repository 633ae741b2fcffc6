"""Which of a list of shapes a picture or a clip gets: the one that stretches it least, of as many frames as it has.

Two aspect ratios are as far apart as the larger is times the smaller, so that portrait and landscape count alike. Of shapes
with one ratio a sample gets the largest that has no more pixels than itself, else the smallest. A clip gets the most frames
that it has, else the fewest of the list; its ratio is compared among the shapes of that many frames.

All of it is comparisons of products and of their quotients, which are rounded alike on every machine. Cost: 10 ns per sample
and shape.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Int64

Shape = tuple[int, ...]  # (height, width), or (frames, height, width)
Float64 = NDArray[np.float64]

# S samples, K shapes


def nearest(shapes: Sequence[Shape], widths: Int64, heights: Int64, frames: Int64 | None = None) -> Int64:
    """Return the place in ``shapes`` of each sample's shape.

    Args:
        shapes: K of them, all with a number of frames, or none.
        widths: shape [S], in pixels, each at least 1.
        heights: likewise.
        frames: likewise, where shapes have a number of frames.

    Returns:
        shape [S].
    """
    stretch_SK = stretches(shapes, widths, heights)
    if frames is not None:
        length_K = np.array([shape[0] for shape in shapes], dtype=np.int64)
        fits_SK = length_K <= np.asarray(frames)[:, None]
        most = np.where(fits_SK, length_K, 0).max(axis=1)
        wanted = np.where(most > 0, most, length_K.min())
        stretch_SK = np.where(length_K == wanted[:, None], stretch_SK, np.inf)
    area_K = areas(shapes)
    fits_SK = area_K <= (np.asarray(widths) * np.asarray(heights))[:, None]
    by_area = np.where(fits_SK, -area_K, area_K)  # what fits comes first, the largest of it before others
    by_area = np.where(stretch_SK == stretch_SK.min(axis=1, keepdims=True), by_area, np.iinfo(np.int64).max)
    out: Int64 = by_area.argmin(axis=1).astype(np.int64)
    return out


def stretches(shapes: Sequence[Shape], widths: Int64, heights: Int64) -> Float64:
    """Return how many times as wide or as high, for its height or width, each sample would have to become; shape [S, K]."""
    high, wide = (np.array([shape[side] for shape in shapes], dtype=np.int64) for side in (-2, -1))
    across, along = np.asarray(widths)[:, None] * high, np.asarray(heights)[:, None] * wide
    out: Float64 = np.maximum(across, along) / np.minimum(across, along)
    return out


def areas(shapes: Sequence[Shape]) -> Int64:
    """Return the pixels of each shape, or of one of its frames; shape [K]."""
    return np.array([shape[-2] * shape[-1] for shape in shapes], dtype=np.int64)


def neighbours(shapes: Sequence[Shape]) -> Int64:
    """Return for each shape the others, nearest first: of as many frames, then of fewer, then of more; shape [K, K - 1]."""
    high, wide = (np.array([shape[side] for shape in shapes], dtype=np.int64) for side in (-2, -1))
    stretch_KK, area_K = stretches(shapes, wide, high), areas(shapes)
    length_K = np.array([shape[0] if len(shape) > 2 else 1 for shape in shapes], dtype=np.int64)  # noqa: PLR2004  with frames
    out = []
    for k in range(len(shapes)):  # 20 us each
        more = length_K > length_K[k]
        order = np.lexsort((np.abs(area_K - area_K[k]), stretch_KK[k], np.abs(length_K - length_K[k]), more))
        out.append(order[order != k])
    return np.array(out, dtype=np.int64).reshape(len(shapes), -1)

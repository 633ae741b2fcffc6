"""Crop, resize and mirror masks without inventing values: each pixel of the result is a pixel of the source.

The boxes are those of `transforms.image.placement`, so a mask follows its image. The nearest pixel is torchvision's
(``InterpolationMode.NEAREST``): row ``floor(y * in / out)``, in float32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiral_stream.transforms.image.placement import Placement


def cut(mask: NDArray[Any], at: Placement, i: int) -> NDArray[Any]:
    """Return what a placement leaves of mask ``i``.

    Args:
        mask: shape [H, W, C].
        at: the boxes of a batch.
        i: the mask's place in the batch.

    Returns:
        shape [window_h, window_w, C].
    """
    rows = at.top[i] + _nearest(at.window_top[i], at.window_h[i], at.height[i], at.resized_h[i])
    columns = at.left[i] + _nearest(at.window_left[i], at.window_w[i], at.width[i], at.resized_w[i])
    found: NDArray[Any] = mask[rows[:, None], columns[::-1] if at.flip[i] else columns]
    return found


def _nearest(first: np.int64, count: np.int64, size: np.int64, resized: np.int64) -> NDArray[np.int64]:
    """Return the source place of places [first, first + count) of an axis that is resized."""
    scale = np.float32(size) / np.float32(resized)
    return np.minimum((np.arange(first, first + count, dtype=np.float32) * scale).astype(np.int64), size - 1)
